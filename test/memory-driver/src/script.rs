//! Scripted failures.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tonic::{Code, Status};

/// The course of one call.
#[derive(Clone, Debug)]
pub enum Step {
    /// The call succeeds or fails as usual.
    Pass,
    /// The call fails with this code and has no effect.
    Fail(Code),
    /// The call has its effect, and fails with this code.
    DoneBut(Code),
    /// The call takes effect after this time, even if the caller disconnects before.
    Delay(Duration),
    /// The call has its effect, and never returns.
    DropAnswer,
}

impl Step {
    /// The status of a scripted failure.
    pub(crate) fn status(code: Code) -> Status {
        Status::new(code, format!("scripted: {code:?}"))
    }
}

#[derive(Default)]
pub(crate) struct Script {
    once: BTreeMap<String, VecDeque<Step>>,
    always: BTreeMap<String, Step>,
}

impl Script {
    pub(crate) fn add(&mut self, method: &str, steps: impl IntoIterator<Item = Step>) {
        let queue = self.once.entry(method.to_owned()).or_default();
        queue.extend(steps);
    }

    pub(crate) fn always(&mut self, method: &str, step: Step) {
        self.always.insert(method.to_owned(), step);
    }

    pub(crate) fn clear(&mut self, method: &str) {
        self.once.remove(method);
        self.always.remove(method);
    }

    pub(crate) fn left(&self, method: &str) -> usize {
        self.once.get(method).map_or(0, VecDeque::len)
    }

    pub(crate) fn next(&mut self, method: &str) -> Step {
        let once = self.once.get_mut(method).and_then(VecDeque::pop_front);
        let step = once.or_else(|| self.always.get(method).cloned());
        step.unwrap_or(Step::Pass)
    }
}
