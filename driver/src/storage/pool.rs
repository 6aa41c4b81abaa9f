//! An open pool: its files, its index, and what runs on it.
//!
//! What is done with a pool stands elsewhere, in files named by the subject.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::capacity::{Limits, SpaceRequest};
use super::index::Index;
use super::joined::JoinedRead;
use super::layout::PoolLayout;
use super::noted_problem::NotedProblem;
use super::place::PoolPlace;
use super::recovery::Unfinished;
use super::{PoolId, PoolKind, PoolSpec, VolumeId};
use crate::kernel::Kernel;

mod look;
mod notes;
mod reading;
pub(super) mod space;

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
    pub(super) limits: Limits,
    pub(super) layout: PoolLayout,
    pub(super) index: RwLock<Index>,
    /// Held while the record of a volume changes; a volume's ID chooses one.
    pub(super) changing: [Mutex<()>; CHANGING],
    /// Volumes with a record that is known to survive a power cut. An earlier process may have died
    /// between the rename of a record and its fsync, and a failed fsync leaves the same.
    pub(super) synced: Mutex<HashSet<VolumeId>>,
    /// True if it is known what snapshots of an earlier process share.
    pub(super) measured: Mutex<bool>,
    /// Space promised to running operations.
    pub(super) under_way: Mutex<SpaceRequest>,
    /// The filesystems that provide the pool's space; set once the pool is open.
    pub(super) space: OnceLock<Space>,
    /// True if this process has given the pool's image all its blocks.
    pub(super) backed: AtomicBool,
    /// What the pool was opened from, and the mount point of its filesystem.
    pub(super) places: Vec<PoolPlace>,
    pub(super) look: Arc<JoinedRead<Look>>,
    /// What recovery could not repair.
    pub(super) noted: Mutex<Vec<NotedProblem>>,
    /// Groups that the previous process was creating or deleting when it ended, with members that
    /// are not freed yet.
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
