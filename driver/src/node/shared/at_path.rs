//! What of a shared volume is at a path of this node.

use std::path::Path;

use super::Devices;
use crate::diagnose::{MountedObject, VolumeState};
use crate::node::volume_lookup::{MountedAt, filesystem_at, not_there};
use crate::node::{Node, Result};
use crate::storage::VolumeId;

impl Node {
    /// Finds what of a volume is at a path, by the kernel alone. NOT_FOUND if it is not there.
    pub(in crate::node) fn found_shared(
        &self,
        volume: VolumeId,
        state: &VolumeState,
        path: &Path,
    ) -> Result<MountedAt> {
        let device = match state.at(path) {
            MountedObject::Filesystem { .. } => return filesystem_at(volume, state, path),
            MountedObject::Device { minor, .. } => state.kernel().device(minor),
            // A raw block volume that is staged has nothing at its path.
            MountedObject::Nothing if self.is_staged_raw(state)? => state.own().next(),
            MountedObject::Nothing | MountedObject::Stale | MountedObject::Foreign(_) => None,
        };
        let device = device.ok_or_else(|| not_there(volume))?;
        self.device_at(volume, device)
    }

    /// True for a volume that this node has pinned, and that is mounted nowhere.
    pub(in crate::node) fn is_staged_raw(&self, state: &VolumeState) -> Result<bool> {
        if state.mounts().next().is_some() {
            return Ok(false);
        }
        let devices = Devices::known(self.pools.kernel())?;
        let mut own = state.own();
        Ok(own.any(|device| !devices.own_pins(device.minor).is_empty()))
    }
}
