//! ControllerModifyVolume: changes settings in the record, the image, the loop device and the
//! mount.

use std::sync::Arc;

use hostloop_proto::csi;

use super::parameters::{self, LimitsChange, SettingsChange};
use super::{Controller, Error, Result};
use crate::csi::validate::invalid;
use crate::fault_disks;
use crate::kernel::{self, FileId, FsType, LoopInfo, MountEntry, is_discard};
use crate::storage::{self, Provisioning, Settings, VolumeRecord};

/// The changes to a volume that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Live {
    direct_io: Option<bool>,
    read_ahead_kib: Option<u32>,
    /// The mount option `discard`.
    discard: Option<bool>,
}

/// The changes to a volume in use. They apply even if the record has them already: an earlier call
/// may have failed after writing the record.
fn live(changes: &SettingsChange, settings: &Settings, record: &VolumeRecord) -> Live {
    let touches = changes.discard.is_some() || changes.provisioning.is_some();
    Live {
        direct_io: changes.direct_io,
        read_ahead_kib: changes.read_ahead_kib,
        discard: touches.then(|| mount_discards(settings, record)).flatten(),
    }
}

/// True if a staged volume must be mounted with `discard`. `None` if it is not mounted or if the
/// user's mount flags decide. Thick volumes never discard.
fn mount_discards(settings: &Settings, record: &VolumeRecord) -> Option<bool> {
    let access = &record.stage.as_ref()?.capability.access;
    access.fs()?;
    let mut flags = access.flags().iter().flat_map(|flag| flag.split(','));
    match settings.provisioning {
        Provisioning::Thick => Some(false),
        Provisioning::Thin if flags.any(is_discard) => None,
        Provisioning::Thin => Some(settings.discard),
    }
}

impl Controller {
    /// ControllerModifyVolume. Checks everything before the first change.
    pub fn controller_modify_volume(
        &self,
        req: csi::ControllerModifyVolumeRequest,
    ) -> Result<csi::ControllerModifyVolumeResponse> {
        let (record, changes, settings) = self.plan_modification(&req)?;
        self.modify(&record, &changes, settings)?;
        Ok(csi::ControllerModifyVolumeResponse {})
    }

    /// True if ControllerModifyVolume refuses this request without a look at disks.
    pub(crate) fn refuses_modification(&self, req: &csi::ControllerModifyVolumeRequest) -> bool {
        self.plan_modification(req).is_err()
    }

    /// The volume, what changes, and its new settings, by what is known without a look at disks.
    fn plan_modification(
        &self,
        req: &csi::ControllerModifyVolumeRequest,
    ) -> Result<(Arc<VolumeRecord>, SettingsChange, Settings)> {
        Self::require(self.config.modify, "ControllerModifyVolume")?;
        let record = self.volume("volume_id", &req.volume_id)?;
        if req.mutable_parameters.is_empty() {
            return Err(invalid("mutable_parameters", "is required").into());
        }
        let accepted = &self.config.mutable_parameters;
        let changes = parameters::mutable(&req.mutable_parameters, accepted)?;
        let settings = changes.modify(&record.settings)?;
        if record.fault_disk.is_none() && !changes.limits.is_empty() {
            return Err(changes.limits.refused("mutable_parameters").into());
        }
        Ok((record, changes, settings))
    }

    fn modify(
        &self,
        record: &VolumeRecord,
        changes: &SettingsChange,
        settings: Settings,
    ) -> Result<()> {
        let live = live(changes, &settings, record);
        // A remount may write back first, and a fault can't end meanwhile.
        self.pools.fault_disks().end_delays(record);
        let in_use = InUse::of(self, record)?;
        // The mount changes first: not every filesystem supports that. And it must not discard the
        // blocks that a thick volume is about to reserve.
        let remounted = match live.discard {
            Some(on) => in_use.discard(on)?,
            None => false,
        };
        if let Err(error) = self.pools.modify_volume(&record.id, settings) {
            if let (true, Some(on)) = (remounted, live.discard)
                && let Err(e) = in_use.discard(!on)
            {
                tracing::warn!(
                    volume = %record.id, error = %e,
                    "the mount differs from the record until the next staging"
                );
                // Something has changed.
                return Err(error.into());
            }
            return Err(Error::of_modification(error));
        }
        self.limit(record, changes.limits)?;
        in_use.devices(&live)
    }

