//! Pins of shared volumes' devices. A node that uses such a device has a read-only loop device over
//! it: as long as that exists, the kernel gives the device's number to no other file. Its label names
//! the marker of the node's container. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::markers::Marker;
use super::pin_label;
use crate::kernel::LoopInfo;

/// What sysfs appends to the path of a deleted file.
const DELETED: &str = " (deleted)";

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
}

/// The pins among these loop devices.
pub fn of<'l>(loops: impl IntoIterator<Item = &'l LoopInfo>) -> Vec<Pin> {
    loops.into_iter().filter_map(pin).collect()
}

fn pin(device: &LoopInfo) -> Option<Pin> {
    let nonce = pin_label::nonce(&device.label).filter(|_| device.read_only)?;
    Some(Pin {
        minor: device.minor,
        over: device.below()?,
        nonce: nonce.to_owned(),
    })
}

/// A device over another loop device that the kernel does not describe at present: it may be a pin.
/// While there is one, no device is known to be without pins.
pub fn undecided<'l>(loops: impl IntoIterator<Item = &'l LoopInfo>) -> Option<&'l LoopInfo> {
    loops
        .into_iter()
        .find(|device| device.backing.is_none() && is_loop_node(&device.backing_path))
}

/// True for the node of a loop device. In another mount namespace it may have any directory.
fn is_loop_node(path: &str) -> bool {
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    let name = Path::new(path).file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("loop"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{FileId, LOOP_MAJOR};

    fn nonce(digit: char) -> String {
        digit.to_string().repeat(32)
    }

    fn marker(node: &str, digit: char) -> Marker {
        Marker {
            kernel: "kernel".to_owned(),
            node: node.to_owned(),
            nonce: nonce(digit),
        }
    }

    /// A read-only device over loop device `over`, with this label.
    fn over(minor: u32, over: u32, label: &str) -> LoopInfo {
        LoopInfo {
            minor,
            backing: Some(FileId { dev: 5, ino: 1 }),
            backing_rdev: rustix::fs::makedev(LOOP_MAJOR, over),
            backing_path: format!("/dev/loop{over}"),
            label: label.to_owned(),
            read_only: true,
            ..LoopInfo::default()
        }
    }

    #[test]
    fn a_pin_is_a_read_only_device_over_a_loop_device() {
        let good = label(&nonce('a'));
        assert!(good.len() <= 63, "{good}");
        let own = over(9, 7, &good);
        let expected = Pin {
            minor: 9,
            over: 7,
            nonce: nonce('a'),
        };
        assert_eq!(of(std::slice::from_ref(&own)), [expected]);
        let no_pins = [
            over(9, 7, ""),
            over(9, 7, "vol-1 ro"),
            over(9, 7, &label("")),
            over(9, 7, &label(&nonce('x'))),
            over(9, 7, &format!("{good}a")),
            LoopInfo {
                read_only: false,
                ..own.clone()
            },
            LoopInfo {
                backing_rdev: 0,
                ..own.clone()
            },
            LoopInfo {
                backing_rdev: rustix::fs::makedev(8, 7),
                ..own
            },
        ];
        for device in no_pins {
            assert_eq!(of(std::slice::from_ref(&device)), [], "{device:?}");
        }
    }

    #[test]
    fn a_pin_lives_as_long_as_its_marker() {
        let pins = of(&[
            over(10, 7, &label(&nonce('a'))),
            over(11, 7, &label(&nonce('b'))),
            over(12, 8, &label(&nonce('a'))),
            over(13, 9, &label(&nonce('c'))),
        ]);
        let both = [marker("n1", 'a'), marker("n2", 'b')];
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

    #[test]
    fn a_silent_device_over_a_loop_device_may_be_a_pin() {
        let table = [
            ("/dev/loop7", true),
            ("/loop7", true),
            ("/run/dev/loop7 (deleted)", true),
            ("/pool/volumes/vol-1/image", false),
            ("/dev/loop", false),
            ("/dev/loop7p1", false),
            ("", false),
        ];
        for (path, may_be) in table {
            let device = LoopInfo {
                backing_path: path.to_owned(),
                ..LoopInfo::default()
            };
            let known = LoopInfo {
                backing: Some(FileId { dev: 5, ino: 1 }),
                ..device.clone()
            };
            assert_eq!(undecided(&[device]).is_some(), may_be, "{path}");
            assert_eq!(undecided(&[known]), None, "{path}");
        }
    }
}
