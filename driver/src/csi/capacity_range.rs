//! Calculates the size of a new volume. Pure; every error is OUT_OF_RANGE.
//!
//! A volume can be larger than its request: sizes are multiples of 4096, and each filesystem has
//! its minimum. Orchestrators compare the requests of claims, and know nothing of that. So a
//! volume's record has its request too, and a snapshot reports that as the size of a restore: the
//! claim that was enough for the volume is enough for its copies.

use hostloop_terminal::humanize::exact_bytes;

use crate::csi::capability::carried_fs;
use crate::csi::validate::SizeRange;
use crate::kernel::{BLOCK_SIZE, FsType, whole_blocks};
use crate::storage::{Format, SnapshotRecord};

/// The size of a volume without a requested size, in bytes.
pub(crate) const DEFAULT_BYTES: u64 = 1 << 30;

/// Limits on a new volume besides the requested range, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The minimum size of its filesystem; 0 for a raw block volume.
    pub(crate) filesystem: u64,
    /// The minimum size to which its filesystem can grow; 0 for a raw block volume. A copy that is
    /// larger than its source must grow.
    pub(crate) grown: u64,
    /// The size of the source of a copy.
    pub(crate) source: Option<u64>,
    /// The maximum size of any volume.
    pub(crate) largest: Option<u64>,
}

/// The size of a new volume: the smallest multiple of 4096 within all limits. Without a requested
/// size, it is the source's size, or [`DEFAULT_BYTES`] if the limits allow that.
pub(crate) fn create(range: SizeRange, bounds: Bounds) -> Result<u64, String> {
    let mut floor = bounds.filesystem.max(bounds.source.unwrap_or(0));
    if bounds
        .source
        .is_some_and(|source| range.required.max(floor) > source)
    {
        floor = floor.max(bounds.grown);
    }
    let Some(least) = range.size(floor) else {
        return Err(unsatisfiable(range, bounds));
    };
    let largest = bounds.largest.unwrap_or(u64::MAX);
    if least > largest {
        return Err(too_large(least, largest));
    }
    if range.required > 0 || bounds.source.is_some() {
        return Ok(least);
    }
    let most = range.limit.unwrap_or(u64::MAX).min(largest);
    Ok(DEFAULT_BYTES.min(whole_blocks(most)).max(least))
}

/// Why no size is within the range and these limits.
pub(super) fn unsatisfiable(range: SizeRange, bounds: Bounds) -> String {
    let limit = match range.limit {
        Some(limit) => format!("limit_bytes {limit} is"),
        None => return format!("required_bytes {} is too large", range.required),
    };
    match bounds.source {
        Some(source) if source > range.limit.unwrap_or(0) => {
            format!(
                "{limit} less than the {} of the source",
                exact_bytes(source)
            )
        }
        _ if bounds.filesystem > range.limit.unwrap_or(0) => {
            let least = exact_bytes(bounds.filesystem);
            format!("{limit} less than the {least} its filesystem needs")
        }
        _ if bounds.grown > range.limit.unwrap_or(0) => {
            let least = exact_bytes(bounds.grown);
            format!("{limit} less than {least}, the smallest size to which its filesystem grows")
        }
        _ => {
            let block = u64::from(BLOCK_SIZE);
            let required = range.required;
            let least = required.max(1).next_multiple_of(block);
            format!(
                "{limit} less than {least}: a size is a multiple of {block}, and required_bytes \
                 is {required}"
            )
        }
    }
}

/// Why a volume may not have this size.
pub(super) fn too_large(bytes: u64, largest: u64) -> String {
    format!(
        "{} are more than the {} that a volume may have (--max-volume-size, --max-volume-size-node)",
        exact_bytes(bytes),
        exact_bytes(largest)
    )
}

