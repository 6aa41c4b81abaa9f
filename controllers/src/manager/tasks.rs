//! The tasks of the process, by name.

use tokio::task::JoinSet;

use super::error::Error;

/// Tasks with names. Each should run until the stop.
#[derive(Default)]
pub(super) struct Tasks(JoinSet<(&'static str, Result<(), String>)>);

impl Tasks {
    pub(super) fn begin(
        &mut self,
        role: &'static str,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.0.spawn(async move {
            // The inner task catches a panic, which is then reported with the name.
            let ended = tokio::spawn(work).await;
            (role, ended.unwrap_or_else(|panicked| Err(panicked.to_string())))
        });
    }

    /// Waits for the first task to end.
    pub(super) async fn next(&mut self) -> Error {
        match self.0.join_next().await {
            Some(Ok((role, ended))) => Error::Ended {
                role,
                why: ended.err().unwrap_or_else(|| "it ended without an error".to_owned()),
            },
            Some(Err(error)) => Error::Ended { role: "a role", why: error.to_string() },
            None => std::future::pending().await,
        }
    }

    /// Waits for all tasks to end after the stop.
    pub(super) async fn finish(&mut self) {
        while let Some(ended) = self.0.join_next().await {
            if let Ok((role, Err(why))) = ended {
                tracing::warn!(role, why, "did not end well");
            }
        }
    }
}
