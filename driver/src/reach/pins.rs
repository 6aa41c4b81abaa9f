//! Pins of shared volumes' devices. A node that uses such a device has a read-only loop device over
//! it: as long as that exists, the kernel gives the device's number to no other file. Its label names
//! the marker of the node's container. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::markers::Marker;
use super::pin_label;
use crate::kernel::LoopInfo;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reach::testing::{marker, pin_device};

    #[test]
    fn a_pin_is_a_read_only_device_over_a_loop_device() {
        let marker = marker("n1", 'a');
        let good = label(&marker.nonce);
        assert!(good.len() <= 63, "{good}");
        let own = pin_device(9, 7, &marker);
        let expected = Pin {
            minor: 9,
            over: 7,
            nonce: marker.nonce,
        };
        assert_eq!(of(std::slice::from_ref(&own)), [expected]);
        let labelled = |label: String| LoopInfo {
            label,
            ..own.clone()
        };
        let no_pins = [
            labelled(String::new()),
            labelled("vol-1 ro".to_owned()),
            labelled(label("")),
            labelled(label(&"x".repeat(32))),
            labelled(label(&"A".repeat(32))),
            labelled(format!("{good}a")),
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
                ..own.clone()
            },
        ];
        for device in no_pins {
            assert_eq!(of(std::slice::from_ref(&device)), [], "{device:?}");
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
