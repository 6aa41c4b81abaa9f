//! Items that wait while their namespaces take turns.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// Items that wait, by namespace. Each turn takes the first item of the next namespace. So an item
/// waits for the earlier ones of its own namespace, and for at most as many of each other one.
#[derive(Debug)]
pub struct Turns<T> {
    /// The namespaces with items, the next one first.
    order: VecDeque<Arc<str>>,
    /// The items of these namespaces, by number.
    items: HashMap<Arc<str>, BTreeMap<u64, T>>,
    len: usize,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns { order: VecDeque::new(), items: HashMap::new(), len: 0 }
    }
}

impl<T> Turns<T> {
    /// Adds an item. Its number must be unique within its namespace, which takes its items in the
    /// order of their numbers.
    pub fn add(&mut self, namespace: &str, number: u64, item: T) {
        self.len += 1;
        if let Some(items) = self.items.get_mut(namespace) {
            items.insert(number, item);
            return;
        }
        let namespace: Arc<str> = namespace.into();
        self.order.push_back(namespace.clone());
        self.items.insert(namespace, BTreeMap::from([(number, item)]));
    }

    /// Takes the first item of the next namespace for which `may` returns true; it gets the namespace
    /// and the item's number. The others keep their turns.
    pub fn take_if(&mut self, may: impl Fn(&str, u64) -> bool) -> Option<T> {
        let is_next = |namespace: &Arc<str>| {
            let first = self.items[namespace].first_key_value();
            first.is_some_and(|(number, _)| may(namespace, *number))
        };
        let at = self.order.iter().position(is_next)?;
        let namespace = self.order.remove(at)?;
        let items = self.items.get_mut(&namespace)?;
        let (_, item) = items.pop_first()?;
        self.len -= 1;
        if items.is_empty() {
            self.items.remove(&namespace);
        } else {
            self.order.push_back(namespace);
        }
        Some(item)
    }

    /// Removes an item out of turn.
    pub fn remove(&mut self, namespace: &str, number: u64) -> Option<T> {
        let items = self.items.get_mut(namespace)?;
        let item = items.remove(&number)?;
        self.len -= 1;
        if items.is_empty() {
            self.items.remove(namespace);
            self.order.retain(|one| **one != *namespace);
        }
        Some(item)
    }

    /// Removes the last item of the namespace with the most items, if it still has as many as this
    /// one then has with one more.
    pub(crate) fn give_way(&mut self, namespace: &str) -> Option<T> {
        let own = self.items.get(namespace).map_or(0, BTreeMap::len);
        let (most, items) = self.items.iter().max_by_key(|(_, items)| items.len())?;
        let (last, _) = items.last_key_value().filter(|_| items.len() > own + 1)?;
        let (most, last) = (most.clone(), *last);
        self.remove(&most, last)
    }

    /// All items, by number.
    #[cfg(test)]
    pub(crate) fn in_order(self) -> Vec<T> {
        let items: BTreeMap<u64, T> = self.items.into_values().flatten().collect();
        items.into_values().collect()
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without any item.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Iterator for Turns<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.take_if(|_, _| true)
    }
}

#[cfg(test)]
mod tests;
