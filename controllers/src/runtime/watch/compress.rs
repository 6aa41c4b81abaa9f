//! How a watch keeps objects.

use std::sync::Arc;

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};

use super::lru::Recent;
use super::{Key, version};
use crate::runtime::Resource;

/// How a watch keeps objects.
pub enum Encoding<K> {
    /// As they are worked with.
    Open,
    /// As JSON, of which only that is kept which another has not said already, and made anew
    /// whenever one is asked for. Objects of a kind differ by little more than names and times: a
    /// claim or volume takes a twentieth of the memory like that.
    Packed(Packing<K>),
}

/// How objects are packed and made anew: code of its own for each kind, and not little. So only
/// kinds have it that are packed.
pub struct Packing<K> {
    pack: fn(&K) -> serde_json::Result<Vec<u8>>,
    make: fn(&[u8]) -> serde_json::Result<K>,
    /// What the next one is likely to be like.
    pattern: Option<Arc<Dictionary<K>>>,
    /// Those that were kept last, as they are worked with: they are looked at right after.
    recent: Recent<K>,
}

/// An object by which others are packed. It is kept as long as one of them is.
pub(super) struct Dictionary<K> {
    json: Box<[u8]>,
    make: fn(&[u8]) -> serde_json::Result<K>,
}

/// An object as it is kept. Clones share it.
pub(super) enum StoredObject<K> {
    Open(Arc<K>),
    Packed {
        version: u64,
        /// What is not in the pattern, compressed.
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
    /// Packed.
    pub fn packed() -> Self {
        Encoding::Packed(Packing {
            pack: serde_json::to_vec,
            make: |json| serde_json::from_slice(json),
            pattern: None,
            recent: Recent::default(),
        })
    }

    /// One that need not be made anew.
    pub(super) fn recent(&self, key: &Key) -> Option<Arc<K>> {
        match self {
            Encoding::Open => None,
            Encoding::Packed(packing) => packing.recent.get(key),
        }
    }

    /// It is not there any more.
    pub(super) fn forget(&mut self, key: &Key) {
        if let Encoding::Packed(packing) = self {
            packing.recent.remove(key);
        }
    }

    pub(super) fn keep(&mut self, key: &Key, object: &Arc<K>) -> StoredObject<K> {
        let Encoding::Packed(packing) = self else {
            return StoredObject::Open(object.clone());
        };
        packing.recent.put(key.clone(), object.clone());
        match (packing.pack)(object) {
            Ok(json) => packing.keep(version(&**object), json),
            // No kind has anything that JSON has not.
            Err(_) => StoredObject::Open(object.clone()),
        }
    }
}

impl<K> Packing<K> {
    /// By the pattern there is; an object that is not like it becomes the pattern of the next ones.
    /// A claim has more to say when it is bound, and is the better pattern then: what is not in an
    /// object costs nothing, and what is not in the pattern does.
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
        self.pattern = Some(pattern.clone());
        StoredObject::Packed {
            version,
            rest: compress_prepend_size_with_dict(&pattern.json, &pattern.json).into(),
            pattern,
        }
    }
}

impl<K: Resource> StoredObject<K> {
    /// The object.
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

    /// Bytes it has of its own, if it is packed.
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
