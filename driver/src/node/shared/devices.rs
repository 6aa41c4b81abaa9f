//! One look at loop devices and mounts, with the pins and the markers among the devices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::diagnose::{KernelState, VolumeIdentity, VolumeState};
use crate::kernel::{self, Kernel, LoopInfo, LoopKey, LoopScope};
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

    /// True if there is a device that `find` selects. It is looked for among all only if what is known
    /// does not have it: reading all devices takes longer than the rest of a call.
    pub(super) fn is_there(
        kernel: &dyn Kernel,
        find: impl Fn(&Devices) -> Option<&LoopInfo>,
    ) -> kernel::Result<bool> {
        let known = Devices::known(kernel)?;
        if find(&known).is_some_and(|device| kernel.confirm_loops(&[device])) {
            return Ok(true);
        }
        Ok(find(&Devices::look(kernel)?).is_some())
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

    /// UNAVAILABLE while the kernel can't describe a device that may be a pin on one of these.
    pub(super) fn refuse_undecided(&self, minors: &BTreeSet<u32>) -> Result<()> {
        let mut silent = self.state.loops.silent();
        let undecided = silent.find(|device| {
            let over = device.may_be_over();
            // Without a path, not even sysfs shows what it is over.
            device.backing_path.is_empty() || over.is_some_and(|over| minors.contains(&over))
        });
        match undecided {
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
        self.pins_over(&BTreeSet::from([minor])).next().is_some()
    }

    /// The pins on these devices, of nodes that are alive or not.
    pub(super) fn pins_over(&self, minors: &BTreeSet<u32>) -> impl Iterator<Item = &Pin> {
        let pins = self.pins.iter();
        pins.filter(move |pin| minors.contains(&pin.over))
    }

    /// The devices over these besides pins: kubelet has one over each raw block volume that a pod uses, and
    /// the user of a readable pin may have given it another label.
    pub(super) fn no_pins_over(&self, minors: &BTreeSet<u32>) -> impl Iterator<Item = &LoopInfo> {
        let devices = self.state.loops.iter();
        devices.filter(move |device| {
            let is_over = device.below().is_some_and(|over| minors.contains(&over));
            is_over && !self.pins.iter().any(|pin| pin.minor == device.minor)
        })
    }

    /// The nodes with a live pin on one of these devices.
    pub(super) fn holders(&self, minors: &BTreeSet<u32>) -> BTreeSet<String> {
        let live = self.live();
        let nodes = minors.iter().filter_map(|minor| live.get(minor)).flatten();
        nodes.map(|node| (*node).to_owned()).collect()
    }

    /// The nodes with a live pin, by the device that it pins.
    pub(super) fn live(&self) -> BTreeMap<u32, BTreeSet<&str>> {
        pins::live(&self.pins, &self.markers)
    }

    /// The devices over this one: kubelet has one over each that a pod uses.
    pub(super) fn over(&self, minor: u32) -> impl Iterator<Item = &LoopInfo> {
        let over = self.state.loops.with(LoopKey::Below(minor));
        over.map(|device| &**device)
    }

    /// The readable pins that are bound here, each with the device that it pins.
    pub(super) fn bound_pins(&self) -> Vec<(u32, u32)> {
        let pins = self.pins.iter().filter(|pin| pin.is_readable);
        pins.filter(|pin| self.state.is_bound(pin.minor))
            .map(|pin| (pin.minor, pin.over))
            .collect()
    }

    /// The pins without a marker.
    pub(super) fn dead(&self) -> Vec<Pin> {
        pins::dead(&self.pins, &self.markers)
    }

    /// The nonces of a node's markers that do not count any more: their files are removed.
    pub(super) fn lost_nonces(&self, node: &str) -> BTreeSet<String> {
        markers::lost_nonces(self.state.loops.iter(), node)
    }

    /// The marker of a node that shares the kernel of this name.
    pub(super) fn marker_of(&self, node: &str, kernel: &str) -> Option<&LoopInfo> {
        let mut devices = self.state.loops.iter();
        devices.find(|device| {
            let marker = markers::of(device);
            marker.is_some_and(|marker| marker.node == node && marker.kernel == kernel)
        })
    }

    /// A pin of this marker over a device. One that detaches when it is closed is given up already, and
    /// a bound one ends with its publication.
    pub(super) fn pin_by(&self, marker: &Marker, over: u32) -> Option<&LoopInfo> {
        let pins = self.pins.iter().filter(|pin| pin.over == over);
        pins.filter(|pin| pin.nonce == marker.nonce)
            .filter_map(|pin| self.device(pin.minor))
            .find(|device| !device.autoclear && !self.state.is_bound(device.minor))
    }

    /// This node's pins over a device. By a forged marker, those of another node would be given back.
    pub(super) fn own_pins(&self, over: u32) -> Vec<&LoopInfo> {
        let own = markers::own(self.state.loops.iter(), &self.state.mounts);
        let pins = self.pins.iter().filter(|pin| pin.over == over);
        pins.filter(|pin| own.iter().any(|(_, marker)| marker.nonce == pin.nonce))
            .filter_map(|pin| self.device(pin.minor))
            .collect()
    }

    /// The pins of this node over devices that it does not use, and those that a call has left. `nonces`
    /// are those of this driver: another driver on this node may be about to use what it has pinned.
    pub(super) fn unused_pins(&self, nonces: &BTreeSet<String>, anchors: &Path) -> Vec<&LoopInfo> {
        let used = self.used_outside(anchors);
        let pins = self.pins_of(nonces).into_iter();
        pins.filter(|pin| {
            let is_used = used.contains(&pin.over) || self.may_be_used(pin.over);
            !is_used || self.is_left(pin)
        })
        .filter_map(|pin| self.device(pin.minor))
        .collect()
    }

    /// The readable pins of these nonces over a device that a call of this node has left.
    pub(super) fn left_pins(&self, nonces: &BTreeSet<String>, over: u32) -> Vec<&LoopInfo> {
        let pins = self.pins_of(nonces).into_iter();
        pins.filter(|pin| pin.over == over && self.is_left(pin))
            .filter_map(|pin| self.device(pin.minor))
            .collect()
    }

    /// The pins of this node with these nonces.
    fn pins_of(&self, nonces: &BTreeSet<String>) -> Vec<&Pin> {
        let own = markers::own(self.state.loops.iter(), &self.state.mounts);
        let pins = self.pins.iter();
        pins.filter(|pin| nonces.contains(&pin.nonce))
            .filter(|pin| own.iter().any(|(_, marker)| marker.nonce == pin.nonce))
            .collect()
    }

    /// True for a readable pin that a call has left: the call ended before it bound the pin, or before it
    /// detached it. Another pin of its container keeps the device.
    fn is_left(&self, pin: &Pin) -> bool {
        let mut others = self.pins.iter();
        let is_beside = others
            .any(|other| !other.is_readable && other.over == pin.over && other.nonce == pin.nonce);
        pin.is_readable && is_beside && !self.may_be_bound(pin.minor)
    }

    /// True if a device, or one over it, may be bound here.
    fn may_be_used(&self, minor: u32) -> bool {
        let mut over = self.state.loops.with(LoopKey::Below(minor));
        self.may_be_bound(minor) || over.any(|device| self.may_be_bound(device.minor))
    }

    /// True if anything with the name of a device's node is bound here. It may be that of another `/dev`,
    /// which an earlier pod of the driver had.
    fn may_be_bound(&self, minor: u32) -> bool {
        let node = format!("loop{minor}");
        let mut mounts = self.state.mounts.entries.iter();
        mounts.any(|mount| mount.root.iter().any(|word| word == node.as_str()))
    }

    /// The minors of devices that are mounted or bound in this mount namespace, anchors aside. A device
    /// below a readable pin that is bound is used, too, whatever label its user has given that.
    pub(super) fn used_outside(&self, anchors: &Path) -> BTreeSet<u32> {
        let mounts = self.state.mounts.entries.iter();
        let mut used: BTreeSet<u32> = mounts
            .filter(|mount| !mount.mount_point.starts_with(anchors))
            .flat_map(|mount| mount.loop_minors().chain(mount.loop_node))
            .collect();
        let devices = self.state.loops.iter();
        let bound = devices.filter(|device| device.read_only && used.contains(&device.minor));
        let below: Vec<u32> = bound.filter_map(LoopInfo::below).collect();
        used.extend(below);
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::MountTable;
    use crate::reach::testing::{marker, marker_device, pin_device};

    fn devices(loops: Vec<LoopInfo>, mounts: &str) -> Devices {
        Devices::of(KernelState {
            loops: loops.into(),
            mounts: MountTable::parse(mounts.as_bytes()).unwrap(),
        })
    }

    #[test]
    fn a_node_holds_what_its_containers_have_pinned() {
        let (u, renewed, w) = (marker("u", 'a'), marker("u", 'b'), marker("w", 'c'));
        let given_up = LoopInfo {
            autoclear: true,
            ..pin_device(14, 9, &u)
        };
        let all = devices(
            vec![
                marker_device(1, &u),
                marker_device(2, &renewed),
                marker_device(3, &w),
                // A forged one.
                marker_device(4, &marker("u", 'c')),
                pin_device(10, 7, &u),
                pin_device(11, 7, &renewed),
                pin_device(12, 7, &w),
                pin_device(13, 8, &marker("gone", 'd')),
                given_up,
            ],
            "\
40 1 7:1 / /state/kernel/alive ro - ext4 /dev/loop1 ro
41 40 7:2 / /state/kernel/alive ro - ext4 /dev/loop2 ro
42 1 7:7 / /stage/vol rw - ext4 /dev/loop7 rw
",
        );
        let names = |minors: &[u32]| all.holders(&minors.iter().copied().collect());
        assert_eq!(
            names(&[7]),
            BTreeSet::from(["u".to_owned(), "w".to_owned()])
        );
        assert_eq!(names(&[8]), BTreeSet::new(), "its container is gone");
        assert_eq!(names(&[6]), BTreeSet::new());
        let minors = |over| -> Vec<u32> {
            let pins = all.own_pins(over).into_iter();
            pins.map(|pin| pin.minor).collect()
        };
        assert_eq!(minors(7), [10, 11]);
        assert_eq!(minors(8), [] as [u32; 0]);
        // The last one detaches when it is closed.
        for (over, pin) in [(7, Some(10)), (8, None), (9, None)] {
            let found = all.pin_by(&u, over);
            assert_eq!(found.map(|pin| pin.minor), pin, "{over}");
        }
        assert!(all.is_pinned(8) && !all.is_pinned(6));
        for (node, kernel, marker) in [
            ("w", "kernel", Some(3)),
            ("w", "other", None),
            ("x", "kernel", None),
        ] {
            let found = all.marker_of(node, kernel);
            assert_eq!(found.map(|marker| marker.minor), marker, "{node} {kernel}");
        }
    }

    #[test]
    fn a_device_over_a_volumes_is_a_pin_or_not() {
        let of_kubelet = |minor, over| LoopInfo {
            label: "/kubelet/volumeDevices/pvc-1/dev/pod".to_owned(),
            read_only: false,
            ..pin_device(minor, over, &marker("u", 'a'))
        };
        let loops = vec![
            pin_device(10, 7, &marker("u", 'a')),
            of_kubelet(11, 7),
            of_kubelet(12, 8),
            // A readable pin with a label of its user.
            LoopInfo {
                read_only: true,
                ..of_kubelet(13, 7)
            },
        ];
        let all = devices(loops, "");
        let minors = BTreeSet::from([7]);
        let found = all.no_pins_over(&minors).map(|device| device.minor);
        assert_eq!(found.collect::<Vec<u32>>(), [11, 13]);
    }

    #[test]
    fn anchors_are_no_use_of_a_node() {
        let mounts = "\
30 1 0:5 / /dev rw - devtmpfs devtmpfs rw
40 1 7:3 / /state/shared/vol rw - ext4 /dev/loop3 rw
41 1 7:4 / /state/shared/vol2 rw - ext4 /dev/loop4 rw
42 1 7:4 / /stage/vol2 rw - ext4 /dev/loop4 rw
43 1 0:5 /loop5 /pod/raw rw - devtmpfs devtmpfs rw
";
        let used = devices(Vec::new(), mounts).used_outside(Path::new("/state/shared"));
        assert_eq!(used, BTreeSet::from([4, 5]));
    }

    #[test]
    fn a_pin_is_left_over_if_nothing_here_uses_its_device() {
        let (u, w, other) = (marker("u", 'a'), marker("w", 'b'), marker("u", 'c'));
        let loops = vec![
            marker_device(1, &u),
            marker_device(2, &w),
            marker_device(3, &other),
            pin_device(10, 4, &u),
            pin_device(11, 5, &u),
            pin_device(12, 6, &u),
            pin_device(13, 7, &u),
            pin_device(14, 7, &w),
            pin_device(15, 7, &other),
            pin_device(16, 7, &marker("u", 'd')),
            pin_device(17, 8, &u),
            pin_device(18, 9, &u),
        ];
        // Mounted; bound; at its anchor alone; bound from other directories of nodes. Nothing uses device 7.
        // The second marker is of another driver.
        let mounts = "\
30 1 0:5 / /dev rw - devtmpfs devtmpfs rw
40 1 7:1 / /state/kernel/alive ro - ext4 /dev/loop1 ro
41 1 7:3 / /other/kernel/alive ro - ext4 /dev/loop3 ro
42 1 7:4 / /stage/vol rw - ext4 /dev/loop4 rw
43 1 0:5 /loop5 /pod/raw rw - devtmpfs devtmpfs rw
44 1 7:6 / /state/shared/vol rw - ext4 /dev/loop6 rw
45 1 0:6 /loop8 /pod/raw2 rw - tmpfs tmpfs rw
46 1 0:6 /dev/loop9//deleted /pod/raw3 rw - tmpfs tmpfs rw
";
        let all = devices(loops, mounts);
        let nonces = ['a', 'd'].map(|digit| digit.to_string().repeat(32));
        let unused = all.unused_pins(&nonces.into(), Path::new("/state/shared"));
        let minors: Vec<u32> = unused.into_iter().map(|pin| pin.minor).collect();
        assert_eq!(minors, [12, 13]);
    }

    #[test]
    fn a_readable_pin_is_used_where_it_is_bound() {
        let (u, w) = (marker("u", 'a'), marker("w", 'b'));
        let readable = |minor, over, of| LoopInfo {
            offset: 0,
            ..pin_device(minor, over, of)
        };
        let labelled = |minor, over| LoopInfo {
            label: "mine".to_owned(),
            ..readable(minor, over, &u)
        };
        let loops = vec![
            marker_device(1, &u),
            marker_device(2, &w),
            // Bound, and one that is left.
            pin_device(10, 4, &u),
            readable(11, 4, &u),
            readable(12, 4, &u),
            // Bound from another directory of nodes.
            pin_device(13, 5, &u),
            readable(14, 5, &u),
            // Not bound, with the only pin of an earlier version, or of another node.
            readable(15, 6, &u),
            pin_device(16, 7, &w),
            readable(17, 7, &w),
            // Bound, and their users have changed their labels.
            pin_device(18, 8, &u),
            labelled(19, 8),
            pin_device(20, 9, &u),
            labelled(21, 9),
        ];
        let mounts = "\
30 1 0:5 / /dev rw - devtmpfs devtmpfs rw
40 1 7:1 / /state/kernel/alive ro - ext4 /dev/loop1 ro
41 1 0:5 /loop11 /pod/raw ro - devtmpfs devtmpfs rw
42 1 0:6 /loop14 /pod/raw2 ro - tmpfs tmpfs rw
43 1 0:5 /loop6 /pod/raw3 rw - devtmpfs devtmpfs rw
44 1 0:5 /loop19 /pod/raw4 ro - devtmpfs devtmpfs rw
45 1 0:6 /loop21 /pod/raw5 ro - tmpfs tmpfs rw
";
        let all = devices(loops, mounts);
        let used = all.used_outside(Path::new("/state/shared"));
        assert_eq!(used, BTreeSet::from([1, 4, 6, 8, 11, 19]));
        assert_eq!(all.bound_pins(), [(11, 4)]);
        let nonces = BTreeSet::from(['a', 'b'].map(|digit| digit.to_string().repeat(32)));
        let minors = |devices: Vec<&LoopInfo>| -> Vec<u32> {
            devices.into_iter().map(|device| device.minor).collect()
        };
        let unused = all.unused_pins(&nonces, Path::new("/state/shared"));
        assert_eq!(minors(unused), [12]);
        assert_eq!(minors(all.left_pins(&nonces, 4)), [12]);
        assert_eq!(minors(all.left_pins(&nonces, 6)), [] as [u32; 0]);
        // A bound one does not count as the pin of a staging.
        for (over, pin) in [(4, Some(10)), (6, Some(15)), (7, None)] {
            let found = all.pin_by(&u, over);
            assert_eq!(found.map(|pin| pin.minor), pin, "{over}");
        }
    }

    #[test]
    fn only_a_silent_device_over_the_volume_leaves_it_open() {
        let table = [
            ("/dev/loop7", true),
            ("/loop7 (deleted)", true),
            ("/dev/loop8", false),
            ("/pool/volumes/vol/image", false),
            ("", true),
        ];
        for (path, is_open) in table {
            let silent = LoopInfo {
                minor: 9,
                backing_path: path.to_owned(),
                ..LoopInfo::default()
            };
            let refused = devices(vec![silent], "").refuse_undecided(&BTreeSet::from([7]));
            assert_eq!(refused.is_err(), is_open, "{path}");
        }
        let known = devices(vec![pin_device(9, 7, &marker("u", 'a'))], "");
        assert!(known.refuse_undecided(&BTreeSet::from([7])).is_ok());
    }
}
