//! What a store leaves out: objects that are too large to be kept, alone or beside the others.
//!
//! Only their names are kept. A user can make any number of them, so the names have a budget, too.
//! When it is used up, the namespace or node with the most names gives one up for each that another
//! one adds. Of an object without a name, only its namespace is remembered: whatever the store
//! lacks in such a namespace may exist, so the API server is asked. The names come back with
//! a later list.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::{Budget, Limits, MAX_NAMES, ObjectAdmission};
use super::{BETWEEN, Key, named};

/// What a name takes besides its text: its entries in three maps, in tree nodes that are two thirds
/// full.
const OVERHEAD: usize = 256;
/// The most namespaces that are remembered for objects without a name. Beyond it, such objects may
/// be in any namespace. They take 1 MiB.
const MAX_NAMESPACES: usize = 10_000;

/// The objects that a store leaves out.
pub(super) struct LeftOut {
    named: BTreeMap<Key, LeftOutObject>,
    /// The bytes of the names, and for whom they count.
    budget: Budget,
    /// The namespaces of the objects without a name.
    unnamed: Namespaces,
    /// Those of them that were seen since the last list began.
    unnamed_since_list: Namespaces,
}

/// An object that is left out, and of which the name is known.
struct LeftOutObject {
    /// What it counts, if it is left out because of the others.
    size: Option<usize>,
    /// True once its users were sent an event.
    is_announced: bool,
    /// True if it was seen since the last list began.
    is_listed: bool,
}

/// A set of namespaces.
#[derive(Debug, PartialEq, Eq)]
enum Namespaces {
    Some(BTreeSet<Box<str>>),
    All,
}

impl Default for Namespaces {
    fn default() -> Self {
        Namespaces::Some(BTreeSet::new())
    }
}

impl Namespaces {
    fn is_empty(&self) -> bool {
        matches!(self, Namespaces::Some(some) if some.is_empty())
    }

    fn contains(&self, namespace: &str) -> bool {
        match self {
            Namespaces::Some(some) => some.contains(namespace),
            Namespaces::All => true,
        }
    }

    fn insert(&mut self, namespace: &str) {
        if let Namespaces::Some(some) = self
            && !some.contains(namespace)
        {
            some.insert(namespace.into());
            if some.len() > MAX_NAMESPACES {
                *self = Namespaces::All;
            }
        }
    }
}

impl LeftOut {
    pub(super) fn new() -> Self {
        LeftOut {
            named: BTreeMap::new(),
            budget: Budget::new(Limits::OF_NAMES),
            unnamed: Namespaces::default(),
            unnamed_since_list: Namespaces::default(),
        }
    }

    /// True if the store has all objects.
    pub(super) fn is_empty(&self) -> bool {
        self.named.is_empty() && self.unnamed.is_empty()
    }

    /// True if an object that the store does not have is, or may be, left out.
    pub(super) fn may_contain(&self, key: &Key) -> bool {
        self.named.contains_key(key) || self.unnamed.contains(namespace_of(key))
    }

    /// True if objects of a namespace are, or may be, left out.
    pub(super) fn has_any_in(&self, namespace: &str) -> bool {
        self.unnamed.contains(namespace) || self.names_in(namespace).next().is_some()
    }

