//! The state of this node: pools on disk, loop devices and mounts. Reading it takes no lock and
//! changes nothing, whether or not a driver is running.
//!
//! `status` shows it, and `fsck` checks it. It reads the disk instead of the driver's index, so it
//! includes broken records and stray files. It blocks no changes: a running driver may change
//! things between two reads.

use std::path::{Path, PathBuf};

pub mod lock_holder;
pub mod loop_usage;
pub mod pool_root;

pub use loop_usage::{LoopUse, Owner, loop_uses, mounts};

use crate::diagnose::KernelState;
use crate::kernel::Kernel;
pub use crate::storage::image_file::Image;
pub use crate::storage::scan::{Area, Contents, Item, Leftover, Unreadable};
use crate::storage::{PoolKind, PoolSpec};

/// The whole state, at about one moment.
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
    /// The pool's name in the configuration.
    pub name: String,
    /// Whether the pool is in a directory, a device or an image.
    pub kind: PoolKind,
    /// The path in the configuration.
    pub path: PathBuf,
    /// The image file, if the pool is in one.
    pub image: Option<Image>,
    /// The process that has the pool open, if known.
    pub driver: Option<lock_holder::Holder>,
    /// The filesystem type, by the kernel's name.
    pub fs_type: String,
    /// The pool's contents, or why they can't be read.
    pub state: Result<Contents, String>,
}

impl PoolSurvey {
    fn take(spec: &PoolSpec, state_dir: &Path, kernel: &KernelState) -> PoolSurvey {
        let KernelState { loops, mounts } = kernel;
        let image = pool_root::image(spec);
        let root = pool_root::root(spec, state_dir, image.as_ref(), loops, mounts);
        let mount = root.as_ref().ok().and_then(|r| pool_root::enclosing(mounts, r));
        PoolSurvey {
            name: spec.name.clone(),
            kind: pool_root::kind(spec),
            path: spec.path.clone(),
            image,
            driver: mount
                .zip(root.as_ref().ok())
                .and_then(|(mount, root)| lock_holder::of_pool(root, mount.device)),
            fs_type: mount.map(|m| m.fs_type.to_string()).unwrap_or_default(),
            state: root.and_then(|root| Contents::read(&root).map_err(|e| e.to_string())),
        }
    }
}

impl Survey {
    /// Reads these pools and the kernel's tables. The result includes pools that can't be read.
    /// Only an unreadable kernel table is an error.
    pub fn take(
        specs: &[PoolSpec],
        state_dir: &Path,
        kernel: &dyn Kernel,
    ) -> crate::kernel::Result<Survey> {
        // Read the kernel first. An image that is created and attached in between then only looks
        // unused, which is harmless. In the other order its device would look foreign.
        let kernel = KernelState::read(kernel)?;
        let pools = specs.iter().map(|spec| PoolSurvey::take(spec, state_dir, &kernel)).collect();
        Ok(Survey { pools, kernel })
    }

    /// The readable pools with their contents.
    pub fn contents(&self) -> impl Iterator<Item = (&PoolSurvey, &Contents)> {
        self.pools.iter().filter_map(|pool| Some((pool, pool.state.as_ref().ok()?)))
    }
}

/// The entries with a readable record, and the record of each.
pub(crate) fn readable<R>(items: &[Item<R>]) -> impl Iterator<Item = (&R, &Item<R>)> {
    items.iter().filter_map(|item| Some((item.record.as_ref().ok()?, item)))
}
