//! How much a store keeps of the objects of one namespace, and of all of them.
//!
//! The client leaves out each object that takes more than 16 KiB, but a user can make any number of
//! those that take less. So the objects of a namespace have a budget together, in which each counts
//! what it takes in memory: its bytes in the store, its key, and its entries in maps and indexes
//! ([`counted`]). What exceeds the budget is left out, as an object that is too large by itself
//! ([`LeftOut`](super::left_out::LeftOut)). The sizes of those are remembered: once there is room
//! for one of them, the watch lists all objects again.
//!
//! A user can also have any number of namespaces, so the objects of all of them have a budget, too.
//! When it is used up, the namespace with the most bytes gives way to one that would still have
//! less ([`Shares::room`]). So the bytes of the largest namespaces become equal, and a namespace
//! that has less than these is served as if they were not there.
//!
//! Nodes write volumes and capacities. Those of a node have a budget together, in the same way
//! ([`holder_of`](super::holder::holder_of)). All nodes together have none: an attacker has few of
//! them, and a large cluster many.
//!
//! A packed object counts its JSON until it is packed, which is more. So what is decided by the
//! larger number stays right afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;

use super::Key;
use super::holder;
use crate::client::kube::in_memory;

/// The most bytes that the objects of a namespace may take together: 15,000 usual claims.
pub(super) const MAX: usize = 16 * 1024 * 1024;
/// The most bytes that the objects of all namespaces may take together. Four kinds that users write
/// are watched, so these take 104 MiB. Volumes and capacities of a stolen node take 16 MiB more,
/// and the names of what is left out 24 MiB. The controller has 256 MiB. A node has 1 GiB, and can
/// have two stores of a kind, one of its own objects and one of all. One namespace does not use up
/// what there is for all.
pub(super) const TOTAL: usize = 26 * 1024 * 1024;
/// The most bytes that the objects of a node may take together: some 9,000 usual volumes.
const MAX_OF_NODE: usize = 8 * 1024 * 1024;
/// The most bytes that the names of what is left out may take: some 13,000 usual ones.
pub(super) const MAX_NAMES: usize = 4 * 1024 * 1024;
/// What an object takes besides its bytes and its key: its entries in the store's map, in three
/// indexes and in the maps of its budget, in tree nodes that are two thirds full.
const OVERHEAD: usize = 448;

/// What a holder takes besides its objects: its name, and its entries in maps of its own.
const OF_HOLDER: usize = 448;

/// What an object takes in the maps of a budget, before the free part of their nodes.
#[cfg(test)]
pub(super) const BYTES_OF_ENTRIES: usize =
    size_of::<(Key, CountedObject)>() + size_of::<(usize, Key)>();

/// The most bytes that the objects of a store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    of_each: usize,
    of_all: usize,
}

impl Limits {
    const OF_NAMESPACES: Limits = Limits {
        of_each: MAX,
        of_all: TOTAL,
    };
    const OF_NODES: Limits = Limits {
        of_each: MAX_OF_NODE,
        of_all: usize::MAX,
    };
    /// The limits of the names of what is left out.
    pub(super) const OF_NAMES: Limits = Limits {
        of_each: MAX_NAMES,
        of_all: MAX_NAMES,
    };

    /// The limits of a kind.
    pub(super) fn of<K: 'static>() -> Self {
        if holder::is_of_nodes::<K>() {
            Limits::OF_NODES
        } else {
            Limits::OF_NAMESPACES
        }
    }
}

/// The bytes of each object of a namespace or node, its holder.
pub(super) struct Budget {
    limits: Limits,
    kept: BTreeMap<Key, CountedObject>,
    /// What each holder has that has anything.
    holdings: BTreeMap<Arc<str>, Holding>,
    /// The holders by their bytes.
    by_bytes: BTreeSet<(usize, Arc<str>)>,
    /// The bytes of all kept objects and their holders.
    total: usize,
}

/// What an object counts, and for whom.
pub(super) struct CountedObject {
    holder: Arc<str>,
    size: usize,
}

/// The kept objects of a holder.
#[derive(Default)]
struct Holding {
    /// The bytes of the objects and of the holder itself.
    bytes: usize,
    by_size: BTreeSet<(usize, Key)>,
}

/// The bytes that are in use when an object of a holder asks for room.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// The bytes of the holder's other objects.
    own: usize,
    /// The bytes of all other objects.
    all: usize,
    /// The bytes of the holder that has most.
    most: usize,
    /// The bytes of that holder's largest object.
    largest: usize,
}

/// Whether there is room for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BudgetRoom {
    Free,
    /// Once the holder that has most gives up its largest object. More may have to follow, and
    /// there is room in the end.
    OfMost,
    None,
}

impl Shares {
    /// Whether an object of this size has room. Another holder gives way only to one that has less
    /// afterwards, so the two never push each other out in turns.
    fn room(self, size: usize, limits: Limits) -> BudgetRoom {
        let share = self.own + size;
        let excess = (self.all + size).saturating_sub(limits.of_all);
        let suffices = self.largest >= excess || share + excess <= self.most;
        if share > limits.of_each {
            BudgetRoom::None
        } else if excess == 0 {
            BudgetRoom::Free
        } else if share < self.most && suffices {
            BudgetRoom::OfMost
        } else {
            BudgetRoom::None
        }
    }

    /// Whether all objects are listed again for one of this size that was left out. Holders with
    /// about the same bytes would take room from each other with each list. So an object waits for
    /// free room, unless its holder would still have clearly less than the one that has most.
    fn is_worth_a_list(self, size: usize, limits: Limits) -> bool {
        match self.room(size, limits) {
            BudgetRoom::Free => true,
            BudgetRoom::OfMost => self.own + size + limits.of_each / 16 <= self.most,
            BudgetRoom::None => false,
        }
    }
}

