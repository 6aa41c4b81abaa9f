//! How a store keeps objects in memory.

use std::sync::Arc;

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};

use super::recent::Recent;
use super::{Key, version};
use crate::client::Resource;

/// A larger object does not serve others as their dictionary. The smallest of these would keep it in
/// memory after it is gone, and a user can make any number of small ones.
const MAX_DICTIONARY: usize = 4 * 1024;

/// How a store keeps objects in memory.
pub enum Encoding<K> {
    /// As deserialized objects.
    Open,
    /// As JSON compressed against another object of the kind, and deserialized on each read, except
    /// for the objects that changed last. Objects of a kind differ by little more than names and
    /// times. Packing reduces a claim or volume to a twentieth of its memory.
    Packed(Packing<K>),
}

/// The functions that pack and unpack a kind. They add considerable code for each kind, so only
/// packed kinds have them.
pub struct Packing<K> {
    pack: fn(&K) -> serde_json::Result<Vec<u8>>,
    make: fn(&[u8]) -> serde_json::Result<K>,
    /// The dictionary for the next object.
    pattern: Option<Arc<Dictionary<K>>>,
    /// The keys of the objects that are not packed yet.
    recent: Recent,
}

/// An object that serves as dictionary for others. It lives as long as one of them.
pub(super) struct Dictionary<K> {
    json: Box<[u8]>,
    make: fn(&[u8]) -> serde_json::Result<K>,
}

/// An object as the store keeps it. Clones share the data.
pub(super) enum StoredObject<K> {
    Open(Arc<K>),
    Packed {
        version: u64,
        /// The object's JSON, compressed against the dictionary.
        rest: Arc<[u8]>,
        pattern: Arc<Dictionary<K>>,
    },
}

impl<K> Clone for StoredObject<K> {
    fn clone(&self) -> Self {
        match self {
            StoredObject::Open(object) => StoredObject::Open(object.clone()),
            StoredObject::Packed {
                version,
                rest,
                pattern,
            } => StoredObject::Packed {
                version: *version,
                rest: rest.clone(),
                pattern: pattern.clone(),
            },
        }
    }
}

impl<K: Resource> Encoding<K> {
    /// Creates an encoding that packs objects.
    pub fn packed() -> Self {
        Encoding::Packed(Packing {
            pack: serde_json::to_vec,
            make: |json| serde_json::from_slice(json),
            pattern: None,
            recent: Recent::default(),
        })
    }

    /// True if objects are packed, except those that changed last.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self, Encoding::Packed(_))
    }

    /// Notes that an object was stored unpacked. Returns the key of an object to pack, if any.
    pub(super) fn note(&mut self, key: &Key) -> Option<Key> {
        match self {
            Encoding::Open => None,
            Encoding::Packed(packing) => packing.recent.put(key.clone()),
        }
    }

    /// Notes that an object was deleted.
    pub(super) fn forget(&mut self, key: &Key) {
        if let Encoding::Packed(packing) = self {
            packing.recent.remove(key);
        }
    }

    /// Packs an object, if the kind is packed.
    pub(super) fn pack(&mut self, object: &mut StoredObject<K>) {
        let (Encoding::Packed(packing), StoredObject::Open(open)) = (self, &*object) else {
            return;
        };
        // Every kind serializes to JSON, so this does not fail.
        if let Ok(json) = (packing.pack)(open) {
            *object = packing.keep(version(&**open), json);
        }
    }
}

impl<K> Packing<K> {
    /// Compresses against the current dictionary. An object that does not compress to half its size
    /// becomes the next dictionary, unless it is large. A bound claim makes a better dictionary than
    /// a pending one: surplus text in the dictionary costs nothing, but text missing from it does.
    fn keep(&mut self, version: u64, json: Vec<u8>) -> StoredObject<K> {
        if let Some(pattern) = &self.pattern {
            let rest = compress_prepend_size_with_dict(&json, &pattern.json);
            if rest.len() <= json.len() / 2 {
                return StoredObject::Packed {
                    version,
                    rest: rest.into(),
                    pattern: pattern.clone(),
                };
            }
        }
        let pattern = Arc::new(Dictionary {
            json: json.into(),
            make: self.make,
        });
        if pattern.json.len() <= MAX_DICTIONARY {
            self.pattern = Some(pattern.clone());
        }
        StoredObject::Packed {
            version,
            rest: compress_prepend_size_with_dict(&pattern.json, &pattern.json).into(),
            pattern,
        }
    }
}

impl<K: Resource> StoredObject<K> {
    /// Returns the object, unpacked if necessary.
    pub(super) fn get(&self) -> Arc<K> {
        match self {
            StoredObject::Open(object) => object.clone(),
            StoredObject::Packed { rest, pattern, .. } => {
                let json = decompress_size_prepended_with_dict(rest, &pattern.json)
                    .expect("what was compressed here");
                Arc::new((pattern.make)(&json).expect("an object that its own kind has written"))
            }
        }
    }

    pub(super) fn version(&self) -> u64 {
        match self {
            StoredObject::Open(object) => version(&**object),
            StoredObject::Packed { version, .. } => *version,
        }
    }

    /// Compressed size in bytes without the dictionary, if the object is packed.
    #[cfg(test)]
    pub(super) fn rest(&self) -> Option<usize> {
        match self {
            StoredObject::Open(_) => None,
            StoredObject::Packed { rest, .. } => Some(rest.len()),
        }
    }
}

#[cfg(test)]
mod tests;
