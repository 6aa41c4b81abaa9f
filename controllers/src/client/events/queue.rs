//! A bounded queue of events. Their namespaces take turns.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::ClusterEvent;
use crate::queue::Turns;

/// The events, and the number of the last one.
type SharedEvents = Arc<Mutex<(Turns<ClusterEvent>, u64)>>;

/// Where events enter. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct EventSender {
    events: SharedEvents,
    /// One for each event in the queue.
    places: mpsc::Sender<()>,
}

/// Where events leave.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    events: SharedEvents,
    places: mpsc::Receiver<()>,
}

/// Creates a queue for this many events.
pub(super) fn queue(limit: usize) -> (EventSender, EventReceiver) {
    let (events, (sender, receiver)) = (SharedEvents::default(), mpsc::channel(limit));
    (
        EventSender {
            events: events.clone(),
            places: sender,
        },
        EventReceiver {
            events,
            places: receiver,
        },
    )
}

impl EventSender {
    /// Adds an event. Returns `false` if the queue is full, so that an event is lost: the last one of
    /// the namespace with the most events.
    pub(super) fn put(&self, event: ClusterEvent) -> bool {
        let mut shared = self.events.lock();
        let (events, count) = &mut *shared;
        let namespace = event.about.namespace.clone().unwrap_or_default();
        let place = self.places.try_send(());
        let enters = match &place {
            Ok(()) => true,
            Err(TrySendError::Full(())) => events.give_way(&namespace).is_some(),
            Err(TrySendError::Closed(())) => false,
        };
        if enters {
            *count += 1;
            events.add(&namespace, *count, event);
        }
        place.is_ok()
    }
}

impl EventReceiver {
    /// Waits for the next event; `None` after the last one.
    pub(super) async fn recv(&mut self) -> Option<ClusterEvent> {
        self.places.recv().await?;
        self.events.lock().0.next()
    }

    /// The next event, if there is one.
    pub(super) fn try_recv(&mut self) -> Option<ClusterEvent> {
        self.places.try_recv().ok()?;
        self.events.lock().0.next()
    }

    /// Accepts no more events.
    pub(super) fn close(&mut self) {
        self.places.close();
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// All events, in the order in which they entered.
    #[cfg(test)]
    pub(crate) fn drain(&mut self) -> Vec<ClusterEvent> {
        while self.places.try_recv().is_ok() {}
        std::mem::take(&mut self.events.lock().0).in_order()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use tokio::time::Instant;

    use super::*;
    use crate::client::events::EventKind;

    fn event(namespace: &str) -> ClusterEvent {
        ClusterEvent {
            about: ObjectReference {
                namespace: Some(namespace.to_owned()),
                ..ObjectReference::default()
            },
            kind: EventKind::Warning,
            reason: String::new(),
            message: String::new(),
            emitted: Instant::now(),
            shared: false,
        }
    }

    fn taken(receiver: &mut EventReceiver) -> String {
        let taken = std::iter::from_fn(|| receiver.try_recv());
        taken.filter_map(|event| event.about.namespace).collect()
    }

    #[test]
    fn namespaces_take_turns_and_share_the_room() {
        for (put, lost, expected) in [
            ("aaab", 0, "abaa"),
            // The flood of one namespace loses its own events.
            ("aaaaaab", 3, "abaa"),
            ("aaaabbbb", 4, "abab"),
            ("aaaabc", 2, "abca"),
            ("abcde", 1, "abcd"),
        ] {
            let (sender, mut receiver) = queue(4);
            let kept = put
                .chars()
                .filter(|of| sender.put(event(&of.to_string())))
                .count();
            assert_eq!(put.len() - kept, lost, "{put}");
            assert_eq!(receiver.len(), expected.len());
            assert_eq!(taken(&mut receiver), expected, "{put}");
            assert!(sender.put(event("a")));
            receiver.close();
            assert!(!sender.put(event("a")), "it is closed");
            assert_eq!(taken(&mut receiver), "a");
        }
    }
}
