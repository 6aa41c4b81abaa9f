//! NodeUnstageVolume: undoes a staging according to the kernel's state.

use std::path::{Path, PathBuf};

use hostloop_proto::csi;

use super::volume_lookup::FoundVolume;
use super::{Error, Node, Result, btrfs_devices, detach_loop, target_path};
use crate::csi::validate;
use crate::diagnose::{MountedObject, VolumeIdentity, VolumeState};
use crate::kernel::{self, LoopInfo, MountEntry, loop_names};
use crate::reach::pins;
use crate::storage::{self, Access, Format, VolumeId, VolumeRecord};

impl Node {
    /// NodeUnstageVolume: unmounts the volume at the staging path and detaches it. Unstaging a
    /// volume that is unknown, or not staged there, succeeds.
    pub fn node_unstage_volume(
        &self,
        req: csi::NodeUnstageVolumeRequest,
    ) -> Result<csi::NodeUnstageVolumeResponse> {
        let id = validate::required("volume_id", &req.volume_id)?;
        let path = validate::path("staging_target_path", &req.staging_target_path)?;
        let path = target_path::place(&path)?;
        if let Some(volume) = self.shared_volume(id, &[])? {
            self.unstage_shared(volume, &path)?;
            return Ok(csi::NodeUnstageVolumeResponse {});
        }
        let done = match self.found_volume(id)? {
            FoundVolume::Recorded(record) => self.unstage_recorded(&record, &path),
            // A pod must be able to end while its volume's pool is missing. The record still says
            // "staged" until recovery finds no trace of the volume in the kernel. After a fault that
            // has only set the pool aside, no recovery follows.
            FoundVolume::Unrecorded(identity) => self
                .unstage_unrecorded(&identity, &path)
                .inspect(|()| self.pools.clear_stage_if_set_aside(identity.id(), &path)),
            FoundVolume::Unknown => self.nothing_at(&path),
        };
        done.map(|()| csi::NodeUnstageVolumeResponse {})
    }

    fn unstage_recorded(&self, record: &VolumeRecord, path: &Path) -> Result<()> {
        if self.undo_stage(record, path)? {
            self.pools.clear_in_volume(&record.id, |r| r.stage = None)?;
        }
        // Another program may have held the device when the staging failed, which hid what mkfs had
        // left.
        if record.format.is_begun() {
            self.take_format_back_if_blank(record, &self.identity(record), path);
        }
        Ok(())
    }

    /// Undoes a staging from the kernel's state alone.
    fn unstage_unrecorded(&self, identity: &VolumeIdentity, path: &Path) -> Result<()> {
        let state = self.state_to_unstage(identity, path)?;
        let mounted = state.mounts().next().is_some();
        let mut elsewhere: Vec<PathBuf> = if mounted {
            state
                .mounts()
                .map(|e| e.mount_point.to_path_buf())
                .collect()
        } else {
            state.bound()
        };
        elsewhere.retain(|at| at != path);
        if !elsewhere.is_empty() {
            return Err(published(identity.id(), &elsewhere));
        }
        match self.release_seen(&state, path)? {
            // The kernel detaches the device at the last unmount.
            left if mounted => {
                held_elsewhere(identity.id(), &left);
                Ok(())
            }
            left => detach_loop::still_held(&left),
        }
    }

    /// Undoes a staging if it is the recorded one; returns true if it was. The record still says
    /// that the volume is staged.
    pub(super) fn undo_stage(&self, record: &VolumeRecord, path: &Path) -> Result<bool> {
        let identity = self.identity(record);
        if let Some(image) = identity.image()
            && let Err(error) = self.pools.unmount_scratch(record.id, image)
        {
            tracing::warn!(volume = %record.id, %error, "an old mount of the volume stays");
        }
        let state = self.state_to_unstage(&identity, path)?;
        let Some(stage) = record.stage.as_ref().filter(|s| s.path == path) else {
            // The volume is staged elsewhere or not at all, so only an unrecorded mount can be
            // left.
            return match state.mount_at(path) {
                Some(_) if record.stage.is_none() => {
                    detach_loop::still_held(&self.release_seen(&state, path)?).map(|()| false)
                }
                Some(_) => Err(published(record.id, &[path.to_owned()])),
                // Its state may be lost. A raw block volume has no mount, and its device stays.
                None if record.stage.is_none() && record.format == Format::Raw => {
                    self.unstage_unrecorded(&identity, path).map(|()| false)
                }
                None => Ok(false),
            };
        };
        let elsewhere = state.published(stage);
        if !elsewhere.is_empty() {
            return Err(published(record.id, &elsewhere));
        }
        self.end_disk_delays(record);
        let is_outdated =
            stage.capability.access != Access::Block && self.try_thaw(record, &identity)?;
        let left = if is_outdated {
            self.release(&identity, path)?
        } else {
            self.release_seen(&state, path)?
        };
        match stage.capability.access {
            // The kernel detaches it when the last mount namespace unmounts it. A new staging
            // before that uses the same device.
            Access::Mount { .. } if record.fault_disk.is_none() => {
                held_elsewhere(record.id, &left);
            }
            // A copy of the image must not miss what a fault disk has yet to write to it.
            Access::Mount { .. } | Access::Block => detach_loop::still_held(&left)?,
        }
        self.end_fault_disk(record)?;
        self.unknown_mounts.forget_at(record.id, path);
        Ok(true)
    }

