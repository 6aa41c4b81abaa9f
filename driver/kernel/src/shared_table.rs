//! A table that is cheap to copy and finds items by their keys. A change of one item costs nearly
//! the same with any number of items, and readers keep what they took.

use std::fmt::Debug;
use std::sync::Arc;

use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};

/// An item that a [`SharedTable`] finds by its keys.
pub trait Keyed {
    /// What the table finds items by.
    type Key: Clone + Debug + Ord;

    /// The keys of this item. The table may have other items with the same keys.
    fn keys(&self) -> impl Iterator<Item = Self::Key>;
}

/// Shared items in the order of their numbers.
#[derive(Debug)]
pub struct SharedTable<T: Keyed> {
    items: RedBlackTreeMapSync<u64, Arc<T>>,
    /// The keys of all items, with the items' numbers.
    index: RedBlackTreeSetSync<(T::Key, u64)>,
}

impl<T: Keyed> SharedTable<T> {
    /// The items, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.items.values().map(|item| &**item)
    }

    /// The numbers of the items, in order.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = u64> {
        self.items.keys().copied()
    }

    /// The item with this number.
    pub fn get(&self, number: u64) -> Option<&Arc<T>> {
        self.items.get(&number)
    }

    /// The numbers of the items with this key, in order.
    pub fn numbers_with(&self, key: T::Key) -> impl DoubleEndedIterator<Item = u64> {
        let range = (key.clone(), 0)..=(key, u64::MAX);
        self.index.range(range).map(|(_, number)| *number)
    }

    /// The items with this key, in order.
    pub fn with(&self, key: T::Key) -> impl DoubleEndedIterator<Item = &Arc<T>> {
        self.numbers_with(key)
            .filter_map(|number| self.items.get(&number))
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.size()
    }

    /// True if there is no item.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds an item, or replaces the one with this number.
    pub(crate) fn insert(&mut self, number: u64, item: Arc<T>) {
        self.remove(number);
        for key in item.keys() {
            self.index.insert_mut((key, number));
        }
        self.items.insert_mut(number, item);
    }

    /// Removes the item with this number, if there is one.
    pub(crate) fn remove(&mut self, number: u64) {
        if let Some(item) = self.items.get(&number).cloned() {
            for key in item.keys() {
                self.index.remove_mut(&(key, number));
            }
            self.items.remove_mut(&number);
        }
    }
}

impl<T: Keyed> Clone for SharedTable<T> {
    fn clone(&self) -> Self {
        SharedTable {
            items: self.items.clone(),
            index: self.index.clone(),
        }
    }
}

impl<T: Keyed> Default for SharedTable<T> {
    fn default() -> Self {
        SharedTable {
            items: RedBlackTreeMapSync::new_sync(),
            index: RedBlackTreeSetSync::new_sync(),
        }
    }
}

/// Equal if the items are, whatever their numbers.
impl<T: Keyed + PartialEq> PartialEq for SharedTable<T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Keyed + Eq> Eq for SharedTable<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A word, found by each of its letters.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Word(&'static str);

    impl Keyed for Word {
        type Key = char;

        fn keys(&self) -> impl Iterator<Item = char> {
            self.0.chars()
        }
    }

    #[test]
    fn items_are_found_by_number_and_key_while_they_are_there() {
        let mut table = SharedTable::default();
        for (number, word) in [(7, "ab"), (3, "b"), (u64::MAX, "bc"), (5, "d")] {
            table.insert(number, Arc::new(Word(word)));
        }
        let words = |table: &SharedTable<Word>| table.iter().map(|w| w.0).collect::<Vec<_>>();
        let with =
            |table: &SharedTable<Word>, key| table.with(key).map(|word| word.0).collect::<Vec<_>>();
        assert_eq!(words(&table), ["b", "d", "ab", "bc"]);
        assert_eq!(with(&table, 'b'), ["b", "ab", "bc"]);
        assert_eq!(with(&table, 'x'), [""; 0]);
        let before = table.clone();
        table.insert(7, Arc::new(Word("c")));
        table.remove(3);
        table.remove(4);
        assert_eq!(
            (words(&table), with(&table, 'a')),
            (vec!["d", "c", "bc"], vec![])
        );
        assert_eq!(with(&table, 'b'), ["bc"]);
        assert_eq!(with(&table, 'c'), ["c", "bc"]);
        assert_eq!((table.len(), table.get(5)), (3, Some(&Arc::new(Word("d")))));
        assert_eq!(with(&before, 'b'), ["b", "ab", "bc"], "a copy stays");
        assert!(table != before);
    }
}
