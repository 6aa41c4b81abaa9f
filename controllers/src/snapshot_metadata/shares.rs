//! Shares of what callers have in common. No caller has all: it leaves a part free for the next one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::queue::may_take;

/// A limited number of places, of which no caller may have all ([`may_take`]). There may be several
/// groups of such places.
#[derive(Debug)]
pub(super) struct Shares {
    /// The places of each group.
    total: usize,
    /// The places in use, by group and owner. Owners without one are not there.
    held: Mutex<HashMap<String, HashMap<String, usize>>>,
    freed: Notify,
}

/// A place. Dropping it frees it.
#[derive(Debug)]
pub(super) struct Share {
    shares: Arc<Shares>,
    group: String,
    owner: String,
}

impl Shares {
    /// Makes groups of this many places.
    pub(super) fn new(total: usize) -> Arc<Self> {
        Arc::new(Shares {
            total,
            held: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Takes a place of a group; `None` if the owner may have no more at present.
    pub(super) fn try_take(self: &Arc<Self>, group: &str, owner: &str) -> Option<Share> {
        let mut groups = self.held.lock();
        let held = groups.get(group);
        let used: usize = held.map_or(0, |held| held.values().sum());
        let own = held.and_then(|held| held.get(owner)).copied();
        if !may_take(own.unwrap_or(0), self.total.saturating_sub(used)) {
            return None;
        }
        let held = groups.entry(group.to_owned()).or_default();
        *held.entry(owner.to_owned()).or_default() += 1;
        Some(Share {
            shares: self.clone(),
            group: group.to_owned(),
            owner: owner.to_owned(),
        })
    }

    /// Waits for a place of a group.
    pub(super) async fn take(self: &Arc<Self>, group: &str, owner: &str) -> Share {
        loop {
            let freed = self.freed.notified();
            if let Some(share) = self.try_take(group, owner) {
                return share;
            }
            freed.await;
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut groups = self.shares.held.lock();
        if let Some(held) = groups.get_mut(&self.group) {
            if let Some(own) = held.get_mut(&self.owner) {
                *own -= 1;
                if *own == 0 {
                    held.remove(&self.owner);
                }
            }
            if held.is_empty() {
                groups.remove(&self.group);
            }
        }
        drop(groups);
        self.shares.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Takes places until there is none.
    fn take_all(shares: &Arc<Shares>, group: &str, owner: &str) -> Vec<Share> {
        std::iter::from_fn(|| shares.try_take(group, owner)).collect()
    }

    #[test]
    fn no_owner_has_all_places() {
        let shares = Shares::new(16);
        let greedy = take_all(&shares, "g", "a");
        assert_eq!(greedy.len(), 12);
        let next = take_all(&shares, "g", "b");
        assert_eq!(next.len(), 3);
        assert_eq!(take_all(&shares, "g", "c").len(), 1);
        assert_eq!(take_all(&shares, "h", "a").len(), 12, "another group");
        drop(greedy);
        assert_eq!(take_all(&shares, "g", "a").len(), 9);
        drop(next);
        assert!(shares.held.lock().is_empty(), "nothing is left of owners");
    }

    #[tokio::test]
    async fn a_place_is_waited_for() {
        let shares = Shares::new(16);
        let mut greedy = take_all(&shares, "", "a");
        let mut waiting = Box::pin(shares.take("", "a"));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(shares.take("", "b").now_or_never().is_some());
        greedy.pop();
        waiting.await;
    }
}
