//! The snapshots and groups that this process saw, and that went lately.
//!
//! A write without an answer may take effect minutes later, also that of a former leader. So a content
//! may come when its snapshot is gone already.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a snapshot is remembered. The API server gives up a request after a minute, but what is
/// between it and its client may hold one back for longer.
const REMEMBERED: Duration = Duration::from_secs(15 * 60);
/// Of more snapshots, the ones that went first are forgotten: users can delete any number.
const MOST: usize = 10_000;

/// The UIDs of snapshots and groups that went lately.
#[derive(Clone, Debug, Default)]
pub(super) struct GoneSnapshots(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    /// When each was last seen to go.
    by_uid: HashMap<String, Instant>,
    /// The same, the first ones first. One that went twice is here twice.
    in_order: VecDeque<(Instant, String)>,
}

impl GoneSnapshots {
    /// Remembers a snapshot that is gone.
    pub(super) fn note(&self, uid: &str) {
        let now = Instant::now();
        let mut remembered = self.0.lock();
        remembered.by_uid.insert(uid.to_owned(), now);
        remembered.in_order.push_back((now, uid.to_owned()));
        remembered.forget(now);
    }

    /// True if this process saw the snapshot with this UID, and it went lately.
    pub(super) fn has(&self, uid: &str) -> bool {
        let remembered = self.0.lock();
        let gone = remembered.by_uid.get(uid);
        gone.is_some_and(|gone| gone.elapsed() < REMEMBERED)
    }
}

impl Remembered {
    fn forget(&mut self, now: Instant) {
        while let Some((gone, uid)) = self.in_order.front() {
            if self.in_order.len() <= MOST && now.duration_since(*gone) < REMEMBERED {
                return;
            }
            if self.by_uid.get(uid) == Some(gone) {
                self.by_uid.remove(uid);
            }
            self.in_order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_is_remembered_for_a_while_after_it_last_went() {
        let gone = GoneSnapshots::default();
        assert!(!gone.has("u"));
        gone.note("u");
        tokio::time::advance(REMEMBERED / 2).await;
        gone.note("u");
        gone.note("v");
        tokio::time::advance(REMEMBERED * 3 / 4).await;
        gone.note("w");
        for uid in ["u", "v", "w"] {
            assert!(gone.has(uid), "{uid}");
        }
        tokio::time::advance(REMEMBERED / 4).await;
        for (uid, expected) in [("u", false), ("v", false), ("w", true)] {
            assert_eq!(gone.has(uid), expected, "{uid}");
        }
        gone.note("x");
        let remembered = gone.0.lock();
        assert_eq!(remembered.by_uid.len(), 2);
        assert_eq!(remembered.in_order.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_snapshots_the_last_are_remembered() {
        let gone = GoneSnapshots::default();
        for number in 0..=MOST {
            gone.note(&number.to_string());
        }
        for (number, expected) in [(0, false), (1, true), (MOST, true)] {
            assert_eq!(gone.has(&number.to_string()), expected, "{number}");
        }
        assert_eq!(gone.0.lock().by_uid.len(), MOST);
    }
}
