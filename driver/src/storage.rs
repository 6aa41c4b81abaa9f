//! Storage of volumes: the pools, their records and images on disk, and the index over them.
//!
//! The disk is the source of truth; `docs/architecture.md` shows the layout. All calls block.
//! Callers hold the operation locks of the names and IDs they pass (`grpc::operation_locks`). This
//! module guards only the index and the space reservations, and never across I/O.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

mod boot_state;
mod capacity;
pub mod config;
mod content_source;
pub mod copy_image;
mod copy_rate;
mod encoding;
pub mod error;
pub mod file_names;
mod freed;
pub mod freeze;
mod groups;
mod growths;
pub mod image_stat;
mod index;
mod joined;
pub(crate) mod layers;
mod layout;
mod lineage;
mod load;
pub mod noted_problem;
mod open;
pub mod place;
mod record_io;
mod recovery;
mod reservation;
pub mod scan;
mod scratch_mount;
mod slots;
mod snapshot_quota;
mod snapshots;
mod space;
mod thick;
mod trial_mount;
mod volumes;

pub use config::{PoolKind, PoolOptions, PoolSpec, Reserve};
pub use error::{Error, Result};
pub use freed::{Announcements, Freed};
pub use noted_problem::{About, NotedProblem};

pub use crate::record::id::{GroupId, PoolId, SnapshotId, VolumeHandle, VolumeId, pool_named_in};
pub use crate::record::{
    Access, AccessMode, Capability, Format, FreezeIntent, GroupRecord, GrowthIntent, Provisioning,
    Publication, Settings, SnapshotRecord, Source, Stage, VolumeRecord, VolumeSize,
};

use self::capacity::{Limits, SpaceRequest};
use self::copy_rate::CopyRates;
use self::growths::Growths;
use self::index::Index;
use self::joined::Joined;
use self::layout::PoolLayout;
use self::noted_problem::Until;
use self::place::PoolPlace;
use self::recovery::Unfinished;
use self::snapshot_quota::SnapshotQuota;
use self::space::{Filesystems, Space};
use crate::diagnose::pool::SparseFile;
use crate::diagnose::{Lost, Problem};
use crate::kernel::{FsUsage, Kernel};

/// Properties of a new volume, as in [`VolumeRecord`]; the pool adds ID, time and format state.
#[derive(Clone, Debug)]
pub struct NewVolume {
    pub name: String,
    /// Size in bytes, a multiple of 4096, already checked against range and filesystem.
    pub capacity_bytes: u64,
    /// The requested size, as in the record.
    pub requested_bytes: Option<u64>,
    pub capabilities: Vec<Capability>,
    pub parameters: BTreeMap<String, String>,
    pub mutable_parameters: BTreeMap<String, String>,
    pub settings: Settings,
    pub mkfs_options: Vec<String>,
    /// The copy source, which is at most as large as the new volume.
    pub source: Option<Source>,
    /// Kubelet's volume handle if the volume is an inline volume.
    pub inline: Option<String>,
}

/// The space that a pool can promise now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Total for new volumes.
    pub available: u64,
    /// Largest size of a single volume.
    pub largest: u64,
}

/// Records of volumes that may change at once in a pool.
const CHANGING: usize = 64;

/// An open pool.
#[derive(Debug)]
pub struct Pool {
    kernel: Arc<dyn Kernel>,
    id: PoolId,
    spec: PoolSpec,
    kind: PoolKind,
    reflinks: bool,
    limits: Limits,
    layout: PoolLayout,
    index: RwLock<Index>,
    /// Held while the record of a volume changes; a volume's ID chooses one.
    changing: [Mutex<()>; CHANGING],
    /// True if it is known what snapshots of an earlier process share.
    measured: Mutex<bool>,
    /// Space promised to running operations.
    under_way: Mutex<SpaceRequest>,
    /// The filesystems that provide the pool's space; set once the pool is open.
    space: OnceLock<Space>,
    /// True if this process has given the pool's image all its blocks.
    backed: AtomicBool,
    /// What the pool was opened from, and the mount point of its filesystem.
    places: Vec<PoolPlace>,
    look: Arc<Joined<Look>>,
    /// What recovery could not repair.
    noted: Mutex<Vec<NotedProblem>>,
    /// Groups that the previous process was creating or deleting when it ended, with members that
    /// are not freed yet.
    unfinished: Mutex<Vec<Unfinished>>,
    /// Open lock files that keep other processes out of the pool.
    _locks: Vec<File>,
}

/// The result of checking an open pool; the error says why the pool does not answer.
pub type Look = std::result::Result<Reading, String>;