    /// Looks at the volume and a path, which may have no mount of others. Unmounts what a staging
    /// mounted by mistake.
    fn state_to_unstage(&self, identity: &VolumeIdentity, path: &Path) -> Result<VolumeState> {
        let mut state = self.state(identity, &[path])?;
        if self.unmount_wrong(&state)?.is_some() {
            state = self.state(identity, &[path])?;
        }
        self.refuse_foreign(&state, path)?;
        Ok(state)
    }

    /// Thaws as [`Node::thaw`]. If the device does not answer, it goes on with a warning, so that
    /// the pod can end. The record then still says that a thaw is due.
    fn try_thaw(&self, record: &VolumeRecord, identity: &VolumeIdentity) -> Result<bool> {
        match self.thaw(record, identity) {
            Err(Error::Pool(storage::Error::Kernel(error @ kernel::Error::Silent { .. }))) => {
                tracing::warn!(volume = %record.id, %error, "the filesystem may stay frozen");
                Ok(false)
            }
            thawed => thawed,
        }
    }

    /// Looks at the volume, unmounts its filesystem at a path and detaches its devices, read-only
    /// ones first. Returns the devices that are still in use.
    pub(super) fn release(&self, identity: &VolumeIdentity, path: &Path) -> Result<Vec<LoopInfo>> {
        let state = self.state(identity, &[path])?;
        self.release_seen(&state, path)
    }

    /// Does the same after a look that nothing in this call has outdated. A device that any node has
    /// pinned stays as it is, and so in use.
    fn release_seen(&self, state: &VolumeState, path: &Path) -> Result<Vec<LoopInfo>> {
        self.unmount_seen(state, path)?;
        let pins = pins::of(state.over());
        let mut left = Vec::new();
        for info in state.attached_read_only().chain(state.own()) {
            let is_pinned = pins.iter().any(|pin| pin.over == info.minor);
            if is_pinned || !detach_loop::detach(self.pools.kernel(), info)? {
                left.push(info.clone());
            }
        }
        Ok(left)
    }

    /// Unmounts a volume's filesystem at a path, as often as it is mounted there.
    pub(super) fn unmount_seen(&self, state: &VolumeState, path: &Path) -> Result<()> {
        let kernel = self.pools.kernel();
        if let Some(mount) = state.mount_at(path) {
            self.write_back(mount);
        }
        let mut stacked = state.mounts().filter(|e| e.mount_point == path).count();
        let mut top = state.mount_at(path).cloned();
        while let Some(mount) = top.take() {
            kernel.unmount_exactly(&mount)?;
            stacked -= 1;
            if stacked > 0 {
                top = kernel::topmost_mount(kernel, path)?;
            }
            // A mount of others may be between two of this volume.
            if let Some(next) = &top
                && !state.mounts().any(|own| own.id == next.id)
            {
                return Err(foreign_mount(path, next));
            }
        }
        Ok(())
    }

    /// Writes back a filesystem before its unmount, which does so only for the last mount. A
    /// container may still have a copy of the mount, and a copy of the volume, or a power cut, must
    /// not miss what was written until now. A broken filesystem is unmounted all the same.
    fn write_back(&self, mount: &MountEntry) {
        let kernel = self.pools.kernel();
        if let Err(error) = kernel
            .open_mount(mount)
            .and_then(|root| kernel.sync_fs(&root))
        {
            let path = mount.mount_point.display();
            tracing::warn!(%path, %error, "cannot write a filesystem back before its unmount");
        }
    }

    /// Checks that a path has no mount, or one of this volume.
    pub(super) fn refuse_foreign(&self, state: &VolumeState, path: &Path) -> Result<()> {
        match state.at(path) {
            MountedObject::Foreign(what) => Err(self.foreign(state, path, &what)),
            _ => Ok(()),
        }
    }

    /// The error for a path with a mount that is not this volume's, or with a btrfs that may be,
    /// but does not answer now.
    pub(super) fn foreign(&self, state: &VolumeState, path: &Path, what: &str) -> Error {
        match btrfs_devices::refuse_unknown(self.pools.kernel(), state, path) {
            Err(unknown) => unknown,
            Ok(()) => {
                let advice = btrfs_devices::advice(state, path);
                target_path::wrong(path, format!("{}{advice}", not_ours(what)))
            }
        }
    }

    /// Checks that nothing is mounted at a path.
    pub(super) fn nothing_at(&self, path: &Path) -> Result<()> {
        match kernel::topmost_mount(self.pools.kernel(), path)? {
            None => Ok(()),
            Some(entry) => Err(foreign_mount(path, &entry)),
        }
    }
}

/// The error for a path with this mount, which is not the volume's.
pub(super) fn foreign_mount(path: &Path, mount: &MountEntry) -> Error {
    let what = format!("{} ({})", mount.fs_type, mount.source);
    target_path::wrong(path, not_ours(&what))
}

fn not_ours(what: &str) -> String {
    format!("{what} is mounted here, which is not this volume; left as it is")
}

pub(super) fn published(volume: VolumeId, at: &[PathBuf]) -> Error {
    let at: Vec<_> = at.iter().map(|p| p.display().to_string()).collect();
    Error::FailedPrecondition(format!(
        "volume {volume} is still at {}; unpublish it first",
        at.join(", ")
    ))
}

fn held_elsewhere(volume: VolumeId, left: &[LoopInfo]) {
    if !left.is_empty() {
        let held = loop_names(left);
        tracing::warn!(%volume, held, "the loop device is still open elsewhere after the unmount");
    }
}
