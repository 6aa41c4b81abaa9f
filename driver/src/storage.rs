//! Where volumes live: the pools, their records and images on disk, and the index over them.
//!
//! The disk is the truth; `docs/architecture.md` shows the layout. Everything here blocks.
//! Callers hold the locks of the names and IDs they pass (`server::desk`); only the index and
//! the room that is being promised are guarded in here, and never across I/O.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Duration;

mod capacity;
pub mod config;
mod content_source;
pub mod copy_image;
mod directory;
pub mod error;
pub mod freeze;
mod groups;
pub mod id;
mod index;
pub mod issue;
mod joined;
mod open;
pub mod record;
mod record_io;
mod recovery;
mod reservation;
pub mod scan;
mod slots;
mod snapshots;
mod space;
mod sync;
mod volumes;

pub use config::{PoolKind, PoolOptions, PoolSpec, Reserve};
pub use error::{Error, Result};
pub use id::{GroupId, PoolId, SnapshotId, VolumeHandle, VolumeId, pool_named_in};
pub use issue::{About, Issue};
pub use record::{
    Access, AccessMode, Capability, Format, FreezeIntent, GroupRecord, Provisioning, Publication,
    Settings, SnapshotRecord, Source, Stage, VolumeRecord,
};

use self::capacity::{Limits, SpaceRequest};
use self::directory::Layout;
use self::index::Index;
use self::issue::{Holds, Noted};
use self::joined::Joined;
use self::recovery::Unfinished;
use self::space::{Filesystems, Space};
use self::sync::{lock, read};
use crate::kernel::{FsUsage, Kernel, file};

/// What a new volume is to be; the pool adds ID, time and format state.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// The caller's name for it.
    pub name: String,
    /// Size in bytes, a multiple of 4096, already checked against range and filesystem.
    pub capacity_bytes: u64,
    /// See [`VolumeRecord`].
    pub capabilities: Vec<Capability>,
    /// See [`VolumeRecord`].
    pub parameters: BTreeMap<String, String>,
    /// See [`VolumeRecord`].
    pub mutable_parameters: BTreeMap<String, String>,
    /// See [`VolumeRecord`].
    pub settings: Settings,
    /// See [`VolumeRecord`].
    pub mkfs_options: Vec<String>,
    /// Copy from this, which is at most as large.
    pub source: Option<Source>,
    /// Kubelet's handle of an inline volume.
    pub inline: Option<String>,
}

/// What a pool can really promise now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// To new volumes in all.
    pub available: u64,
    /// To one volume.
    pub largest: u64,
}

/// A pool that is open.
#[derive(Debug)]
pub struct Pool {
    id: PoolId,
    spec: PoolSpec,
    kind: PoolKind,
    reflinks: bool,
    limits: Limits,
    layout: Layout,
    index: RwLock<Index>,
    /// Promised to operations under way.
    under_way: Mutex<SpaceRequest>,
    /// The filesystems that provide its space; set once it is open.
    space: OnceLock<Space>,
    look: Arc<Joined<Look>>,
    findings: Mutex<Vec<Noted>>,
    /// Groups that were on their way in or out when the process before this one ended, and have
    /// members that are not freed yet.
    unfinished: Mutex<Vec<Unfinished>>,
    /// Files whose locks keep other processes out of the pool.
    _locks: Vec<File>,
}

/// The result of a look at an open pool; the error says why the pool does not answer.
pub type Look = std::result::Result<Reading, String>;

/// The state of an open pool that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Size and free space of its filesystem.
    pub usage: FsUsage,
    /// Space that it can still promise to thin volumes.
    pub capacity: Capacity,
}

/// How long an open pool may take to answer a look. Shorter than the timeouts of health RPCs.
const LOOK: Duration = Duration::from_secs(2);

/// A configured pool, open or not.
#[derive(Clone, Debug)]
pub struct Slot {
    /// As configured.
    pub spec: PoolSpec,
    /// The pool, or why it is missing.
    pub state: std::result::Result<Arc<Pool>, String>,
    /// The identity it has, or had when it was seen last.
    pub id: Option<PoolId>,
}

impl Slot {
    fn unavailable(&self, why: &str) -> Error {
        Error::Unavailable {
            name: self.spec.name.clone(),
            why: why.to_owned(),
        }
    }
}

/// All pools of this node.
pub struct Pools {
    kernel: Arc<dyn Kernel>,
    options: PoolOptions,
    slots: RwLock<Vec<Slot>>,
    opening: slots::Opening,
    filesystems: Arc<Filesystems>,
}

