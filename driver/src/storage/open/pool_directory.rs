//! A directory that is, or becomes, a pool: its identity and its content.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use super::identity::{self, IDENTITY, identity, pool_of_entries, recipe};
use super::owner_node;
use super::pool_error::{refused, unavailable};
use super::pool_lock::take_lock;
use super::pool_registry::RegisteredPool;
use crate::kernel::{self, BLOCK_SIZE, Kernel, file};
use crate::storage::capacity::{CapacityLimits, SpaceRequest};
use crate::storage::file_names::LOCK;
use crate::storage::index::Index;
use crate::storage::layout::{PoolLayout, open_dir, open_file};
use crate::storage::noted_problem::Until;
use crate::storage::place::PoolPlace;
use crate::storage::{About, Error, Pool, PoolId, PoolKind, PoolOptions, PoolSpec, Result};

/// A directory that holds a pool, or in which a pool can be made.
pub(super) struct PoolDirectory {
    pub(super) kind: PoolKind,
    /// The UUID of its filesystem, if the driver mounts it.
    pub(super) fs_uuid: Option<String>,
    pub(super) path: PathBuf,
    pub(super) root: File,
    /// Locks taken on the way to the directory, such as on the device.
    pub(super) locks: Vec<File>,
    /// What the pool is opened from, and the mount point.
    pub(super) places: Vec<PoolPlace>,
    /// Problems that an operator should know about.
    pub(super) notes: Vec<String>,
}

impl PoolDirectory {
    pub(super) fn new(
        kind: PoolKind,
        path: PathBuf,
        fs_uuid: Option<String>,
    ) -> Result<PoolDirectory> {
        Ok(PoolDirectory {
            kind,
            fs_uuid,
            root: open_dir(&path)?,
            places: vec![PoolPlace::now(PoolKind::Directory, &path, None)],
            path,
            locks: Vec::new(),
            notes: Vec::new(),
        })
    }
}

/// What to do with a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The expected pool, or one that is new to this node.
    Open(PoolId),
    /// An empty directory where no pool was expected.
    Initialise,
    /// The expected pool is missing.
    Missing,
    /// Another pool than the expected one.
    Other(PoolId),
    /// Other content.
    Foreign,
}

pub(super) fn verdict(known: Option<PoolId>, found: Option<PoolId>, empty: bool) -> Verdict {
    match (known, found) {
        (Some(known), Some(found)) if known != found => Verdict::Other(found),
        (_, Some(found)) => Verdict::Open(found),
        (Some(_), None) => Verdict::Missing,
        (None, None) if empty => Verdict::Initialise,
        (None, None) => Verdict::Foreign,
    }
}

/// Locks the pool, determines its identity, and opens its directories. The caller calls [`sync`].
pub(super) fn open_pool(
    spec: &PoolSpec,
    directory: PoolDirectory,
    entry: &RegisteredPool,
    options: &PoolOptions,
    kernel: &Arc<dyn Kernel>,
) -> Result<Pool> {
    let PoolDirectory {
        kind,
        fs_uuid: _,
        path,
        root,
        mut locks,
        places,
        notes,
    } = directory;
    let id = lock_and_identify(spec, &path, root.as_fd(), entry, &mut locks)?;
    let unclaimed = match owner_node::claim(spec, options, &path, root.as_fd()) {
        // A full pool still opens; a later start records its node.
        Err(Error::Kernel(e)) if e.is_no_space() => {
            Some(format!("can't record that it belongs to this node: {e}"))
        }
        other => other.map(|()| None)?,
    };
    let layout = PoolLayout::open(root, &path, entry.id.is_none(), &**kernel)?;
    file::set_no_cow_on_btrfs(layout.incoming())?;
    let mut pool = Pool {
        kernel: kernel.clone(),
        id,
        kind,
        reflinks: false,
        limits: CapacityLimits::new(options, spec.capacity_bytes),
        spec: spec.clone(),
        layout,
        index: RwLock::new(Index::default()),
        synced: Mutex::default(),
        to_sync: Mutex::default(),
        unsynced: AtomicBool::new(false),
        measured: Mutex::default(),
        changing: std::array::from_fn(|_| Mutex::default()),
        under_way: Mutex::new(SpaceRequest::default()),
        space: OnceLock::new(),
        filler_bytes: AtomicU64::new(0),
        backed: AtomicBool::new(false),
        places,
        look: Default::default(),
        noted: Mutex::new(Vec::new()),
        unfinished: Mutex::default(),
        _locks: locks,
    };
    // All that follows may need its room.
    pool.drop_filler();
    pool.reflinks = can_clone(&pool)?;
    let block = file::block_size(pool.layout.root())?;
    let limits = limitations(&**kernel, pool.reflinks, block);
    let notes = notes.into_iter().chain(unclaimed);
    for note in notes.chain(limits) {
        pool.note_unrepaired(About::Pool, Until::Reopened, note);
    }
    Ok(pool)
}

