//! Pins of nodes that are gone. The owner of a volume detaches them once it is certain that the
//! container with their marker has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Devices;
use crate::node::{Error, Node, Result, detach_loop};
use crate::reach::pins::{self, Pin};
use crate::storage::VolumeId;

/// How long a pin has no marker before it counts as dead. A look may miss a marker that is attached
/// meanwhile. If a person unmounts the marker, the node needs a moment to make another one.
const CERTAIN_AFTER: Duration = Duration::from_secs(10);

/// The pins that full looks found without a marker.
#[derive(Debug)]
pub(super) struct DeadPins {
    wait: Duration,
    /// The end of the first of the looks in a row that found a pin dead: by its minor, that of the
    /// device below, and its nonce.
    since: Mutex<BTreeMap<(u32, u32, String), Instant>>,
}

impl Default for DeadPins {
    fn default() -> DeadPins {
        DeadPins {
            wait: CERTAIN_AFTER,
            since: Mutex::default(),
        }
    }
}

impl DeadPins {
    /// Notes all pins that a full look found dead. Returns those that an earlier look, long enough
    /// ago, found dead as well, and each look since.
    fn certain(&self, dead: Vec<Pin>, began: Instant, ended: Instant) -> Vec<Pin> {
        let mut since = self.since.lock();
        let before = std::mem::take(&mut *since);
        let mut certain = Vec::new();
        for pin in dead {
            let key = (pin.minor, pin.over, pin.nonce.clone());
            let first = before.get(&key).copied();
            if first.is_some_and(|first| began.saturating_duration_since(first) >= self.wait) {
                certain.push(pin);
            }
            since.insert(key, first.unwrap_or(ended));
        }
        certain
    }

    /// From now on, the second look is certain, however soon it is.
    #[cfg(test)]
    pub(super) fn hurry(&mut self) {
        self.wait = Duration::ZERO;
    }
}

/// A full look, and what is certain after it.
#[derive(Debug)]
pub(super) struct CertainLook {
    pub(super) devices: Devices,
    /// The pins of containers that are certainly gone.
    gone: Vec<Pin>,
}

impl CertainLook {
    /// True if no node has pinned any of these devices, those aside that are certainly gone.
    pub(super) fn is_unpinned(&self, minors: &BTreeSet<u32>) -> bool {
        let mut pins = self.devices.pins_over(minors);
        pins.all(|pin| self.gone.contains(pin))
    }

    /// The pins on these devices to detach: their containers are certainly gone, and no other one may have
    /// bound them.
    fn to_detach(&self, minors: &BTreeSet<u32>) -> Vec<&Pin> {
        let live = self.devices.live();
        let gone = self.gone.iter().filter(|pin| minors.contains(&pin.over));
        gone.filter(|pin| !pins::may_be_bound(pin, &live)).collect()
    }

    /// UNAVAILABLE while it is not certain which nodes have pinned one of these devices: a node may be
    /// gone, or may not, or the kernel can't describe a device that may be a pin.
    pub(super) fn refuse_uncertain(&self, volume: VolumeId, minors: &BTreeSet<u32>) -> Result<()> {
        self.devices.refuse_undecided(minors)?;
        let dead = self.devices.dead();
        let uncertain = dead
            .iter()
            .find(|pin| minors.contains(&pin.over) && !self.gone.contains(pin));
        match uncertain {
            None => Ok(()),
            Some(pin) => Err(Error::NotYet(format!(
                "a node that uses volume {volume} seems to be gone, and its /dev/loop{} is left: this \
                 waits {} s until that is certain",
                pin.minor,
                CERTAIN_AFTER.as_secs()
            ))),
        }
    }
}

impl Node {
    /// Looks at all devices in full, and learns which pins are certainly dead.
    pub(super) fn certain_look(&self) -> Result<CertainLook> {
        let began = Instant::now();
        let devices = Devices::look(self.pools.kernel())?;
        let dead = devices.dead();
        let gone = self.pinning.dead.certain(dead, began, Instant::now());
        Ok(CertainLook { devices, gone })
    }

