//! NodeUnpublishVolume: acts on what is at the target, and needs no record.

use std::path::Path;

use hostloop_proto::csi;

use super::volume_lookup::FoundVolume;
use super::{Node, Result, read_only_loop, target_path};
use crate::csi::validate;
use crate::diagnose::{MountedObject, VolumeIdentity, VolumeState};
use crate::kernel::{self, LoopInfo};
use crate::reach::pins;
use crate::storage::{VolumeHandle, VolumeRecord};

/// A target without mounts of the volume.
#[derive(Debug)]
pub(super) struct Cleared {
    /// True if the volume was mounted there.
    unmounted: bool,
    /// What the kernel showed before the last unmount.
    pub(super) state: VolumeState,
}

impl Node {
    /// NodeUnpublishVolume: unmounts the volume at the target and removes the empty directory or
    /// file there. It also deletes an inline volume. Unpublishing an unknown volume succeeds.
    pub fn node_unpublish_volume(
        &self,
        req: csi::NodeUnpublishVolumeRequest,
    ) -> Result<csi::NodeUnpublishVolumeResponse> {
        let id = validate::required("volume_id", &req.volume_id)?;
        let target = validate::path("target_path", &req.target_path)?;
        let target = target_path::place(&target)?;
        if matches!(id.parse(), Ok(VolumeHandle::Inline(_))) {
            self.unpublish_inline(id, &target)?;
            return Ok(csi::NodeUnpublishVolumeResponse {});
        }
        let done = match self.found_volume(id)? {
            FoundVolume::Recorded(record) => self.unpublish_recorded(&record, &target),
            // A pod must be able to end while its volume's pool is missing.
            FoundVolume::Unrecorded(identity) => {
                let cleared = self.clear(&identity, &target)?;
                self.remove_target(&target, &cleared)
            }
            // The ID is unknown, so nothing there belongs to the driver, not even the directory.
            FoundVolume::Unknown => self.nothing_at(&target),
        };
        done.map(|()| csi::NodeUnpublishVolumeResponse {})
    }

    fn unpublish_recorded(&self, record: &VolumeRecord, target: &Path) -> Result<()> {
        if record.stage.as_ref().is_some_and(|s| s.path == target) {
            let why = "is where the volume is staged, not where it is published";
            return Err(target_path::wrong(target, why));
        }
        let cleared = self.clear(&self.identity(record), target)?;
        self.drop_read_only(record, &cleared.state, target)?;
        self.remove_target(target, &cleared)
    }

    /// Removes the empty directory or file at a target. If the volume was not mounted there, the
    /// directory or file may be left over from an earlier call. A directory at which a volume is
    /// staged belongs to the orchestrator and stays.
    fn remove_target(&self, target: &Path, cleared: &Cleared) -> Result<()> {
        // The staging paths of a missing pool are not known.
        let is_free = self.pools.complete().is_ok()
            && !self.pools.volumes().iter().any(|record| {
                let stage = record.stage.as_ref();
                stage.is_some_and(|stage| stage.path == target)
            });
        if cleared.unmounted || is_free {
            target_path::remove(target)
        } else {
            Ok(())
        }
    }

    /// Unmounts all mounts of the volume at the target, and detaches a read-only device that no record
    /// names.
    pub(super) fn clear(&self, identity: &VolumeIdentity, target: &Path) -> Result<Cleared> {
        let kernel = self.pools.kernel();
        let mut unmounted = false;
        loop {
            let state = self.state(identity, &[target])?;
            let Some(top) = state.top(target) else {
                return Ok(Cleared { unmounted, state });
            };
            self.refuse_foreign(&state, target)?;
            match kernel.unmount_exactly(top) {
                // The next look shows what came there meanwhile.
                Err(kernel::Error::Covered { .. } | kernel::Error::NotFound { .. }) => continue,
                done => done?,
            }
            unmounted = true;
            if let Some(info) = unrecorded(&state, target) {
                read_only_loop::detach(kernel, info)?;
            }
            // Only a further mount needs a look at the loop devices.
            if kernel::topmost_mount(kernel, target)?.is_none() {
                return Ok(Cleared { unmounted, state });
            }
        }
    }
}

/// The read-only device that is bound at a target, if no record names it. For a volume that nodes share,
/// it is a pin of this node, which ends with its publication even if its user has put another file behind
/// it.
fn unrecorded<'s>(state: &'s VolumeState, target: &Path) -> Option<&'s LoopInfo> {
    let minor = state.top(target)?.loop_node?;
    match state.at(target) {
        MountedObject::Device {
            read_only: true, ..
        } => state
            .over()
            .find(|l| l.minor == minor && !state.read_only().any(|known| known.minor == minor)),
        MountedObject::Stale => {
            let device = state.kernel().device(minor);
            device.filter(|device| pins::has_label(device))
        }
        _ => None,
    }
}
