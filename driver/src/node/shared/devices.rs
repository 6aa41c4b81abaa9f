//! One look at loop devices and mounts, with the pins and the markers among the devices.

use std::collections::BTreeSet;
use std::path::Path;

use crate::diagnose::{KernelState, VolumeIdentity, VolumeState};
use crate::kernel::{self, Kernel, LoopInfo, LoopScope};
use crate::node::{Error, Result};
use crate::reach::markers::{self, Marker};
use crate::reach::pins::{self, Pin};

/// Loop devices and mounts at one time.
#[derive(Debug)]
pub(super) struct Devices {
    state: KernelState,
    markers: Vec<Marker>,
    pins: Vec<Pin>,
}

impl Devices {
    /// Reads everything. What is only known may be old, and nothing is given up because of that.
    pub(super) fn look(kernel: &dyn Kernel) -> kernel::Result<Devices> {
        KernelState::read(kernel).map(Devices::of)
    }

    /// What is known, some of which may be old. It costs little.
    pub(super) fn known(kernel: &dyn Kernel) -> kernel::Result<Devices> {
        KernelState::known(kernel, LoopScope::All).map(Devices::of)
    }

    fn of(state: KernelState) -> Devices {
        Devices {
            markers: markers::all(state.loops.iter()),
            pins: pins::of(state.loops.iter()),
            state,
        }
    }

    /// The attached device with this minor.
    pub(super) fn device(&self, minor: u32) -> Option<&LoopInfo> {
        self.state.device(minor)
    }

    /// UNAVAILABLE while the kernel can't describe a device that may be a pin.
    pub(super) fn refuse_undecided(&self) -> Result<()> {
        match pins::undecided(self.state.loops.iter()) {
            None => Ok(()),
            Some(device) => Err(Error::NotYet(format!(
                "/dev/loop{} does not say now which device it is over: it may be that of a node that \
                 uses the volume",
                device.minor
            ))),
        }
    }

    /// The minors of a volume's own devices.
    pub(super) fn of_volume(&self, identity: &VolumeIdentity) -> BTreeSet<u32> {
        let state = VolumeState::of(&self.state, identity.clone());
        state.own().map(|device| device.minor).collect()
    }

    /// True if any node has pinned a device, alive or not.
    pub(super) fn is_pinned(&self, minor: u32) -> bool {
        self.pins.iter().any(|pin| pin.over == minor)
    }

    /// The nodes with a live pin on one of these devices.
    pub(super) fn holders(&self, minors: &BTreeSet<u32>) -> BTreeSet<String> {
        let live = pins::live(&self.pins, &self.markers);
        let nodes = minors.iter().filter_map(|minor| live.get(minor)).flatten();
        nodes.map(|node| (*node).to_owned()).collect()
    }

    /// The pins without a marker.
    pub(super) fn dead(&self) -> Vec<Pin> {
        pins::dead(&self.pins, &self.markers)
    }

    /// True if a node shares the kernel of this name.
    pub(super) fn is_here(&self, node: &str, kernel: &str) -> bool {
        let seen = markers::seen(self.state.loops.iter(), kernel);
        seen.iter().any(|marker| marker.node == node)
    }

    /// True if there is a pin of this marker over a device. One that detaches when it is closed is
    /// given up already.
    pub(super) fn has_pin(&self, marker: &Marker, over: u32) -> bool {
        let mut pins = self.pins.iter();
        pins.any(|pin| {
            let device = self.device(pin.minor);
            pin.over == over
                && pin.nonce == marker.nonce
                && device.is_some_and(|device| !device.autoclear)
        })
    }

    /// The live pins of a node over a device. After its kernel got another name, a node has two
    /// markers.
    pub(super) fn pins_of(&self, node: &str, over: u32) -> Vec<&LoopInfo> {
        let markers = self.markers.iter().filter(|marker| marker.node == node);
        let nonces: BTreeSet<&str> = markers.map(|marker| marker.nonce.as_str()).collect();
        let pins = self.pins.iter().filter(|pin| pin.over == over);
        pins.filter(|pin| nonces.contains(pin.nonce.as_str()))
            .filter_map(|pin| self.device(pin.minor))
            .collect()
    }

    /// The minors of devices that are mounted or bound in this mount namespace, anchors aside.
    pub(super) fn used_outside(&self, anchors: &Path) -> BTreeSet<u32> {
        let mounts = self.state.mounts.entries.iter();
        mounts
            .filter(|mount| !mount.mount_point.starts_with(anchors))
            .flat_map(|mount| mount.loop_minors().chain(mount.loop_node))
            .collect()
    }
}
