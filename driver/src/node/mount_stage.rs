//! Stages a volume as a filesystem: attaches it, formats it if necessary, checks, mounts and grows
//! it.

use std::cell::Cell;
use std::fs::File;

use super::attach_loop::{self, Purpose};
use super::format_at_stage::{self, FormatStep};
use super::{
    Error, Node, Requested, Result, btrfs_devices, fs_group, mount_options, replay, same_uuid,
    target_path,
};
use crate::diagnose::VolumeState;
use crate::kernel::{FsState, FsType, LoopDevice, MountEntry, MountSpec, Probe, file_id};
use crate::reach::pins;
use crate::storage::{Access, Format, VolumeRecord};

/// A volume to be mounted.
pub(super) struct MountStage<'a> {
    pub(super) node: &'a Node,
    /// The record, which contains the intent to stage.
    pub(super) record: &'a VolumeRecord,
    pub(super) image: &'a File,
    /// The kernel state before the first change.
    pub(super) state: &'a VolumeState,
    pub(super) requested: &'a Requested,
    pub(super) fs: FsType,
    /// True if the image contains no data.
    pub(super) blank: bool,
    /// Becomes true before mkfs, after which the volume may have a part of a filesystem.
    pub(super) mkfs_began: &'a Cell<bool>,
}

/// Fails if the filesystem that is mounted at the staging path is of another type.
pub(super) fn check_type(mount: &MountEntry, fs: FsType) -> Result<()> {
    if *mount.fs_type == *fs.as_str() {
        return Ok(());
    }
    Err(Error::AlreadyExists(format!(
        "{} is mounted at this path already, {fs} was asked for",
        mount.fs_type
    )))
}

impl MountStage<'_> {
    /// Runs all steps, from the attach on.
    pub(super) fn begin(&self) -> Result<()> {
        let _under_way = self.node.pools.growths().begin(self.record.id);
        let kernel = self.node.pools.kernel();
        let path = &self.requested.path;
        // Keeps the device open until it is mounted: it would detach at the last close.
        let device = attach_loop::attach(
            self.node,
            self.record,
            self.image,
            self.state,
            Purpose::Mount,
            None,
        )?;
        self.mend_growth(&device)?;
        // The filesystem that the driver made needs no search for others: it is never formatted
        // again, and the mount names its type.
        let made = match self.record.format {
            Format::Done(fs) if fs == self.fs => kernel.superblock(&device.path(), fs)?,
            _ => None,
        };
        let found = match &made {
            _ if self.blank => Probe::Blank,
            Some(made) => Probe::Filesystem {
                fs: self.fs,
                uuid: made.uuid.clone(),
            },
            None => kernel.probe(&device.path())?,
        };
        let step = format_at_stage::decide(self.record.format, &found, self.fs)?;
        same_uuid::refuse_twin(self.fs, &found)?;
        let flags = self.requested.capability.access.flags();
        let options = mount_options::options(
            self.fs,
            flags,
            &self.record.settings,
            self.requested.read_only,
        );
        let spec = MountSpec {
            device: &device.path(),
            target: path,
            fs: self.fs,
            read_only: options.read_only,
            options: &options.words,
        };
        let state = match step {
            FormatStep::Make { force } => {
                self.node.format(
                    self.record,
                    &device,
                    self.fs,
                    force,
                    self.blank,
                    self.mkfs_began,
                )?;
                FsState::default()
            }
            FormatStep::Keep => self.prepare(&device, &spec)?,
        };
        replay::mount(kernel, &spec, state)
            .map_err(|error| btrfs_devices::explain(self.fs, error))?;
        if self.fs == FsType::Btrfs {
            btrfs_devices::check_new(self.node, self.record.id, path, device.minor)?;
        }
        self.complete(&device, options.read_only)
    }

    /// Replays and checks a filesystem before it is mounted, if it needs that. Grows one that could
    /// not grow later. Returns what its superblock said before.
    fn prepare(&self, device: &LoopDevice, spec: &MountSpec<'_>) -> Result<FsState> {
        let kernel = self.node.pools.kernel();
        // Another mount namespace still has the filesystem mounted, or a node that has pinned it may
        // mount it at any time, so it can't be checked. A second mount shows the same filesystem.
        if self.state.own().next().is_some()
            && (self.is_pinned() || kernel.is_claimed(spec.device)?)
        {
            return Ok(FsState::default());
        }
        let state = kernel.fs_state(spec.device, self.fs)?;
        let grows = !spec.read_only && self.grows_unmounted(device)?;
        replay::before_tools(kernel, spec, state, grows)?;
        if grows {
            self.grow_unmounted(device)?;
        }
        Ok(state)
    }

    /// True if another node of this kernel uses the volume, or is about to.
    pub(super) fn is_pinned(&self) -> bool {
        !pins::of(self.state.over()).is_empty()
    }

    /// Runs the steps after the mount.
    pub(super) fn finish(&self) -> Result<()> {
        let _under_way = self.node.pools.growths().begin(self.record.id);
        let kernel = self.node.pools.kernel();
        let path = &self.requested.path;
        let mount = self.state.mount_at(path);
        let found = mount.and_then(|entry| {
            let mut minors = entry.loop_minors();
            let minor = minors.find(|minor| self.state.own().any(|own| own.minor == *minor))?;
            Some((entry, minor))
        });
        let Some((entry, minor)) = found else {
            let why = "something else is mounted over the staged volume";
            return Err(target_path::wrong(path, why));
        };
        check_type(entry, self.fs)?;
        if self.fs == FsType::Btrfs {
            self.check_btrfs(entry, minor)?;
        }
        let device = kernel.loop_open(minor, file_id(self.image)?)?;
        attach_loop::follow_size(self.node, self.record, &device, self.image)?;
        let read_only = entry.fs_read_only();
        self.complete(&device, read_only)
    }

    /// Checks a btrfs that an earlier call has mounted. No pod has it if that call did not complete
    /// the staging, and it is mounted nowhere else.
    fn check_btrfs(&self, mount: &MountEntry, minor: u32) -> Result<()> {
        let kernel = self.node.pools.kernel();
        let stage = self.record.stage.as_deref();
        let is_complete = stage.is_some_and(|stage| stage.minor.is_some());
        let is_alone = self.state.mounts().all(|other| other.id == mount.id);
        if is_complete || !is_alone {
            btrfs_devices::check(kernel, self.record.id, mount, minor)
        } else {
            btrfs_devices::check_unused(kernel, self.record.id, mount, minor)
        }
    }

    /// Grows the filesystem to its device, sets the requested group of its root, and records that
    /// the volume is staged.
    fn complete(&self, device: &LoopDevice, read_only: bool) -> Result<()> {
        let path = &self.requested.path;
        if !read_only {
            self.node
                .grow_if_possible(self.record, self.image, device, path, self.fs)?;
            if let Access::Mount {
                group: Some(gid), ..
            } = self.requested.capability.access
            {
                fs_group::chown_root(path, gid)?;
            }
        }
        self.node.staged(self.record, device.minor)
    }
}
