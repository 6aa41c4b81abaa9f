//! Tidies up after nodes that are gone for good.

use crate::runtime::Context;

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) {
    context.stop.cancelled().await;
}
