//! When an event is sent: warnings at once, other normal events after a pause, and a few a second.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::ClusterEvent;
use super::queue::EventReceiver;

/// A normal event waits until there has been no newer one for this long.
pub(super) const QUIET: Duration = Duration::from_secs(5);
/// The longest such wait.
pub(super) const HELD: Duration = Duration::from_secs(120);
/// The wait between two normal events.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// The waiting events.
pub(super) struct Backlog {
    urgent: EventReceiver,
    normal: EventReceiver,
    /// The normal event that is sent next.
    first: Option<ClusterEvent>,
    /// When the newest normal event was emitted.
    last: watch::Receiver<Instant>,
    /// The earliest time at which the rate allows a normal event.
    free: Instant,
}

impl Backlog {
    pub(super) fn new(
        urgent: EventReceiver,
        normal: EventReceiver,
        last: watch::Receiver<Instant>,
    ) -> Self {
        Backlog {
            urgent,
            normal,
            first: None,
            last,
            free: Instant::now(),
        }
    }

    /// Returns the next event once it is due; `None` after the last one.
    pub(super) async fn next(&mut self) -> Option<ClusterEvent> {
        tokio::select! {
            biased;
            Some(event) = self.urgent.recv() => Some(event),
            Some(event) = normal(&mut self.normal, &mut self.first, &self.last, self.free) => {
                self.free = Instant::now() + INTERVAL;
                Some(event)
            }
            else => None,
        }
    }

    /// Stops accepting new events.
    pub(super) fn close(&mut self) {
        self.urgent.close();
        self.normal.close();
    }

    /// Returns the next event, due or not.
    pub(super) fn take(&mut self) -> Option<ClusterEvent> {
        let urgent = self.urgent.try_recv();
        let next = urgent.or_else(|| self.first.take());
        next.or_else(|| self.normal.try_recv())
    }

    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.normal.len() + usize::from(self.first.is_some())
    }
}

/// The next normal event, once it is due. A caller may drop this and call it again: the event stays
/// in `first`.
async fn normal(
    waiting: &mut EventReceiver,
    first: &mut Option<ClusterEvent>,
    last: &watch::Receiver<Instant>,
    free: Instant,
) -> Option<ClusterEvent> {
    if first.is_none() {
        *first = waiting.recv().await;
    }
    let emitted = first.as_ref()?.emitted;
    loop {
        let due = (*last.borrow() + QUIET).min(emitted + HELD).max(free);
        if Instant::now() >= due {
            return first.take();
        }
        sleep_until(due).await;
    }
}
