//! How much a store keeps of the large objects of one namespace, and of all of them.
//!
//! The client leaves out each object that takes more than 16 KiB, but a user can make any number of
//! those that take less. So the large objects of a namespace have a budget together. What exceeds
//! it is left out, as an object that is too large by itself. The sizes of those are remembered: once
//! there is room for one of them, the watch lists all objects again.
//!
//! A user can also have any number of namespaces, so the large objects of all of them have a budget,
//! too. When it is used up, the namespace with the most bytes gives way to one that would still have
//! less ([`Shares::room`]). So the bytes of the largest namespaces become equal, and a namespace
//! that has less than these is served as if they were not there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde::Serialize;

use super::{BETWEEN, Key, named};
use crate::client::kube::in_memory;

/// Smaller objects don't count: a claim takes about 1 KiB.
const SMALL: usize = 2 * 1024;
/// The most bytes that the large objects of a namespace may take together.
pub(super) const MAX: usize = 8 * 1024 * 1024;
/// The most bytes that the large objects of all namespaces may take together. Four kinds that users
/// write are watched, so these take 48 MiB. A process can have two stores of a kind, one of its
/// node's objects and one of all. Both together are well below the 256 MiB of the controller and the
/// 1 GiB of a node. One namespace does not use up what there is for all.
pub(super) const TOTAL: usize = 12 * 1024 * 1024;

/// The bytes of each large object.
#[derive(Default)]
pub(super) struct Budget {
    kept: BTreeMap<Key, usize>,
    /// The bytes of the kept objects of each namespace that has one.
    of_namespaces: BTreeMap<Box<str>, usize>,
    /// The bytes of all kept objects.
    total: usize,
    /// Those that are left out because of the others.
    left_out: BTreeMap<Key, usize>,
}

/// What an object of a namespace finds.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// The bytes of the namespace's other objects.
    own: usize,
    /// The bytes of all other objects.
    all: usize,
    /// The bytes of the namespace that has most.
    most: usize,
    /// The bytes of that namespace's largest object.
    largest: usize,
}

/// Whether there is room for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Free,
    /// Once the namespace that has most gives up its largest object. More may have to follow, and
    /// there is room in the end.
    OfMost,
    None,
}

impl Shares {
    /// Whether an object of this size has room. Another namespace gives way only to one that has
    /// less afterwards, so the two never push each other out in turns.
    fn room(self, size: usize) -> Room {
        let share = self.own + size;
        let excess = (self.all + size).saturating_sub(TOTAL);
        let suffices = self.largest >= excess || share + excess <= self.most;
        if share > MAX {
            Room::None
        } else if excess == 0 {
            Room::Free
        } else if share < self.most && suffices {
            Room::OfMost
        } else {
            Room::None
        }
    }

    /// Whether all objects are listed again for one of this size that was left out. Namespaces with
    /// about the same bytes would take room from each other with each list. So an object waits for
    /// free room, unless its namespace would still have no more than half of what the largest has.
    fn is_worth_a_list(self, size: usize) -> bool {
        match self.room(size) {
            Room::Free => true,
            Room::OfMost => 2 * (self.own + size) <= self.most,
            Room::None => false,
        }
    }
}

/// What an object needs before it is kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Keep,
    /// Leave this object of another namespace out, and ask again.
    PushOut(Key),
    LeaveOut,
}

impl Budget {
    /// Decides whether an object of this size is kept. Only administrators make objects without a
    /// namespace, so these have no limit.
    pub(super) fn admission(&self, key: &Key, size: usize) -> Admission {
        if size == 0 || namespace_of(key).is_empty() {
            return Admission::Keep;
        }
        let is_full = self.total + size > TOTAL;
        let most = is_full.then(|| self.most()).flatten();
        match self.shares(key, most.as_ref()).room(size) {
            Room::Free => Admission::Keep,
            Room::OfMost => most.map_or(Admission::LeaveOut, |most| Admission::PushOut(most.key)),
            Room::None => Admission::LeaveOut,
        }
    }

