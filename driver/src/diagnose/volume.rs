//! What the kernel shows of a volume, and whether it agrees with the volume's record.
//!
//! Unpublish and unstage go by the kernel, not by the record. A loop device belongs to a volume if
//! its backing file is the volume's image, by device and inode.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::kernel_state::KernelState;
use crate::kernel::{
    self, Error, FileId, Kernel, LoopInfo, LoopKey, LoopScope, MountEntry, MountKey, file,
};
use crate::reach::pins;
use crate::record::id::VolumeId;
use crate::record::{Access, Stage, VolumeRecord};

#[cfg(test)]
mod tests;
mod volume_problems;

pub(crate) use volume_problems::{
    ImageState, has_stopped, image_problem, shut_down_problem, staging_problem, stop_problem,
    target_problem, volume_problems,
};

/// Identifies what belongs to a volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeIdentity {
    id: VolumeId,
    image: Option<FileId>,
    recorded: BTreeSet<u32>,
}

impl VolumeIdentity {
    /// Identifies a volume by its record, and by its image unless that is missing.
    pub(crate) fn of(record: &VolumeRecord, image: Option<FileId>) -> VolumeIdentity {
        VolumeIdentity::without_record(record.id, image, record.stage.as_deref())
    }

    /// Identifies a volume by what is known of it besides its record.
    pub(crate) fn without_record(
        id: VolumeId,
        image: Option<FileId>,
        stage: Option<&Stage>,
    ) -> VolumeIdentity {
        let minors = stage.into_iter().flat_map(|stage| {
            let read_only = stage.read_only_loops.values().copied();
            stage.minor.into_iter().chain(read_only)
        });
        VolumeIdentity {
            id,
            image,
            recorded: minors.collect(),
        }
    }

    /// Identifies a volume of a pool that can't be read now, or one that is deleted.
    pub(crate) fn unrecorded(id: VolumeId) -> VolumeIdentity {
        VolumeIdentity::without_record(id, None, None)
    }

    /// Identifies a volume by this image only.
    #[cfg(test)]
    pub(crate) fn over(image: FileId) -> VolumeIdentity {
        let id = VolumeId::generate(crate::record::id::PoolId::generate());
        VolumeIdentity {
            image: Some(image),
            ..VolumeIdentity::unrecorded(id)
        }
    }

    pub(crate) fn id(&self) -> VolumeId {
        self.id
    }

    /// The volume's image, if it is known.
    pub(crate) fn image(&self) -> Option<FileId> {
        self.image
    }

    /// True if a loop device is over the volume's image. If the image can't be opened, or the
    /// kernel does not report the device's backing file, this compares the name of the image's
    /// directory. That name is the volume's ID, which is unique.
    ///
    /// A read-only device is not identified by a path. The driver attaches images writable, and a
    /// process that may read a read-only device can put a file with any path behind it
    /// (LOOP_CHANGE_FD).
    fn owns(&self, device: &LoopInfo) -> bool {
        match (self.image, device.backing) {
            (Some(image), Some(backing)) => backing == image,
            _ if device.read_only || device.backing_rdev != 0 => false,
            _ => device
                .directory()
                .is_some_and(|name| name == self.id.to_string()),
        }
    }

    /// The volume's loop devices among these, lowest minor first.
    fn own(&self, kernel: &KernelState) -> Vec<Arc<LoopInfo>> {
        let by_image = self.image.map(LoopKey::Backing);
        let by_path = LoopKey::Directory(self.id.to_string());
        let found = by_image
            .into_iter()
            .chain([by_path])
            .flat_map(|key| kernel.loops.with(key));
        let mut own: Vec<_> = found.filter(|l| self.owns(l)).cloned().collect();
        own.sort_by_key(|l| l.minor);
        own.dedup_by_key(|l| l.minor);
        own
    }
}

/// The object that is mounted at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MountedObject {
    /// Nothing is mounted there.
    Nothing,
    /// The volume's filesystem.
    Filesystem {
        /// Minor of the filesystem's loop device.
        minor: u32,
        /// The mount is read-only.
        read_only: bool,
    },
    /// The volume's loop device, or a read-only one over it.
    Device {
        /// Minor of the device that is bound there.
        minor: u32,
        /// True if it is the read-only device.
        read_only: bool,
    },
    /// A former loop device of the volume, a read-only one with another file behind it, or a device to
    /// which nothing is attached now.
    Stale,
    /// Something else, described in words.
    Foreign(String),
}

