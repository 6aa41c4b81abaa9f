//! The volume that a fault is for, as the kernel shows it.

use std::fs::File;
use std::sync::Arc;

use super::{FaultError, Obstacle};
use crate::diagnose::volume::has_stopped;
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::{FsType, Kernel, LoopInfo, MountEntry, file_id};
use crate::record::{Access, FaultRecord, VolumeRecord};
use crate::storage::{Pools, VolumeHandle};

/// A volume that gets or has a fault.
pub(super) struct Target<'a> {
    pub(super) pools: &'a Pools,
    pub(super) record: Arc<VolumeRecord>,
    pub(super) identity: VolumeIdentity,
    pub(super) state: Arc<VolumeState>,
}

impl<'a> Target<'a> {
    /// Looks at a volume's loop devices and mounts. The image of a broken pool can't be opened:
    /// then the path of the devices identifies them.
    pub(super) fn find(
        pools: &'a Pools,
        record: Arc<VolumeRecord>,
    ) -> Result<Target<'a>, FaultError> {
        let image = pools.open_image_unchecked(&record);
        let image = image.ok().and_then(|image| file_id(&image).ok());
        let identity = VolumeIdentity::of(&record, image);
        let state = VolumeState::look(pools.kernel(), &identity, &[])?;
        Ok(Target {
            pools,
            record,
            identity,
            state: Arc::new(state),
        })
    }

    /// The volume as it is after an effect.
    pub(super) fn look_again(&self) -> Result<Target<'a>, FaultError> {
        self.kernel().forget_loops();
        self.kernel().forget_mounts();
        Target::find(self.pools, self.record.clone())
    }

    pub(super) fn kernel(&self) -> &'a dyn Kernel {
        self.pools.kernel()
    }

    pub(super) fn handle(&self) -> VolumeHandle {
        VolumeHandle::Id(self.record.id)
    }

    /// The fault in the record, as text.
    pub(super) fn recorded(&self) -> &str {
        self.record.fault.as_ref().map_or("", |f| &f.fault)
    }

    /// The file in the record that takes the free room.
    pub(super) fn recorded_file(&self) -> Option<u64> {
        self.record.fault.as_ref().and_then(|fault| fault.file)
    }

    /// True if the fault in the record may be there in part.
    pub(super) fn is_under_way(&self) -> bool {
        let fault = self.record.fault.as_ref();
        fault.is_some_and(|fault| fault.under_way)
    }

    /// True if no claim asks for the fault in the record any more.
    pub(super) fn is_withdrawn(&self) -> bool {
        let fault = self.record.fault.as_ref();
        fault.is_some_and(|fault| fault.is_withdrawn)
    }

    /// Changes the fault in the record.
    pub(super) fn update_fault(
        &self,
        change: impl FnOnce(&mut FaultRecord),
    ) -> Result<Arc<VolumeRecord>, FaultError> {
        let updated = self
            .pools
            .update_volume(&self.record.id, |record| change_fault(record, change))?;
        Ok(updated)
    }

    /// Clears something in the fault in the record.
    pub(super) fn clear_in_fault(
        &self,
        change: impl FnOnce(&mut FaultRecord),
    ) -> Result<(), FaultError> {
        self.pools
            .clear_in_volume(&self.record.id, |record| change_fault(record, change))?;
        Ok(())
    }

    /// True if the volume is staged here: attached and, unless it is a raw block volume, mounted.
    pub(super) fn is_in_use(&self) -> bool {
        let Some(stage) = self.record.stage.as_deref() else {
            return false;
        };
        let is_shown = match stage.capability.access {
            Access::Mount { .. } => self.mount().is_some(),
            Access::Block => true,
        };
        stage.minor.is_some() && is_shown && self.device().is_some()
    }

    /// The volume's loop device. A volume has at most one.
    pub(super) fn device(&self) -> Option<&LoopInfo> {
        self.state.own().next()
    }

    /// The mount of the volume's filesystem; `None` for a raw block volume.
    pub(super) fn mount(&self) -> Option<&MountEntry> {
        let stage = self.record.stage.as_deref()?;
        self.state.staged_mount(stage)
    }

    /// The mounted filesystem.
    pub(super) fn fs(&self) -> Option<FsType> {
        FsType::parse(&self.mount()?.fs_type)
    }

    /// Opens the root directory of the mounted filesystem.
    pub(super) fn root(&self) -> Result<File, FaultError> {
        let mount = self.mount().ok_or(Obstacle::NoFilesystem)?;
        Ok(self.kernel().open_mount(mount)?)
    }

    /// True if the mounted filesystem has shut down. An ext4 says so in its options.
    pub(super) fn has_shut_down(&self) -> bool {
        let mount = self.mount();
        mount.is_some_and(|mount| mount.super_options.has("shutdown"))
            || self.state.has_shut_down(&self.record)
    }

    /// True if the mounted filesystem takes no writes before it is mounted again.
    pub(super) fn has_stopped(&self) -> bool {
        has_stopped(&self.record, &self.state)
            || self.state.has_shut_down(&self.record)
            || self.pools.fault_disks().is_cut(&self.record)
    }
}

fn change_fault(record: &mut VolumeRecord, change: impl FnOnce(&mut FaultRecord)) {
    if let Some(fault) = record.fault.as_deref_mut() {
        change(fault);
    }
}