impl Pools {
    /// The kernel the pools act on.
    pub fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
    }

    /// What holds for all pools.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// The configured pools in order, open or missing.
    pub fn slots(&self) -> Vec<Slot> {
        read(&self.slots).clone()
    }

    /// Looks at all pools in parallel, so that all hanging pools together cost the time of one.
    pub fn look(&self) -> Vec<(Slot, Option<Look>)> {
        let slots = self.slots();
        for pool in slots.iter().filter_map(|slot| slot.state.as_ref().ok()) {
            pool.begin_look();
        }
        let look = |slot: Slot| {
            let look = slot.state.as_ref().ok().map(Pool::look);
            (slot, look)
        };
        slots.into_iter().map(look).collect()
    }

    /// The open pools, in order.
    fn pools(&self) -> Vec<Arc<Pool>> {
        let slots = read(&self.slots);
        slots.iter().filter_map(|s| s.state.clone().ok()).collect()
    }

    /// [`Error::Unavailable`] while a pool is missing that may hold what is looked for.
    fn none_missing(&self, may_hold: impl Fn(&Slot) -> bool) -> Result<()> {
        for slot in read(&self.slots).iter() {
            if let (Err(why), true) = (&slot.state, may_hold(slot)) {
                return Err(slot.unavailable(why));
            }
        }
        Ok(())
    }

    /// A pool by name; `None` is the first configured. [`Error::UnknownPool`], or
    /// [`Error::Unavailable`].
    pub fn named(&self, name: Option<&str>) -> Result<Arc<Pool>> {
        let slots = read(&self.slots);
        let slot = match name {
            None => slots.first(),
            Some(name) => slots.iter().find(|s| s.spec.name == name),
        };
        let slot = slot.ok_or_else(|| Error::UnknownPool(name.unwrap_or_default().to_owned()))?;
        match &slot.state {
            Ok(pool) => Ok(pool.clone()),
            Err(why) => Err(slot.unavailable(why)),
        }
    }

    /// The names of the pools that allow inline volumes: those with the option `inline`, or the
    /// first pool if none has it.
    pub fn inline_pools(&self) -> Vec<String> {
        let slots = read(&self.slots);
        let opened = slots.iter().filter(|slot| slot.spec.inline);
        let mut names: Vec<String> = opened.map(|slot| slot.spec.name.clone()).collect();
        if names.is_empty() {
            names.extend(slots.first().map(|slot| slot.spec.name.clone()));
        }
        names
    }

    /// The inline volumes of all open pools.
    pub fn inline_volumes(&self) -> Vec<Arc<VolumeRecord>> {
        let pools = self.pools();
        pools
            .iter()
            .flat_map(|pool| read(&pool.index).inline_volumes())
            .collect()
    }

    /// A pool by identity. [`Error::ForeignPool`], or [`Error::Unavailable`] while a configured
    /// pool whose identity is not known, or which has this one, is missing.
    pub fn with_id(&self, id: PoolId) -> Result<Arc<Pool>> {
        if let Some(pool) = self.pools().into_iter().find(|p| p.id == id) {
            return Ok(pool);
        }
        self.none_missing(|slot| slot.id.is_none_or(|known| known == id))?;
        Err(Error::ForeignPool(id))
    }

    /// A volume. [`Error::NoVolume`], [`Error::ForeignPool`] or [`Error::Unavailable`];
    /// [`Error::Corrupt`] if its record can't be used.
    pub fn volume(&self, handle: &VolumeHandle) -> Result<Arc<VolumeRecord>> {
        let none = || Error::NoVolume(handle.clone());
        match handle {
            VolumeHandle::Id(id) => {
                let pool = self.with_id(id.pool())?;
                read(&pool.index).volumes.get(*id)?.ok_or_else(none)
            }
            VolumeHandle::Inline(name) => {
                let found = self.find(|index| index.inline(name));
                found.map_or_else(
                    || self.none_missing(|_| true).and_then(|()| Err(none())),
                    Ok,
                )
            }
        }
    }

    /// The volume of this name, in any open pool.
    pub fn volume_named(&self, name: &str) -> Option<Arc<VolumeRecord>> {
        self.find(|index| index.volumes.named(name))
    }

    /// The volumes of the open pools, oldest first. [`Pools::complete`] shows if a pool, and so its
    /// volumes, is missing.
    pub fn volumes(&self) -> Vec<Arc<VolumeRecord>> {
        let mut all = self.all(|index| index.volumes.all().cloned().collect());
        all.sort_by_key(|v| v.id.uuid());
        all
    }

    /// [`Error::Unavailable`] while a pool is missing, which means that lists leave out its
    /// volumes.
    pub fn complete(&self) -> Result<()> {
        self.none_missing(|_| true)
    }

    /// A snapshot, like [`Pools::volume`]; [`Error::NoSnapshot`].
    pub fn snapshot(&self, id: &SnapshotId) -> Result<Arc<SnapshotRecord>> {
        let pool = self.with_id(id.pool())?;
        let found = read(&pool.index).snapshots.get(*id)?;
        found.ok_or(Error::NoSnapshot(*id))
    }

    /// The snapshot of this name, in any open pool.
    pub fn snapshot_named(&self, name: &str) -> Option<Arc<SnapshotRecord>> {
        self.find(|index| index.snapshots.named(name))
    }

    /// All snapshots, oldest first, like [`Pools::volumes`].
    pub fn snapshots(&self) -> Vec<Arc<SnapshotRecord>> {
        let mut all = self.all(|index| index.snapshots.all().cloned().collect());
        all.sort_by_key(|s| s.id.uuid());
        all
    }

    /// A group, like [`Pools::volume`]; [`Error::NoGroup`].
    pub fn group(&self, id: &GroupId) -> Result<Arc<GroupRecord>> {
        let pool = self.with_id(id.pool())?;
        let found = read(&pool.index).groups.get(*id)?;
        found.ok_or(Error::NoGroup(*id))
    }

    /// The group of this name, in any open pool.
    pub fn group_named(&self, name: &str) -> Option<Arc<GroupRecord>> {
        self.find(|index| index.groups.named(name))
    }

    /// All groups, oldest first, like [`Pools::volumes`].
    pub fn groups(&self) -> Vec<Arc<GroupRecord>> {
        let mut all = self.all(|index| index.groups.all().cloned().collect());
        all.sort_by_key(|g| g.id.uuid());
        all
    }

    fn find<T>(&self, look: impl Fn(&Index) -> Option<T>) -> Option<T> {
        self.pools()
            .iter()
            .find_map(|pool| look(&read(&pool.index)))
    }

    fn all<T>(&self, list: impl Fn(&Index) -> Vec<T>) -> Vec<T> {
        let pools = self.pools();
        pools
            .iter()
            .flat_map(|pool| list(&read(&pool.index)))
            .collect()
    }

    /// The name of the pool a volume, snapshot or group is in, for people.
    pub fn name_of(&self, id: PoolId) -> Option<String> {
        let slots = read(&self.slots);
        let slot = slots.iter().find(|s| s.id == Some(id))?;
        Some(slot.spec.name.clone())
    }

    /// What the open pools noticed that a person should know.
    pub fn findings(&self) -> Vec<Issue> {
        self.pools()
            .iter()
            .flat_map(|pool| pool.findings())
            .collect()
    }
}

