//! Pins of shared volumes' devices. A node that uses such a device has a read-only loop device over
//! it: as long as that exists, the kernel gives the device's number to no other file. Its label names
//! the marker of the node's container. It has no bytes, so no program of the machine takes it for a
//! second disk with the volume's content. A readable one has them: a read-only publication of a raw
//! block volume binds it in place of the device, since a device node takes writes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::markers::Marker;
use super::pin_label;
use crate::kernel::LoopInfo;

/// The offset of a pin in the device that it pins: beyond the end of any. A readable pin has 0, and so
/// shows all of it. So do all pins of an earlier version.
pub const OFFSET: u64 = 1 << 62;

/// The label of the pins of the container with this marker.
pub fn label(nonce: &str) -> String {
    pin_label::of(nonce)
}

/// A pin on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// N of the pin's own `/dev/loopN`.
    pub minor: u32,
    /// N of the device that it pins.
    pub over: u32,
    /// The nonce of the marker of its container.
    pub nonce: String,
    /// True if it shows bytes of the device.
    pub is_readable: bool,
}

/// The pins among these loop devices.
pub fn of<'l>(loops: impl IntoIterator<Item = &'l LoopInfo>) -> Vec<Pin> {
    loops.into_iter().filter_map(pin).collect()
}

/// What a pin is: a read-only device over a loop device, with a pin's label. If someone has changed its
/// offset or limited it, it still is one: it keeps the number just as well.
fn pin(device: &LoopInfo) -> Option<Pin> {
    let nonce = pin_label::nonce(&device.label).filter(|_| device.read_only)?;
    Some(Pin {
        minor: device.minor,
        over: device.below()?,
        nonce: nonce.to_owned(),
        is_readable: device.offset != OFFSET,
    })
}

/// True for a pin that shows bytes of the device that it pins.
pub fn is_readable(device: &LoopInfo) -> bool {
    pin(device).is_some_and(|pin| pin.is_readable)
}

/// True for what a node has attached as a pin, whatever is behind it now: a user of a readable one may put
/// another file there (LOOP_CHANGE_FD needs only read access).
pub fn has_label(device: &LoopInfo) -> bool {
    device.read_only && pin_label::nonce(&device.label).is_some()
}

/// Like [`LoopInfo::tampered`], for a device that may be a pin. Its offset is its own.
pub fn tampered(device: &LoopInfo) -> Option<String> {
    if device.offset == OFFSET && pin(device).is_some() {
        let shown = LoopInfo {
            offset: 0,
            ..device.clone()
        };
        return shown.tampered();
    }
    device.tampered()
}

/// The minors of the devices with a pin, whether its container runs or not. A device that does not
/// answer may be one.
pub fn pinned<'l>(loops: impl IntoIterator<Item = &'l LoopInfo>) -> BTreeSet<u32> {
    let over = loops.into_iter().filter_map(|device| {
        let pinned = pin(device).map(|pin| pin.over);
        pinned.or_else(|| device.may_be_over())
    });
    over.collect()
}

/// The nodes with a pin that lives, by the device that it pins: the container of its marker runs.
pub fn live<'m>(pins: &[Pin], markers: &'m [Marker]) -> BTreeMap<u32, BTreeSet<&'m str>> {
    let mut live: BTreeMap<u32, BTreeSet<&'m str>> = BTreeMap::new();
    for pin in pins {
        let nodes = markers.iter().filter(|marker| marker.nonce == pin.nonce);
        for marker in nodes {
            live.entry(pin.over).or_default().insert(&marker.node);
        }
    }
    live
}

/// The pins of containers that are gone.
pub fn dead(pins: &[Pin], markers: &[Marker]) -> Vec<Pin> {
    pins.iter()
        .filter(|pin| !markers.iter().any(|marker| marker.nonce == pin.nonce))
        .cloned()
        .collect()
}

