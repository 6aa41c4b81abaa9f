//! Tasks that do one piece of work together.

use tokio::task::{JoinError, JoinSet};

/// Waits until all have ended.
pub(crate) async fn finish(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        unless_panicked(ended);
    }
}

/// A panic of one is the process's: it must not go on with less than it seems.
pub(crate) fn unless_panicked(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}