impl Pool {
    /// Its identity.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it is kept in.
    pub fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Where its files are.
    pub fn root(&self) -> &Path {
        self.layout.path()
    }

    /// Whether snapshots share extents (reflinks).
    pub fn reflinks(&self) -> bool {
        self.reflinks
    }

    /// What it can promise to volumes provisioned this way.
    pub fn capacity(self: &Arc<Self>, provisioning: Provisioning) -> Result<Capacity> {
        let (books, _) = self.books()?;
        Ok(capacity::capacity(&books, &self.limits, provisioning))
    }

    /// Starts a look on another thread; [`Pool::look`] returns its result.
    pub fn begin_look(self: &Arc<Self>) {
        let pool = self.clone();
        self.look.begin(move || {
            let reading = pool.alive().and_then(|()| {
                Ok(Reading {
                    usage: pool.usage()?,
                    capacity: pool.capacity(Provisioning::Thin)?,
                })
            });
            reading.map_err(|e| match e {
                Error::Unavailable { why, .. } => why,
                e => e.to_string(),
            })
        });
    }

    /// Looks at the pool, or joins a look under way. A look that hangs gives an error after two
    /// seconds, and holds one thread however many callers ask.
    pub fn look(self: &Arc<Self>) -> Look {
        self.begin_look();
        self.look
            .answer(LOOK)
            .unwrap_or_else(|| Err(format!("it has not answered for {} s", LOOK.as_secs())))
    }

    /// Whether it answers: its `pool.json` reads back with its identity. The error says why not.
    pub fn alive(&self) -> Result<()> {
        let unavailable = |why: String| Error::Unavailable {
            name: self.name().to_owned(),
            why,
        };
        match open::identity(self.layout.root()) {
            Ok(Some(id)) if id == self.id => Ok(()),
            Ok(Some(id)) => Err(unavailable(format!("it has become pool {id}"))),
            Ok(None) => Err(unavailable("its pool.json is gone".to_owned())),
            Err(e) => Err(unavailable(e.to_string())),
        }
    }

    /// Size and free space of the filesystem it is on.
    pub fn usage(&self) -> Result<FsUsage> {
        Ok(file::usage(self.layout.root().as_fd())?)
    }

    /// What was noticed in it.
    pub fn findings(&self) -> Vec<Issue> {
        let noted = lock(&self.findings);
        noted.iter().map(|n| n.finding.clone()).collect()
    }

    fn note(&self, about: About, holds: Holds, what: impl Into<String>) {
        let finding = Issue {
            pool: self.name().to_owned(),
            about,
            what: what.into(),
        };
        tracing::warn!(pool = %finding.pool, about = %finding.about, "{}", finding.what);
        lock(&self.findings).push(Noted { finding, holds });
    }

    /// What was said about something is no longer worth saying.
    fn forget(&self, about: &About) {
        lock(&self.findings).retain(|n| n.finding.about != *about);
    }
}
