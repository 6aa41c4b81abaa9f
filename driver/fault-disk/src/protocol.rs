//! What the server of a node's fault disks and its client say to each other. Messages are JSON, one
//! to a packet of a Unix socket (SOCK_SEQPACKET). Files go along with them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::disk::{DiskState, Settings};
use crate::power_cut::{Loss, PowerCutReport};

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Request {
    /// Makes a disk of the image that comes along. The answer has the file for its loop device.
    Serve {
        /// Its name.
        name: String,
        /// The namespace of its claim; empty if none is known.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        namespace: String,
        /// The size of its write cache; 0 if it has none.
        cache_bytes: usize,
        /// Its settings.
        settings: Settings,
    },
    /// Replaces the settings of a disk.
    Set {
        /// Its name.
        name: String,
        /// The new ones.
        settings: Settings,
    },
    /// Makes a disk as large as its image.
    Grow {
        /// Its name.
        name: String,
    },
    /// Cuts the power of disks at one instant.
    CutPower {
        /// Their names.
        names: BTreeSet<String>,
        /// What becomes of the writes that they have not flushed.
        loss: Loss,
        /// The seed of the draws.
        seed: u64,
    },
    /// Holds all I/O of disks from one instant on. The first answer says that it does. It goes on with
    /// the next message of this connection, or the end of one of both sides, or after this time.
    Hold {
        /// Their names.
        names: BTreeSet<String>,
        /// The longest time, in milliseconds.
        longest_millis: u64,
    },
    /// Ends the hold of this connection. The answer says whether it has lasted until now.
    Release,
    /// Waits until a disk has ended, after its loop device is detached.
    End {
        /// Its name.
        name: String,
    },
    /// The state of a disk.
    State {
        /// Its name.
        name: String,
    },
    /// The names of all disks.
    List,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Answer {
    /// It is done.
    Done,
    /// What a power cut has done.
    Cut(Vec<PowerCutReport>),
    /// The disks are held.
    Held,
    /// The state of the disk.
    State(DiskState),
    /// The names of the disks.
    Disks(Vec<String>),
    /// There is no disk of this name.
    NotFound(String),
    /// Something still uses the disk of this name.
    InUse(String),
    /// It is refused, or has failed.
    Refused(String),
}