/// The kernel's view of one volume. Loop devices and mounts are found once.
#[derive(Debug)]
pub(crate) struct VolumeState {
    identity: VolumeIdentity,
    kernel: KernelState,
    /// The devices over the volume's image.
    own: Vec<Arc<LoopInfo>>,
    /// The devices over these devices.
    over: Vec<Arc<LoopInfo>>,
    /// The mounts of these devices, oldest first.
    mounts: Vec<Arc<MountEntry>>,
}

impl VolumeState {
    /// Looks at loop devices and mounts now. The kernel has confirmed those of the volume, and what
    /// is mounted at these paths.
    pub(crate) fn look(
        kernel: &dyn Kernel,
        identity: &VolumeIdentity,
        paths: &[&Path],
    ) -> kernel::Result<VolumeState> {
        VolumeState::confirmed(kernel, identity, |state| {
            let devices = state.own().chain(state.over()).chain(state.silent());
            let recorded = state.identity.recorded.iter().copied();
            let minors: BTreeSet<u32> = devices.map(|l| l.minor).chain(recorded).collect();
            let loops = minors
                .iter()
                .filter_map(|minor| state.kernel.device(*minor));
            state.is_confirmed(kernel, &state.kernel.loops.old(loops), paths)
        })
    }

    /// Like [`VolumeState::look`], but the settings of the loop devices may be old. This asks no
    /// loop device, which would take another thread.
    pub(crate) fn glance(
        kernel: &dyn Kernel,
        identity: &VolumeIdentity,
        paths: &[&Path],
    ) -> kernel::Result<VolumeState> {
        VolumeState::confirmed(kernel, identity, |state| {
            state.is_confirmed(kernel, &[], paths)
        })
    }

    fn confirmed(
        kernel: &dyn Kernel,
        identity: &VolumeIdentity,
        is_confirmed: impl Fn(&VolumeState) -> bool,
    ) -> kernel::Result<VolumeState> {
        let directory = identity.id.to_string();
        let scope = LoopScope::Image {
            directory: &directory,
            minors: &identity.recorded,
        };
        kernel::confirmed(
            || {
                let known = KernelState::known(kernel, scope)?;
                let state = VolumeState::of(&known, identity.clone());
                Ok(is_confirmed(&state).then_some(state))
            },
            || {
                let all = KernelState::read(kernel)?;
                Ok(VolumeState::of(&all, identity.clone()))
            },
        )
    }

    fn is_confirmed(&self, kernel: &dyn Kernel, loops: &[&LoopInfo], paths: &[&Path]) -> bool {
        let mounts: Vec<_> = self.mounts().collect();
        let at: Vec<_> = paths.iter().map(|path| (*path, self.top(path))).collect();
        kernel::confirm(kernel, loops, &mounts, &at)
    }

    /// Selects the volume's part of a kernel state.
    pub(crate) fn of(kernel: &KernelState, identity: VolumeIdentity) -> VolumeState {
        let own = identity.own(kernel);
        let over = own
            .iter()
            .flat_map(|l| kernel.loops.with(LoopKey::Below(l.minor)));
        let over = over.cloned().collect();
        let entries = &kernel.mounts.entries;
        let mounts = own
            .iter()
            .flat_map(|l| entries.numbers_with(MountKey::Loop(l.minor)));
        let mounts: BTreeSet<u64> = mounts.collect();
        let mounts = mounts
            .into_iter()
            .filter_map(|n| entries.get(n).cloned())
            .collect();
        VolumeState {
            identity,
            kernel: kernel.clone(),
            own,
            over,
            mounts,
        }
    }

    /// The volume that this is the state of.
    pub(crate) fn identity(&self) -> &VolumeIdentity {
        &self.identity
    }

    /// All loop devices and mounts.
    pub(crate) fn kernel(&self) -> &KernelState {
        &self.kernel
    }

