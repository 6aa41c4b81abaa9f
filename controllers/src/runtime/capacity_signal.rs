//! Word that the driver may have more or less room than before, for the loop that tells the
//! scheduler: and word back that the scheduler has been told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

/// What passes between those who change the room and the one who tells of it.
#[derive(Debug, Default)]
pub struct Room {
    changed: Notify,
    /// How often it has changed.
    changes: AtomicU64,
    /// How many of these have been told of.
    told: watch::Sender<u64>,
    /// Somebody tells.
    attended: AtomicBool,
    /// Somebody waits for what is told next.
    urgent: AtomicBool,
}

impl Room {
    /// It may have changed.
    pub fn change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_one();
    }

    /// It may have changed, and what comes next is to be decided by how it is now: waits until
    /// that has been told, though not for longer than this, nor if nobody tells.
    pub async fn change_and_wait(&self, limit: Duration) {
        self.urgent.store(true, Ordering::SeqCst);
        self.change();
        let changes = self.changes.load(Ordering::SeqCst);
        if !self.attended.load(Ordering::SeqCst) {
            return;
        }
        let mut told = self.told.subscribe();
        // The sender is ours: it can't be gone.
        let _ = tokio::time::timeout(limit, told.wait_for(|told| *told >= changes)).await;
    }

    /// From now on somebody tells.
    pub fn attend(&self) {
        self.attended.store(true, Ordering::SeqCst);
    }

    /// Waits for the next change; for the one who tells.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Whether somebody waits for what is told next; asked once, for it is told then.
    pub fn takes_urgency(&self) -> bool {
        self.urgent.swap(false, Ordering::SeqCst)
    }

    /// How many changes there have been: what is asked of the driver from here on knows of them.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// These changes have been told.
    pub fn told(&self, changes: u64) {
        self.told.send_replace(changes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_where_nobody_tells() {
        let (room, begun) = (Room::default(), Instant::now());
        room.change_and_wait(LIMIT).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        room.attend();
        room.change_and_wait(LIMIT).await;
        assert_eq!(begun.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_telling_that_began_before_does_not_count() {
        let room = Arc::new(Room::default());
        room.attend();
        room.change();
        let before = room.changes();
        let waiting = tokio::spawn({
            let room = room.clone();
            async move { room.change_and_wait(LIMIT).await }
        });
        room.changed().await;
        tokio::task::yield_now().await;
        room.told(before);
        tokio::time::sleep(LIMIT / 2).await;
        assert!(!waiting.is_finished());
        room.told(room.changes());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(waiting.is_finished());
    }
}
