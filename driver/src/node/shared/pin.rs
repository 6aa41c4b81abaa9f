//! The pins of this node: taken before a device is used, and given back after its last use.

use std::collections::BTreeSet;

use parking_lot::{Mutex, MutexGuard};

use super::dead_pins::DeadPins;
use super::{Devices, only};
use crate::kernel::{LoopDevice, LoopInfo, LoopSpec};
use crate::node::{Error, Node, Result, detach_loop};
use crate::reach::markers::{self, Marker};
use crate::reach::pins;
use crate::storage::{VolumeHandle, VolumeId};

/// What keeps changes of pins apart, and which pins seem to be dead.
#[derive(Debug, Default)]
pub(in crate::node) struct Pinning {
    changing: Mutex<()>,
    pub(super) dead: DeadPins,
    /// True once this process has given back what the one before it has left.
    is_tidy: Mutex<bool>,
}

impl Pinning {
    /// Keeps other threads of this process from changing pins.
    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// From now on, a second look is enough to be certain that a node is gone.
    #[cfg(test)]
    pub(in crate::node) fn hurry(&mut self) {
        self.dead.hurry();
    }
}

impl Node {
    /// The marker of this node, made if it is not there. All devices that this node uses then have a
    /// pin of this marker.
    pub(super) fn own_marker(&self) -> Result<Marker> {
        self.keep_marker()?.ok_or_else(|| {
            Error::NotYet(format!(
                "node {} is in no kernel of ConfigMap hostloop-kernels: list it with the nodes that \
                 share its kernel (kubectl hostloop install --shared)",
                self.config.node_id
            ))
        })
    }

    /// Takes this node's pin over a device, unless it has one. The caller has the device open.
    pub(super) fn take_pin(&self, device: &LoopDevice, marker: &Marker) -> Result<()> {
        let kernel = self.pools.kernel();
        let _alone = self.pinning.lock();
        // A pin too many would do no harm: the last use of the device gives all of them back.
        let known = Devices::known(kernel)?;
        let own = known.pin_by(marker, device.minor);
        if own.is_some_and(|pin| kernel.confirm_loops(&[pin])) {
            return Ok(());
        }
        self.attach_pin(device, marker, pins::OFFSET).map(drop)
    }

    /// Attaches a pin that begins at this byte of the device. The caller keeps other threads from
    /// changing pins.
    pub(super) fn attach_pin(
        &self,
        device: &LoopDevice,
        marker: &Marker,
        offset: u64,
    ) -> Result<LoopDevice> {
        Ok(self.pools.kernel().loop_attach(&LoopSpec {
            backing: &device.file,
            label: &pins::label(&marker.nonce),
            offset,
            read_only: true,
            direct_io: false,
            autoclear: false,
            minor: None,
        })?)
    }

    /// Gives this node's pins over these devices back, those of devices aside that it still uses.
    pub(super) fn drop_pins(&self, minors: &BTreeSet<u32>) -> Result<()> {
        let kernel = self.pools.kernel();
        let anchors = self.anchors()?;
        let _alone = self.pinning.lock();
        let devices = Devices::look(kernel)?;
        let used = devices.used_outside(&anchors);
        let mut left = Vec::new();
        for over in minors.difference(&used) {
            for pin in devices.own_pins(*over) {
                if !detach_loop::detach(kernel, pin)? {
                    left.push(pin.clone());
                }
            }
        }
        detach_loop::still_held(&left)
    }

    /// Gives the pin of a failed call back.
    pub(super) fn drop_pin_after_failure(&self, minor: u32) {
        if let Err(error) = self.drop_pins(&only(minor)) {
            tracing::warn!(minor, %error, "a failed staging keeps its pin of the device");
        }
    }