/// What an object needs before it is kept.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ObjectAdmission {
    Keep,
    /// Leave this object of another holder out, and ask again.
    PushOut(Key),
    LeaveOut,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        Budget {
            limits,
            kept: BTreeMap::new(),
            holdings: BTreeMap::new(),
            by_bytes: BTreeSet::new(),
            total: 0,
        }
    }

    /// Decides whether an object of this size is kept. An object without a holder has no limit.
    pub(super) fn admission(
        &self,
        key: &Key,
        holder: Option<&str>,
        size: usize,
    ) -> ObjectAdmission {
        let Some(holder) = holder else {
            return ObjectAdmission::Keep;
        };
        let most = self.most();
        match self.shares(key, holder, most).room(size, self.limits) {
            BudgetRoom::Free => ObjectAdmission::Keep,
            BudgetRoom::OfMost => most.map_or(ObjectAdmission::LeaveOut, |most| {
                ObjectAdmission::PushOut(most.key.clone())
            }),
            BudgetRoom::None => ObjectAdmission::LeaveOut,
        }
    }

    fn shares(&self, key: &Key, holder: &str, most: Option<Most<'_>>) -> Shares {
        let known = self.kept.get(key);
        let before = known.map_or(0, |known| known.size);
        let own_before = known
            .filter(|known| *known.holder == *holder)
            .map_or(0, |known| known.size);
        let own = self.holdings.get(holder).map_or(OF_HOLDER, |own| own.bytes);
        Shares {
            own: own - own_before,
            all: self.total - before,
            most: most.map_or(0, |most| most.bytes),
            largest: most.map_or(0, |most| most.largest),
        }
    }

    /// The holder that has most.
    fn most(&self) -> Option<Most<'_>> {
        let (bytes, holder) = self.by_bytes.last()?;
        let (largest, key) = self.holdings.get(holder)?.by_size.last()?;
        Some(Most {
            bytes: *bytes,
            key,
            largest: *largest,
        })
    }

    /// Notes the size of an object that is kept.
    pub(super) fn note(&mut self, key: &Key, holder: Option<&str>, size: usize) {
        self.forget(key);
        if let Some(holder) = holder {
            self.add(key, self.shared(holder), size);
        }
    }

    /// Notes that a kept object takes less or more by now.
    pub(super) fn resize(&mut self, key: &Key, size: usize) {
        if let Some(counted) = self.forget(key) {
            self.add(key, counted.holder, size);
        }
    }

    fn add(&mut self, key: &Key, holder: Arc<str>, size: usize) {
        let holding = self.holdings.entry(holder.clone()).or_default();
        if holding.by_size.is_empty() {
            holding.bytes = OF_HOLDER;
            self.total += OF_HOLDER;
        }
        self.by_bytes.remove(&(holding.bytes, holder.clone()));
        holding.bytes += size;
        holding.by_size.insert((size, key.clone()));
        self.by_bytes.insert((holding.bytes, holder.clone()));
        self.total += size;
        self.kept
            .insert(key.clone(), CountedObject { holder, size });
    }

    /// Forgets an object that is not kept any more.
    pub(super) fn forget(&mut self, key: &Key) -> Option<CountedObject> {
        let counted = self.kept.remove(key)?;
        let CountedObject { holder, size } = &counted;
        self.total -= size;
        if let Some(holding) = self.holdings.get_mut(holder) {
            self.by_bytes.remove(&(holding.bytes, holder.clone()));
            holding.bytes -= size;
            holding.by_size.remove(&(*size, key.clone()));
            if holding.by_size.is_empty() {
                self.total -= OF_HOLDER;
                self.holdings.remove(holder);
            } else {
                self.by_bytes.insert((holding.bytes, holder.clone()));
            }
        }
        Some(counted)
    }

    /// The name of a holder. All its objects share it.
    fn shared(&self, holder: &str) -> Arc<str> {
        let known = self.holdings.get_key_value(holder);
        known.map_or_else(|| holder.into(), |(known, _)| known.clone())
    }

    /// For whom an object counts that is kept.
    pub(super) fn holder(&self, key: &Key) -> Option<&str> {
        self.kept.get(key).map(|known| &*known.holder)
    }

    /// True if an object of this size, which others keep out, has room by now, and is worth a list
    /// of all.
    pub(super) fn is_worth_a_list(&self, key: &Key, holder: &str, size: usize) -> bool {
        self.shares(key, holder, self.most())
            .is_worth_a_list(size, self.limits)
    }

    /// The bytes of all kept objects and their holders.
    pub(super) fn total(&self) -> usize {
        self.total
    }
}

/// The holder that has most.
#[derive(Clone, Copy)]
struct Most<'b> {
    bytes: usize,
    /// Its largest object.
    key: &'b Key,
    largest: usize,
}

/// What an object counts that takes so many bytes in the store.
pub(super) fn counted(key: &Key, bytes: usize) -> usize {
    OVERHEAD + key.len() + bytes
}

/// The bytes that an object takes in the store, at most. A packed one takes its JSON, and a little
/// for its reference to that. Any other one also takes something for each value.
pub(super) fn bytes(object: &impl Serialize, is_packed: bool) -> usize {
    let mut size = Size::default();
    // Every kind serializes to JSON, and counting does not fail.
    let _ = serde_json::to_writer(&mut size, object);
    if is_packed {
        size.json + size.json / 64 + 64
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