    /// The namespaces and names of the objects, as far as the names are known.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.named.keys().filter_map(|key| key.split_once(BETWEEN))
    }

    /// The known names of a namespace.
    pub(super) fn names_in(&self, namespace: &str) -> impl Iterator<Item = &str> {
        let from = self.named.range(named(namespace, "")..);
        from.map_while(move |(key, _)| {
            let (of, name) = key.split_once(BETWEEN)?;
            (of == namespace).then_some(name)
        })
    }

    /// How many names are known.
    pub(super) fn count(&self) -> usize {
        self.named.len()
    }

    /// Adds an object of a holder, with what it counts if it is left out because of the others.
    /// `is_listed`: the list that is going on has shown it. True if it is new, and its name is
    /// kept.
    pub(super) fn add(
        &mut self,
        key: Key,
        holder: &str,
        size: Option<usize>,
        is_listed: bool,
    ) -> bool {
        let bytes = OVERHEAD + key.len();
        loop {
            match self.budget.admission(&key, Some(holder), bytes) {
                ObjectAdmission::Keep => break,
                ObjectAdmission::PushOut(other) => self.give_up(&other),
                ObjectAdmission::LeaveOut => {
                    self.give_up(&key);
                    return false;
                }
            }
        }
        self.budget.note(&key, Some(holder), bytes);
        let known = self.named.get(&key);
        let is_new = known.is_none();
        let object = LeftOutObject {
            size,
            is_announced: known.is_some_and(|known| known.is_announced),
            is_listed,
        };
        self.named.insert(key, object);
        is_new
    }

    /// Forgets the name of an object, but not that there is one.
    fn give_up(&mut self, key: &Key) {
        self.remove(key);
        self.unnamed.insert(namespace_of(key));
        self.unnamed_since_list.insert(namespace_of(key));
    }

    /// Notes that an object is kept or gone.
    pub(super) fn remove(&mut self, key: &Key) {
        self.named.remove(key);
        self.budget.forget(key);
    }

    /// Notes that its users learn of an object. False if they know of it already, or if its name
    /// is not known: each change of it would tell them again.
    pub(super) fn announce(&mut self, key: &Key) -> bool {
        let Some(object) = self.named.get_mut(key) else {
            return false;
        };
        !std::mem::replace(&mut object.is_announced, true)
    }

    /// Lets the users of all objects learn of them again when a list shows them: the API server has
    /// lost events.
    pub(super) fn announce_again(&mut self) {
        for object in self.named.values_mut() {
            object.is_announced = false;
        }
    }

    /// Notes that a list of all objects begins.
    pub(super) fn begin_list(&mut self) {
        for object in self.named.values_mut() {
            object.is_listed = false;
        }
        self.unnamed_since_list = Namespaces::default();
    }

    /// True if the list that has begun has shown this object.
    pub(super) fn is_listed(&self, key: &Key) -> bool {
        self.named.get(key).is_some_and(|known| known.is_listed)
    }

    /// Forgets what a complete list does not have.
    pub(super) fn end_list(&mut self) {
        let budget = &mut self.budget;
        self.named.retain(|key, object| {
            if !object.is_listed {
                budget.forget(key);
            }
            object.is_listed
        });
        self.unnamed = std::mem::take(&mut self.unnamed_since_list);
    }

    /// The smallest object of each holder that is left out because of the others: its holder, its
    /// key and what it counts. This compares all of them, so it is called rarely.
    pub(super) fn smallest(&self) -> impl Iterator<Item = (&str, &Key, usize)> {
        let mut smallest: BTreeMap<&str, (&Key, usize)> = BTreeMap::new();
        for (key, object) in &self.named {
            let (Some(holder), Some(size)) = (self.budget.holder(key), object.size) else {
                continue;
            };
            let least = smallest.entry(holder).or_insert((key, size));
            if size < least.1 {
                *least = (key, size);
            }
        }
        smallest
            .into_iter()
            .map(|(holder, (key, size))| (holder, key, size))
    }

    /// True if names that were given up have room by now. A list of all objects is costly, so it
    /// is to bring many of them.
    pub(super) fn has_room_for_names(&self) -> bool {
        !self.unnamed.is_empty() && self.budget.total() <= MAX_NAMES / 2
    }

    /// Pretends that there are objects without a name in too many namespaces.
    #[cfg(test)]
    pub(super) fn give_all_up(&mut self) {
        self.unnamed = Namespaces::All;
    }

    /// True if the users of an object are yet to learn of it.
    #[cfg(test)]
    pub(super) fn has_unannounced(&self) -> bool {
        self.named.values().any(|object| !object.is_announced)
    }
}

fn namespace_of(key: &Key) -> &str {
    key.split_once(BETWEEN)
        .map_or("", |(namespace, _)| namespace)
}

#[cfg(test)]
mod tests;
