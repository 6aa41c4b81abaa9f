//! The most recently changed objects of a watch.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Key;

/// Number of objects. Several controllers read an object within milliseconds of its change, and
/// then rarely.
const COUNT: usize = 8;

/// A few objects, the oldest first.
pub(super) struct Recent<K>(VecDeque<(Key, Arc<K>)>);

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Recent(VecDeque::new())
    }
}

impl<K> Recent<K> {
    /// Returns the object as last stored, unless newer objects have displaced it.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<K>> {
        let mut known = self.0.iter().rev();
        let (_, object) = known.find(|(known, _)| known == key)?;
        Some(object.clone())
    }

    /// Stores an object and replaces its older version.
    pub(super) fn put(&mut self, key: Key, object: Arc<K>) {
        self.remove(&key);
        if self.0.len() == COUNT {
            self.0.pop_front();
        }
        self.0.push_back((key, object));
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.0.retain(|(known, _)| known != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        super::super::named("default", &format!("data-{number}"))
    }

    #[test]
    fn the_last_are_known_as_they_were_put_in_last() {
        let mut recent = Recent::default();
        for number in 0..COUNT {
            recent.put(key(number), Arc::new(number));
        }
        recent.put(key(0), Arc::new(100));
        recent.put(key(COUNT), Arc::new(COUNT));
        recent.remove(&key(5));
        for (number, expected) in [(0, Some(100)), (1, None), (2, Some(2)), (5, None)] {
            assert_eq!(recent.get(&key(number)).as_deref(), expected.as_ref(), "{number}");
        }
        assert_eq!(recent.get(&key(COUNT)).as_deref(), Some(&COUNT));
        assert_eq!(recent.0.len(), COUNT - 1);
    }
}
