//! Opening of pools: checks the path's content, its owner, and whether another process has it open.
//!
//! A pool that is not mounted yet looks like an empty directory. So the [`pool_registry`] outside
//! the pools records each pool. A registered pool that is not found is *missing*, never new.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use hostloop_terminal::humanize::exact_bytes;

use super::layout::open_dir;
use super::noted_problem::Until;
use super::place::PoolPlace;
use super::recovery;
use super::{About, Error, Pool, PoolKind, PoolSpec, Pools, Result};
use crate::kernel::{self, FsType, file};

pub(super) mod identity;
mod owner_node;
mod pool_device;
mod pool_directory;
mod pool_error;
mod pool_image;
mod pool_lock;
pub(super) mod pool_registry;
#[cfg(test)]
mod tests;

use pool_device::Device;
use pool_directory::PoolDirectory;
use pool_error::{refused, unavailable};
use pool_lock::flock;
use pool_registry::{PoolRegistry, RegisteredPool};

impl Pools {
    /// Opens the pool of a slot, recovers it, and adds it to the registry.
    pub(super) fn open_one(
        &self,
        slot: usize,
        spec: &PoolSpec,
        registry: &PoolRegistry,
        entry: &RegisteredPool,
    ) -> Result<Arc<Pool>> {
        let directory = match kind_of(spec, entry)? {
            PoolKind::Directory => {
                PoolDirectory::new(PoolKind::Directory, spec.path.clone(), None)?
            }
            PoolKind::Device => self.device(spec, registry, entry)?,
            PoolKind::Image => self.image(spec, registry, entry)?,
        };
        if let Some(warning) = beneath_kubelet(&spec.path, &self.options.state_dir) {
            tracing::warn!(pool = %spec.name, "{warning}");
        }
        let fs_uuid = directory.fs_uuid.clone();
        let pool = pool_directory::open_pool(spec, directory, entry, &self.options, &self.kernel)?;
        let Some(claim) = self.opening.claim(pool.id, slot) else {
            let (path, id) = (spec.path.display(), pool.id);
            let why = format!("{path} is pool {id}, which is open already");
            return Err(refused(spec, why));
        };
        let thawed = recovery::thaw(&pool, &*self.kernel);
        pool_directory::sync(&pool, entry)?;
        recovery::recover(&pool, &*self.kernel, &self.options, thawed)?;
        remember(&pool, registry, entry, fs_uuid)?;
        let pool = Arc::new(pool);
        self.filesystems.settle(&pool, &*self.kernel)?;
        claim.keep();
        Ok(pool)
    }

    fn device(
        &self,
        spec: &PoolSpec,
        registry: &PoolRegistry,
        entry: &RegisteredPool,
    ) -> Result<PoolDirectory> {
        let metadata = std::fs::metadata(&spec.path);
        let rdev = metadata
            .map_err(|e| kernel::Error::io("stat", &spec.path, e))?
            .rdev();
        let node = File::open(&spec.path).map_err(|e| kernel::Error::io("open", &spec.path, e))?;
        flock(spec, &node, &spec.path)?;
        let device = Device {
            path: spec.path.clone(),
            number: (rustix::fs::major(rdev), rustix::fs::minor(rdev)),
            discard: true,
        };
        let mut directory =
            pool_device::directory(self, spec, (registry, entry), PoolKind::Device, &device)?;
        directory
            .places
            .insert(0, PoolPlace::now(PoolKind::Device, &spec.path, None));
        directory.locks.push(node);
        Ok(directory)
    }

