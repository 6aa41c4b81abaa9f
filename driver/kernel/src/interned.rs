//! Values that many objects have in common, each kept once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// Keeps one copy of equal values. A value without another user is dropped before long.
#[derive(Debug)]
pub struct Interned<T: ?Sized>(HashSet<Arc<T>>);

impl<T: ?Sized> Default for Interned<T> {
    fn default() -> Self {
        Interned(HashSet::new())
    }
}

impl<T: ?Sized + Eq + Hash> Interned<T> {
    /// The shared value that equals this one.
    pub fn get(&mut self, value: impl AsRef<T> + Into<Arc<T>>) -> Arc<T> {
        if let Some(known) = self.0.get(value.as_ref()) {
            return known.clone();
        }
        if self.0.len() == self.0.capacity() {
            self.0.retain(|value| Arc::strong_count(value) > 1);
            // Room for as many again, so that a search for unused values pays off.
            self.0.reserve(self.0.len() + 1);
        }
        let value = value.into();
        self.0.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_unused_ones_go() {
        let mut words = Interned::<str>::default();
        let kept: Vec<Arc<str>> = (0..100).map(|n| words.get(format!("kept {n}"))).collect();
        for (n, word) in kept.iter().enumerate() {
            assert!(
                Arc::ptr_eq(word, &words.get(format!("kept {n}").as_str())),
                "{word}"
            );
        }
        for n in 0..10_000 {
            words.get(format!("used once {n}"));
        }
        assert!(words.0.len() < 1_000, "{} values are kept", words.0.len());
        for (n, word) in kept.iter().enumerate() {
            assert!(Arc::ptr_eq(word, &words.get(format!("kept {n}"))), "{word}");
        }
    }
}