/// Whether files of the pool can share blocks. A full filesystem may have no room for the files of the
/// test. The lock is empty, and the kernel clones it onto itself wherever it can clone.
fn can_clone(pool: &Pool) -> Result<bool> {
    match pool.kernel.can_clone(pool.layout.incoming()) {
        Err(e) if e.is_no_space() => {
            let lock = open_file(pool.layout.root(), LOCK)?;
            match pool.kernel.clone_file(&lock, &lock) {
                Err(kernel::Error::Unsupported { .. }) => Ok(false),
                cloned => Ok(cloned.map(|()| true)?),
            }
        }
        found => Ok(found?),
    }
}

/// Syncs the directories of a pool that was just opened. If they can't be synced, that is noted,
/// and [`Pools::tend`](crate::storage::Pools::tend) tries again.
pub(super) fn sync(pool: &Pool, entry: &RegisteredPool) -> Result<()> {
    match pool.layout.sync() {
        Ok(()) => Ok(()),
        // The pool counts as known from now on, so its directories must survive a power cut.
        Err(e) if entry.id.is_none() => Err(e.into()),
        // Pods must be able to leave.
        Err(e) => {
            let why = format!(
                "what an earlier process created or deleted may not survive a power cut: {e}"
            );
            pool.unsynced.store(true, Ordering::SeqCst);
            pool.note_unrepaired(About::Pool, Until::Synced, why);
            Ok(())
        }
    }
}

/// Takes the pool's lock and returns its ID, which a new pool gets here.
fn lock_and_identify(
    spec: &PoolSpec,
    path: &Path,
    root: BorrowedFd<'_>,
    entry: &RegisteredPool,
    locks: &mut Vec<File>,
) -> Result<PoolId> {
    let found = identity(root, entry.id)?;
    match verdict(entry.id, found, is_blank(root)?) {
        Verdict::Open(id) => {
            locks.push(take_lock(spec, path, root)?);
            Ok(id)
        }
        Verdict::Initialise => {
            locks.push(take_lock(spec, path, root)?);
            initialise(spec, root)
        }
        Verdict::Missing => Err(unavailable(spec, why_missing(spec, path, root, entry))),
        Verdict::Other(id) => {
            let shown = path.display();
            let why = format!(
                "{shown} holds pool {id}, which is not the one this node knows by that name"
            );
            Err(unavailable(spec, why))
        }
        Verdict::Foreign => Err(refused(spec, why_foreign(path, root))),
    }
}

/// Says what is there in place of the expected pool.
fn why_missing(
    spec: &PoolSpec,
    path: &Path,
    root: BorrowedFd<'_>,
    entry: &RegisteredPool,
) -> String {
    let shown = path.display();
    if entry.id.is_some() && pool_of_entries(root) == entry.id {
        let recipe = recipe(entry.id);
        return format!("{shown} holds no {IDENTITY}, but its entries: {recipe}");
    }
    let before = entry.path_before(spec);
    if before.is_empty() {
        format!(
            "{shown} holds no {IDENTITY}, though a pool was here: is it mounted? Is the path right?"
        )
    } else {
        format!("{shown} holds no {IDENTITY}{before}, or it is not mounted")
    }
}

/// Says why no pool is made in a directory that is not empty.
fn why_foreign(path: &Path, root: BorrowedFd<'_>) -> String {
    let shown = path.display();
    match pool_of_entries(root) {
        Some(id) => format!(
            "{shown} holds no {IDENTITY}, but the entries of pool {id}: {}",
            recipe(Some(id))
        ),
        None => format!("{shown} is not empty and is not a pool: the driver changes nothing in it"),
    }
}

/// What an open pool lacks, because of the kernel's settings or its filesystem.
fn limitations(kernel: &dyn Kernel, reflinks: bool, block: u64) -> Vec<String> {
    let mut all = Vec::new();
    if let Err(e) = kernel.check_device_attributes() {
        all.push(format!(
            "its volumes keep the read-ahead of their loop devices, and none can be XFS: {e}. Give \
             the driver's container a writable /sys (privileged: true)"
        ));
    }
    if reflinks && block > u64::from(BLOCK_SIZE) {
        all.push(format!(
            "its filesystem has blocks of {block} bytes: images that share some lose direct I/O"
        ));
    }
    all
}

/// True if the directory holds nothing that could belong to another user.
fn is_blank(root: BorrowedFd<'_>) -> Result<bool> {
    // An interrupted first start leaves the lock and a partial identity file.
    let left = ["lost+found", LOCK, ".pool.json.new"];
    let names = file::list(root)?;
    Ok(names.iter().all(|name| left.contains(&name.as_str())))
}

fn initialise(spec: &PoolSpec, root: BorrowedFd<'_>) -> Result<PoolId> {
    // Read again under the lock: another process may have made the identity first.
    if let Some(id) = identity(root, None)? {
        return Ok(id);
    }
    identity::write(root, &spec.name)
}
