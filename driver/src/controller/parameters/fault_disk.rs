//! The parameters of volumes on fault disks.

use hostloop_fault_disk::limits::Limits;

use crate::csi::validate::{Invalid, invalid};

/// The parameter that puts volumes on fault disks.
pub(super) const FAULT_DISK: &str = "faultDisk";
/// The parameter with the size of their write caches.
pub(super) const FAULT_DISK_CACHE: &str = "faultDiskCache";

/// The largest write cache. All of it is locked in memory.
const LARGEST_CACHE: u64 = 256 << 20;
/// A write cache has whole blocks, and takes the largest write.
const CACHE_STEP: u64 = 1 << 20;

/// Requested limits of a fault disk; `None` where a parameter is absent, and 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsChange {
    pub riops: Option<u64>,
    pub wiops: Option<u64>,
    pub rbps: Option<u64>,
    pub wbps: Option<u64>,
}

impl LimitsChange {
    /// Fills absent limits from `others`.
    pub(super) fn or(self, others: LimitsChange) -> LimitsChange {
        LimitsChange {
            riops: self.riops.or(others.riops),
            wiops: self.wiops.or(others.wiops),
            rbps: self.rbps.or(others.rbps),
            wbps: self.wbps.or(others.wbps),
        }
    }

    /// True if no limit is requested.
    pub(crate) fn is_empty(&self) -> bool {
        *self == LimitsChange::default()
    }

    /// The limits after the change. Absent ones stay.
    pub(crate) fn apply(self, now: Limits) -> Limits {
        Limits {
            riops: changed(self.riops, now.riops),
            wiops: changed(self.wiops, now.wiops),
            rbps: changed(self.rbps, now.rbps),
            wbps: changed(self.wbps, now.wbps),
        }
    }

    /// The error for limits of a volume without a fault disk.
    pub(crate) fn refused(&self, map: &str) -> Invalid {
        let why = "riops, wiops, rbps and wbps are limits of fault disks, which the faultDisk of a \
                   class makes";
        invalid(map, why)
    }
}

fn changed(requested: Option<u64>, now: Option<u64>) -> Option<u64> {
    match requested {
        None => now,
        Some(0) => None,
        limit => limit,
    }
}

/// Reads a limit into its place.
pub(super) fn limit(
    value: &str,
    limits: &mut LimitsChange,
    place: fn(&mut LimitsChange) -> &mut Option<u64>,
) -> Result<(), &'static str> {
    let mut alone = LimitsChange::default();
    *place(&mut alone) = number(value);
    if alone.is_empty() || alone.apply(Limits::default()).check().is_err() {
        return Err(
            "is neither 0, for no limit, nor a number by the second: from 10 operations, or from \
             1048576 bytes",
        );
    }
    *place(limits) = *place(&mut alone);
    Ok(())
}

/// Reads the size of a write cache.
pub(super) fn cache(value: &str) -> Result<u64, &'static str> {
    number(value)
        .filter(|bytes| *bytes <= LARGEST_CACHE && bytes.is_multiple_of(CACHE_STEP))
        .ok_or("is not a number of bytes from 0 to 268435456, a multiple of 1048576")
}

fn number(value: &str) -> Option<u64> {
    // `parse` would accept a leading plus.
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    value.parse().ok().filter(|_| digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_that_a_disk_can_keep() {
        // Value → the limit of operations, and that of bytes.
        let table = [
            ("0", Some(0), Some(0)),
            ("9", None, None),
            ("10", Some(10), None),
            ("1048576", Some(1_048_576), Some(1_048_576)),
            ("+10", None, None),
            ("-1", None, None),
            ("1Mi", None, None),
            ("", None, None),
        ];
        for (value, operations, bytes) in table {
            let mut limits = LimitsChange::default();
            let riops = limit(value, &mut limits, |limits| &mut limits.riops);
            let wbps = limit(value, &mut limits, |limits| &mut limits.wbps);
            assert_eq!((limits.riops, limits.wbps), (operations, bytes), "{value}");
            assert_eq!(riops.is_ok(), operations.is_some(), "{value}");
            assert_eq!(wbps.is_ok(), bytes.is_some(), "{value}");
        }
    }

    #[test]
    fn caches_are_of_whole_mebibytes() {
        for (value, expected) in [
            ("0", Some(0)),
            ("1048576", Some(1 << 20)),
            ("268435456", Some(256 << 20)),
            ("269484032", None),
            ("4096", None),
            ("1Mi", None),
        ] {
            assert_eq!(cache(value).ok(), expected, "{value}");
        }
    }

    #[test]
    fn a_change_keeps_absent_limits_and_ends_those_of_0() {
        let now = Limits {
            riops: Some(100),
            wiops: Some(200),
            ..Limits::default()
        };
        let change = LimitsChange {
            wiops: Some(0),
            rbps: Some(1 << 20),
            ..LimitsChange::default()
        };
        let expected = Limits {
            riops: Some(100),
            rbps: Some(1 << 20),
            ..Limits::default()
        };
        assert_eq!(change.apply(now), expected);
        assert!(!change.is_empty() && LimitsChange::default().is_empty());
    }
}
