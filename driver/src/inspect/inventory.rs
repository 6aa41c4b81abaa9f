//! The state of this node: pools on disk, loop devices and mounts. Reading it takes no lock and
//! changes nothing, whether or not a driver is running.
//!
//! `status` shows it, and `fsck` checks it. It reads the disk instead of the driver's index, so it
//! includes broken records and stray files. It blocks no changes: a running driver may change
//! things between two reads.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use hostloop_report::machine::LeftoverLoop;

pub mod leftover_loops;
pub mod lock_holder;
pub mod loop_usage;
pub mod pool_root;

pub use leftover_loops::leftover_loops;
pub use loop_usage::{LoopOwner, LoopUse, loop_uses, mounts};

use crate::diagnose::pool::SparseFile;
use crate::diagnose::{KernelState, Lost, NotedFault, VolumeIdentity, VolumeState};
use crate::fault_disks::FaultDisks;
use crate::kernel::Kernel;
use crate::pool_faults::noted_faults;
pub use crate::storage::image_stat::ImageStat;
pub use crate::storage::scan::{Area, Contents, Item, Leftover, UnusableRecord};
use crate::storage::{PoolKind, PoolSpec, VolumeId, layers};

/// The whole state, at about one moment.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The configured pools, in order.
    pub pools: Vec<PoolSurvey>,
    /// The machine's loop devices and this process's mounts.
    pub kernel: KernelState,
    /// Loop devices that a deleted cluster may have left.
    pub leftover: Vec<LeftoverLoop>,
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
    pub image: Option<ImageStat>,
    /// The process that has the pool open, if known.
    pub driver: Option<lock_holder::Holder>,
    /// The fault that the pool has by request.
    pub fault: Option<NotedFault>,
    /// The filesystem type, by the kernel's name.
    pub fs_type: String,
    /// The files under the pool without all their blocks, from the top down.
    pub sparse: Vec<SparseFile>,
    /// What the pool's next opening would not find.
    pub lost: Option<Lost>,
    /// The volumes in use with a filesystem that has shut down, or a fault disk without power.
    pub shut_down: BTreeSet<VolumeId>,
    /// The pool's contents, or why they can't be read.
    pub state: Result<Contents, String>,
}

impl PoolSurvey {
    fn take(
        spec: &PoolSpec,
        state_dir: &Path,
        state: &KernelState,
        kernel: &dyn Kernel,
    ) -> PoolSurvey {
        let KernelState { loops, mounts } = state;
        let image = pool_root::image(spec);
        let root = pool_root::root(spec, state_dir, image.as_ref(), loops, mounts);
        let mount = root
            .as_ref()
            .ok()
            .and_then(|r| pool_root::enclosing(mounts, r));
        let lost = pool_root::lost_image(spec, state_dir, loops, mounts);
        let contents = root.as_ref().map_err(String::clone);
        let contents = contents.and_then(|root| contents_of(kernel, root));
        let contents = contents.map_err(|error| lost.as_ref().map_or(error, Lost::message));
        PoolSurvey {
            name: spec.name.clone(),
            kind: pool_root::kind(spec),
            path: spec.path.clone(),
            image,
            driver: mount
                .zip(root.as_ref().ok())
                .and_then(|(mount, root)| lock_holder::of_pool(root, mount.device)),
            fault: None,
            fs_type: mount.map(|m| m.fs_type.to_string()).unwrap_or_default(),
            sparse: root
                .as_ref()
                .map(|root| sparse_files(kernel, root))
                .unwrap_or_default(),
            shut_down: contents
                .as_ref()
                .map(|c| shut_down(c, state_dir, &state.with_stand_ins()))
                .unwrap_or_default(),
            state: contents,
            lost,
        }
    }
}

/// A pool's contents. Its usage counts as read-only also if only the mount shows that.
fn contents_of(kernel: &dyn Kernel, root: &Path) -> Result<Contents, String> {
    let mut contents = Contents::read(kernel, root).map_err(|e| e.to_string())?;
    let on = File::open(root).map_err(|e| e.to_string())?;
    contents.usage = layers::usage(kernel, &on, root).map_err(|e| e.to_string())?;
    Ok(contents)
}

/// The volumes in use with a filesystem that has shut down, or a fault disk without power.
fn shut_down(contents: &Contents, state_dir: &Path, kernel: &KernelState) -> BTreeSet<VolumeId> {
    let fault_disks = FaultDisks::of(state_dir);
    let staged = readable(&contents.volumes).filter(|(volume, _)| volume.stage.is_some());
    let has = staged.filter(|(volume, item)| {
        let identity = VolumeIdentity::of(volume, item.image.map(|image| image.file));
        VolumeState::of(kernel, identity).has_shut_down(volume) || fault_disks.is_cut(volume)
    });
    has.map(|(volume, _)| volume.id).collect()
}

/// The files under a pool without all their blocks; none if that can't be read.
fn sparse_files(kernel: &dyn Kernel, root: &Path) -> Vec<SparseFile> {
    let Ok(root) = File::open(root) else {
        return Vec::new();
    };
    layers::sparse_files(kernel, &layers::below(kernel, &root)).unwrap_or_default()
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
        let state = KernelState::read(kernel)?;
        let pools = specs
            .iter()
            .map(|spec| PoolSurvey::take(spec, state_dir, &state, kernel));
        let mut pools: Vec<PoolSurvey> = pools.collect();
        let mut faults = noted_faults(state_dir);
        // A fault ends with the process that has the pool open.
        for pool in pools.iter_mut().filter(|pool| pool.driver.is_some()) {
            pool.fault = faults.remove(&pool.name);
        }
        let own = pools
            .iter()
            .filter_map(|pool| Some(pool.state.as_ref().ok()?.id))
            .collect();
        let state = state.with_stand_ins();
        let leftover = leftover_loops(kernel, state.loops.iter(), &own);
        Ok(Survey {
            pools,
            kernel: state,
            leftover,
        })
    }

    /// The readable pools with their contents.
    pub fn contents(&self) -> impl Iterator<Item = (&PoolSurvey, &Contents)> {
        self.pools
            .iter()
            .filter_map(|pool| Some((pool, pool.state.as_ref().ok()?)))
    }
}

/// The entries with a readable record, and the record of each.
pub(crate) fn readable<R>(items: &[Item<R>]) -> impl Iterator<Item = (&R, &Item<R>)> {
    items
        .iter()
        .filter_map(|item| Some((item.record.as_ref().ok()?, item)))
}
