//! How a watch keeps objects.

use std::sync::Arc;

use super::version;
use crate::runtime::Resource;

/// How a watch keeps objects.
pub enum Form<K> {
    /// As they are worked with.
    Open,
    /// As JSON, and made anew whenever one is asked for. A claim or volume takes a fifth of the
    /// memory like that, for there is room in it for much that it hardly ever says.
    Packed(Packing<K>),
}

/// How objects are packed and made anew: code of its own for each kind, and not little. So only
/// kinds have it that are packed.
pub struct Packing<K> {
    pack: fn(&K) -> serde_json::Result<Vec<u8>>,
    make: fn(&[u8]) -> serde_json::Result<K>,
}

/// An object as it is kept. Clones share it.
pub(super) enum Kept<K> {
    Open(Arc<K>),
    Packed {
        version: u64,
        json: Arc<[u8]>,
        make: fn(&[u8]) -> serde_json::Result<K>,
    },
}

impl<K> Clone for Kept<K> {
    fn clone(&self) -> Self {
        match self {
            Kept::Open(object) => Kept::Open(object.clone()),
            Kept::Packed {
                version,
                json,
                make,
            } => Kept::Packed {
                version: *version,
                json: json.clone(),
                make: *make,
            },
        }
    }
}

impl<K: Resource> Form<K> {
    /// As JSON.
    pub fn packed() -> Self {
        Form::Packed(Packing {
            pack: serde_json::to_vec,
            make: |json| serde_json::from_slice(json),
        })
    }

    pub(super) fn keep(&self, object: &Arc<K>) -> Kept<K> {
        let Form::Packed(packing) = self else {
            return Kept::Open(object.clone());
        };
        match (packing.pack)(object) {
            Ok(json) => Kept::Packed {
                version: version(&**object),
                json: json.into(),
                make: packing.make,
            },
            // No kind has anything that JSON has not.
            Err(_) => Kept::Open(object.clone()),
        }
    }
}

impl<K: Resource> Kept<K> {
    /// The object.
    pub(super) fn get(&self) -> Arc<K> {
        match self {
            Kept::Open(object) => object.clone(),
            Kept::Packed { json, make, .. } => {
                Arc::new(make(json).expect("an object that its own kind has written"))
            }
        }
    }

    pub(super) fn version(&self) -> u64 {
        match self {
            Kept::Open(object) => version(&**object),
            Kept::Packed { version, .. } => *version,
        }
    }
}
