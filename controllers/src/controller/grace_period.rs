//! Tracks how long a state has lasted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// The keys in the state, and since when without a break.
#[derive(Debug)]
pub(crate) struct GracePeriod<K>(BTreeMap<K, Instant>);

impl<K> Default for GracePeriod<K> {
    fn default() -> Self {
        GracePeriod(BTreeMap::new())
    }
}

impl<K: Ord + Clone> GracePeriod<K> {
    /// Records the keys that are in the state now. A key that was absent starts again from zero.
    /// Returns the keys that have been in the state for at least `grace`.
    pub(crate) fn due(&mut self, now: BTreeSet<K>, at: Instant, grace: Duration) -> BTreeSet<K> {
        self.0.retain(|key, _| now.contains(key));
        for key in now {
            self.0.entry(key).or_insert(at);
        }
        let due = self.0.iter();
        due.filter(|(_, since)| at.duration_since(**since) >= grace)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Removes a key that was not in the state after all.
    pub(crate) fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// When the next key completes its grace period, among those that have not yet.
    pub(crate) fn next(&self, at: Instant, grace: Duration) -> Option<Instant> {
        let ends = self.0.values().map(|since| *since + grace);
        ends.filter(|end| *end > at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_restarts_the_grace_period() {
        let start = Instant::now();
        let grace = Duration::from_secs(300);
        let mut since = GracePeriod::default();
        let mut at = |seconds: u64, seen: &str| {
            let seen = seen.chars().collect();
            let due = since.due(seen, start + Duration::from_secs(seconds), grace);
            due.into_iter().collect::<String>()
        };
        for (seconds, seen, due) in [
            (0, "ab", ""),
            (299, "ab", ""),
            (300, "abc", "ab"),
            (310, "bc", "b"),
            (600, "abc", "bc"),
            (899, "abc", "bc"),
            (900, "abc", "abc"),
            (910, "", ""),
            (911, "abc", ""),
        ] {
            assert_eq!(at(seconds, seen), due, "after {seconds} s");
        }
    }

    #[test]
    fn the_next_end_of_a_grace_period() {
        let start = Instant::now();
        let grace = Duration::from_secs(10);
        let later = |seconds| start + Duration::from_secs(seconds);
        let mut since = GracePeriod::default();
        assert_eq!(since.next(start, grace), None);
        since.due(BTreeSet::from(["a"]), start, grace);
        since.due(BTreeSet::from(["a", "b"]), later(4), grace);
        assert_eq!(since.next(later(4), grace), Some(later(10)));
        assert_eq!(since.next(later(10), grace), Some(later(14)));
        since.forget(&"b");
        assert_eq!(since.next(later(10), grace), None);
    }
}
