//! Drops what no controller reads from the API server's answers, while they arrive.
//!
//! Users can put more than a MiB into each object: annotations, managed fields, a pod's containers.
//! An answer that is read as a whole, and then deserialized, needs memory for all of that, for each
//! object of a page. So [`Trimmer`] takes the answer in pieces and passes on only the fields in a
//! table ([`KeptFields`]). Of these, too, an object may have only so much: a larger one is left
//! out, and only its name is passed on ([`is_left_out`]).

use kube::ResourceExt;

mod answer;
mod held_object;

#[cfg(test)]
pub(crate) use answer::trimmed;
pub(super) use answer::{TrimTo, Trimming};
use held_object::HeldObject;
pub(crate) use held_object::in_memory;

/// What is kept of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Keep {
    /// The value with everything in it.
    Whole,
    /// These members of an object, or of each object in a list. Other values are kept as they are.
    Members(&'static [(&'static str, Keep)]),
}

/// What is kept of the objects of a kind.
#[derive(Debug)]
pub(crate) struct KeptFields {
    /// The plural of the kind, as in paths.
    pub(crate) plural: &'static str,
    /// The kept members of an object.
    pub(crate) members: &'static [(&'static str, Keep)],
    /// The most bytes that an object may take in memory, about. A larger one is left out.
    pub(crate) max: usize,
    /// Members that an object needs to be deserialized, for one that is left out.
    pub(crate) blank: &'static str,
}

/// The annotation of an object that is left out: its kept fields exceed [`KeptFields::max`]. Only
/// [`Trimmer`] sets it.
const LEFT_OUT: &str = "hostloop.csi.dev/left-out";

/// True if only the name, the UID and the version of an object are known, because it is too large.
pub(crate) fn is_left_out<K: kube::Resource>(object: &K) -> bool {
    object.annotations().contains_key(LEFT_OUT)
}

/// What an answer consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    Object,
    List,
    /// One event after the other.
    Watch,
}

/// What a value in an answer is.
#[derive(Clone, Copy, Debug)]
enum Node {
    Dropped,
    Kept(Keep),
    /// A list of objects, with their page.
    List,
    /// An event of a watch.
    Event,
    /// An object of the kind, or the status that the API server sends instead of one.
    Object,
}

/// Members of a list besides its objects.
const PAGE: &[(&str, Keep)] = &[("resourceVersion", Keep::Whole), ("continue", Keep::Whole)];

/// Members of a status, which can come instead of an object.
const STATUS: &[&str] = &["apiVersion", "kind", "status", "message", "reason", "code"];

/// What the value of the member `key` is.
fn member(members: &[(&str, Keep)], key: &[u8]) -> Node {
    members
        .iter()
        .find(|(name, _)| name.as_bytes() == key)
        .map_or(Node::Dropped, |(_, keep)| Node::Kept(*keep))
}

/// An object or a list that is being read, of which members are kept.
#[derive(Debug)]
struct Frame {
    node: Node,
    is_list: bool,
    /// True if a member or an element was kept, so that the next one follows a comma.
    has_any: bool,
    /// True for the metadata of an object.
    is_metadata: bool,
    /// In an object: the value of a member follows.
    value_follows: bool,
}

/// How far a value is that is kept or dropped with everything in it.
#[derive(Clone, Copy, Debug, Default)]
struct Passing {
    is_kept: bool,
    depth: u32,
    in_text: bool,
    is_escaped: bool,
    has_begun: bool,
}

#[derive(Debug)]
enum Mode {
    /// Between the values of a [`Frame`].
    Between,
    /// In the key of a member.
    Key {
        is_escaped: bool,
    },
    Passing(Passing),
}

/// Longer keys are not in any table.
const MAX_KEY: usize = 256;

/// Trims one answer. What is not JSON comes out as something that is not JSON either.
#[derive(Debug)]
struct Trimmer {
    kind: &'static KeptFields,
    answer: AnswerKind,
    stack: Vec<Frame>,
    mode: Mode,
    key: Vec<u8>,
    object: Option<HeldObject>,
}

impl Trimmer {
    fn new(kind: &'static KeptFields, answer: AnswerKind) -> Self {
        Trimmer {
            kind,
            answer,
            stack: Vec::new(),
            mode: Mode::Between,
            key: Vec::new(),
            object: None,
        }
    }