/// The state of an open pool that answers a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Size and free space of the pool's filesystem.
    pub usage: FsUsage,
    /// Space that the pool can still promise to thin volumes.
    pub capacity: Capacity,
    /// The files under the pool without all their blocks, from the top down.
    pub sparse: Vec<SparseFile>,
    /// What the next opening of the pool would not find.
    pub lost: Option<Lost>,
}

impl Reading {
    /// Bytes that can still be written to the pool's filesystem: no more than its free space, and no
    /// more than the disks below have for it.
    pub fn free_bytes(&self) -> u64 {
        let mut free = self.usage.free_bytes;
        for file in &self.sparse {
            let held = free.saturating_sub(file.lacks_bytes);
            free = free.min(held.saturating_add(file.usage.available_bytes));
        }
        free
    }
}

/// How long an open pool may take to answer a check. Shorter than the timeouts of health RPCs.
const LOOK: Duration = Duration::from_secs(2);

/// A configured pool, open or not.
#[derive(Clone, Debug)]
pub struct Slot {
    pub spec: PoolSpec,
    /// The open pool, or the reason why it is missing.
    pub state: std::result::Result<Arc<Pool>, String>,
    /// The pool's current or last known identity.
    pub id: Option<PoolId>,
}

impl Slot {
    /// The open pool, or [`Error::Unavailable`] if it is missing.
    fn pool(&self) -> Result<Arc<Pool>> {
        self.state.clone().map_err(|why| Error::Unavailable {
            name: self.spec.name.clone(),
            why,
        })
    }
}

/// All pools of this node.
pub struct Pools {
    kernel: Arc<dyn Kernel>,
    options: PoolOptions,
    slots: RwLock<Vec<Slot>>,
    opening: slots::Opening,
    filesystems: Arc<Filesystems>,
    copy_rates: CopyRates,
    growths: Growths,
    quota: SnapshotQuota,
    freed: Announcements,
}

impl Pools {
    /// The kernel the pools act on.
    pub fn kernel(&self) -> &dyn Kernel {
        &*self.kernel
    }

    /// The growths of filesystems.
    pub(crate) fn growths(&self) -> &Growths {
        &self.growths
    }

    /// The options that apply to all pools.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// The configured pools in order, open or missing.
    pub fn slots(&self) -> Vec<Slot> {
        self.slots.read().clone()
    }

    /// Checks all pools in parallel: all hanging pools together take only as long as one.
    pub fn look(&self) -> Vec<(Slot, Option<Look>)> {
        let slots = self.slots();
        for pool in slots.iter().filter_map(|slot| slot.state.as_ref().ok()) {
            pool.begin_look(&self.kernel);
        }
        slots
            .into_iter()
            .map(|slot| {
                let look = slot.state.as_ref().ok().map(|pool| pool.look(&self.kernel));
                (slot, look)
            })
            .collect()
    }

    /// The open pools, in order.
    fn pools(&self) -> Vec<Arc<Pool>> {
        let slots = self.slots.read();
        slots.iter().filter_map(|s| s.state.clone().ok()).collect()
    }

    /// [`Error::Unavailable`] while a pool is missing for which `may_hold` is true.
    fn none_missing(&self, may_hold: impl Fn(&Slot) -> bool) -> Result<()> {
        let slots = self.slots.read();
        let mut slots = slots.iter().filter(|slot| may_hold(slot));
        slots.try_for_each(|slot| slot.pool().map(drop))
    }

    /// Finds a pool by name; `None` means the first configured pool. Fails with
    /// [`Error::UnknownPool`], or with [`Error::Unavailable`] if the pool is missing.
    pub fn named(&self, name: Option<&str>) -> Result<Arc<Pool>> {
        let slots = self.slots.read();
        let slot = match name {
            None => slots.first(),
            Some(name) => slots.iter().find(|s| s.spec.name == name),
        };
        slot.ok_or_else(|| Error::UnknownPool(name.unwrap_or_default().to_owned()))?
            .pool()
    }

    /// The names of the pools that allow inline volumes: those with the option `inline`, or the
    /// first pool if none has it.
    pub fn inline_pools(&self) -> Vec<String> {
        let slots = self.slots.read();
        let opened = slots.iter().filter(|slot| slot.spec.inline);
        let mut names: Vec<String> = opened.map(|slot| slot.spec.name.clone()).collect();
        if names.is_empty() {
            names.extend(slots.first().map(|slot| slot.spec.name.clone()));
        }
        names
    }