    /// Changes the limits of a fault disk in its record, and of the disk if it is in use.
    fn limit(&self, record: &VolumeRecord, changes: LimitsChange) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let record = self.pools.update_volume(&record.id, |record| {
            if let Some(disk) = &mut record.fault_disk {
                disk.limits = changes.apply(disk.limits);
            }
        })?;
        let set = self
            .pools
            .fault_disks()
            .set(record.id, &record.disk_settings());
        set.map_err(|error| Error::FailedPrecondition(fault_disks::failure(record.id, &error)))
    }
}

/// A volume's loop devices, and the mount of its filesystem.
struct InUse<'a> {
    controller: &'a Controller,
    record: &'a VolumeRecord,
    /// The image and the devices over it; `None` without an image.
    attached: Option<(FileId, Vec<LoopInfo>)>,
}

impl<'a> InUse<'a> {
    fn of(controller: &'a Controller, record: &'a VolumeRecord) -> Result<InUse<'a>> {
        let image = match controller.pools.open_image(record, false) {
            Err(storage::Error::ImageMissing { .. }) => None,
            image => Some(kernel::file_id(image?)?),
        };
        let kernel = controller.pools.kernel();
        let name = record.id.to_string();
        let attached = image
            .map(|image| Ok::<_, Error>((image, kernel::loops_holding(kernel, image, &name)?)));
        Ok(InUse {
            controller,
            record,
            attached: attached.transpose()?,
        })
    }

    fn devices(&self, live: &Live) -> Result<()> {
        let kernel = self.controller.pools.kernel();
        let Some((image, loops)) = &self.attached else {
            return Ok(());
        };
        if live.direct_io.is_none() && live.read_ahead_kib.is_none() {
            return Ok(());
        }
        for info in loops {
            let device = match kernel.loop_open(info.minor, *image) {
                // Detached meanwhile: the next attach reads the settings from the record.
                Err(kernel::Error::NotFound { .. }) => continue,
                device => device?,
            };
            if let Some(on) = live.direct_io
                && kernel.loop_set_direct_io(&device, on)? != on
            {
                let device = device.path();
                tracing::warn!(
                    volume = %self.record.id, device = %device.display(), asked = on,
                    "direct I/O could not be changed"
                );
            }
            if let Some(kib) = live.read_ahead_kib {
                kernel.loop_set_read_ahead(&device, kib)?;
            }
        }
        Ok(())
    }

    /// Remounts the filesystem unless it has the option already; true if it did. One mount is
    /// enough: the option belongs to the filesystem.
    fn discard(&self, on: bool) -> Result<bool> {
        let kernel = self.controller.pools.kernel();
        let Some((_, loops)) = self
            .attached
            .as_ref()
            .filter(|(_, loops)| !loops.is_empty())
        else {
            return Ok(false);
        };
        let mut mounts = Vec::new();
        for device in loops {
            let found = kernel::mounts_of_loop(kernel, device.minor)?;
            if found.is_empty() {
                kernel::refuse_unknown_mount(kernel, &kernel.mounts()?, device.minor)?;
            }
            mounts.extend(found);
        }
        let Some(mount) = mounts.first().filter(|mount| mount.discards() != on) else {
            return Ok(false);
        };
        let Some(fs) = FsType::parse(&mount.fs_type) else {
            return Err(self.keeps_discard(mount));
        };
        match kernel.remount_discard(&mount.mount_point, fs, on) {
            Err(kernel::Error::Unsupported { .. }) => Err(self.keeps_discard(mount)),
            remounted => remounted.map(|()| true).map_err(Error::from),
        }
    }

    fn keeps_discard(&self, mount: &MountEntry) -> Error {
        Error::FailedPrecondition(format!(
            "{} can't change discard while it is mounted: stop what uses volume {} first",
            mount.fs_type, self.record.id
        ))
    }
}

#[cfg(test)]
mod tests;
