//! Helpers for a set of tasks.

use tokio::task::{JoinError, JoinSet};

/// Waits until all tasks have ended.
pub(crate) async fn finish(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        unless_panicked(ended);
    }
}

/// Resumes a task's panic, so that the process does not continue without the task.
pub(crate) fn unless_panicked(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}
