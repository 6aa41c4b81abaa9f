//! Indexes of a store.

use std::collections::BTreeSet;
use std::ops::{Bound, RangeFrom};
use std::sync::{Arc, Weak};

use super::{Key, STEP, Store, in_steps};
use crate::client::Resource;

/// The longest key, in bytes. Users may write longer texts where a name is expected, but no object
/// has such a name.
const MAX_KEY: usize = 1024;

type KeysOf<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// The entries of an index.
pub(super) struct IndexState<K> {
    /// Expires when the last [`Index`] that reads these entries is dropped.
    used: Weak<()>,
    keys_of: KeysOf<K>,
    /// Most keys have one object, so a set per key would waste memory. Entries with the same key
    /// share its text, also across indexes.
    entries: BTreeSet<(Arc<str>, Key)>,
}

/// Looks up objects of a store by keys other than their names.
pub struct Index<K> {
    watch: Store<K>,
    used: Arc<()>,
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Index {
            watch: self.watch.clone(),
            used: self.used.clone(),
        }
    }
}

impl<K: Resource> Store<K> {
    /// Indexes the objects by the keys that `keys_of` returns.
    pub fn index(&self, keys_of: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) -> Index<K> {
        let used = Arc::new(());
        let mut index = IndexState {
            used: Arc::downgrade(&used),
            keys_of: Box::new(keys_of),
            entries: BTreeSet::new(),
        };
        let mut state = self.lock();
        for (key, object) in &state.objects {
            index.add(key, &object.get(), &mut Vec::new());
        }
        state.indexes.retain(|index| index.used.strong_count() > 0);
        state.indexes.push(index);
        Index {
            watch: self.clone(),
            used,
        }
    }
}

impl<K: Resource> Index<K> {
    /// Returns the objects with this key.
    pub fn get(&self, key: &str) -> Vec<Arc<K>> {
        self.each(key).collect()
    }

    /// Iterates over the objects with this key, [in steps](in_steps).
    pub fn each(&self, key: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        let (index, key): (_, Arc<str>) = (self.clone(), key.into());
        in_steps(move |after| {
            let start = match after {
                Some(object) => Bound::Excluded((key.clone(), object)),
                None => Bound::Included((key.clone(), Key::default())),
            };
            let state = index.watch.lock();
            let entries = index
                .entries(&state.indexes)
                .range((start, Bound::Unbounded));
            let of_key = entries.take_while(|(entry, _)| *entry == key);
            let objects = of_key.filter_map(|(_, key)| state.objects.get_key_value(key));
            objects
                .take(STEP)
                .map(|(key, object)| (key.clone(), object.clone()))
                .collect()
        })
    }

    /// Returns the first object with this key.
    pub fn first(&self, key: &str) -> Option<Arc<K>> {
        let state = self.watch.lock();
        let (entry, named) = self.entries(&state.indexes).range(from(key)).next()?;
        let kept = state
            .objects
            .get(named)
            .cloned()
            .filter(|_| **entry == *key);
        drop(state);
        kept.map(|kept| kept.get())
    }

    /// Returns all keys in order.
    pub fn keys(&self) -> Vec<String> {
        let state = self.watch.lock();
        let mut keys: Vec<String> = Vec::new();
        for (key, _) in self.entries(&state.indexes) {
            if keys.last().is_none_or(|last| **last != **key) {
                keys.push(key.to_string());
            }
        }
        keys
    }

    pub(super) fn entries<'s>(
        &self,
        indexes: &'s [IndexState<K>],
    ) -> &'s BTreeSet<(Arc<str>, Key)> {
        let mut indexes = indexes.iter();
        let own = indexes.find(|index| index.used.as_ptr() == Arc::as_ptr(&self.used));
        // The store keeps the entries as long as this index exists.
        &own.expect("an index in use").entries
    }
}

impl<K: Resource> IndexState<K> {
    fn keys(&self, object: &K) -> Vec<String> {
        let mut keys = (self.keys_of)(object);
        keys.retain(|key| key.len() <= MAX_KEY);
        keys
    }

    /// Adds an object. `texts` holds the keys that other indexes already store for it.
    pub(super) fn add(&mut self, key: &Key, object: &K, texts: &mut Vec<Arc<str>>) {
        for entry in self.keys(object) {
            let known = texts.iter().find(|text| ***text == *entry).cloned();
            let new = from(known.unwrap_or_else(|| entry.into()));
            let mut same = self.entries.range(new.clone());
            let own = same.next().filter(|(own, _)| *own == new.start.0);
            let text = own.map_or(new.start.0, |(own, _)| own.clone());
            texts.push(text.clone());
            self.entries.insert((text, key.clone()));
        }
    }

    pub(super) fn remove(&mut self, key: &Key, object: &K) {
        for entry in self.keys(object) {
            self.entries.remove(&(entry.into(), key.clone()));
        }
    }
}

/// The range of an index's entries that starts at this key.
fn from(key: impl Into<Arc<str>>) -> RangeFrom<(Arc<str>, Key)> {
    (key.into(), Key::default())..
}
