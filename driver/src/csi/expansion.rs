//! Decides the size of a volume after an expansion, and whether its filesystem grows to that. Pure;
//! every error is OUT_OF_RANGE.
//!
//! ControllerExpandVolume and NodeExpandVolume decide by the same rules, and either may be the
//! first call for a size.

use hostloop_terminal::humanize::exact_bytes;

use crate::csi::capability::own_fs;
use crate::csi::capacity_range::{Bounds, requested, shown, too_large, unsatisfiable};
use crate::csi::validate::SizeRange;
use crate::kernel::{Ext4Growth, FsType};
use crate::storage::{VolumeRecord, VolumeSize};

/// The size and the request of a volume after its expansion. Both stay if the volume is large
/// enough. `mounted` is the filesystem that the request's path shows; without one, the record says
/// which filesystem may have to grow.
pub(crate) fn expand(
    range: SizeRange,
    record: &VolumeRecord,
    mounted: Option<FsType>,
    largest: Option<u64>,
) -> Result<VolumeSize, String> {
    let grown = mounted
        .or_else(|| own_fs(record))
        .map_or(0, FsType::minimum_grown_bytes);
    let bytes = size(range, record.capacity_bytes, grown, largest)?;
    Ok(VolumeSize {
        bytes,
        requested: requested_after(range, bytes, record),
    })
}

/// The size of a volume of `now` bytes after its expansion; `now` if it is large enough. `grown` is
/// the minimum size to which its filesystem can grow.
fn size(range: SizeRange, now: u64, grown: u64, largest: Option<u64>) -> Result<u64, String> {
    if let Some(limit) = range.limit.filter(|limit| *limit < now) {
        return Err(format!(
            "the volume has {}, more than limit_bytes {limit}, and never shrinks",
            exact_bytes(now)
        ));
    }
    if range.required <= now {
        return Ok(now);
    }
    let bounds = Bounds {
        grown,
        ..Bounds::default()
    };
    let size = range
        .size(now.max(grown))
        .ok_or_else(|| unsatisfiable(range, bounds))?;
    match largest {
        Some(largest) if size > largest => Err(too_large(size, largest)),
        _ => Ok(size),
    }
}

/// The request for a volume after its expansion to `bytes`. It never becomes less.
fn requested_after(range: SizeRange, bytes: u64, record: &VolumeRecord) -> Option<u64> {
    let before = record.requested_bytes;
    let least = before.unwrap_or_else(|| shown(record.capacity_bytes, record.format));
    if bytes > record.capacity_bytes || range.required > least {
        requested(range, bytes, record.format)
    } else {
        before
    }
}

/// When a filesystem has to grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrowthTime {
    /// While it is mounted. `is_permitted` is false if this process may not grow a mounted ext4.
    Mounted { is_permitted: bool },
    /// While it is mounted, or when it is mounted next.
    Any,
}

/// Why a filesystem does not grow to this size; `None` if it does. `ext4` says how an ext4 would
/// grow: XFS and btrfs always can.
pub(crate) fn obstacle(
    fs: FsType,
    bytes: u64,
    ext4: Option<Ext4Growth>,
    time: GrowthTime,
) -> Option<String> {
    if let Some(why) = below_minimum(fs, bytes) {
        return Some(why);
    }
    match (ext4?, time) {
        (Ext4Growth::Not(why), _) => Some(why.to_string()),
        (Ext4Growth::Unmounted, GrowthTime::Mounted { is_permitted: true }) => Some(
            "this ext4 can't grow while it is mounted (sparse_super2): it grows when the volume is \
             staged next"
                .to_owned(),
        ),
        (Ext4Growth::Unmounted, GrowthTime::Mounted { is_permitted: false }) => Some(
            "the driver may not grow a mounted ext4 (it lacks CAP_SYS_RESOURCE): it grows when the \
             volume is staged next"
                .to_owned(),
        ),
        (Ext4Growth::Unmounted, GrowthTime::Any)
        | (Ext4Growth::Done | Ext4Growth::Mounted, _) => None,
    }
}

