//! What happens to one call.

use std::sync::Arc;
use std::time::Duration;

use hostloop_events::{Call, phase};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

/// How long a caller without a deadline waits for an answer that never comes.
const NEVER: Duration = Duration::from_secs(600);

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done and answered.
    Answered,
    /// It is not done.
    Refused { code: Code, message: String },
    /// It is done, and its caller gets this error instead of the answer.
    Lost { code: Code, message: String },
    /// It is done, and its caller gets no answer.
    Unanswered,
}

/// The fault of a call.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The name of the rule.
    pub rule: Arc<str>,
    pub delay_before: Duration,
    pub delay_after: Duration,
    pub outcome: Outcome,
    /// Cancelled once the process stops: then nothing waits.
    pub stop: CancellationToken,
}

impl Fault {
    /// The word for it in logs and metrics.
    pub fn effect(&self) -> &'static str {
        match self.outcome {
            Outcome::Answered => "delayed",
            Outcome::Refused { .. } => "refused",
            Outcome::Lost { .. } => "lost",
            Outcome::Unanswered => "unanswered",
        }
    }

    /// True if the caller must not see the answer.
    pub fn hides_answer(&self) -> bool {
        matches!(self.outcome, Outcome::Lost { .. } | Outcome::Unanswered)
    }

    /// Shows the fault as a step of a call's event.
    pub fn show_in(&self, event: &Call) {
        let said = format!("rule {:?}: {}", self.rule, self.effect());
        // The step has the rule where others have their error.
        let _shown = event.enter(|| phase("fault", || Err::<(), _>(said)));
    }

    /// Acts before the call. An error refuses it. A call that still waits at the stop is refused.
    pub async fn before(&self) -> Result<(), Status> {
        let waited = self.pause(self.delay_before).await;
        waited.ok_or_else(|| self.stopping())?;
        match &self.outcome {
            Outcome::Refused { code, message } => Err(Status::new(*code, message.as_str())),
            _ => Ok(()),
        }
    }

    /// Acts after the call. An error replaces its answer. The stop holds no answer back.
    pub async fn after(&self) -> Result<(), Status> {
        self.pause(self.delay_after).await;
        match &self.outcome {
            Outcome::Lost { code, message } => Err(Status::new(*code, message.as_str())),
            Outcome::Unanswered => {
                let waited = self.pause(NEVER).await;
                waited.ok_or_else(|| self.stopping())?;
                let why = format!("fault rule {:?}: the call is not answered", self.rule);
                Err(Status::deadline_exceeded(why))
            }
            Outcome::Answered | Outcome::Refused { .. } => Ok(()),
        }
    }

    /// Waits, unless the process stops: then it returns `None`. Without a delay, the task does not
    /// give its turn to others.
    async fn pause(&self, delay: Duration) -> Option<()> {
        if delay.is_zero() {
            return Some(());
        }
        self.stop.run_until_cancelled(sleep(delay)).await
    }

    fn stopping(&self) -> Status {
        let why = format!("fault rule {:?}: the process stops", self.rule);
        Status::unavailable(why)
    }
}

/// Does a call with its fault, if it has one.
pub async fn around<R>(
    fault: Option<Fault>,
    work: impl Future<Output = Result<R, Status>>,
) -> Result<R, Status> {
    let Some(fault) = fault else {
        return work.await;
    };
    fault.before().await?;
    let answer = work.await;
    fault.after().await?;
    answer
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;

    fn fault(outcome: Outcome) -> Fault {
        Fault {
            rule: "r".into(),
            delay_before: Duration::from_secs(1),
            delay_after: Duration::from_secs(2),
            outcome,
            stop: CancellationToken::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_callers_see_and_when() {
        let (code, message) = (Code::Unavailable, "gone".to_owned());
        let refused = Outcome::Refused {
            code,
            message: message.clone(),
        };
        let lost = Outcome::Lost { code, message };
        for (outcome, is_done, seen, seconds) in [
            (Outcome::Answered, true, Ok(7), 3),
            (refused, false, Err(Code::Unavailable), 1),
            (lost, true, Err(Code::Unavailable), 3),
            (Outcome::Unanswered, true, Err(Code::DeadlineExceeded), 603),
        ] {
            let done = Cell::new(false);
            let started = Instant::now();
            let work = async {
                done.set(true);
                Ok(7)
            };
            let answer = around(Some(fault(outcome.clone())), work).await;
            assert_eq!(answer.map_err(|e| e.code()), seen, "{outcome:?}");
            assert_eq!(done.get(), is_done, "{outcome:?}");
            assert_eq!(started.elapsed().as_secs(), seconds, "{outcome:?}");
        }
    }

    /// A delay of minutes would take all the time that the process has for its end.
    #[tokio::test(start_paused = true)]
    async fn nothing_waits_at_the_stop() {
        let lost = Outcome::Lost {
            code: Code::Aborted,
            message: "gone".to_owned(),
        };
        for (stop_ms, outcome, is_done, seen) in [
            (500, Outcome::Answered, false, Err(Code::Unavailable)),
            (1500, Outcome::Answered, true, Ok(7)),
            (1500, lost, true, Err(Code::Aborted)),
            (1500, Outcome::Unanswered, true, Err(Code::Unavailable)),
            (4000, Outcome::Unanswered, true, Err(Code::Unavailable)),
        ] {
            let fault = fault(outcome.clone());
            let stop = fault.stop.clone();
            let done = Cell::new(false);
            let started = Instant::now();
            let call = around(Some(fault), async {
                done.set(true);
                Ok(7)
            });
            let stopping = async {
                sleep(Duration::from_millis(stop_ms)).await;
                stop.cancel();
            };
            let (answer, ()) = tokio::join!(call, stopping);
            assert_eq!(answer.map_err(|e| e.code()), seen, "{outcome:?}");
            assert_eq!(done.get(), is_done, "{outcome:?}");
            let took = started.elapsed().as_millis();
            assert_eq!(took / 100, u128::from(stop_ms) / 100, "{outcome:?}");
        }
    }

    /// The caller must not learn whether the call failed.
    #[tokio::test(start_paused = true)]
    async fn an_error_is_lost_like_an_answer() {
        let lost = fault(Outcome::Lost {
            code: Code::Unavailable,
            message: "gone".to_owned(),
        });
        let failed = async { Err::<(), _>(Status::not_found("no volume")) };
        let seen = around(Some(lost), failed).await.unwrap_err();
        assert_eq!((seen.code(), seen.message()), (Code::Unavailable, "gone"));
    }
}