    /// Takes the next piece of the answer, and appends to `out` what is kept of it.
    fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let mut rest = piece;
        while let [first, after @ ..] = rest {
            match &mut self.mode {
                Mode::Passing(passing) => {
                    let mut now = *passing;
                    let (taken, ends) = now.take(rest);
                    let (value, after) = rest.split_at(taken);
                    if now.is_kept {
                        self.put(value, out);
                    }
                    self.mode = if ends {
                        Mode::Between
                    } else {
                        Mode::Passing(now)
                    };
                    if ends && let Some(object) = &mut self.object {
                        object.identity_ends();
                    }
                    rest = after;
                }
                Mode::Key { is_escaped } => {
                    match first {
                        b'"' if !*is_escaped => self.mode = Mode::Between,
                        _ => {
                            *is_escaped = *first == b'\\' && !*is_escaped;
                            if self.key.len() <= MAX_KEY {
                                self.key.push(*first);
                            }
                        }
                    }
                    rest = after;
                }
                Mode::Between => rest = self.step(rest, out),
            }
        }
    }

    /// Takes the next byte between values, and returns what is left.
    fn step<'p>(&mut self, rest: &'p [u8], out: &mut Vec<u8>) -> &'p [u8] {
        let [first, after @ ..] = rest else {
            return rest;
        };
        match (self.stack.last_mut(), first) {
            // A watch has an event on each line.
            (None, b'\n') => out.push(b'\n'),
            (_, b' ' | b'\t' | b'\r' | b'\n' | b',') => {}
            (Some(frame), b'}' | b']') if frame.is_list == (*first == b']') => {
                self.put(&[*first], out);
                self.stack.pop();
                self.object_ends(out);
            }
            (Some(frame), b':') if !frame.is_list => frame.value_follows = true,
            (Some(frame), b'"') if !frame.is_list && !frame.value_follows => {
                self.key.clear();
                self.mode = Mode::Key { is_escaped: false };
            }
            _ => return self.begin(rest, out),
        }
        after
    }

    /// Begins a value.
    fn begin<'p>(&mut self, rest: &'p [u8], out: &mut Vec<u8>) -> &'p [u8] {
        let node = self.node();
        let above = self.stack.last();
        let of_object = above.is_some_and(|it| matches!(it.node, Node::Object) && !it.is_list);
        let is_metadata = of_object && self.key == b"metadata";
        let names = above.is_some_and(|frame| frame.is_metadata);
        self.separate(node, out);
        let [first @ (b'{' | b'['), after @ ..] = rest else {
            let is_kept = !matches!(node, Node::Dropped);
            if is_kept
                && names
                && let Some(object) = &mut self.object
            {
                object.identity_begins(&self.key);
            }
            self.mode = Mode::Passing(Passing {
                is_kept,
                ..Passing::default()
            });
            return rest;
        };
        match node {
            Node::Dropped | Node::Kept(Keep::Whole) => {
                let is_kept = !matches!(node, Node::Dropped);
                self.mode = Mode::Passing(Passing {
                    is_kept,
                    ..Passing::default()
                });
                return rest;
            }
            Node::Object if *first == b'{' && self.object.is_none() => {
                self.object = Some(HeldObject::new(self.kind, self.stack.len()));
            }
            _ => {}
        }
        self.put(&[*first], out);
        self.stack.push(Frame {
            node,
            is_list: *first == b'[',
            has_any: false,
            is_metadata,
            value_follows: false,
        });
        after
    }

    /// What the value that begins now is.
    fn node(&mut self) -> Node {
        let Some(frame) = self.stack.last_mut() else {
            return match self.answer {
                AnswerKind::Object => Node::Object,
                AnswerKind::List => Node::List,
                AnswerKind::Watch => Node::Event,
            };
        };
        if frame.is_list {
            return frame.node;
        }
        frame.value_follows = false;
        let key = self.key.as_slice();
        match (frame.node, key) {
            (Node::Kept(Keep::Members(members)), _) => member(members, key),
            (Node::List, b"items") | (Node::Event, b"object") => Node::Object,
            (Node::List, b"metadata") => Node::Kept(Keep::Members(PAGE)),
            (Node::List, b"apiVersion" | b"kind") | (Node::Event, b"type") => {
                Node::Kept(Keep::Whole)
            }
            (Node::Object, key) => match member(self.kind.members, key) {
                Node::Dropped if STATUS.iter().any(|name| name.as_bytes() == key) => {
                    Node::Kept(Keep::Whole)
                }
                node => node,
            },
            _ => Node::Dropped,
        }
    }

    /// Writes what comes before a value that is kept: a comma, and the key.
    fn separate(&mut self, node: Node, out: &mut Vec<u8>) {
        let Some(frame) = self
            .stack
            .last_mut()
            .filter(|_| !matches!(node, Node::Dropped))
        else {
            return;
        };
        let comma: &[u8] = if std::mem::replace(&mut frame.has_any, true) {
            b","
        } else {
            b""
        };
        let is_list = frame.is_list;
        self.put(comma, out);
        if !is_list {
            let key = std::mem::take(&mut self.key);
            self.put(b"\"", out);
            self.put(&key, out);
            self.put(b"\":", out);
            self.key = key;
        }
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match &mut self.object {
            Some(object) => object.put(bytes),
            None => out.extend_from_slice(bytes),
        }
    }

    /// Passes the object on, if the bracket just taken was its last.
    fn object_ends(&mut self, out: &mut Vec<u8>) {
        if let Some(object) = self
            .object
            .take_if(|object| object.depth() == self.stack.len())
        {
            object.finish(out);
        }
    }
}

/// What is kept of one object.
#[cfg(test)]
pub(crate) fn trimmed_object(kind: &'static KeptFields, json: &[u8]) -> Vec<u8> {
    let mut kept = Vec::new();
    Trimmer::new(kind, AnswerKind::Object).push(json, &mut kept);
    kept
}

impl Passing {
    /// Takes as much of the value as there is. Returns the bytes taken, and whether the value ends
    /// with them.
    fn take(&mut self, bytes: &[u8]) -> (usize, bool) {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            if self.in_text {
                if self.is_escaped {
                    self.is_escaped = false;
                    at += 1;
                    continue;
                }
                let ends = bytes[at..]
                    .iter()
                    .position(|byte| matches!(byte, b'"' | b'\\'));
                let Some(end) = ends else {
                    return (bytes.len(), false);
                };
                at += end + 1;
                match bytes[at - 1] {
                    b'\\' => self.is_escaped = true,
                    _ => self.in_text = false,
                }
                if !self.in_text && self.depth == 0 {
                    return (at, true);
                }
                continue;
            }
            match byte {
                b'"' if self.depth == 0 && self.has_begun => return (at, true),
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth == 1 => return (at + 1, true),
                // The end of what a number or a word is in.
                b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => {
                    // A stray byte must not be looked at forever.
                    return (at.max(usize::from(!self.has_begun)), true);
                }
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
            self.has_begun = true;
            at += 1;
        }
        (at, false)
    }
}

#[cfg(test)]
mod tests;
