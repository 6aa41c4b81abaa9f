//! NodeExpandVolume of a shared volume. Its owner grows image, device and filesystem, and all nodes
//! have them at once.

use hostloop_proto::csi;

use crate::csi::int64;
use crate::csi::validate::SizeRange;
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::node::expand::matches_path;
use crate::node::volume_lookup::{MountedAt, volume_path};
use crate::node::{Error, Node, Result};
use crate::storage::VolumeId;

impl Node {
    /// Success if the volume is as large as requested. Only a readable pin may grow: the owner may have
    /// looked at the pins before this one was attached.
    pub(in crate::node) fn expand_shared(
        &self,
        volume: VolumeId,
        req: &csi::NodeExpandVolumeRequest,
        range: SizeRange,
    ) -> Result<csi::NodeExpandVolumeResponse> {
        let path = volume_path(volume, &req.volume_path)?;
        let kernel = self.pools.kernel();
        let identity = VolumeIdentity::unrecorded(volume);
        let state = VolumeState::look(kernel, &identity, &[&path])?;
        let size = state.own().map(|own| own.size_bytes).max();
        if state.readable_pins().any(|pin| Some(pin.size_bytes) < size) {
            self.grow_readable_pins(&state)?;
        }
        let at = self.found_shared(volume, &state, &path)?;
        if let Some(value) = &req.volume_capability {
            let requested = self.requested_capability(Some(value))?;
            matches_path(&requested.plain().access, at)?;
        }
        let bytes = match at {
            MountedAt::Device { bytes } => bytes,
            MountedAt::Filesystem(_) => {
                let mut devices = state.own();
                devices.next().map_or(0, |device| device.size_bytes)
            }
        };
        if bytes < range.required {
            return Err(Error::NotYet(format!(
                "volume {volume} has {bytes} bytes, not {}: the node with its pool grows it first",
                range.required
            )));
        }
        if !range.allows(bytes) {
            return Err(Error::OutOfRange(format!(
                "volume {volume} has {bytes} bytes, more than the limit: volumes don't shrink"
            )));
        }
        Ok(csi::NodeExpandVolumeResponse {
            capacity_bytes: int64(bytes),
        })
    }
}
