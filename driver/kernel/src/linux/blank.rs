//! Checks if a device is blank. A missing signature does not prove that.
//!
//! An encrypted device without a header (plain dm-crypt, a detached LUKS header) has random bytes
//! everywhere. Other data has its metadata at the ends: the first partition begins at 1 MiB, and
//! GPT, RAID and ZFS keep copies at the end. So this reads [`ENDS`] completely, and samples in
//! between to find data that begins elsewhere. A new, discarded or thin device reads as zeros.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::device_size;
use crate::{Error, Result};

/// Bytes to read at each end.
const ENDS: u64 = 2 << 20;
/// Number of samples between the ends, evenly spaced. On a rotating disk they take a second or two,
/// once.
const SAMPLES: u64 = 128;
/// Length of a sample in bytes.
const SAMPLE: u64 = 4096;
/// Bytes at each end that may hold signatures.
const SIGNATURES: u64 = 256 << 10;

/// Reads the places where signatures are. A device with read errors there is not blank, whatever a
/// tool reports.
pub(super) fn readable(device: &File, path: &Path) -> Result<()> {
    let size = device_size(device, path)?;
    let mut buffer = Vec::new();
    for range in ends(size, SIGNATURES) {
        read(device, path, range, &mut buffer)?;
    }
    Ok(())
}

/// Offset of the first nonzero byte that was read; `None` for a blank device.
pub(crate) fn first_nonzero(device: &File, path: &Path) -> Result<Option<u64>> {
    let mut buffer = Vec::new();
    for range in looked_at(device_size(device, path)?) {
        let start = range.start;
        read(device, path, range, &mut buffer)?;
        if let Some(at) = buffer.iter().position(|byte| *byte != 0) {
            return Ok(Some(start + at as u64));
        }
    }
    Ok(None)
}

/// The ranges to read on a device of this size: its ends, then the samples.
fn looked_at(size: u64) -> impl Iterator<Item = Range<u64>> {
    let between = size.saturating_sub(2 * ENDS);
    // Up to 512 KiB between the ends gets one sample for each full 4 KiB.
    let samples = SAMPLES.min(between / SAMPLE);
    let step = between.checked_div(samples).unwrap_or_default();
    let samples = (0..samples).map(move |n| {
        let start = ENDS + n * step;
        start..start + SAMPLE
    });
    ends(size, ENDS).into_iter().chain(samples)
}

fn ends(size: u64, length: u64) -> [Range<u64>; 2] {
    [0..size.min(length), size.saturating_sub(length)..size]
}

fn read(device: &File, path: &Path, range: Range<u64>, buffer: &mut Vec<u8>) -> Result<()> {
    let length = usize::try_from(range.end - range.start).unwrap_or_default();
    buffer.resize(length, 0);
    device
        .read_exact_at(buffer, range.start)
        .map_err(|e| Error::io("read", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    fn found(size: u64, byte_at: Option<u64>) -> Option<u64> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        if let Some(at) = byte_at {
            file.write_all_at(&[1], at).unwrap();
        }
        first_nonzero(&file, Path::new("device")).unwrap()
    }

    #[test]
    fn any_byte_at_the_ends_is_found() {
        for size in [1, 4096, MI, 4 * MI, 4 * MI + 4096, 300 * MI] {
            assert_eq!(found(size, None), None, "{size}");
            for at in [0, size / 3, MI, size - MI.min(size), size - 1] {
                let at = at.min(size - 1);
                let at_an_end = at < ENDS || at >= size.saturating_sub(ENDS);
                if at_an_end {
                    assert_eq!(found(size, Some(at)), Some(at), "{at} of {size}");
                }
            }
        }
    }

    #[test]
    fn samples_are_spread_over_what_is_between() {
        for size in [5 * MI, 300 * MI, 1 << 40] {
            let ranges: Vec<_> = looked_at(size).collect();
            assert_eq!(ranges.len() as u64, 2 + SAMPLES, "{size}");
            assert_eq!((ranges[0].clone(), ranges[1].end), (0..ENDS, size));
            for range in &ranges[2..] {
                assert!(range.start >= ENDS && range.end <= size - ENDS, "{range:?}");
            }
            let at = ranges.last().unwrap().start;
            if size < 1 << 40 {
                assert_eq!(found(size, Some(at)), Some(at));
            }
        }
    }
}
