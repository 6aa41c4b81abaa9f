//! The objects that an RPC uses, and what it does about earlier ones that use them, too. Pure.

use std::fmt;

use hostloop_events::Shortened;

use crate::csi::validate::MAX_STRING;

/// An object that only one RPC at a time may change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A volume's name; CreateVolume locks it before the volume has an ID.
    VolumeName(String),
    /// A volume, by the ID in the request, valid or not.
    Volume(String),
    SnapshotName(String),
    /// A snapshot, by its ID.
    Snapshot(String),
    /// A group snapshot's name.
    GroupName(String),
    /// A group snapshot, by its ID.
    Group(String),
}

impl Key {
    /// The holds of an RPC that changes this volume and nothing else.
    pub(in crate::grpc) fn volume(id: &str) -> Vec<Hold> {
        vec![Key::Volume(id.to_owned()).changed()]
    }

    /// The hold of an RPC that creates, changes or deletes the object.
    pub(in crate::grpc) fn changed(self) -> Hold {
        self.used(Usage::Change)
    }

    /// The holds of an RPC that changes this volume's record, and nothing that a copy depends on.
    pub(in crate::grpc) fn volume_record(id: &str) -> Vec<Hold> {
        vec![Key::Volume(id.to_owned()).used(Usage::Record)]
    }

    /// The holds of an RPC that mounts or unmounts this volume on the node.
    pub(in crate::grpc) fn volume_mount(id: &str) -> Vec<Hold> {
        vec![Key::Volume(id.to_owned()).used(Usage::Mount)]
    }

    /// The hold of an RPC that copies the object.
    pub(in crate::grpc) fn copied(self) -> Hold {
        self.used(Usage::Copy)
    }

    fn used(self, usage: Usage) -> Hold {
        Hold { key: self, usage }
    }

    /// The ID or name.
    pub(in crate::grpc) fn text(&self) -> &str {
        match self {
            Key::VolumeName(text)
            | Key::Volume(text)
            | Key::SnapshotName(text)
            | Key::Snapshot(text)
            | Key::GroupName(text)
            | Key::Group(text) => text,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Shortened(self.text(), MAX_STRING);
        match self {
            Key::VolumeName(_) => write!(f, "volume \"{text}\""),
            Key::Volume(_) => write!(f, "volume {text}"),
            Key::SnapshotName(_) => write!(f, "snapshot \"{text}\""),
            Key::Snapshot(_) => write!(f, "snapshot {text}"),
            Key::GroupName(_) => write!(f, "group snapshot \"{text}\""),
            Key::Group(_) => write!(f, "group snapshot {text}"),
        }
    }
}

/// How an RPC uses an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// It creates, changes or deletes the object.
    Change,
    /// It changes the object's record, and nothing that a copy depends on. It holds no other
    /// object.
    Record,
    /// It mounts or unmounts the object on the node, for a pod, and holds no other.
    Mount,
    /// It copies the object, which must not change meanwhile.
    Copy,
}

/// An object that an RPC uses, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub(in crate::grpc) key: Key,
    pub(in crate::grpc) usage: Usage,
}

/// What an RPC does about an earlier one that uses the same object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precedence {
    /// Both run at once.
    Beside,
    /// The later one waits.
    After,
    /// The later one is ABORTED.
    Abort,
}

/// Compares two different requests. Copies of a volume follow each other, because each of them may
/// freeze it. Copies of a snapshot need no freeze.
pub(super) fn precedence(key: &Key, earlier: Usage, later: Usage) -> Precedence {
    match (key, earlier, later) {
        (_, Usage::Record, Usage::Copy) | (_, Usage::Copy, Usage::Record) => Precedence::Beside,
        (Key::Snapshot(_), Usage::Copy, Usage::Copy) => Precedence::Beside,
        (_, Usage::Copy, _) | (_, _, Usage::Copy) => Precedence::After,
        _ => Precedence::Abort,
    }
}

/// True if a later RPC goes ahead of an earlier one that has not begun. A `long` one may wait for a
/// thread as long as others copy or allocate, and so may a copy of its object behind another one.
/// Only RPCs that hold a single object go ahead, so none of them waits for an RPC behind it.
pub(super) fn goes_ahead(earlier: Usage, long: bool, later: Usage) -> bool {
    match (earlier, later) {
        (Usage::Copy, Usage::Mount) => true,
        (Usage::Change, Usage::Mount | Usage::Record) => long,
        _ => false,
    }
}
