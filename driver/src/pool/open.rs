//! Opening pools: what is at the path, whose it is, and whether this process may have it.
//!
//! A pool that is not mounted yet looks like an empty directory. So what was seen once is
//! remembered outside of it (see [`known`]), and a pool that is known and not there is *missing*,
//! never new.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};

use super::locks::{lock, read, write};
use super::recovery;
use super::{Error, Pool, PoolId, PoolKind, PoolOptions, PoolSpec, Pools, Result, Slot};
use crate::sys::{self, FsType, Kernel, file};

mod formatted;
mod ground;
mod image;
mod known;
#[cfg(test)]
mod tests;

use formatted::Device;
pub(super) use ground::identity;
use ground::{Ground, flock, open_dir, unavailable};
use known::{Entry, Known};

impl Pools {
    /// Opens the configured pools and recovers each. A missing pool is no error here: its slot
    /// says why, and everything about it is answered [`Error::Unavailable`]. Errors are a pool
    /// that another process has open ([`Error::Locked`]), and a path that holds something that
    /// is not a pool ([`Error::Refused`]).
    pub fn open(
        specs: &[PoolSpec],
        options: PoolOptions,
        kernel: Arc<dyn Kernel>,
    ) -> Result<Pools> {
        if let Some(twice) = twice(specs.iter().map(|s| s.name.as_str())) {
            return Err(Error::Refused(format!("pool {twice} is configured twice")));
        }
        let slots = specs.iter().map(|spec| Slot {
            spec: spec.clone(),
            state: Err("it was not looked for yet".to_owned()),
            id: None,
        });
        let pools = Pools {
            slots: RwLock::new(slots.collect()),
            kernel,
            options,
            search: Mutex::new(()),
        };
        pools.search(true)?;
        Ok(pools)
    }

    /// Opens (and recovers) pools that were missing and have turned up; called now and then.
    /// What could not be freed in the others is tried again.
    pub fn retry_missing(&self) {
        for pool in self.pools() {
            pool.layout.remove_left();
        }
        if let Err(e) = self.search(false) {
            tracing::warn!(error = %e, "missing pools could not be looked for");
        }
    }