/// Why a filesystem does not grow to so few bytes; `None` if they are enough.
pub(crate) fn below_minimum(fs: FsType, bytes: u64) -> Option<String> {
    let least = fs.minimum_grown_bytes();
    (bytes < least).then(|| {
        let least = exact_bytes(least);
        format!("the smallest size to which {fs} grows is {least}: request that size")
    })
}

/// The error for a size to which a volume's filesystem does not grow.
pub(crate) fn refusal(bytes: u64, why: &str) -> String {
    let bytes = exact_bytes(bytes);
    format!("capacity_range.required_bytes: the volume would have {bytes}, and {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::capacity_range::tests::{GIB, MAX, MIB, range};
    use crate::kernel::NoGrowth;
    use crate::storage::{Capability, Format, PoolId};
    use crate::testkit::{mounted, on, raw, record_of};

    #[test]
    fn sizes_after_expansion() {
        let table = [
            (range(64 * MIB, 0), 32 * MIB, None, Some(64 * MIB)),
            (
                range(63 * MIB + 1, 0),
                32 * MIB,
                None,
                Some(63 * MIB + 4096),
            ),
            // Large enough already.
            (range(32 * MIB, 0), 64 * MIB, None, Some(64 * MIB)),
            (range(64 * MIB, 64 * MIB), 64 * MIB, None, Some(64 * MIB)),
            (range(0, 128 * MIB), 64 * MIB, None, Some(64 * MIB)),
            // Never shrunk.
            (range(32 * MIB, 32 * MIB), 64 * MIB, None, None),
            (range(0, 4096), 64 * MIB, None, None),
            // Limits.
            (range(64 * MIB + 1, 64 * MIB + 2), 32 * MIB, None, None),
            (range(64 * MIB, 0), 32 * MIB, Some(64 * MIB), Some(64 * MIB)),
            (range(65 * MIB, 0), 32 * MIB, Some(64 * MIB), None),
            (range(MAX, 0), 32 * MIB, None, None),
            // A volume above a lowered maximum keeps its size.
            (range(64 * MIB, 0), 64 * MIB, Some(32 * MIB), Some(64 * MIB)),
            (range(0, 0), 64 * MIB, Some(32 * MIB), Some(64 * MIB)),
            (range(u64::MAX, 0), 32 * MIB, None, None),
        ];
        for (range, now, largest, expected) in table {
            let size = size(range, now, 0, largest);
            assert_eq!(size.ok(), expected, "{range:?} {now} {largest:?}");
        }
    }

    #[test]
    fn an_expansion_never_lowers_the_request() {
        let pool = PoolId::generate();
        let record = |bytes, requested_bytes| VolumeRecord {
            capacity_bytes: bytes,
            requested_bytes,
            format: Format::Done(FsType::Xfs),
            ..record_of(pool, "v")
        };
        // size, recorded request → size after, request → the record's
        let table = [
            (300 * MIB, Some(100 * MIB), GIB, GIB, None),
            (
                300 * MIB,
                Some(100 * MIB),
                GIB + 4096,
                GIB + 9,
                Some(GIB + 9),
            ),
            (300 * MIB, None, 300 * MIB, 300 * MIB, Some(300 * MIB)),
            // The volume is large enough.
            (
                300 * MIB,
                Some(100 * MIB),
                300 * MIB,
                50 * MIB,
                Some(100 * MIB),
            ),
            (
                300 * MIB,
                Some(100 * MIB),
                300 * MIB,
                200 * MIB,
                Some(200 * MIB),
            ),
            (GIB, None, GIB, 500 * MIB, None),
            // An earlier call grew the image and died before it changed the request.
            (
                GIB + 4096,
                Some(100 * MIB),
                GIB + 4096,
                GIB + 9,
                Some(GIB + 9),
            ),
        ];
        for (bytes, recorded, after, required, expected) in table {
            let request = requested_after(range(required, 0), after, &record(bytes, recorded));
            assert_eq!(request, expected, "{bytes} {recorded:?} {after} {required}");
        }
    }

    #[test]
    fn a_filesystem_grows_at_least_to_its_minimum() {
        let grown = 256 * MIB;
        // requested size, current size → size
        let table = [
            (range(150 * MIB, 0), 128 * MIB, Some(256 * MIB)),
            (range(300 * MIB, 0), 128 * MIB, Some(300 * MIB)),
            (range(100 * MIB, 0), 128 * MIB, Some(128 * MIB)),
            (range(150 * MIB, 200 * MIB), 128 * MIB, None),
        ];
        for (range, now, expected) in table {
            assert_eq!(size(range, now, grown, None).ok(), expected, "{range:?}");
            let copy = Bounds {
                grown,
                source: Some(now),
                ..Bounds::default()
            };
            assert_eq!(
                crate::csi::capacity_range::create(range, copy).ok(),
                expected,
                "a copy: {range:?}"
            );
        }
    }

    #[test]
    fn controller_and_node_give_a_volume_the_same_size() {
        let raw = VolumeRecord {
            capacity_bytes: 128 * MIB,
            requested_bytes: None,
            format: Format::Raw,
            capabilities: vec![raw()].into(),
            ..record_of(PoolId::generate(), "v")
        };
        let btrfs = VolumeRecord {
            format: Format::Done(FsType::Btrfs),
            capabilities: vec![Capability {
                access: on(FsType::Btrfs),
                ..mounted()
            }]
            .into(),
            ..raw.clone()
        };
        // record, filesystem at the path, request → size
        let table = [
            (&btrfs, None, 150 * MIB, Some(256 * MIB)),
            (&btrfs, Some(FsType::Btrfs), 150 * MIB, Some(256 * MIB)),
            (&btrfs, None, 128 * MIB, Some(128 * MIB)),
            (&raw, None, 150 * MIB, Some(150 * MIB)),
            (&raw, Some(FsType::Btrfs), 150 * MIB, Some(256 * MIB)),
            (&raw, None, 3 * GIB, None),
        ];
        for (record, fs, required, expected) in table {
            let size = expand(range(required, 0), record, fs, Some(2 * GIB));
            let bytes = size.ok().map(|size| size.bytes);
            assert_eq!(bytes, expected, "{:?} {fs:?} {required}", record.format);
        }
    }

    #[test]
    fn what_prevents_a_growth() {
        use FsType::{Btrfs, Ext4, Xfs};
        const NOW: GrowthTime = GrowthTime::Mounted { is_permitted: true };
        const NOT_NOW: GrowthTime = GrowthTime::Mounted {
            is_permitted: false,
        };
        let not = Ext4Growth::Not(NoGrowth::NotPermitted { most: 8 * GIB });
        // filesystem, size, how an ext4 grows, when → what prevents it
        let table = [
            (Ext4, 20 * GIB, Some(not), GrowthTime::Any, "at most"),
            (Ext4, 20 * GIB, Some(not), NOW, "at most"),
            (Ext4, GIB, Some(Ext4Growth::Unmounted), GrowthTime::Any, ""),
            (Ext4, GIB, Some(Ext4Growth::Unmounted), NOW, "sparse_super2"),
            (
                Ext4,
                GIB,
                Some(Ext4Growth::Unmounted),
                NOT_NOW,
                "CAP_SYS_RESOURCE",
            ),
            (Ext4, GIB, Some(Ext4Growth::Mounted), NOT_NOW, ""),
            (Ext4, GIB, Some(Ext4Growth::Done), NOW, ""),
            // Not an ext4, or none yet.
            (Ext4, GIB, None, NOW, ""),
            (Xfs, GIB, None, NOW, ""),
            (Btrfs, GIB, None, NOT_NOW, ""),
            (
                Btrfs,
                200 * MIB,
                None,
                NOW,
                "smallest size to which btrfs grows is 256 MiB (268435456 bytes)",
            ),
        ];
        for (fs, bytes, ext4, time, says) in table {
            let why = obstacle(fs, bytes, ext4, time).unwrap_or_default();
            assert_eq!(
                why.is_empty(),
                says.is_empty(),
                "{fs} {ext4:?} {time:?}: {why}"
            );
            assert!(why.contains(says), "{fs} {ext4:?} {time:?}: {why}");
        }
    }
}
