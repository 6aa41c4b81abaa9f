//! Storage of volumes: the pools, their records and images on disk, and the index over them.
//!
//! The disk is the source of truth; `docs/architecture.md` shows the layout. All calls block.
//! Callers hold the operation locks of the names and IDs they pass (`grpc::operation_locks`). This
//! module guards only the index and the space reservations, and never across I/O.
//!
//! [`Pools`] has all pools of a node, and [`Pool`] is an open one. Each other file has what is done
//! with them about one subject.

mod capacity;
pub mod config;
mod content_source;
pub mod copy_image;
mod copy_rate;
pub(crate) mod encoding;
pub mod error;
pub mod file_names;
pub(crate) mod free_room;
pub mod freeze;
mod groups;
mod growths;
pub mod image_stat;
mod index;
mod joined_read;
mod kept_bases;
pub(crate) mod layers;
mod layout;
mod lineage;
mod load;
mod new_volume;
pub mod noted_problem;
mod open;
pub mod place;
mod pool;
mod pool_gate;
mod pools;
mod record_io;
mod record_sync;
mod recovery;
mod reservation;
pub mod scan;
mod scratch_mount;
mod snapshots;
mod state_until_reboot;
mod thick;
mod trial_mount;
mod volumes;

pub use capacity::Capacity;
pub use config::{PoolKind, PoolOptions, PoolSpec, Reserve};
pub use content_source::LocatedSource;
pub use error::{Error, Result};
pub use new_volume::NewVolume;
pub use noted_problem::{About, NotedProblem};
pub use pool::{Look, Pool, Reading};
pub use pools::{Announcements, Freed, PoolSlot, Pools};
pub use snapshots::{CutError, TakenCut};

pub use crate::record::id::{
    ExplorationId, GroupId, PoolId, SnapshotId, VolumeHandle, VolumeId, pool_named_in,
};
pub use crate::record::{
    Access, AccessMode, Capability, Consistency, CutMark, DiskFile, FaultDiskRecord, Format,
    FreezeIntent, GroupRecord, GrowthIntent, Provisioning, Publication, Reach, Settings,
    SnapshotRecord, Source, Stage, VolumeRecord, VolumeSize,
};