/// True if a dead pin may still be bound: it is readable, and a node with a live pin uses the device.
/// If a person has unmounted that node's marker, it has made another one, and pins with that.
pub fn may_be_bound(dead: &Pin, live: &BTreeMap<u32, BTreeSet<&str>>) -> bool {
    dead.is_readable && live.contains_key(&dead.over)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::LOOP_MAJOR;
    use crate::reach::testing::{marker, pin_device};

    fn changed(change: impl FnOnce(&mut LoopInfo)) -> LoopInfo {
        let mut device = pin_device(9, 7, &marker("n1", 'a'));
        change(&mut device);
        device
    }

    #[test]
    fn a_pin_is_a_read_only_device_over_a_loop_device() {
        let nonce = "a".repeat(32);
        let good = label(&nonce);
        assert!(good.len() <= 63, "{good}");
        let over = |major, minor| changed(|l| l.backing_rdev = rustix::fs::makedev(major, minor));
        let labelled = |label: String| changed(|l| l.label = label);
        // The device → the one that it pins
        let table = [
            (changed(|_| ()), Some(7)),
            // That of an earlier version.
            (
                changed(|l| (l.offset, l.size_bytes) = (0, 1 << 30)),
                Some(7),
            ),
            // A person or a program has changed it, and it holds what it held.
            (changed(|l| l.offset = 4096), Some(7)),
            (changed(|l| l.size_limit = 4096), Some(7)),
            (changed(|l| l.autoclear = true), Some(7)),
            (over(LOOP_MAJOR, 300), Some(300)),
            (over(8, 7), None),
            (changed(|l| l.backing_rdev = 0), None),
            (changed(|l| l.read_only = false), None),
            // Those of kubelet and of a read-only raw block target.
            (labelled(String::new()), None),
            (labelled("vol-1 ro".to_owned()), None),
            (labelled(label("")), None),
            (labelled(label(&"x".repeat(32))), None),
            (labelled(label(&"A".repeat(32))), None),
            (labelled(format!("{good}a")), None),
        ];
        for (device, expected) in table {
            let expected = expected.map(|over| Pin {
                minor: 9,
                over,
                nonce: nonce.clone(),
                is_readable: device.offset != OFFSET,
            });
            assert_eq!(pin(&device), expected, "{device:?}");
        }
    }

    #[test]
    fn a_pin_that_begins_in_the_device_is_readable() {
        // The device → it is a readable pin, and it has the label of one
        let table = [
            (changed(|_| ()), false, true),
            (changed(|l| l.offset = 0), true, true),
            (changed(|l| l.offset = 4096), true, true),
            // A file is behind it, or another disk.
            (
                changed(|l| (l.offset, l.backing_rdev) = (0, 0)),
                false,
                true,
            ),
            (
                changed(|l| (l.offset, l.backing_rdev) = (0, rustix::fs::makedev(8, 7))),
                false,
                true,
            ),
            (
                changed(|l| (l.offset, l.read_only) = (0, false)),
                false,
                false,
            ),
            (
                changed(|l| (l.offset, l.label) = (0, "vol-1 ro".to_owned())),
                false,
                false,
            ),
        ];
        for (device, readable, labelled) in table {
            let found = (is_readable(&device), has_label(&device));
            assert_eq!(found, (readable, labelled), "{device:?}");
        }
    }

    #[test]
    fn a_dead_pin_may_be_bound_while_a_node_uses_its_device() {
        let devices = [
            pin_device(10, 7, &marker("n1", 'a')),
            pin_device(11, 7, &marker("gone", 'b')),
            LoopInfo {
                offset: 0,
                ..pin_device(12, 7, &marker("gone", 'b'))
            },
            LoopInfo {
                offset: 0,
                ..pin_device(13, 8, &marker("gone", 'b'))
            },
        ];
        let pins = of(&devices);
        let markers = [marker("n1", 'a')];
        let live = live(&pins, &markers);
        let kept = dead(&pins, &markers)
            .into_iter()
            .filter(|pin| may_be_bound(pin, &live))
            .map(|pin| pin.minor);
        assert_eq!(kept.collect::<Vec<u32>>(), [12]);
    }

    #[test]
    fn only_a_pin_may_begin_where_a_pin_does() {
        // The device → what is said of it
        let table = [
            (changed(|_| ()), None),
            (changed(|l| l.offset = 0), None),
            (changed(|l| l.offset = 4096), Some("begins at byte 4096")),
            (
                changed(|l| l.offset = OFFSET + 1),
                Some("begins at byte 46"),
            ),
            (
                changed(|l| l.size_limit = 4096),
                Some("limited to 4096 bytes of its file"),
            ),
            // No pins.
            (changed(|l| l.read_only = false), Some("begins at byte 46")),
            (changed(|l| l.backing_rdev = 0), Some("begins at byte 46")),
            (
                changed(|l| l.label = "vol-1 ro".to_owned()),
                Some("begins at byte 46"),
            ),
        ];
        for (device, expected) in table {
            let found = tampered(&device);
            let fits = match (&found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(fits, "{device:?}: {found:?}, not {expected:?}");
        }
    }

    #[test]
    fn a_pin_lives_as_long_as_its_marker() {
        let both = [marker("n1", 'a'), marker("n2", 'b')];
        let devices = [
            pin_device(10, 7, &both[0]),
            pin_device(11, 7, &both[1]),
            pin_device(12, 8, &both[0]),
            pin_device(13, 9, &marker("n3", 'c')),
        ];
        let pins = of(&devices);
        assert_eq!(pinned(&devices), BTreeSet::from([7, 8, 9]));
        let silent = LoopInfo {
            backing_path: "/dev/loop3".to_owned(),
            ..LoopInfo::default()
        };
        assert_eq!(pinned([&silent]), BTreeSet::from([3]));
        let expected = BTreeMap::from([
            (7, BTreeSet::from(["n1", "n2"])),
            (8, BTreeSet::from(["n1"])),
        ]);
        assert_eq!(live(&pins, &both), expected);
        assert_eq!(dead(&pins, &both), pins[3..]);
        // The container of n1 has started again: what it had before is gone.
        let again = [marker("n1", 'd'), marker("n2", 'b')];
        let expected = BTreeMap::from([(7, BTreeSet::from(["n2"]))]);
        assert_eq!(live(&pins, &again), expected);
        assert_eq!(dead(&pins, &again).len(), 3);
    }
}