    /// The inline volumes of all open pools.
    pub fn inline_volumes(&self) -> Vec<Arc<VolumeRecord>> {
        self.all(Index::inline_volumes)
    }

    /// Finds a pool by identity. Fails with [`Error::ForeignPool`] if no configured pool has it.
    /// Fails with [`Error::Unavailable`] while a missing pool has this or an unknown identity.
    pub fn with_id(&self, id: PoolId) -> Result<Arc<Pool>> {
        if let Some(pool) = self.pools().into_iter().find(|p| p.id == id) {
            return Ok(pool);
        }
        self.none_missing(|slot| slot.id.is_none_or(|known| known == id))?;
        Err(Error::ForeignPool(id))
    }

    /// Finds a volume. Fails with [`Error::NoVolume`], [`Error::ForeignPool`] or
    /// [`Error::Unavailable`], and with [`Error::Corrupt`] if the record can't be used.
    pub fn volume(&self, handle: &VolumeHandle) -> Result<Arc<VolumeRecord>> {
        let none = || Error::NoVolume(handle.clone());
        match handle {
            VolumeHandle::Id(id) => {
                let pool = self.with_id(id.pool())?;
                pool.index.read().volumes.get(*id)?.ok_or_else(none)
            }
            VolumeHandle::Inline(name) => {
                let found = self.find(|index| index.inline(name));
                found.map_or_else(|| self.complete().and_then(|()| Err(none())), Ok)
            }
        }
    }

    /// Finds the volume with this name in the open pools.
    pub fn volume_named(&self, name: &str) -> Option<Arc<VolumeRecord>> {
        self.find(|index| index.volumes.named(name))
    }

    /// The volumes of the open pools, oldest first. Missing pools leave theirs out, and
    /// [`Pools::complete`] reports them.
    pub fn volumes(&self) -> Vec<Arc<VolumeRecord>> {
        let mut all = self.all(|index| index.volumes.all().cloned().collect());
        all.sort_by_key(|v| v.id.uuid());
        all
    }

    /// [`Error::Unavailable`] while a pool is missing, because lists then leave out its volumes.
    pub fn complete(&self) -> Result<()> {
        self.none_missing(|_| true)
    }

    /// Finds a snapshot. Errors are those of [`Pools::volume`], with [`Error::NoSnapshot`].
    pub fn snapshot(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        let pool = self.with_id(id.pool())?;
        let found = pool.index.read().snapshots.get(*id)?;
        found.ok_or(Error::NoSnapshot(*id))
    }

    /// Finds the snapshot with this name in the open pools.
    pub fn snapshot_named(&self, name: &str) -> Option<Arc<SnapshotRecord>> {
        self.find(|index| index.snapshots.named(name))
    }

    /// The snapshots of the open pools, oldest first, like [`Pools::volumes`].
    pub fn snapshots(&self) -> Vec<Arc<SnapshotRecord>> {
        let mut all = self.all(|index| index.snapshots.all().cloned().collect());
        all.sort_by_key(|s| s.id.uuid());
        all
    }

    /// Finds a group. Errors are those of [`Pools::volume`], with [`Error::NoGroup`].
    pub fn group(&self, id: &GroupId) -> Result<Arc<GroupRecord>> {
        let pool = self.with_id(id.pool())?;
        let found = pool.index.read().groups.get(*id)?;
        found.ok_or(Error::NoGroup(*id))
    }

    /// Finds the group with this name in the open pools.
    pub fn group_named(&self, name: &str) -> Option<Arc<GroupRecord>> {
        self.find(|index| index.groups.named(name))
    }

    /// The groups of the open pools, oldest first, like [`Pools::volumes`].
    pub fn groups(&self) -> Vec<Arc<GroupRecord>> {
        let mut all = self.all(|index| index.groups.all().cloned().collect());
        all.sort_by_key(|g| g.id.uuid());
        all
    }

    fn find<T>(&self, look: impl Fn(&Index) -> Option<T>) -> Option<T> {
        self.pools()
            .iter()
            .find_map(|pool| look(&pool.index.read()))
    }

    fn all<T>(&self, list: impl Fn(&Index) -> Vec<T>) -> Vec<T> {
        let pools = self.pools();
        pools
            .iter()
            .flat_map(|pool| list(&pool.index.read()))
            .collect()
    }

    /// The configured name of the pool with this identity, for messages to people.
    pub fn name_of(&self, id: PoolId) -> Option<String> {
        let slots = self.slots.read();
        let slot = slots.iter().find(|s| s.id == Some(id))?;
        Some(slot.spec.name.clone())
    }