    fn shares(&self, key: &Key, most: Option<&Most>) -> Shares {
        let known = self.kept.get(key).copied().unwrap_or_default();
        let own = self.of_namespaces.get(namespace_of(key)).copied();
        Shares {
            own: own.unwrap_or_default() - known,
            all: self.total - known,
            most: most.map_or(0, |most| most.bytes),
            largest: most.map_or(0, |most| most.largest),
        }
    }

    fn most(&self) -> Option<Most> {
        let namespaces = self.of_namespaces.iter();
        let (namespace, bytes) = namespaces.max_by_key(|(_, bytes)| **bytes)?;
        let (key, largest) = self
            .kept_in(namespace)
            .max_by_key(|(_, size)| **size)
            .map(|(key, size)| (key.clone(), *size))?;
        Some(Most {
            bytes: *bytes,
            key,
            largest,
        })
    }

    fn kept_in(&self, namespace: &str) -> impl Iterator<Item = (&Key, &usize)> {
        let first = named(namespace, "");
        let from = self.kept.range(first.clone()..);
        from.take_while(move |(key, _)| key.starts_with(&*first))
    }

    /// Notes the size of an object that is kept.
    pub(super) fn note(&mut self, key: &Key, size: usize) {
        self.forget(key);
        let namespace = namespace_of(key);
        if size == 0 || namespace.is_empty() {
            return;
        }
        self.kept.insert(key.clone(), size);
        *self.of_namespaces.entry(namespace.into()).or_default() += size;
        self.total += size;
    }

    /// Forgets an object that is not kept any more, and returns its size.
    pub(super) fn forget(&mut self, key: &Key) -> usize {
        let Some(size) = self.kept.remove(key) else {
            return 0;
        };
        self.total -= size;
        let namespace = namespace_of(key);
        if let Some(bytes) = self.of_namespaces.get_mut(namespace) {
            *bytes -= size;
            if *bytes == 0 {
                self.of_namespaces.remove(namespace);
            }
        }
        size
    }

    /// Notes an object that is left out because of the others.
    pub(super) fn leave_out(&mut self, key: Key, size: usize) {
        self.left_out.insert(key, size);
    }

    /// Forgets an object that the others do not keep out any more.
    pub(super) fn forget_left_out(&mut self, key: &Key) {
        self.left_out.remove(key);
    }

    /// Forgets all objects that are left out, except these.
    pub(super) fn retain_left_out(&mut self, keys: &BTreeSet<Key>) {
        self.left_out.retain(|key, _| keys.contains(key));
    }

    /// True if an object that is left out because of the others has room by now, and is worth a
    /// list of all.
    pub(super) fn has_room(&self) -> bool {
        let mut smallest: BTreeMap<&str, (&Key, usize)> = BTreeMap::new();
        for (key, &size) in &self.left_out {
            let least = smallest.entry(namespace_of(key)).or_insert((key, size));
            if size < least.1 {
                *least = (key, size);
            }
        }
        if smallest.is_empty() {
            return false;
        }
        let most = self.most();
        let mut smallest = smallest.into_values();
        smallest.any(|(key, size)| self.shares(key, most.as_ref()).is_worth_a_list(size))
    }
}

/// The namespace that has most.
struct Most {
    bytes: usize,
    /// Its largest object.
    key: Key,
    largest: usize,
}

fn namespace_of(key: &Key) -> &str {
    let parts = key.split_once(BETWEEN);
    parts.map_or("", |(namespace, _)| namespace)
}

/// What an object counts: its bytes in the store, or 0 if it is small. A packed object takes its
/// JSON at most, and any other one also something for each value.
pub(super) fn size(object: &impl Serialize, is_packed: bool) -> usize {
    let mut size = Size::default();
    // Every kind serializes to JSON, and counting does not fail.
    let _ = serde_json::to_writer(&mut size, object);
    if size.json <= SMALL {
        0
    } else if is_packed {
        size.json
    } else {
        size.in_memory
    }
}

/// Counts what is written.
#[derive(Default)]
struct Size {
    json: usize,
    in_memory: usize,
}

impl Write for Size {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.json += bytes.len();
        self.in_memory += in_memory(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
