//! Answers of the API server to hostloop that are errors, or late.

use std::time::Duration;

use http::Response;
use kube::client::Body;
use serde_json::json;

use crate::dice::Dice;

/// How late a late answer is, in milliseconds.
const SLOW: (u64, u64) = (1000, 25_000);

/// What becomes of single answers, and until when.
#[derive(Default)]
pub(super) struct Answers {
    /// So many of a hundred requests get an error with this code.
    refused: (u64, u16, Duration),
    /// So many of a hundred answers are late.
    slow: (u64, Duration),
}

/// What becomes of the answer to one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerOutcome {
    pub(super) refusal: Option<Refusal>,
    /// How late it is.
    pub(super) delay: Duration,
}

/// An error that a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    /// The request takes effect, as one that timed out in the database may.
    pub(super) is_done: bool,
}

impl Answers {
    /// Refuses so many of a hundred requests until a time.
    pub(super) fn refuse(&mut self, percent: u64, code: u16, until: Duration) {
        self.refused = (percent, code, until);
    }

    /// Delays so many of a hundred answers until a time.
    pub(super) fn delay(&mut self, percent: u64, until: Duration) {
        self.slow = (percent, until);
    }

    /// What becomes of the answer to a request, by its number among those of its actor.
    pub(super) fn outcome(
        &self,
        now: Duration,
        (seed, actor, number): (u64, &str, u64),
    ) -> AnswerOutcome {
        let (refused, code, refused_until) = self.refused;
        let (slow, slow_until) = self.slow;
        let (is_refusing, is_slow) = (now < refused_until, now < slow_until);
        if !is_refusing && !is_slow {
            return AnswerOutcome::default();
        }
        let mut dice = Dice::of(seed, &format!("{actor} answers"), number);
        let refusal = (dice.percent(refused) && is_refusing).then(|| Refusal {
            code,
            is_done: code == 500 && dice.percent(50),
        });
        let is_late = dice.percent(slow) && is_slow;
        AnswerOutcome {
            refusal,
            delay: if is_late {
                dice.millis(SLOW.0, SLOW.1)
            } else {
                Duration::ZERO
            },
        }
    }
}

impl Refusal {
    /// The answer, as kube-apiserver gives it.
    pub(super) fn answer(self) -> Response<Body> {
        let answer = Response::builder().status(self.code);
        let (message, reason) = match self.code {
            429 => {
                let answer = answer
                    .header("content-type", "text/plain; charset=utf-8")
                    .header("retry-after", "1");
                let text = "Too many requests, please try again later.\n";
                return answer
                    .body(Body::from(text.as_bytes().to_vec()))
                    .expect("an answer");
            }
            500 => ("etcdserver: request timed out", "InternalError"),
            _ => (
                "the server is currently unable to handle the request",
                "ServiceUnavailable",
            ),
        };
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": message, "reason": reason, "code": self.code});
        let answer = answer.header("content-type", "application/json");
        let body = Body::from(status.to_string().into_bytes());
        answer.body(body).expect("an answer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_fail_and_are_late_for_some_time() {
        let mut answers = Answers::default();
        let second = Duration::from_secs(1);
        answers.refuse(50, 500, 10 * second);
        answers.delay(50, 20 * second);
        for (at, refused, late) in [(0_u32, true, true), (10, false, true), (20, false, false)] {
            let outcomes: Vec<AnswerOutcome> = (0..200)
                .map(|number| answers.outcome(at * second, (7, "node", number)))
                .collect();
            let again = answers.outcome(at * second, (7, "node", 3));
            assert_eq!(outcomes[3], again);
            let refusals = outcomes.iter().filter_map(|outcome| outcome.refusal);
            let refusals: Vec<Refusal> = refusals.collect();
            assert_eq!(!refusals.is_empty(), refused, "{at}");
            for is_done in [false, true] {
                assert_eq!(refusals.iter().any(|one| one.is_done == is_done), refused);
            }
            assert_eq!(
                outcomes.iter().any(|outcome| !outcome.delay.is_zero()),
                late,
                "{at}"
            );
            assert!(
                outcomes
                    .iter()
                    .any(|outcome| *outcome == AnswerOutcome::default())
            );
        }
    }

    #[test]
    fn each_refusal_has_its_code_and_says_when_to_retry() {
        for (code, retry) in [(429, true), (500, false), (503, false)] {
            let refusal = Refusal {
                code,
                is_done: false,
            };
            let answer = refusal.answer();
            assert_eq!(answer.status().as_u16(), code);
            assert_eq!(answer.headers().contains_key("retry-after"), retry);
        }
    }
}
