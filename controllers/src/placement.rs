//! Places claims, where every node has loops of its own: which node makes a claim's volume.

use crate::runtime::Context;

/// Runs until `context.stop`.
pub(crate) async fn run(context: Context) {
    context.stop.cancelled().await;
}