    /// Gives back this node's pins over devices that it does not use, and what calls have left, once,
    /// before this process takes any. The process before it may have ended between the last use and that,
    /// and a kubelet that starts again does not repeat the call. A version without shared volumes gives no
    /// pin back.
    pub(in crate::node) fn drop_left_pins(&self) -> Result<()> {
        let mut is_tidy = self.pinning.is_tidy.lock();
        if *is_tidy {
            return Ok(());
        }
        let kernel = self.pools.kernel();
        let nonces = markers::own_nonces(&self.pools.options().state_dir)?;
        let anchors = self.anchors()?;
        let _alone = self.pinning.lock();
        let devices = Devices::look(kernel)?;
        for device in devices.unused_pins(&nonces, &anchors) {
            let pin = device.minor;
            match detach_loop::detach(kernel, device) {
                Ok(is_detached) => tracing::info!(
                    pin,
                    is_detached,
                    "nothing here uses a pin of an earlier process, and it is given back"
                ),
                Err(error) => tracing::warn!(
                    pin, %error,
                    "nothing here uses a pin of an earlier process, and it stays"
                ),
            }
        }
        *is_tidy = true;
        Ok(())
    }

    /// Pins the devices of shared volumes that this node uses and that have no pin of this marker: a
    /// person may have unmounted the one before. On the owner, it also detaches what is left of nodes
    /// that are gone. It costs little if there is nothing to do.
    pub(in crate::node) fn renew_pins(&self, marker: &Marker) -> Result<()> {
        let kernel = self.pools.kernel();
        let known = Devices::known(kernel)?;
        let mut nonces = markers::own_nonces(&self.pools.options().state_dir)?;
        nonces.append(&mut known.lost_nonces(&self.config.node_id));
        if !self.unpinned(&known, marker, &nonces)?.is_empty() {
            let _alone = self.pinning.lock();
            let devices = Devices::look(kernel)?;
            for device in self.unpinned(&devices, marker, &nonces)? {
                let opened = kernel.loop_reopen(device)?;
                self.attach_pin(&opened, marker, pins::OFFSET)?;
                tracing::warn!(
                    device = %opened.path().display(), nonce = marker.nonce,
                    "a device that this node uses is pinned again"
                );
            }
        }
        // The caller needs no more than its own pins.
        if let Err(error) = self.sweep_own(&known) {
            tracing::debug!(%error, "what nodes that are gone have left stays for now");
        }
        Ok(())
    }

    /// The devices of shared volumes that this node uses without a pin of this marker. `nonces` are those
    /// of this driver: what another driver has on this node is not pinned, since nothing would end that.
    fn unpinned<'d>(
        &self,
        devices: &'d Devices,
        marker: &Marker,
        nonces: &BTreeSet<String>,
    ) -> Result<Vec<&'d LoopInfo>> {
        let used = devices.used_outside(&self.anchors()?).into_iter();
        let unpinned = used.filter(|minor| devices.pin_by(marker, *minor).is_none());
        Ok(unpinned
            .filter_map(|minor| devices.device(minor))
            .filter(|device| {
                let over = only(device.minor);
                let mut pins = devices.pins_over(&over);
                pins.any(|pin| nonces.contains(&pin.nonce))
                    || self.is_owner_of(devices, device.minor)
            })
            .collect())
    }

    /// Detaches the pins of nodes that are gone, on devices of this node's own volumes.
    fn sweep_own(&self, known: &Devices) -> Result<()> {
        let dead = known.dead().into_iter().map(|pin| pin.over);
        let own: BTreeSet<u32> = dead.filter(|over| self.is_owner_of(known, *over)).collect();
        if own.is_empty() {
            return Ok(());
        }
        let look = self.certain_look()?;
        self.sweep(&look, &own)
    }

    /// True for the device of a shared volume of a pool that is open here.
    fn is_owner_of(&self, devices: &Devices, minor: u32) -> bool {
        let volume = devices.device(minor).and_then(volume_of);
        let record = volume.map(|volume| self.pools.volume(&VolumeHandle::Id(volume)));
        record.is_some_and(|record| record.is_ok_and(|record| record.is_shared()))
    }
}

/// The volume of a device, by the name of its file's directory.
fn volume_of(device: &LoopInfo) -> Option<VolumeId> {
    let is_of_image = !device.read_only && device.backing_rdev == 0;
    let directory = device.directory().filter(|_| is_of_image)?;
    directory.parse().ok()
}
