//! The bytes of its device that a file has.

use std::fs::File;
use std::ops::Range;

use super::fiemap::{LAST, MERGED, RawExtent, SHARED, UNKNOWN, UNWRITTEN};
use super::{Result, each_batch_of, length};

/// The most extents that are looked at, also if they follow each other on the device. Users decide how
/// many a file has, and it is written back again before each few hundred of them.
const MOST_EXTENTS: usize = 1 << 16;

/// The bytes of its device that a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceRanges {
    /// All of them, by their offsets. None is next to another one.
    Known(Vec<Range<u64>>),
    /// Some bytes of the file have no blocks of their own: they are in its inode, or encoded.
    NotInBlocks,
    /// There are more than the caller takes, or more extents than are looked at.
    TooMany,
}

/// Finds the bytes of its device that a part of a file has, after writing the file back. Blocks that
/// are allocated and not written yet are among them. What others write meanwhile may be missing.
///
/// The filesystem must be on one device, and give its addresses, as ext4 and XFS do.
pub fn device_ranges(file: &File, part: &Range<u64>, most: usize) -> Result<DeviceRanges> {
    let part = part.start..part.end.min(length(file)?);
    let mut found = FoundRanges::default();
    let mut obstacle = None;
    each_batch_of(file, part.clone(), |extents| {
        obstacle = extents
            .iter()
            .find_map(|raw| add(&mut found, raw, &part, most));
        obstacle.is_none()
    })?;
    Ok(obstacle.unwrap_or_else(|| DeviceRanges::Known(in_order(found.ranges))))
}

/// What was found so far.
#[derive(Default)]
struct FoundRanges {
    ranges: Vec<Range<u64>>,
    /// How many extents were looked at.
    extents: usize,
}

/// Adds the part of an extent. Returns the obstacle if that is not possible.
fn add(
    found: &mut FoundRanges,
    raw: &RawExtent,
    part: &Range<u64>,
    most: usize,
) -> Option<DeviceRanges> {
    const IN_BLOCKS: u32 = LAST | MERGED | SHARED | UNWRITTEN;
    found.extents += 1;
    if found.extents > MOST_EXTENTS {
        return Some(DeviceRanges::TooMany);
    }
    let ranges = &mut found.ranges;
    // It was written just now.
    if raw.flags & UNKNOWN != 0 {
        return None;
    }
    if raw.flags & !IN_BLOCKS != 0 {
        return Some(DeviceRanges::NotInBlocks);
    }
    let from = raw.logical.max(part.start);
    let to = raw.logical.saturating_add(raw.length).min(part.end);
    if from >= to {
        return None;
    }
    let start = raw.physical.saturating_add(from - raw.logical);
    let end = start.saturating_add(to - from);
    if let Some(last) = ranges.last_mut().filter(|last| last.end == start) {
        last.end = end;
        return None;
    }
    if ranges.len() >= most {
        return Some(DeviceRanges::TooMany);
    }
    ranges.push(start..end);
    None
}

/// The ranges by their offsets, each with those that follow it at once.
fn in_order(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for next in ranges {
        match merged.last_mut() {
            Some(last) if last.end >= next.start => last.end = last.end.max(next.end),
            _ => merged.push(next),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    const INLINE: u32 = 0x0200;

    fn raw(logical: u64, physical: u64, length: u64, flags: u32) -> RawExtent {
        let mut raw = RawExtent::default();
        (raw.logical, raw.physical) = (logical, physical);
        (raw.length, raw.flags) = (length, flags);
        raw
    }

    /// The part of a file with these extents.
    fn found(part: Range<u64>, most: usize, extents: &[RawExtent]) -> DeviceRanges {
        let mut found = FoundRanges::default();
        let obstacle = extents
            .iter()
            .find_map(|raw| add(&mut found, raw, &part, most));
        obstacle.unwrap_or_else(|| DeviceRanges::Known(in_order(found.ranges)))
    }

    #[test]
    fn ranges_of_a_device() {
        let file = [
            raw(0, 9000, 1000, 0),
            raw(1000, 10_000, 500, UNWRITTEN),
            raw(2000, 4000, 1000, SHARED),
            raw(3000, 0, 500, UNKNOWN | 0x0004),
            raw(5000, 8000, 1000, MERGED | LAST),
        ];
        for (part, expected) in [
            (0..u64::MAX, &[(4000, 5000), (8000, 10_500)][..]),
            (0..2000, &[(9000, 10_500)]),
            (900..1100, &[(9900, 10_100)]),
            (2500..2501, &[(4500, 4501)]),
            (1600..1900, &[]),
            (3000..3500, &[]),
            (7000..8000, &[]),
        ] {
            let expected = expected.iter().map(|(start, end)| *start..*end);
            let expected = DeviceRanges::Known(expected.collect());
            assert_eq!(found(part.clone(), 3, &file), expected, "{part:?}");
        }
    }

    /// Preallocated blocks of which each second one is written are such extents.
    #[test]
    fn extents_that_follow_each_other_are_limited_too() {
        let blocks = 0..=MOST_EXTENTS as u64;
        let file: Vec<RawExtent> = blocks.map(|at| raw(at, at, 1, 0)).collect();
        let all = std::iter::once(0..MOST_EXTENTS as u64).collect();
        let most = found(0..u64::MAX, 1, &file[..MOST_EXTENTS]);
        assert_eq!(most, DeviceRanges::Known(all));
        assert_eq!(found(0..u64::MAX, 1, &file), DeviceRanges::TooMany);
    }

    #[test]
    fn what_has_no_ranges_is_named() {
        let two = [raw(0, 1000, 10, 0), raw(10, 2000, 10, 0)];
        assert_eq!(found(0..100, 1, &two), DeviceRanges::TooMany);
        assert_eq!(found(0..10, 1, &two[..1]), found(0..10, 9, &two));
        let inline = [raw(0, 1000, 10, INLINE | LAST)];
        assert_eq!(found(0..100, 9, &inline), DeviceRanges::NotInBlocks);
    }
}