    fn image(
        &self,
        spec: &PoolSpec,
        registry: &PoolRegistry,
        entry: &RegisteredPool,
    ) -> Result<PoolDirectory> {
        let bytes = spec.image_bytes.unwrap_or_default();
        let at = pool_device::mount_point(&self.options, &spec.name)?;
        let image = pool_image::attach(&*self.kernel, spec, entry, &at, bytes)?;
        let mut directory = pool_device::directory(
            self,
            spec,
            (registry, entry),
            PoolKind::Image,
            &image.device,
        )?;
        let device = &image.device.path;
        let used = self.kernel.fs_size(&directory.path, device, FsType::Xfs)?;
        if used < image.bytes
            && let Err(error) = self.kernel.grow(device, &directory.path, FsType::Xfs)
        {
            // Its volumes need the pool more than it needs the space.
            directory.notes.push(format!(
                "its filesystem keeps its {} of {}, and the next start tries again: {error}",
                exact_bytes(used),
                exact_bytes(image.bytes)
            ));
        }
        let mounted = Some((device.clone(), directory.path.clone()));
        let path = spec.path.join(spec.image_name());
        directory
            .places
            .insert(0, PoolPlace::now(PoolKind::Image, &path, mounted));
        drop(image.hold);
        directory.locks.push(image.lock);
        directory.notes.extend(image.notes);
        Ok(directory)
    }
}

/// Registers an open pool. If the registry knows it already and can't be synced, that is only
/// noted: the pool's own disk is sound, and pods must be able to leave.
fn remember(
    pool: &Pool,
    registry: &PoolRegistry,
    before: &RegisteredPool,
    fs_uuid: Option<String>,
) -> Result<()> {
    // One write for all fields: a known filesystem without a pool ID is not a valid state.
    let now = RegisteredPool {
        id: Some(pool.id),
        path: pool.spec.path.clone(),
        fs_uuid,
        mkfs: None,
    };
    let is_known = now == *before;
    match registry.remember(pool.name(), |entry| *entry = now) {
        Err(Error::Kernel(e)) if is_known => {
            let why = format!("after a power cut, this node may not know it any more: {e}");
            pool.note_unrepaired(About::Pool, Until::Reopened, why);
            Ok(())
        }
        remembered => remembered,
    }
}

/// A warning about a pool beneath kubelet's root, which the state directory names where it is the
/// default one.
fn beneath_kubelet(pool: &Path, state_dir: &Path) -> Option<String> {
    let plugins = state_dir.ancestors().find(|dir| dir.ends_with("plugins"))?;
    let root = plugins.parent().filter(|root| pool.starts_with(root))?;
    Some(format!(
        "{} is beneath kubelet's directory {}: scripts that reset a node often remove that with all \
         that is in it, and so all volumes. Keep the pool elsewhere",
        pool.display(),
        root.display()
    ))
}

/// Determines the pool's kind from the file at the path. Creates a directory that neither exists
/// nor is registered.
fn kind_of(spec: &PoolSpec, entry: &RegisteredPool) -> Result<PoolKind> {
    let path = &spec.path;
    let shown = path.display();
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if entry.id.is_some() || path.starts_with("/dev") {
                let before = entry.path_before(spec);
                return Err(unavailable(spec, format!("{shown} is not there{before}")));
            }
            make_dirs(path)?;
            std::fs::metadata(path).map_err(|e| kernel::Error::io("stat", path, e))?
        }
        Err(e) => return Err(kernel::Error::io("stat", path, e).into()),
    };
    if metadata.file_type().is_block_device() {
        return match spec.image_bytes {
            None => Ok(PoolKind::Device),
            Some(_) => {
                let why =
                    format!("image=SIZE goes with a directory, and {shown} is a block device");
                Err(refused(spec, why))
            }
        };
    }
    if !metadata.is_dir() {
        let why = format!("{shown} is neither a directory nor a block device");
        return Err(refused(spec, why));
    }
    match spec.image_bytes {
        None if spec.wipe => {
            let why = format!("wipe needs a block device, but {shown} is a directory");
            Err(refused(spec, why))
        }
        None => Ok(PoolKind::Directory),
        Some(_) => Ok(PoolKind::Image),
    }
}

/// Creates a directory and its missing parents, and syncs them. After a power cut, a registered
/// pool without its directory would count as missing.
fn make_dirs(path: &Path) -> Result<()> {
    let above: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|dir| !dir.exists())
        .collect();
    std::fs::create_dir_all(path).map_err(|e| kernel::Error::io("mkdir", path, e))?;
    for made in std::iter::once(path).chain(above) {
        if let Some(parent) = made.parent() {
            file::sync(&open_dir(parent)?, parent)?;
        }
    }
    Ok(())
}
