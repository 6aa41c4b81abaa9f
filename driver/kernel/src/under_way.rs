//! A table of what is under way, with a guard for each entry.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// What is under way, by key.
#[derive(Debug)]
pub struct UnderWay<K: Ord, V = ()>(Mutex<BTreeMap<K, V>>);

/// An entry of [`UnderWay`], removed on drop.
#[derive(Debug)]
pub struct UnderWayGuard<'a, K: Ord, V = ()> {
    table: &'a UnderWay<K, V>,
    /// What is under way.
    pub key: K,
}

impl<K: Ord, V> Default for UnderWay<K, V> {
    fn default() -> Self {
        UnderWay::new()
    }
}

impl<K: Ord, V> UnderWay<K, V> {
    /// A table without entries.
    pub const fn new() -> Self {
        UnderWay(Mutex::new(BTreeMap::new()))
    }

    /// Adds an entry, or replaces the one with this key, if `check` accepts the present entries.
    /// `check` runs under the table's lock.
    pub fn enter_if<E>(
        &self,
        key: K,
        value: V,
        check: impl FnOnce(&BTreeMap<K, V>) -> Result<(), E>,
    ) -> Result<UnderWayGuard<'_, K, V>, E>
    where
        K: Clone,
    {
        let mut table = self.0.lock();
        check(&table)?;
        table.insert(key.clone(), value);
        Ok(UnderWayGuard { table: self, key })
    }
}

impl<K: Ord + Clone> UnderWay<K> {
    /// Adds an entry. `None` if there is one with this key.
    pub fn enter(&self, key: K) -> Option<UnderWayGuard<'_, K>> {
        // An entry that was not added must not be dropped.
        self.0
            .lock()
            .insert(key.clone(), ())
            .is_none()
            .then(|| UnderWayGuard { table: self, key })
    }
}

impl<K: Ord, V> Drop for UnderWayGuard<'_, K, V> {
    fn drop(&mut self) {
        self.table.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_under_way_once_until_its_entry_is_dropped() {
        let all = UnderWay::new();
        let first = all.enter(5).unwrap();
        for _ in 0..2 {
            assert!(all.enter(5).is_none());
        }
        assert_eq!(all.enter(6).unwrap().key, 6);
        drop(first);
        assert!(all.enter(5).is_some());
        assert!(all.0.into_inner().is_empty());
    }
}
