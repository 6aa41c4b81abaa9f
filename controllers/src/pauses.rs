//! The pauses of work that goes on whether it succeeds or fails.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::sleep;

/// How long such work rests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    /// After it has succeeded.
    pub(crate) pace: Duration,
    pub(crate) after_failure: Duration,
    /// What the log says of a failure.
    pub(crate) failed: &'static str,
}

impl Pauses {
    /// Rests after a round of the work.
    pub(crate) async fn rest<E: Display>(&self, round: Result<(), E>) {
        let pause = match round {
            Ok(()) => self.pace,
            Err(error) => {
                tracing::warn!(%error, "{}", self.failed);
                self.after_failure
            }
        };
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_has_its_own_pause() {
        let pauses = Pauses {
            pace: Duration::from_secs(60),
            after_failure: Duration::from_secs(5),
            failed: "cannot do it",
        };
        for (round, expected) in [(Ok(()), pauses.pace), (Err("why"), pauses.after_failure)] {
            let began = Instant::now();
            pauses.rest(round).await;
            assert_eq!(began.elapsed().as_secs(), expected.as_secs());
        }
    }
}