    /// The devices over the volume's image.
    pub(crate) fn own(&self) -> impl Iterator<Item = &LoopInfo> {
        self.own.iter().map(|l| &**l)
    }

    /// Devices without a reported backing file that may be over the volume's image.
    fn silent(&self) -> impl Iterator<Item = &LoopInfo> {
        let id = self.identity.id.to_string();
        let silent = self.kernel.loops.silent();
        silent.filter(move |l| l.may_hold(&id))
    }

    /// All devices over the volume's image. [`Error::Silent`] if there may be another one, as
    /// [`kernel::loops_holding`] has it.
    pub(crate) fn holding(&self) -> kernel::Result<Vec<LoopInfo>> {
        match self.silent().next() {
            Some(silent) => Err(Error::silent(silent)),
            None => Ok(self.own().cloned().collect()),
        }
    }

    fn is_own(&self, minor: u32) -> bool {
        self.own().any(|l| l.minor == minor)
    }

    /// Loop devices over the volume's loop devices: the driver's read-only ones, and kubelet's.
    pub(crate) fn over(&self) -> impl Iterator<Item = &LoopInfo> {
        self.over.iter().map(|l| &**l)
    }

    /// The read-only devices among [`VolumeState::over`] that this driver attached.
    pub(crate) fn read_only(&self) -> impl Iterator<Item = &LoopInfo> {
        self.over()
            .filter(|l| l.read_only && self.identity.recorded.contains(&l.minor))
    }

    /// The pins of nodes among [`VolumeState::over`] that show the volume's device.
    pub(crate) fn readable_pins(&self) -> impl Iterator<Item = &LoopInfo> {
        self.over().filter(|l| pins::is_readable(l))
    }

    /// All read-only devices that this driver attached, and that it must detach. They count even if
    /// a user of the device replaced the backing file (LOOP_CHANGE_FD needs only read access).
    pub(crate) fn attached_read_only(&self) -> impl Iterator<Item = &LoopInfo> {
        let id = self.identity.id.to_string();
        let recorded = self.identity.recorded.iter();
        recorded
            .filter_map(|minor| self.kernel.device(*minor))
            .filter(move |l| {
                let label = l.label.strip_suffix(" ro").unwrap_or(&l.label);
                l.read_only && (label == id || self.over().any(|over| over.minor == l.minor))
            })
    }

