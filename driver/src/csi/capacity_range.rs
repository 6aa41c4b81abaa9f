//! Calculates the size of a volume. Pure; every error is OUT_OF_RANGE.
//!
//! A volume can be larger than its request: sizes are multiples of 4096, and each filesystem has its
//! minimum. Orchestrators compare the requests of claims, and know nothing of that. So a volume's
//! record has its request too, and a snapshot reports that as the size of a restore: the claim that
//! was enough for the volume is enough for its copies.

use crate::csi::capability::carried_fs;
use crate::csi::validate::Range;
use crate::kernel::{BLOCK_SIZE, FsType, whole_blocks};
use crate::storage::{Format, SnapshotRecord, VolumeRecord};

/// The default size of a volume, in bytes.
const DEFAULT_BYTES: u64 = 1 << 30;

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
pub(crate) fn create(range: Range, bounds: Bounds) -> Result<u64, String> {
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

fn unsatisfiable(range: Range, bounds: Bounds) -> String {
    let limit = match range.limit {
        Some(limit) => format!("limit_bytes {limit} is"),
        None => return format!("required_bytes {} is too large", range.required),
    };
    match bounds.source {
        Some(source) if source > range.limit.unwrap_or(0) => {
            format!("{limit} less than the {source} bytes of the source")
        }
        _ if bounds.filesystem > range.limit.unwrap_or(0) => {
            let least = bounds.filesystem;
            format!("{limit} less than the {least} bytes its filesystem needs")
        }
        _ if bounds.grown > range.limit.unwrap_or(0) => {
            let least = bounds.grown;
            format!("{limit} less than the {least} bytes to which its filesystem grows at least")
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

fn too_large(bytes: u64, largest: u64) -> String {
    format!(
        "{bytes} bytes are more than the {largest} that a volume may have (--max-volume-size, \
         --max-volume-size-node)"
    )
}

/// The size after ControllerExpandVolume of a volume of `now` bytes; `now` if it is large enough.
/// `grown` is the minimum size to which its filesystem can grow.
pub(crate) fn expand(
    range: Range,
    now: u64,
    grown: u64,
    largest: Option<u64>,
) -> Result<u64, String> {
    if let Some(limit) = range.limit.filter(|limit| *limit < now) {
        return Err(format!(
            "the volume has {now} bytes, more than limit_bytes {limit}, and never shrinks"
        ));
    }
    if range.required <= now {
        return Ok(now);
    }
    let bounds = Bounds {
        filesystem: grown,
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

/// The request for a volume of `bytes`, as the volume's record keeps it. `None` if the size shows
/// it, or if no size was requested.
pub(crate) fn requested(range: Range, bytes: u64, format: Format) -> Option<u64> {
    let required = range.required;
    (required > 0 && required != shown(bytes, format)).then_some(required)
}

/// The request for a volume after its expansion to `bytes`. It never becomes less.
pub(crate) fn requested_after(range: Range, bytes: u64, record: &VolumeRecord) -> Option<u64> {
    let before = record.requested_bytes;
    let least = before.unwrap_or_else(|| shown(record.capacity_bytes, record.format));
    if bytes > record.capacity_bytes || range.required > least {
        requested(range, bytes, record.format)
    } else {
        before
    }
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
fn shown(bytes: u64, format: Format) -> u64 {
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
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    const MAX: u64 = i64::MAX as u64;

    fn range(required: u64, limit: u64) -> Range {
        Range {
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
            let size = expand(range, now, 0, largest);
            assert_eq!(size.ok(), expected, "{range:?} {now} {largest:?}");
        }
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

    #[test]
    fn an_expansion_never_lowers_the_request() {
        let pool = crate::storage::PoolId::generate();
        let record = |bytes, requested_bytes| VolumeRecord {
            capacity_bytes: bytes,
            requested_bytes,
            format: Format::Done(FsType::Xfs),
            ..crate::testkit::record_of(pool, "v")
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
            assert_eq!(expand(range, now, grown, None).ok(), expected, "{range:?}");
            let copy = Bounds {
                grown,
                source: Some(now),
                ..Bounds::default()
            };
            assert_eq!(create(range, copy).ok(), expected, "a copy: {range:?}");
        }
    }
}
