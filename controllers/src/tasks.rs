//! The tasks of a process, by name.

use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Tasks that run until the stop. If one ends earlier, the process ends: a process that does half
/// its work looks healthy and is not. Dropping this ends them all.
#[derive(Debug, Default)]
pub struct Tasks(JoinSet<(&'static str, Result<(), String>)>);

/// A task ended before the stop.
#[derive(Debug, thiserror::Error)]
#[error("{role} ended: {why}")]
pub struct Ended {
    pub role: &'static str,
    pub why: String,
}

impl Tasks {
    /// Starts a task.
    pub fn start(
        &mut self,
        role: &'static str,
        work: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.0.spawn(async move {
            // The inner task catches a panic, which is then reported with the name.
            let ended = AbortOnDropHandle::new(tokio::spawn(work)).await;
            (
                role,
                ended.unwrap_or_else(|panicked| Err(panicked.to_string())),
            )
        });
    }

    /// Starts a task that can't fail.
    pub fn keep(&mut self, role: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(role, async move {
            work.await;
            Ok(())
        });
    }

    /// Waits for the next task that ends. Without tasks, it waits forever.
    pub async fn next(&mut self) -> Ended {
        match self.0.join_next().await {
            Some(Ok((role, ended))) => {
                let why = ended
                    .err()
                    .unwrap_or_else(|| "it stopped without a request".to_owned());
                Ended { role, why }
            }
            Some(Err(error)) => Ended {
                role: "a role",
                why: error.to_string(),
            },
            None => std::future::pending().await,
        }
    }

    /// Waits for all tasks to end after the stop.
    pub async fn finish(&mut self) {
        while let Some(ended) = self.0.join_next().await {
            if let Ok((role, Err(why))) = ended {
                tracing::warn!(role, why, "a task ended with an error");
            }
        }
    }
}