    /// Detaches the pins on these devices of containers that are certainly gone. Only the owner of
    /// their volumes does so.
    pub(super) fn sweep(&self, look: &CertainLook, minors: &BTreeSet<u32>) -> Result<()> {
        let kernel = self.pools.kernel();
        let _alone = self.pinning.lock();
        for pin in look.to_detach(minors) {
            // Another sweep may have detached it, and another node taken its number.
            let now = kernel.loop_info(pin.minor)?;
            let Some(device) = now.filter(|now| pins::of([now]).contains(pin)) else {
                continue;
            };
            // Kubelet's device over a readable pin holds it.
            for over in look.devices.over_pin(pin) {
                detach_loop::detach(kernel, over)?;
            }
            let is_detached = detach_loop::detach(kernel, &device)?;
            tracing::info!(
                pin = pin.minor,
                over = pin.over,
                is_detached,
                "a node that used the volume is gone, and what it left is detached"
            );
        }
        Ok(())
    }

    /// Detaches what kubelets have left over these devices. Kubelet attaches a device over each raw block
    /// volume of a pod, and detaches it before it unstages the volume. If its container ends first, nothing
    /// does. Call it only if no node uses the volume any more.
    pub(super) fn detach_of_kubelets(
        &self,
        look: &CertainLook,
        minors: &BTreeSet<u32>,
    ) -> Result<()> {
        for device in look.devices.of_kubelets(minors) {
            let is_detached = detach_loop::detach(self.pools.kernel(), device)?;
            tracing::info!(
                device = device.minor,
                is_detached,
                "no node uses the volume, and the device that a kubelet left over it is detached"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(minor: u32) -> Pin {
        Pin {
            minor,
            over: 7,
            nonce: "a".repeat(32),
            is_readable: false,
        }
    }

    #[test]
    fn a_pin_is_dead_for_certain_after_two_looks_ten_seconds_apart() {
        let start = Instant::now();
        // Second of each look, the pins that it found dead → those that are certain
        type Look = (u64, &'static [u32], &'static [u32]);
        let table: &[&[Look]] = &[
            &[
                (0, &[1], &[]),
                (5, &[1], &[]),
                (10, &[1], &[1]),
                (11, &[1], &[1]),
            ],
            &[(0, &[1], &[]), (60, &[1], &[1])],
            // Its marker was there again.
            &[
                (0, &[1], &[]),
                (5, &[], &[]),
                (10, &[1], &[]),
                (20, &[1], &[1]),
            ],
            &[
                (0, &[1], &[]),
                (5, &[1, 2], &[]),
                (10, &[1, 2], &[1]),
                (15, &[2], &[2]),
            ],
        ];
        for looks in table {
            let pins = DeadPins::default();
            for (second, dead, expected) in *looks {
                let at = start + Duration::from_secs(*second);
                let dead = dead.iter().map(|minor| pin(*minor)).collect();
                let certain = pins.certain(dead, at, at);
                let minors: Vec<u32> = certain.iter().map(|pin| pin.minor).collect();
                assert_eq!(minors, *expected, "{second} of {looks:?}");
            }
        }
    }

    #[test]
    fn a_look_that_lasts_counts_from_its_end_to_the_next_begin() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let pins = DeadPins::default();
        assert_eq!(pins.certain(vec![pin(1)], at(0), at(4)), []);
        assert_eq!(pins.certain(vec![pin(1)], at(13), at(30)), []);
        assert_eq!(pins.certain(vec![pin(1)], at(14), at(31)), [pin(1)]);
        // A look that began before the first one ended.
        let other = Pin { over: 8, ..pin(1) };
        assert_eq!(pins.certain(vec![other.clone()], at(40), at(60)), []);
        assert_eq!(pins.certain(vec![other], at(50), at(61)), []);
    }
}
