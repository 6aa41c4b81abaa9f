//! The fault that a volume's claim asks for.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::VolumeRecord;

/// A fault of a volume, recorded from before its first effect until its claim asks for it no more, and
/// until it stops the volume's filesystem no more.
///
/// The record tells what the driver itself did to a device or a filesystem from what others did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRecord {
    /// The fault as text, with its time and its seed.
    pub fault: String,
    /// When it began, nanoseconds since the epoch.
    pub since_ns: u64,
    /// It is over, and does not begin again: its time has passed, or it happened at one instant.
    pub over: bool,
    /// The number of bytes of the image that the loop device shows because of it.
    pub limit: Option<u64>,
    /// The inode number of the file that takes the free room because of it.
    pub file: Option<u64>,
    /// The bytes of the fault disk that the file of the fault had when it began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<Range<u64>>,
    /// No effect of it is left: since its end, the volume was staged with a new device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_past: bool,
    /// The driver is causing it. If its process ends now, all of it may be there, a part, or nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub under_way: bool,
    /// Its claim asks for it no more. It has stopped the filesystem until the volume is staged again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_withdrawn: bool,
}

impl FaultRecord {
    /// The first word of the fault.
    pub fn name(&self) -> &str {
        let end = self.fault.find([',', '=']).unwrap_or(self.fault.len());
        &self.fault[..end]
    }

    /// True if it happens at one instant, and lasts until the volume is staged again.
    fn is_instant(&self) -> bool {
        self.name() == "powercut"
    }

    /// Notes that it has ended. The limit, the file and the ranges leave the record: what looks like
    /// them later belongs to a user.
    pub(crate) fn end(&mut self) {
        *self = FaultRecord {
            fault: std::mem::take(&mut self.fault),
            over: true,
            limit: None,
            file: None,
            ranges: Vec::new(),
            under_way: false,
            ..*self
        };
    }

    /// Notes that the volume is staged again. `is_attached`: with the device that it had.
    pub(crate) fn begin_staging(&mut self, is_attached: bool) {
        if self.under_way && self.is_instant() {
            // An earlier process has ended while it cut the power. The new staging shows nothing of
            // the cut, and there is one at most.
            (self.over, self.under_way) = (true, false);
        }
        if !is_attached {
            // From now on, the fault is not what stops the filesystem.
            self.is_past = self.over;
        }
    }

    /// True if pods can't use the volume meanwhile. With other faults, a part of it fails.
    pub(crate) fn is_total(&self) -> bool {
        !["eio-from", "full", "eio", "enospc", "slow"].contains(&self.name())
    }
}

#[cfg(test)]
impl FaultRecord {
    /// A fault that has begun long ago, and lasts.
    pub(crate) fn of(fault: &str) -> FaultRecord {
        FaultRecord {
            fault: fault.to_owned(),
            since_ns: 1,
            over: false,
            limit: None,
            file: None,
            ranges: Vec::new(),
            is_past: false,
            under_way: false,
            is_withdrawn: false,
        }
    }
}

impl VolumeRecord {
    /// The number of bytes to which the driver itself has limited the volume's loop device.
    pub(crate) fn own_limit(&self) -> Option<u64> {
        self.fault.as_ref().and_then(|fault| fault.limit)
    }

    /// The fault that may have stopped the volume's filesystem.
    pub(crate) fn stopping_fault(&self) -> Option<&FaultRecord> {
        self.fault.as_deref().filter(|fault| !fault.is_past)
    }

    /// True if a fault, and no copy, has frozen the volume. Other faults explain no freeze.
    pub(crate) fn is_frozen_by_fault(&self) -> bool {
        let fault = self.fault.as_ref().filter(|fault| !fault.over);
        self.freeze.is_some() && fault.is_some_and(|fault| fault.name() == "frozen")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staging_ends_a_power_cut_that_was_under_way() {
        for (fault, over, under_way, is_attached, expected) in [
            ("powercut", false, true, false, (true, false, true)),
            ("powercut,loss=all", false, true, true, (true, false, false)),
            ("powercut", false, false, false, (false, false, false)),
            ("powercut", true, false, false, (true, false, true)),
            ("full,for=600s", false, true, false, (false, true, false)),
        ] {
            let mut record = FaultRecord {
                over,
                under_way,
                ..FaultRecord::of(fault)
            };
            record.begin_staging(is_attached);
            let found = (record.over, record.under_way, record.is_past);
            assert_eq!(found, expected, "{fault}, {over}, {under_way}");
        }
    }

    #[test]
    fn the_first_word_is_the_name() {
        for (fault, name, is_total) in [
            ("gone,for=600s", "gone", true),
            ("eio-from=4096,for=600s", "eio-from", false),
            ("powercut", "powercut", true),
            ("powercut,loss=all", "powercut", true),
            ("slow=0.02s,op=read", "slow", false),
            ("full,for=600s,seed=1", "full", false),
            ("", "", true),
        ] {
            let record = FaultRecord::of(fault);
            assert_eq!((record.name(), record.is_total()), (name, is_total));
        }
    }
}