    /// Recorded targets without their read-only device: it is not attached, not read-only, or not
    /// over the device that the volume is staged on.
    pub(crate) fn lost_read_only<'s>(
        &'s self,
        stage: &'s Stage,
    ) -> impl Iterator<Item = (&'s Path, u32)> {
        let all = stage.read_only_loops.iter();
        let all = all.map(|(target, minor)| (target.as_path(), *minor));
        all.filter(move |(_, minor)| {
            let device = self.kernel.device(*minor);
            let is_over = device.is_some_and(|l| l.read_only && l.below() == stage.minor);
            stage.minor.is_some() && !is_over
        })
    }

    /// Mounts of the volume's filesystem.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = &MountEntry> {
        self.mounts.iter().map(|e| &**e)
    }

    /// The topmost mount at exactly this path.
    pub(crate) fn top(&self, path: &Path) -> Option<&MountEntry> {
        self.kernel.mounts.at(path)
    }

    /// The mount of the volume's filesystem at a path, if it is the topmost one there.
    pub(crate) fn mount_at(&self, path: &Path) -> Option<&MountEntry> {
        let top = self.top(path)?;
        self.mounts().find(|e| e.id == top.id)
    }

    /// The mount of a staged filesystem: at its staging path, or else at any path. `None` for a raw
    /// block volume.
    pub(crate) fn staged_mount(&self, stage: &Stage) -> Option<&MountEntry> {
        match stage.capability.access {
            Access::Mount { .. } => self.mount_at(&stage.path).or_else(|| self.mounts().next()),
            Access::Block => None,
        }
    }

    /// True if the filesystem of a volume that is staged as a mount has shut down. Asks it.
    pub(crate) fn has_shut_down(&self, record: &VolumeRecord) -> bool {
        let mount = record
            .stage
            .as_ref()
            .and_then(|stage| self.staged_mount(stage));
        mount.is_some_and(|mount| file::has_shut_down(&mount.mount_point))
    }

    /// A writable mount of the volume's whole filesystem, at this path or any other. A read-only
    /// bind mount can't be used to grow it. If no mount is writable, the superblock is read-only.
    pub(crate) fn whole_mount(&self, path: &Path) -> Option<&MountEntry> {
        let here = self.mount_at(path).filter(|e| is_whole(e));
        here.or_else(|| {
            self.mounts().filter(|e| is_whole(e)).find(|e| {
                self.mount_at(&e.mount_point)
                    .is_some_and(|top| top.id == e.id)
            })
        })
    }

    /// Finds what is mounted or bound at a path.
    pub(crate) fn at(&self, path: &Path) -> MountedObject {
        let Some(entry) = self.top(path) else {
            return MountedObject::Nothing;
        };
        let unasked = if entry.may_be_on_any_loop() {
            ", does not answer now or is mounted over"
        } else {
            ""
        };
        let own = entry.loop_minors().find(|minor| self.is_own(*minor));
        match (own, entry.loop_node) {
            (Some(minor), _) => MountedObject::Filesystem {
                minor,
                read_only: entry.read_only(),
            },
            (None, Some(minor)) => self.device(minor, entry.read_only()),
            (None, None) => {
                MountedObject::Foreign(format!("{} ({}{unasked})", entry.fs_type, entry.source))
            }
        }
    }

    /// What a bind mount of a loop device's node shows. The mount may be read-only.
    fn device(&self, minor: u32, is_read_only: bool) -> MountedObject {
        if self.is_own(minor) {
            return MountedObject::Device {
                minor,
                read_only: false,
            };
        }
        if self.over().any(|l| l.minor == minor && l.read_only) {
            return MountedObject::Device {
                minor,
                read_only: true,
            };
        }
        match self.kernel.device(minor) {
            Some(device)
                if !self.identity.recorded.contains(&minor)
                    && !is_lost_read_only(device, is_read_only) =>
            {
                MountedObject::Foreign(format!("/dev/loop{minor} ({})", device.backing_path))
            }
            _ => MountedObject::Stale,
        }
    }

    /// Paths where the device nodes of the volume's loop devices, and of those over them, are
    /// bound.
    pub(crate) fn bound(&self) -> Vec<PathBuf> {
        let minors: BTreeSet<u32> = self.own().chain(self.over()).map(|l| l.minor).collect();
        let bound = minors
            .iter()
            .flat_map(|m| self.kernel.mounts.of_loop_node(*m));
        bound.map(|e| e.mount_point.to_path_buf()).collect()
    }

    /// All paths of the volume besides its staging path, of its filesystem or its device.
    ///
    /// The driver never binds the node of a mounted volume's device. Such a bind is left from
    /// another volume that had a device with the same number before.
    pub(crate) fn published(&self, stage: &Stage) -> Vec<PathBuf> {
        let mut all: Vec<_> = match stage.capability.access {
            Access::Mount { .. } => self.mounts().map(|e| e.mount_point.to_path_buf()).collect(),
            Access::Block => self.bound(),
        };
        all.retain(|path| *path != stage.path);
        all.sort();
        all.dedup();
        all
    }

    /// Target paths at which the volume is published. A bind mount of one of its directories does
    /// not count: kubelet creates those for `subPath`.
    pub(crate) fn targets(&self, stage: &Stage) -> Vec<PathBuf> {
        let parts: Vec<&Path> = self
            .mounts()
            .filter(|e| e.root != Path::new("/"))
            .map(|e| &*e.mount_point)
            .collect();
        let mut all = self.published(stage);
        all.retain(|path| !parts.contains(&path.as_path()));
        all
    }
}

/// True for the device at a read-only target with another file behind it, or another device with its
/// number. Its user may have changed its label, too. The driver alone binds nodes read-only, and only those
/// of devices that it has attached over another one.
fn is_lost_read_only(device: &LoopInfo, is_bound_read_only: bool) -> bool {
    pins::has_label(device) || is_bound_read_only && device.below().is_none()
}

/// True for a writable mount of a filesystem's root.
fn is_whole(mount: &MountEntry) -> bool {
    !mount.read_only() && !mount.fs_read_only() && mount.root == Path::new("/")
}
