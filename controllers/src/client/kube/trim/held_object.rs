//! An object of an answer until it is complete.

use super::{KeptFields, LEFT_OUT};

/// What a value takes in memory besides its text: the parts of a `String` or a `Vec`, and what the
/// allocator adds.
const VALUE: usize = 32;

/// About how many bytes this JSON takes in memory once it is read.
pub(crate) fn in_memory(json: &[u8]) -> usize {
    let values = json
        .iter()
        .filter(|byte| matches!(byte, b',' | b':' | b'{' | b'['))
        .count();
    json.len() + values * VALUE
}

/// Members of an object's metadata that are passed on even if the object is left out.
const IDENTITY: [&str; 4] = ["name", "namespace", "uid", "resourceVersion"];

/// Names have at most 253 bytes.
const MAX_IDENTITY: usize = 2048;

/// The kept part of an object, while it is being read.
#[derive(Debug)]
pub(super) struct HeldObject {
    kind: &'static KeptFields,
    /// How many objects and lists it is in.
    depth: usize,
    json: Vec<u8>,
    /// About how many bytes the object takes in memory.
    size: usize,
    /// The members of the metadata that name the object.
    identity: Vec<u8>,
    in_identity: bool,
}

impl HeldObject {
    pub(super) fn new(kind: &'static KeptFields, depth: usize) -> Self {
        let (json, identity) = (Vec::new(), Vec::new());
        HeldObject {
            kind,
            depth,
            json,
            size: 0,
            identity,
            in_identity: false,
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Bytes that are held.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.json.capacity() + self.identity.capacity()
    }

    fn is_too_large(&self) -> bool {
        self.size > self.kind.max
    }

    /// Keeps a part of the object, unless it is too large already.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        if self.in_identity && self.identity.len() + bytes.len() <= MAX_IDENTITY {
            self.identity.extend_from_slice(bytes);
        }
        if self.is_too_large() {
            return;
        }
        self.size += in_memory(bytes);
        if self.is_too_large() {
            self.json = Vec::new();
        } else {
            self.json.extend_from_slice(bytes);
        }
    }

    /// The value of a member of the metadata begins.
    pub(super) fn identity_begins(&mut self, key: &[u8]) {
        if let Some(name) = IDENTITY.iter().find(|name| name.as_bytes() == key) {
            self.identity
                .extend_from_slice(format!("\"{name}\":").as_bytes());
            self.in_identity = true;
        }
    }

    /// A value ends.
    pub(super) fn identity_ends(&mut self) {
        if std::mem::take(&mut self.in_identity) {
            self.identity.push(b',');
        }
    }

    /// Passes on the complete object, or the name of one that is too large.
    pub(super) fn finish(self, out: &mut Vec<u8>) {
        if !self.is_too_large() {
            out.extend_from_slice(&self.json);
            return;
        }
        out.extend_from_slice(b"{\"metadata\":{");
        out.extend_from_slice(&self.identity);
        out.extend_from_slice(format!("\"annotations\":{{\"{LEFT_OUT}\":\"\"}}}}").as_bytes());
        out.extend_from_slice(self.kind.blank.as_bytes());
        out.extend_from_slice(b"}");
    }
}
