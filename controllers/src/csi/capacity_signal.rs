//! Signals that the driver's free capacity may have changed. The capacity controller publishes the
//! change and confirms it to the waiting caller.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

/// Connects the callers that change capacity with the controller that publishes it.
#[derive(Debug, Default)]
pub struct CapacitySignal {
    changed: Notify,
    /// The number of changes so far.
    changes: AtomicU64,
    /// The number of changes already published.
    published: watch::Sender<u64>,
    /// True once a publisher runs.
    attended: AtomicBool,
    /// True if a caller waits for the next publication.
    urgent: AtomicBool,
}

impl CapacitySignal {
    /// Signals that the capacity may have changed.
    pub fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// Signals a change and waits until it is published, at most for `limit`. Returns at once if no
    /// publisher runs. For callers that cause a decision based on the new capacity.
    pub async fn change_and_wait(&self, limit: Duration) {
        self.urgent.store(true, Ordering::SeqCst);
        self.change();
        let changes = self.changes.load(Ordering::SeqCst);
        if !self.attended.load(Ordering::SeqCst) {
            return;
        }
        let mut published = self.published.subscribe();
        // `self` owns the sender, so the channel is open.
        let _ = tokio::time::timeout(limit, published.wait_for(|published| *published >= changes))
            .await;
    }

    /// Registers the publisher.
    pub fn attend(&self) {
        self.attended.store(true, Ordering::SeqCst);
    }

    /// Waits for the next change. For the publisher only.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// True if a caller waits for the next publication. Resets the flag, because the publisher then
    /// publishes.
    pub fn takes_urgency(&self) -> bool {
        self.urgent.swap(false, Ordering::SeqCst)
    }

    /// The number of changes so far. A later GetCapacity call reflects all of them.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Confirms that this many changes are published.
    pub fn published(&self, changes: u64) {
        self.published.send_replace(changes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn no_publisher_no_wait() {
        let (room, begun) = (CapacitySignal::default(), Instant::now());
        room.change_and_wait(LIMIT).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        room.attend();
        room.change_and_wait(LIMIT).await;
        assert_eq!(begun.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_publication_of_earlier_changes_does_not_count() {
        let room = Arc::new(CapacitySignal::default());
        room.attend();
        room.change();
        let before = room.changes();
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { room.change_and_wait(LIMIT).await }
        });
        room.changed().await;
        tokio::task::yield_now().await;
        room.published(before);
        tokio::time::sleep(LIMIT / 2).await;
        assert!(!waiting.is_finished());
        room.published(room.changes());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(waiting.is_finished());
    }
}
