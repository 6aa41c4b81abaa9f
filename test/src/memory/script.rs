//! What goes wrong, and when.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tonic::{Code, Status};

/// What becomes of one call.
#[derive(Clone, Debug)]
pub enum Step {
    /// It is answered as usual.
    Pass,
    /// Nothing is done, and this is the answer.
    Fail(Code),
    /// It is done, and answered like this all the same.
    DoneBut(Code),
    /// It is done after this long, also if the caller hangs up meanwhile.
    Delay(Duration),
    /// It is done, and never answered.
    DropAnswer,
}

impl Step {
    /// The answer of a step that has one.
    pub(super) fn status(code: Code) -> Status {
        Status::new(code, format!("scripted: {code:?}"))
    }
}

#[derive(Default)]
pub(super) struct Script {
    once: BTreeMap<String, VecDeque<Step>>,
    always: BTreeMap<String, Step>,
}

impl Script {
    pub(super) fn add(&mut self, method: &str, steps: impl IntoIterator<Item = Step>) {
        self.once
            .entry(method.to_owned())
            .or_default()
            .extend(steps);
    }

    pub(super) fn always(&mut self, method: &str, step: Step) {
        self.always.insert(method.to_owned(), step);
    }

    pub(super) fn clear(&mut self, method: &str) {
        self.once.remove(method);
        self.always.remove(method);
    }

    pub(super) fn left(&self, method: &str) -> usize {
        self.once.get(method).map_or(0, VecDeque::len)
    }

    pub(super) fn next(&mut self, method: &str) -> Step {
        let once = self.once.get_mut(method).and_then(VecDeque::pop_front);
        let step = once.or_else(|| self.always.get(method).cloned());
        step.unwrap_or(Step::Pass)
    }
}
