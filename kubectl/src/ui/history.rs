//! The messages for the page, of a bounded size. A page that is loaded later gets them first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::message::{Message, Slot};

/// The messages, oldest first. Messages that are dropped leave a state behind: the last object,
/// report or problem of each slot.
pub(super) struct History {
    limit: usize,
    state: Mutex<HistoryState>,
    changed: Notify,
}

#[derive(Default)]
struct HistoryState {
    /// What dropped messages leave.
    base: BTreeMap<String, Arc<str>>,
    /// The number of the oldest message.
    first: u64,
    bytes: usize,
    messages: VecDeque<Message>,
}

/// Messages that follow each other.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    /// The messages.
    pub(super) texts: Vec<Arc<str>>,
    /// The number of the next message.
    pub(super) next: u64,
}

impl History {
    /// Creates an empty history for this many bytes of messages.
    pub(super) fn new(limit: usize) -> History {
        History {
            limit,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Adds a message, and drops the oldest ones if there is no room.
    pub(super) fn add(&self, message: Message) {
        {
            let mut state = self.state.lock();
            state.bytes += message.text.len();
            state.messages.push_back(message);
            while state.bytes > self.limit
                && let Some(oldest) = state.messages.pop_front()
            {
                state.bytes -= oldest.text.len();
                state.first += 1;
                state.keep(oldest);
            }
        }
        self.changed.notify_waiters();
    }

    /// All messages, after the state that dropped ones left.
    pub(super) fn all(&self) -> Batch {
        let state = self.state.lock();
        let messages = state.messages.iter().map(|message| &message.text);
        let texts = state.base.values().chain(messages).cloned().collect();
        Batch {
            texts,
            next: state.end(),
        }
    }

    /// The messages from this number on. `None` if some of them are dropped.
    pub(super) fn since(&self, from: u64) -> Option<Batch> {
        let state = self.state.lock();
        let skip = usize::try_from(from.checked_sub(state.first)?).ok()?;
        let messages = state.messages.iter().skip(skip);
        let texts = messages.map(|message| message.text.clone()).collect();
        Some(Batch {
            texts,
            next: state.end(),
        })
    }

    /// Resolves at the next message after this call, once it is enabled or polled.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

impl HistoryState {
    fn end(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// Keeps what a dropped message leaves.
    fn keep(&mut self, message: Message) {
        match message.slot {
            Slot::None => {}
            Slot::Filled(slot) => _ = self.base.insert(slot, message.text),
            Slot::Emptied(slot) => _ = self.base.remove(&slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str, slot: Slot) -> Message {
        Message {
            text: text.into(),
            slot,
        }
    }

    fn texts(batch: &Batch) -> Vec<&str> {
        batch.texts.iter().map(|text| &**text).collect()
    }

    #[test]
    fn dropped_messages_leave_the_last_state() {
        let history = History::new(4);
        let filled = |slot: &str| Slot::Filled(slot.to_owned());
        history.add(message("a1", filled("a")));
        history.add(message("b1", filled("b")));
        assert_eq!(texts(&history.all()), ["a1", "b1"]);
        history.add(message("a2", filled("a")));
        history.add(message("--", Slot::None));
        assert_eq!(texts(&history.all()), ["a1", "b1", "a2", "--"]);
        history.add(message("b3", Slot::Emptied("b".to_owned())));
        assert_eq!(texts(&history.all()), ["a2", "b1", "--", "b3"]);
        for text in ["--", "++"] {
            history.add(message(text, Slot::None));
        }
        assert_eq!(texts(&history.all()), ["a2", "--", "++"]);
        assert_eq!(history.all().next, 7);
    }

    #[test]
    fn a_reader_continues_where_it_stopped_or_learns_that_it_is_late() {
        let history = History::new(6);
        for text in ["aa", "bb", "cc", "dd"] {
            history.add(message(text, Slot::None));
        }
        for (from, expected) in [
            (0, None),
            (1, Some(vec!["bb", "cc", "dd"])),
            (3, Some(vec!["dd"])),
            (4, Some(vec![])),
        ] {
            let batch = history.since(from);
            assert_eq!(batch.as_ref().map(texts), expected, "{from}");
            assert!(batch.is_none_or(|batch| batch.next == 4));
        }
    }
}
