//! What is there: the pools as they lie on the disk, the loop devices and the mounts, read
//! without a lock and without changing anything, beside a running driver or without one.
//!
//! `status` shows it, `fsck` judges it. What is read here is not the driver's index but the disk
//! itself, so broken records and stray files are part of it. Nothing is held still meanwhile: a
//! reader must expect that a driver at work changes things between two looks.

use std::path::{Path, PathBuf};

pub mod lock_holder;
pub mod loop_usage;
pub mod pool_root;

pub use loop_usage::{LoopUse, Owner, Uses};

use crate::diagnose::KernelState;
use crate::kernel::Kernel;
pub use crate::storage::scan::{Area, Contents, Image, Item, Leftover, Unreadable};
use crate::storage::{PoolKind, PoolSpec};

/// Everything, at about one moment.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The configured pools, in order.
    pub pools: Vec<PoolSurvey>,
    /// The machine's loop devices and this process's mounts.
    pub kernel: KernelState,
}

/// A configured pool.
#[derive(Clone, Debug)]
pub struct PoolSurvey {
    /// Its name in the configuration.
    pub name: String,
    /// What it is kept in.
    pub kind: PoolKind,
    /// Its path in the configuration.
    pub path: PathBuf,
    /// The file it is kept in, if that is an image.
    pub image: Option<Image>,
    /// The process that has the pool open, where that can be told.
    pub driver: Option<lock_holder::Holder>,
    /// Its filesystem, by the kernel's name.
    pub fs_type: String,
    /// What is in it, or why it can't be read.
    pub state: Result<Contents, String>,
}

impl PoolSurvey {
    fn take(spec: &PoolSpec, state_dir: &Path, kernel: &KernelState) -> PoolSurvey {
        let KernelState { loops, mounts } = kernel;
        let image = pool_root::image_path(spec).and_then(|path| Image::at(&path).ok().flatten());
        let root = pool_root::root(spec, state_dir, image.as_ref(), loops, mounts);
        let mount = root
            .as_ref()
            .ok()
            .and_then(|r| pool_root::enclosing(mounts, r));
        PoolSurvey {
            name: spec.name.clone(),
            kind: pool_root::kind(spec),
            path: spec.path.clone(),
            image,
            driver: mount
                .zip(root.as_ref().ok())
                .and_then(|(mount, root)| lock_holder::of_pool(root, mount.device)),
            fs_type: mount.map(|m| m.fs_type.clone()).unwrap_or_default(),
            state: root.and_then(|root| Contents::read(&root).map_err(|e| e.to_string())),
        }
    }
}

impl Survey {
    /// Looks at these pools and at the kernel. A pool that can't be read is part of the answer;
    /// only a kernel that doesn't tell is an error.
    pub fn take(
        specs: &[PoolSpec],
        state_dir: &Path,
        kernel: &dyn Kernel,
    ) -> crate::kernel::Result<Survey> {
        // The kernel first: an image that is made and attached in between is then seen on the disk
        // and not in use, which is harmless. The other way round it would be a stranger.
        let kernel = KernelState::read(kernel)?;
        let pools = specs
            .iter()
            .map(|spec| PoolSurvey::take(spec, state_dir, &kernel))
            .collect();
        Ok(Survey { pools, kernel })
    }

    /// The pools that could be read.
    pub fn contents(&self) -> impl Iterator<Item = (&PoolSurvey, &Contents)> {
        self.pools
            .iter()
            .filter_map(|pool| Some((pool, pool.state.as_ref().ok()?)))
    }
}