    /// Looks for the pools that are missing. At the `first` time, what can only be a mistake in
    /// the configuration is an error; later on it is one more reason why a pool is missing.
    fn search(&self, first: bool) -> Result<()> {
        let _one_at_a_time = lock(&self.search);
        let missing: Vec<(usize, PoolSpec)> = {
            let slots = read(&self.slots);
            let missing = slots.iter().enumerate().filter(|(_, s)| s.state.is_err());
            missing.map(|(i, s)| (i, s.spec.clone())).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let known = Known::at(&self.options.state_dir)?;
        let mut found = false;
        for (i, spec) in missing {
            let entry = known.entry(&spec.name)?;
            let opened = self.open_one(&spec, &known, &entry);
            let id = opened.as_ref().map_or(entry.id, |pool| Some(pool.id));
            if let (true, Err(e @ (Error::Locked { .. } | Error::Refused(_)))) = (first, &opened) {
                let configured_wrong = matches!(e, Error::Locked { .. }) || entry.id.is_none();
                if configured_wrong {
                    return opened.map(drop);
                }
            }
            let state = match opened {
                Ok(pool) => {
                    found = true;
                    Ok(pool)
                }
                Err(Error::Unavailable { why, .. }) => Err(why),
                Err(e) => Err(e.to_string()),
            };
            self.settle_slot(i, state, id);
        }
        if found {
            recovery::settle_groups(self);
        }
        Ok(())
    }

    fn settle_slot(
        &self,
        i: usize,
        state: std::result::Result<Arc<Pool>, String>,
        id: Option<PoolId>,
    ) {
        let mut slots = write(&self.slots);
        let name = slots[i].spec.name.clone();
        match &state {
            Ok(pool) => {
                tracing::info!(pool = %name, id = %pool.id, path = %pool.root().display(), reflinks = pool.reflinks, "pool open")
            }
            // Said once, not at every look.
            Err(why) if slots[i].state.as_ref().err() == Some(why) => {}
            Err(why) => tracing::warn!(pool = %name, %why, "pool missing"),
        }
        slots[i].id = id;
        slots[i].state = state;
    }

    fn open_one(&self, spec: &PoolSpec, known: &Known, entry: &Entry) -> Result<Arc<Pool>> {
        let ground = match kind_of(spec, entry)? {
            PoolKind::Directory => ground::directory(spec)?,
            PoolKind::Device => self.device(spec, known, entry)?,
            PoolKind::Image => self.image(spec, known, entry)?,
        };
        let pool = ground::open_ground(spec, ground, entry, &self.options)?;
        if self.pools().iter().any(|other| other.id == pool.id) {
            let why = format!(
                "pool {}: {} is pool {}, which is open already",
                spec.name,
                spec.path.display(),
                pool.id
            );
            return Err(Error::Refused(why));
        }
        recovery::recover(&pool, &*self.kernel, &self.options)?;
        known.remember(&spec.name, |entry| {
            entry.id = Some(pool.id);
            entry.path = spec.path.clone();
        })?;
        Ok(Arc::new(pool))
    }

    fn device(&self, spec: &PoolSpec, known: &Known, entry: &Entry) -> Result<Ground> {
        let metadata = std::fs::metadata(&spec.path);
        let rdev = metadata
            .map_err(|e| sys::Error::io("stat", &spec.path, e))?
            .rdev();
        let node = File::open(&spec.path).map_err(|e| sys::Error::io("open", &spec.path, e))?;
        flock(spec, &node, &spec.path)?;
        let device = Device {
            path: spec.path.clone(),
            number: (rustix::fs::major(rdev), rustix::fs::minor(rdev)),
            discard: true,
        };
        let mut ground = formatted::ground(
            &*self.kernel,
            (spec, &self.options),
            (known, entry),
            PoolKind::Device,
            &device,
        )?;
        ground.locks.push(node);
        Ok(ground)
    }

    fn image(&self, spec: &PoolSpec, known: &Known, entry: &Entry) -> Result<Ground> {
        let bytes = spec.image_bytes.unwrap_or_default();
        let image = image::attach(&*self.kernel, spec, entry, bytes)?;
        let mut ground = formatted::ground(
            &*self.kernel,
            (spec, &self.options),
            (known, entry),
            PoolKind::Image,
            &image.device,
        )?;
        let device = &image.device.path;
        let used = self.kernel.fs_size(&ground.path, device, FsType::Xfs)?;
        if used < image.bytes {
            self.kernel.grow(device, &ground.path, FsType::Xfs)?;
        }
        drop(image.hold);
        ground.locks.push(image.lock);
        ground.notes.extend(image.notes);
        Ok(ground)
    }

    /// Gives all pools up and unmounts those that were mounted by the driver: for whoever is done
    /// with them for good, such as a demonstration. A driver that ends leaves its mounts, since
    /// pods go on using what is in them.
    pub fn close(&self) -> Result<()> {
        let mut mounted = Vec::new();
        for slot in write(&self.slots).iter_mut() {
            if let Ok(pool) = &slot.state
                && pool.kind != PoolKind::Directory
            {
                mounted.push(pool.root().to_path_buf());
            }
            slot.state = Err("it was closed".to_owned());
        }
        for at in mounted {
            self.kernel.unmount(&at)?;
        }
        Ok(())
    }
}

fn twice<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// What kind of pool the path is, by what is there. A directory that is neither there nor known
/// is made.
fn kind_of(spec: &PoolSpec, entry: &Entry) -> Result<PoolKind> {
    let path = &spec.path;
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if entry.id.is_some() || path.starts_with("/dev") {
                return Err(unavailable(
                    spec,
                    format!("{} is not there", path.display()),
                ));
            }
            make_dirs(path)?;
            std::fs::metadata(path).map_err(|e| sys::Error::io("stat", path, e))?
        }
        Err(e) => return Err(sys::Error::io("stat", path, e).into()),
    };
    if metadata.file_type().is_block_device() {
        return match spec.image_bytes {
            None => Ok(PoolKind::Device),
            Some(_) => Err(Error::Refused(format!(
                "pool {}: image=SIZE goes with a directory, and {} is a block device",
                spec.name,
                path.display()
            ))),
        };
    }
    if !metadata.is_dir() {
        let why = format!(
            "pool {}: {} is neither a directory nor a block device",
            spec.name,
            path.display()
        );
        return Err(Error::Refused(why));
    }
    Ok(match spec.image_bytes {
        None => PoolKind::Directory,
        Some(_) => PoolKind::Image,
    })
}

/// Makes a directory and those above it, so that they are there after a power cut too: the pool is
/// known from now on, and would be missed.
fn make_dirs(path: &Path) -> Result<()> {
    let above: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|dir| !dir.exists())
        .collect();
    std::fs::create_dir_all(path).map_err(|e| sys::Error::io("mkdir", path, e))?;
    for made in std::iter::once(path).chain(above) {
        if let Some(parent) = made.parent() {
            file::sync(&open_dir(parent)?, parent)?;
        }
    }
    Ok(())
}