    /// The problems that recovery noted in the open pools.
    pub fn noted_problems(&self) -> Vec<NotedProblem> {
        self.pools()
            .iter()
            .flat_map(|pool| pool.noted_problems())
            .collect()
    }
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

    /// The space that the pool can promise to volumes with this provisioning. Fails with
    /// [`Error::Unavailable`] if the next opening of the pool would not find it.
    pub fn capacity(self: &Arc<Self>, provisioning: Provisioning) -> Result<Capacity> {
        self.check_place()?;
        self.measure_snapshots();
        self.promisable(provisioning)
    }

    fn promisable(self: &Arc<Self>, provisioning: Provisioning) -> Result<Capacity> {
        let (usages, _) = self.space_usages()?;
        let lacks = self.image().map(|image| image.lacks_bytes()).transpose()?;
        Ok(capacity::capacity(
            &usages,
            &self.limits,
            provisioning,
            lacks.unwrap_or_default(),
        ))
    }

    /// Starts a check on another thread; [`Pool::look`] returns its result.
    pub fn begin_look(self: &Arc<Self>, kernel: &Arc<dyn Kernel>) {
        let (pool, kernel) = (self.clone(), kernel.clone());
        self.look.begin(move || {
            let reading = pool.alive().and_then(|()| pool.read(&*kernel));
            reading.map_err(|e| match e {
                Error::Unavailable { why, .. } => why,
                e => e.to_string(),
            })
        });
    }

    fn read(self: &Arc<Self>, kernel: &dyn Kernel) -> Result<Reading> {
        let root = File::from(
            self.layout
                .root()
                .try_clone_to_owned()
                .map_err(|e| crate::kernel::Error::io("dup", self.root(), e))?,
        );
        Ok(Reading {
            usage: layers::usage(kernel, &root, self.root())?,
            capacity: self.promisable(Provisioning::Thin)?,
            sparse: self.sparse_files(kernel)?,
            lost: self.lost(),
        })
    }

    /// Checks the pool, or joins a running check. A check that hangs returns an error after two
    /// seconds, and occupies only one thread for any number of callers.
    pub fn look(self: &Arc<Self>, kernel: &Arc<dyn Kernel>) -> Look {
        self.begin_look(kernel);
        self.look
            .answer(LOOK)
            .unwrap_or_else(|| Err(format!("it has not answered for {} s", LOOK.as_secs())))
    }

    /// What the pool was opened from and its next opening would not find.
    fn lost(&self) -> Option<Lost> {
        self.places.iter().find_map(PoolPlace::lost)
    }

    /// Fails with [`Error::Unavailable`] if the pool's next opening would not find it, or another
    /// pool.
    fn check_place(&self) -> Result<()> {
        self.alive()?;
        let why = self.lost().map(|lost| lost.message());
        why.map_or(Ok(()), |why| {
            Err(Error::Unavailable {
                name: self.name().to_owned(),
                why,
            })
        })
    }

    /// Checks that `pool.json` reads back with the pool's identity. The error says why it does not.
    pub fn alive(&self) -> Result<()> {
        let unavailable = |why: String| Error::Unavailable {
            name: self.name().to_owned(),
            why,
        };
        match open::identity(self.layout.root(), Some(self.id)) {
            Ok(Some(id)) if id == self.id => Ok(()),
            Ok(Some(id)) => Err(unavailable(format!("it has become pool {id}"))),
            Ok(None) => {
                let how = open::recipe(Some(self.id));
                Err(unavailable(format!("its pool.json is gone: {how}")))
            }
            Err(e) => Err(unavailable(e.to_string())),
        }
    }

    /// Size and free space of the pool's filesystem.
    pub fn usage(&self) -> Result<FsUsage> {
        Ok(self.kernel.usage_of(self.layout.root().as_fd())?)
    }

    /// The problems that recovery noted in this pool.
    pub fn noted_problems(&self) -> Vec<NotedProblem> {
        self.noted.lock().clone()
    }

    fn note(&self, about: About, until: Until, problem: Problem) {
        tracing::warn!(pool = %self.name(), %about, "{problem}");
        self.noted.lock().push(NotedProblem {
            pool: self.name().to_owned(),
            about,
            problem,
            until,
        });
    }

    /// Notes that recovery could not repair something, for this reason.
    fn note_unrepaired(&self, about: About, until: Until, why: impl Into<String>) {
        self.note(about, until, Problem::Unrepaired(why.into()));
    }

    /// Removes the noted problems of an object, because they no longer apply.
    fn forget(&self, about: &About) {
        self.noted.lock().retain(|noted| noted.about != *about);
    }
}
