//! Read-only publications of a block volume. A device node that is bound read-only still takes
//! writes, so a second loop device is attached read-only over the volume's device.

use std::path::Path;

use super::publish::reopen;
use super::{Error, Node, Result, detach_loop};
use crate::diagnose::VolumeState;
use crate::kernel::{self, BLOCK_SIZE, LoopDevice, LoopInfo, LoopSpec};
use crate::storage::VolumeRecord;

/// How many minors to try: other programs attach loop devices at the same time.
const ATTEMPTS: usize = 16;

impl Node {
    /// Attaches the read-only device for a target, and holds it open. The record stores the minor
    /// before the attach, so the driver finds the device after a crash.
    pub(super) fn read_only_device(
        &self,
        record: &VolumeRecord,
        state: &VolumeState,
        own: &LoopInfo,
        target: &Path,
    ) -> Result<LoopDevice> {
        let kernel = self.pools.kernel();
        let recorded = record
            .stage
            .as_ref()
            .and_then(|s| s.read_only_loops.get(target));
        if let Some(info) = state.read_only().find(|l| Some(&l.minor) == recorded) {
            if info.tampered().is_none() && info.block_size == BLOCK_SIZE {
                return reopen(kernel, record, info);
            }
            detach(kernel, info)?;
        }
        let below = reopen(kernel, record, own)?;
        for minor in state.kernel().free_minors().take(ATTEMPTS) {
            self.pools.update_volume(&record.id, |r| {
                if let Some(stage) = &mut r.stage {
                    stage.read_only_loops.insert(target.to_owned(), minor);
                }
            })?;
            let attached = kernel.loop_attach(&LoopSpec {
                backing: &below.file,
                label: &format!("{} ro", record.id),
                offset: 0,
                read_only: true,
                direct_io: record.settings.direct_io,
                autoclear: false,
                minor: Some(minor),
            });
            match attached {
                Err(kernel::Error::Busy { .. }) => continue,
                Err(other) => return Err(other.into()),
                Ok(device) => {
                    kernel.loop_set_read_ahead(&device, record.settings.read_ahead())?;
                    return Ok(device);
                }
            }
        }
        Err(Error::FailedPrecondition(
            "other programs took every free loop device; try again".to_owned(),
        ))
    }

    /// Detaches the read-only device of a target and removes it from the record. Nothing is bound
    /// at the target any more, whatever `state` still shows there.
    pub(super) fn drop_read_only(
        &self,
        record: &VolumeRecord,
        state: &VolumeState,
        target: &Path,
    ) -> Result<()> {
        let recorded = record
            .stage
            .as_ref()
            .and_then(|s| s.read_only_loops.get(target));
        let Some(minor) = recorded else {
            return Ok(());
        };
        if let Some(info) = state.attached_read_only().find(|l| l.minor == *minor) {
            detach(self.pools.kernel(), info)?;
        }
        Ok(self.pools.clear_in_volume(&record.id, |r| {
            if let Some(stage) = &mut r.stage {
                stage.read_only_loops.remove(target);
            }
        })?)
    }
}

/// Detaches a device, or fails if it is in use.
pub(super) fn detach(kernel: &dyn kernel::Kernel, info: &LoopInfo) -> Result<()> {
    if detach_loop::detach(kernel, info)? {
        Ok(())
    } else {
        detach_loop::still_held(std::slice::from_ref(info))
    }
}
