//! What does not work, for the page: each problem once, until it is solved.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::history::History;
use super::message::Message;

/// The problems. Clones share them.
#[derive(Clone)]
pub(super) struct Problems {
    history: Arc<History>,
    open: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Problems {
    pub(super) fn new(history: Arc<History>) -> Problems {
        Problems {
            history,
            open: Arc::default(),
        }
    }

    /// Reports a problem, unless it is known in these words.
    pub(super) fn found(&self, about: &str, text: &str) {
        let mut open = self.open.lock();
        if open.get(about).is_none_or(|known| known != text) {
            open.insert(about.to_owned(), text.to_owned());
            self.history.add(Message::problem(about, text));
        }
    }

    /// Reports that a problem is solved, if there was one.
    pub(super) fn solved(&self, about: &str) {
        let mut open = self.open.lock();
        if open.remove(about).is_some() {
            self.history.add(Message::solved(about));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_is_reported_once() {
        let history = Arc::new(History::new(1 << 20));
        let problems = Problems::new(history.clone());
        problems.solved("a");
        for text in ["x", "x", "y"] {
            problems.found("a", text);
        }
        problems.solved("a");
        problems.clone().solved("a");
        problems.found("a", "x");
        assert_eq!(history.all().texts.len(), 4);
    }
}
