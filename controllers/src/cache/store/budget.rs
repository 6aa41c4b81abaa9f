//! How much a store keeps of the large objects of one namespace.
//!
//! The client leaves out each object that takes more than 16 KiB, but a user can make any number of
//! those that take less. So the large objects of a namespace have a budget together. What exceeds
//! it is left out, as an object that is too large by itself. The sizes of those are remembered: once
//! there is room for one of them, the watch lists all objects again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use serde::Serialize;

use super::{BETWEEN, Key, named};

/// Smaller objects don't count: a claim takes about 1 KiB.
const SMALL: usize = 2 * 1024;
/// The most bytes that the large objects of a namespace may take together.
pub(super) const MAX: usize = 8 * 1024 * 1024;

/// The bytes of each large object.
#[derive(Default)]
pub(super) struct Budget {
    kept: BTreeMap<Key, usize>,
    /// Those that are left out because of the others.
    left_out: BTreeMap<Key, usize>,
}

impl Budget {
    /// True if an object of this size would exceed the budget of its namespace. Only administrators
    /// make objects without a namespace.
    pub(super) fn is_exceeded(&self, key: &Key, size: usize) -> bool {
        let namespace = namespace_of(key);
        if size <= SMALL || namespace.is_empty() {
            return false;
        }
        let first = named(namespace, "");
        let large = self.kept.range(first.clone()..);
        let large = large.take_while(|(other, _)| other.starts_with(&*first));
        let others = large.filter(|(other, _)| *other != key);
        others.map(|(_, size)| size).sum::<usize>() + size > MAX
    }

    /// Notes the size of an object that is kept.
    pub(super) fn note(&mut self, key: &Key, size: usize) {
        if size > SMALL {
            self.kept.insert(key.clone(), size);
        } else {
            self.kept.remove(key);
        }
    }

    /// Forgets an object that is not kept any more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.kept.remove(key);
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

    /// True if an object that is left out because of the others has room by now.
    pub(super) fn has_room(&self) -> bool {
        let mut smallest: BTreeMap<&str, (&Key, usize)> = BTreeMap::new();
        for (key, &size) in &self.left_out {
            let least = smallest.entry(namespace_of(key)).or_insert((key, size));
            if size < least.1 {
                *least = (key, size);
            }
        }
        let mut smallest = smallest.into_values();
        smallest.any(|(key, size)| !self.is_exceeded(key, size))
    }
}

fn namespace_of(key: &Key) -> &str {
    let parts = key.split_once(BETWEEN);
    parts.map_or("", |(namespace, _)| namespace)
}

/// The bytes of an object as JSON.
pub(super) fn size(object: &impl Serialize) -> usize {
    let mut size = Size(0);
    // Every kind serializes to JSON, and counting does not fail.
    let _ = serde_json::to_writer(&mut size, object);
    size.0
}

/// Counts what is written.
struct Size(usize);

impl Write for Size {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
