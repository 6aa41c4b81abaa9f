//! The fault disk that stands between a volume's image and its loop device.

use std::fs::File;

use super::{Error, Node, Result};
use crate::diagnose::VolumeState;
use crate::fault_disks::{self, DiskPresence};
use crate::kernel::{self, file_id, loop_path};
use crate::record::namespace_of;
use crate::storage::{DiskFile, VolumeHandle, VolumeRecord};

impl Node {
    /// Makes the fault disk of a volume, and returns the file for its loop device. `None` for a
    /// volume without one: its device gets the image itself.
    ///
    /// The record has the file before a device is attached to it, so that each later process knows
    /// the device.
    pub(super) fn serve_fault_disk(
        &self,
        record: &VolumeRecord,
        image: &File,
    ) -> Result<Option<File>> {
        let Some(disk) = &record.fault_disk else {
            return Ok(None);
        };
        let settings = record.disk_settings_without_fault();
        let namespace = namespace_of(&record.parameters);
        let file = self
            .pools
            .fault_disks()
            .serve(record.id, namespace, image, disk.cache_bytes, &settings)
            .map_err(|error| failed(record, &error))?;
        let made = DiskFile {
            file: file_id(&file)?,
            image: file_id(image)?,
        };
        self.pools.update_volume(&record.id, |r| {
            if let Some(stage) = &mut r.stage {
                stage.disk = Some(made);
            }
        })?;
        // No device is attached, so what stood in for the image before is the file of a disk that has
        // ended.
        kernel::forget_stand_ins_of(made.image);
        kernel::stand_in(made.file, made.image);
        Ok(Some(file))
    }

    /// Makes the fault disk of a volume as large as its image. A volume without one has nothing to
    /// grow.
    pub(super) fn grow_fault_disk(&self, record: &VolumeRecord) -> Result<()> {
        if record.fault_disk.is_none() {
            return Ok(());
        }
        let grown = self.pools.fault_disks().grow(record.id);
        grown.map_err(|error| failed(record, &error))
    }

    /// Ends the delays that a fault gives the disk of a volume, before this call waits for it.
    pub(super) fn end_disk_delays(&self, record: &VolumeRecord) {
        self.pools.fault_disks().end_delays(record);
    }

    /// Waits for the end of a volume's fault disk, after its loop device is detached. Only then the
    /// image has all that was written.
    pub(super) fn end_fault_disk(&self, record: &VolumeRecord) -> Result<()> {
        if record.fault_disk.is_none() {
            return Ok(());
        }
        let ended = self.pools.fault_disks().end(record.id);
        ended.map_err(|error| failed(record, &error))?;
        // The record of the caller may be older than the staging that it undoes.
        let now = self.pools.volume(&VolumeHandle::Id(record.id));
        let stage = now.ok().and_then(|now| now.stage.as_deref().cloned());
        if let Some(disk) = stage.and_then(|stage| stage.disk) {
            kernel::forget_stand_in(disk.file);
        }
        Ok(())
    }

    /// Fails for a volume on a fault disk without `--enable-faults`. Fails also if a device is attached
    /// to a fault disk that is gone: all of its I/O fails.
    pub(super) fn check_fault_disk(
        &self,
        record: &VolumeRecord,
        state: &VolumeState,
    ) -> Result<()> {
        if record.fault_disk.is_none() {
            return Ok(());
        }
        if !self.config.faults {
            return Err(Error::FailedPrecondition(format!(
                "volume {} is on a fault disk (faultDisk in its class), which this driver does not \
                 serve: start it with --enable-faults",
                record.id
            )));
        }
        let Some(device) = state.own().next() else {
            return Ok(());
        };
        if device.backing_path != format!("/{}", record.id) {
            return Err(Error::FailedPrecondition(format!(
                "{} holds the image of volume {} without its fault disk; detach it",
                loop_path(device.minor).display(),
                record.id
            )));
        }
        let state = self.pools.fault_disks().state(record.id);
        let why = match state.map_err(|error| failed(record, &error))? {
            DiskPresence::Serving => return Ok(()),
            DiskPresence::Cut => "has had a power cut",
            DiskPresence::Gone => "is gone with the process that served it, which is a power cut",
        };
        Err(Error::FailedPrecondition(format!(
            "the fault disk of volume {} {why}: delete the pods that use the volume, and it is \
             staged again for the next ones",
            record.id
        )))
    }
}

fn failed(record: &VolumeRecord, error: &hostloop_fault_disk::Error) -> Error {
    Error::FailedPrecondition(fault_disks::failure(record.id, error))
}
