//! The keys of the objects of a watch that changed last.

use std::collections::VecDeque;

use super::Key;

/// Number of objects. Several controllers read an object within milliseconds of its change, and
/// then rarely. A new claim changes several times until it is bound.
const COUNT: usize = 32;

/// A few keys, the oldest first.
#[derive(Default)]
pub(super) struct Recent(VecDeque<Key>);

impl Recent {
    /// Adds a key as the newest, and returns the one that it displaces.
    pub(super) fn put(&mut self, key: Key) -> Option<Key> {
        self.remove(&key);
        self.0.push_back(key);
        if self.0.len() > COUNT {
            self.0.pop_front()
        } else {
            None
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.0.retain(|known| known != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        crate::cache::store::named("default", &format!("data-{number}"))
    }

    #[test]
    fn the_one_that_changed_first_is_displaced() {
        let mut recent = Recent::default();
        for number in 0..COUNT {
            assert_eq!(recent.put(key(number)), None);
        }
        assert_eq!(recent.put(key(0)), None, "it changed again");
        assert_eq!(recent.put(key(COUNT)), Some(key(1)));
        recent.remove(&key(5));
        assert_eq!(recent.put(key(1)), None, "one was deleted");
        assert_eq!(recent.put(key(5)), Some(key(2)));
    }
}