/// The request for a volume of `bytes`, as the volume's record keeps it. `None` if the size shows
/// it, or if no size was requested.
pub(crate) fn requested(range: SizeRange, bytes: u64, format: Format) -> Option<u64> {
    let required = range.required;
    (required > 0 && required != shown(bytes, format)).then_some(required)
}

/// The smallest request for a volume that is restored from a snapshot, in bytes, at least 1. The
/// volume gets the snapshot's size if that is more.
pub(crate) fn restore_bytes(snapshot: &SnapshotRecord) -> u64 {
    snapshot
        .requested_bytes
        .unwrap_or_else(|| shown(snapshot.size_bytes, snapshot.format))
}

/// The request that the size of a volume shows. It is exact for whole MiB and MB. A filesystem's
/// minimum, and any other size, stands for all requests that it may come from.
pub(super) fn shown(bytes: u64, format: Format) -> u64 {
    const MIB: u64 = 1 << 20;
    const MB: u64 = 1_000_000;
    let block = u64::from(BLOCK_SIZE);
    let fs = carried_fs(format);
    let minimum = fs.map_or(block, FsType::minimum_bytes);
    if bytes <= minimum || fs.is_some_and(|fs| bytes == fs.minimum_grown_bytes()) {
        return 1;
    }
    let decimal = bytes / MB * MB;
    if bytes.is_multiple_of(MIB) {
        bytes
    } else if bytes - decimal < block {
        decimal
    } else {
        bytes.saturating_sub(block - 1)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::csi) const MIB: u64 = 1 << 20;
    pub(in crate::csi) const GIB: u64 = 1 << 30;
    pub(in crate::csi) const MAX: u64 = i64::MAX as u64;

    pub(in crate::csi) fn range(required: u64, limit: u64) -> SizeRange {
        SizeRange {
            required,
            limit: (limit > 0).then_some(limit),
        }
    }

    #[test]
    fn sizes_of_new_volumes() {
        let raw = Bounds::default();
        let xfs = Bounds {
            filesystem: 300 * MIB,
            ..raw
        };
        let copy = Bounds {
            filesystem: MIB,
            source: Some(64 * MIB),
            ..raw
        };
        let tiny_source = Bounds {
            filesystem: 110 * MIB,
            grown: 256 * MIB,
            source: Some(4096),
            ..raw
        };
        let small = Bounds {
            largest: Some(64 * MIB),
            ..raw
        };
        let capped = Bounds {
            largest: Some(2 * GIB),
            ..raw
        };
        let table = [
            // Requested sizes are rounded up.
            (range(4096, 0), raw, Some(4096)),
            (range(1, 0), raw, Some(4096)),
            (range(4097, 0), raw, Some(8192)),
            (range(10 * GIB, 10 * GIB), raw, Some(10 * GIB)),
            (range(1, 4096), raw, Some(4096)),
            // No multiple of 4096 is within the limit.
            (range(1, 4095), raw, None),
            (range(0, 1), raw, None),
            (range(4097, 8191), raw, None),
            // Without a requested size.
            (range(0, 0), raw, Some(GIB)),
            (range(0, 64 * MIB + 5), raw, Some(64 * MIB)),
            (range(0, 4 * GIB), raw, Some(GIB)),
            (range(0, 0), small, Some(64 * MIB)),
            (range(0, 0), xfs, Some(GIB)),
            (range(0, 400 * MIB), xfs, Some(400 * MIB)),
            // The filesystem's minimum applies, unless the limit forbids it.
            (range(MIB, 0), xfs, Some(300 * MIB)),
            (range(MIB, 300 * MIB), xfs, Some(300 * MIB)),
            (range(MIB, 100 * MIB), xfs, None),
            (range(0, 100 * MIB), xfs, None),
            // The size is at least the source's.
            (range(0, 0), copy, Some(64 * MIB)),
            (range(MIB, 0), copy, Some(64 * MIB)),
            (range(65 * MIB, 0), copy, Some(65 * MIB)),
            (range(MIB, 64 * MIB), copy, Some(64 * MIB)),
            (range(MIB, 63 * MIB), copy, None),
            // A copy of a raw block volume with a filesystem.
            (range(1, 0), tiny_source, Some(256 * MIB)),
            (
                range(200 * MIB, 0),
                Bounds {
                    source: Some(200 * MIB),
                    ..tiny_source
                },
                Some(200 * MIB),
            ),
            // The maximum of any volume.
            (range(2 * GIB, 0), capped, Some(2 * GIB)),
            (range(2 * GIB + 1, 0), capped, None),
            // No overflow.
            (range(MAX, 0), raw, None),
            (range(MAX, MAX), raw, None),
            (range(MAX - 4095, 0), raw, Some(MAX - 4095)),
        ];
        for (range, bounds, expected) in table {
            assert_eq!(create(range, bounds).ok(), expected, "{range:?} {bounds:?}");
        }
    }

    #[test]
    fn errors_say_which_limit_is_exceeded() {
        let bounds = Bounds {
            filesystem: 300 * MIB,
            grown: 0,
            source: Some(GIB),
            largest: Some(2 * GIB),
        };
        let table = [
            (range(0, 400 * MIB), "the source"),
            (range(3 * GIB, 0), "a volume may have"),
            (
                range(GIB + 1, GIB + 2),
                "less than 1073745920: a size is a multiple of 4096",
            ),
            (range(MAX, 0), "too large"),
        ];
        for (range, expected) in table {
            let why = create(range, bounds).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let empty = Bounds {
            source: None,
            ..bounds
        };
        let why = create(range(0, 1), empty).unwrap_err();
        assert!(why.contains("filesystem"), "{why}");
    }

    #[test]
    fn the_request_is_recorded_or_shown_by_the_size() {
        use FsType::{Btrfs, Ext4, Xfs};
        let done = Format::Done;
        // size, format, request → the record's, and what a record without it shows
        let table = [
            (GIB, done(Ext4), GIB, None, GIB),
            (1500 * MIB, done(Xfs), 1500 * MIB, None, 1500 * MIB),
            // 500M, 1G and 1500M, rounded up.
            (500_002_816, done(Ext4), 500_000_000, None, 500_000_000),
            (
                1_000_001_536,
                Format::Raw,
                1_000_000_000,
                None,
                1_000_000_000,
            ),
            (
                1_500_000_256,
                done(Btrfs),
                1_500_000_000,
                None,
                1_500_000_000,
            ),
            // Any other size.
            (GIB + 4096, done(Ext4), GIB + 1, None, GIB + 1),
            (GIB + 4096, done(Ext4), GIB + 2, Some(GIB + 2), GIB + 1),
            // Minimums.
            (4096, Format::Raw, 1, None, 1),
            (4096, Format::Raw, 4096, Some(4096), 1),
            (MIB, done(Ext4), 1, None, 1),
            (300 * MIB, done(Xfs), 1, None, 1),
            (300 * MIB, done(Xfs), 100 * MIB, Some(100 * MIB), 1),
            (300 * MIB, done(Xfs), 300 * MIB, Some(300 * MIB), 1),
            (110 * MIB, done(Btrfs), 100 * MIB, Some(100 * MIB), 1),
            (256 * MIB, done(Btrfs), 120 * MIB, Some(120 * MIB), 1),
            // The raw copy of an XFS volume, and XFS on the copy of a raw one.
            (300 * MIB, Format::Raw, 1, Some(1), 300 * MIB),
            // No request.
            (GIB, done(Ext4), 0, None, GIB),
        ];
        for (bytes, format, required, recorded, shows) in table {
            let what = format!("{bytes} {format:?} {required}");
            assert_eq!(
                requested(range(required, 0), bytes, format),
                recorded,
                "{what}"
            );
            assert_eq!(shown(bytes, format), shows, "{what}");
            assert!(shows <= bytes, "{what}");
        }
    }
}
