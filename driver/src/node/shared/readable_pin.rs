//! Read-only publications of a raw block volume that nodes share. A device node that is bound
//! read-only still takes writes, so a further pin, which shows the device, is bound in its place. A pin
//! that its node leaves ends as others do.

use std::collections::BTreeSet;
use std::path::Path;

use super::Devices;
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::kernel::{self, BindFlags, LoopDevice, READ_AHEAD_KIB};
use crate::node::{Node, Result, detach_loop, target_path};
use crate::reach::markers::Marker;
use crate::storage::{VolumeHandle, VolumeId};

impl Node {
    /// Binds a readable pin of this node over the device to a target. The caller has the device open, and
    /// another pin keeps it.
    pub(super) fn publish_readable_pin(
        &self,
        identity: &VolumeIdentity,
        (device, marker): (&LoopDevice, &Marker),
        target: &Path,
    ) -> Result<()> {
        let made = target_path::make_file(target)?;
        let bound = self.bind_readable_pin(identity.id(), (device, marker), target);
        bound.inspect_err(|_| {
            self.take_bind_back(identity, target, made);
            let _alone = self.pinning.lock();
            if let Err(error) = self.detach_left_pins(device.minor, marker) {
                tracing::warn!(%error, "a failed publication leaves a pin, which ends later");
            }
        })
    }

    fn bind_readable_pin(
        &self,
        volume: VolumeId,
        (device, marker): (&LoopDevice, &Marker),
        target: &Path,
    ) -> Result<()> {
        let kernel = self.pools.kernel();
        // Until it is bound, other threads of this process take it for one that a call has left.
        let _alone = self.pinning.lock();
        self.detach_left_pins(device.minor, marker)?;
        let pin = self.attach_pin(device, marker, 0)?;
        kernel.loop_set_read_ahead(&pin, self.read_ahead_of(volume))?;
        let flags = BindFlags {
            read_only: true,
            ..BindFlags::default()
        };
        Ok(kernel.bind(&pin.path(), target, flags)?)
    }

    /// Detaches the readable pins over a device that calls of this node have left. The caller keeps other
    /// threads from changing pins.
    fn detach_left_pins(&self, over: u32, marker: &Marker) -> Result<()> {
        let kernel = self.pools.kernel();
        let devices = Devices::look(kernel)?;
        let nonces = BTreeSet::from([marker.nonce.clone()]);
        for pin in devices.left_pins(&nonces, over) {
            let is_detached = detach_loop::detach(kernel, pin)?;
            tracing::info!(
                pin = pin.minor,
                over,
                is_detached,
                "a call has left a pin that nothing here uses, and it is given back"
            );
        }
        Ok(())
    }

    /// Read-ahead of a volume's devices in KiB. Only its owner knows what its class says.
    fn read_ahead_of(&self, volume: VolumeId) -> u32 {
        let record = self.pools.volume(&VolumeHandle::Id(volume));
        record.map_or(READ_AHEAD_KIB, |record| record.settings.read_ahead())
    }

    /// Makes the readable pins of all nodes as large as the volume's device.
    pub(in crate::node) fn grow_readable_pins(&self, state: &VolumeState) -> Result<()> {
        let kernel = self.pools.kernel();
        for pin in state.readable_pins() {
            match kernel.loop_reopen(pin) {
                // Its node has given it back.
                Err(kernel::Error::NotFound { .. }) => {}
                opened => kernel.loop_grow(&opened?)?,
            }
        }
        Ok(())
    }

    /// The readable pins that are bound on this node, each with the device that it pins.
    pub(in crate::node) fn bound_pins(&self) -> kernel::Result<Vec<(u32, u32)>> {
        if !self.config.kernels.is_on() {
            return Ok(Vec::new());
        }
        Ok(Devices::known(self.pools.kernel())?.bound_pins())
    }
}
