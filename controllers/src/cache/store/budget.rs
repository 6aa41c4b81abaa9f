//! How much a store keeps of the large objects of one namespace.
//!
//! The client leaves out each object that takes more than 16 KiB, but a user can make any number of
//! those that take less. So the large objects of a namespace have a budget together. What exceeds
//! it is left out, as an object that is too large by itself.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::{BETWEEN, Key, named};

/// Smaller objects don't count: a claim takes about 1 KiB.
const SMALL: usize = 2 * 1024;
/// The bytes of all large objects of a namespace.
pub(super) const MAX: usize = 8 * 1024 * 1024;

/// The bytes of each large object that is kept.
#[derive(Default)]
pub(super) struct Budget(BTreeMap<Key, usize>);

impl Budget {
    /// True if an object of this size would exceed the budget of its namespace. Objects of no
    /// namespace are not made by users.
    pub(super) fn is_exceeded(&self, key: &Key, size: usize) -> bool {
        let namespace = key
            .split_once(BETWEEN)
            .map_or("", |(namespace, _)| namespace);
        if size <= SMALL || namespace.is_empty() {
            return false;
        }
        let first = named(namespace, "");
        let large = self.0.range(first.clone()..);
        let large = large.take_while(|(other, _)| other.starts_with(&*first));
        let others = large.filter(|(other, _)| *other != key);
        others.map(|(_, size)| size).sum::<usize>() + size > MAX
    }

    /// Notes the size of an object that is kept.
    pub(super) fn note(&mut self, key: &Key, size: usize) {
        if size > SMALL {
            self.0.insert(key.clone(), size);
        } else {
            self.0.remove(key);
        }
    }

    /// Forgets an object that is not kept any more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }
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
