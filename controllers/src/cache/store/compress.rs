//! How a store keeps objects in memory.

use std::sync::{Arc, Weak};

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};

use super::holder::holder_of;
use super::recent::Recent;
use super::{Key, version};
use crate::client::Resource;

/// A larger object does not serve others as their dictionary. The smallest of these would keep it
/// in memory after it is gone, and a user can make any number of small ones.
const MAX_DICTIONARY: usize = 4 * 1024;
/// How many dictionaries several objects may use. One of them keeps its dictionary in memory after
/// the object that it was made of is gone, and counts only for itself. All of them take 2 MiB.
const MAX_DICTIONARIES: usize = 512;
/// How many of them may be of objects of one namespace or node. Otherwise its user could use them
/// up, and the last one would remain the dictionary of all.
const MAX_DICTIONARIES_OF_HOLDER: usize = 16;

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
    dictionary: Option<Arc<Dictionary<K>>>,
    /// True if an object uses that dictionary which it was not made of.
    is_shared: bool,
    /// The dictionaries before it of which that was true.
    shared: Vec<Weak<Dictionary<K>>>,
    /// The keys of the objects that are not packed yet.
    recent: Recent,
}

/// An object that serves as dictionary for others. It lives as long as one of them.
pub(super) struct Dictionary<K> {
    json: Box<[u8]>,
    /// The namespace or node of the object.
    holder: Box<str>,
    make: fn(&[u8]) -> serde_json::Result<K>,
}

/// An object as the store keeps it. Clones share the data.
pub(super) enum StoredObject<K> {
    Open(Arc<K>),
    Packed {
        version: u64,
        /// The object's JSON, compressed against the dictionary.
        rest: Arc<[u8]>,
        dictionary: Arc<Dictionary<K>>,
    },
}

impl<K> Clone for StoredObject<K> {
    fn clone(&self) -> Self {
        match self {
            StoredObject::Open(object) => StoredObject::Open(object.clone()),
            StoredObject::Packed {
                version,
                rest,
                dictionary,
            } => StoredObject::Packed {
                version: *version,
                rest: rest.clone(),
                dictionary: dictionary.clone(),
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
            dictionary: None,
            is_shared: false,
            shared: Vec::new(),
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

    /// Packs an object, if the kind is packed, perhaps against the dictionary of another one.
    /// Returns how many bytes it takes then.
    pub(super) fn pack(
        &mut self,
        object: &mut StoredObject<K>,
        near: Option<Arc<Dictionary<K>>>,
    ) -> Option<usize> {
        let (Encoding::Packed(packing), StoredObject::Open(open)) = (self, &*object) else {
            return None;
        };
        // Every kind serializes to JSON, so this does not fail.
        let json = (packing.pack)(open).ok()?;
        let holder = holder_of(&**open).unwrap_or_default();
        let (packed, bytes) = packing.keep(version(&**open), holder, json, near);
        *object = packed;
        Some(bytes)
    }
}

impl<K> Packing<K> {
    /// Compresses against the current dictionary, or that of an object of the same namespace:
    /// whatever others store, its objects compress against each other. An object that does not
    /// compress to half its size becomes the next dictionary, unless it is large. A bound claim
    /// makes a better dictionary than a pending one: surplus text in the dictionary costs nothing,
    /// but text missing from it does. Also returns the bytes of the object, with its dictionary if
    /// that is its own.
    fn keep(
        &mut self,
        version: u64,
        holder: &str,
        json: Vec<u8>,
        near: Option<Arc<Dictionary<K>>>,
    ) -> (StoredObject<K>, usize) {
        for dictionary in self.dictionary.clone().into_iter().chain(near) {
            let rest = compress_prepend_size_with_dict(&json, &dictionary.json);
            if rest.len() <= json.len() / 2 && self.share(&dictionary) {
                let bytes = rest.len();
                let packed = StoredObject::Packed {
                    version,
                    rest: rest.into(),
                    dictionary,
                };
                return (packed, bytes);
            }
        }
        let dictionary = Arc::new(Dictionary {
            json: json.into(),
            holder: holder.into(),
            make: self.make,
        });
        self.offer(&dictionary);
        let rest = compress_prepend_size_with_dict(&dictionary.json, &dictionary.json);
        let bytes = dictionary.json.len() + rest.len();
        let packed = StoredObject::Packed {
            version,
            rest: rest.into(),
            dictionary,
        };
        (packed, bytes)
    }

    /// Makes an object's own dictionary that of the next ones, unless it is large, or too many are
    /// shared.
    fn offer(&mut self, dictionary: &Arc<Dictionary<K>>) {
        if dictionary.json.len() > MAX_DICTIONARY {
            return;
        }
        if !self.has_room(&dictionary.holder) {
            return;
        }
        if self.is_shared {
            self.shared
                .extend(self.dictionary.as_ref().map(Arc::downgrade));
        }
        self.dictionary = Some(dictionary.clone());
        self.is_shared = false;
    }

    /// Notes that another object uses a dictionary. False if too many are shared.
    fn share(&mut self, dictionary: &Arc<Dictionary<K>>) -> bool {
        if let Some(current) = &self.dictionary
            && Arc::ptr_eq(current, dictionary)
        {
            self.is_shared = true;
            return true;
        }
        let mut shared = self.shared.iter();
        if shared.any(|known| known.as_ptr() == Arc::as_ptr(dictionary)) {
            return true;
        }
        let has_room = dictionary.json.len() <= MAX_DICTIONARY && self.has_room(&dictionary.holder);
        if has_room {
            self.shared.push(Arc::downgrade(dictionary));
        }
        has_room
    }

    /// True if one more dictionary of a holder may be shared.
    fn has_room(&mut self, holder: &str) -> bool {
        self.shared.retain(|known| known.strong_count() > 0);
        self.shared.len() < MAX_DICTIONARIES && self.of_holder(holder) < MAX_DICTIONARIES_OF_HOLDER
    }

    /// How many shared dictionaries, besides the current one, objects of a holder have made.
    fn of_holder(&self, holder: &str) -> usize {
        let shared = self.shared.iter().filter_map(Weak::upgrade);
        shared.filter(|known| *known.holder == *holder).count()
    }
}

impl<K: Resource> StoredObject<K> {
    /// Returns the object, unpacked if necessary.
    pub(super) fn get(&self) -> Arc<K> {
        match self {
            StoredObject::Open(object) => object.clone(),
            StoredObject::Packed {
                rest, dictionary, ..
            } => {
                let json = decompress_size_prepended_with_dict(rest, &dictionary.json)
                    .expect("what was compressed here");
                Arc::new((dictionary.make)(&json).expect("an object that its own kind has written"))
            }
        }
    }

    /// The object's dictionary, if it is packed.
    pub(super) fn dictionary(&self) -> Option<Arc<Dictionary<K>>> {
        match self {
            StoredObject::Open(_) => None,
            StoredObject::Packed { dictionary, .. } => Some(dictionary.clone()),
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
