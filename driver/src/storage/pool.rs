//! An open pool: its files, its index, and what runs on it.
//!
//! What is done with a pool stands elsewhere, in files named by the subject.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::capacity::{CapacityLimits, SpaceRequest};
use super::index::Index;
use super::joined_read::JoinedRead;
use super::layout::PoolLayout;
use super::noted_problem::NotedProblem;
use super::place::PoolPlace;
use super::record_sync::RecordSync;
use super::recovery::Unfinished;
use super::{PoolId, PoolKind, PoolSpec, VolumeId};
use crate::kernel::Kernel;

mod filler;
mod look;
mod notes;
mod reading;
pub(super) mod space;
mod unsynced;

pub use reading::{Look, Reading};

use self::space::Space;

/// Records of volumes that may change at once in a pool.
pub(super) const CHANGING: usize = 64;

/// An open pool.
#[derive(Debug)]
pub struct Pool {
    pub(super) kernel: Arc<dyn Kernel>,
    pub(super) id: PoolId,
    pub(super) spec: PoolSpec,
    pub(super) kind: PoolKind,
    pub(super) reflinks: bool,
    pub(super) limits: CapacityLimits,
    pub(super) layout: PoolLayout,
    pub(super) index: RwLock<Index>,
    /// Held while the record of a volume changes; a volume's ID chooses one.
    pub(super) changing: [Mutex<()>; CHANGING],
    /// What is known of the records on disk. Nothing is known of the others: an earlier process may
    /// have died between the rename of a record and its fsync.
    pub(super) synced: Mutex<HashMap<VolumeId, RecordSync>>,
    /// Volumes with a record that could not be synced or written: though its call succeeded, or
    /// without knowing what is on disk.
    pub(super) to_sync: Mutex<BTreeSet<VolumeId>>,
    /// True if it is known what snapshots of an earlier process share.
    pub(super) measured: Mutex<bool>,
    /// True while the pool's directories could not be synced since its opening.
    pub(super) unsynced: AtomicBool,
    /// Space promised to running operations.
    pub(super) under_way: Mutex<SpaceRequest>,
    /// The filesystems that provide the pool's space; set once the pool is open.
    pub(super) space: OnceLock<Space>,
    /// Bytes of the file that takes the free room because of a fault on request.
    pub(super) filler_bytes: AtomicU64,
    /// True if this process has given the pool's image all its blocks.
    pub(super) backed: AtomicBool,
    /// What the pool was opened from, and the mount point of its filesystem.
    pub(super) places: Vec<PoolPlace>,
    pub(super) look: Arc<JoinedRead<Look>>,
    /// What recovery could not repair.
    pub(super) noted: Mutex<Vec<NotedProblem>>,
    /// Groups that a process could not finish or delete as a whole, with members that are not freed
    /// yet.
    pub(super) unfinished: Mutex<Vec<Unfinished>>,
    /// Open lock files that keep other processes out of the pool.
    pub(super) _locks: Vec<File>,
}

impl Pool {
    /// The pool's identity, as stored in its `pool.json`.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// The pool's name in the configuration.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Whether the pool is a directory, a block device or an image file.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// The directory that holds the pool's files.
    pub fn root(&self) -> &Path {
        self.layout.path()
    }

    /// True if snapshots share extents with their volume (reflinks).
    pub fn reflinks(&self) -> bool {
        self.reflinks
    }
}
