//! Finds the allocated bytes of a file, and the bytes that two files share (FIEMAP).
//!
//! This module reads a map in windows, so that a file of a million extents needs no more memory
//! than one of a few. The pure function [`delta`] compares two maps.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use super::Result;
use super::file::{length, next_data, on_file};
use super::magic::{BTRFS, XFS};

pub mod clone;
mod compare;
mod device_ranges;
mod fiemap;
mod map;
#[cfg(test)]
mod tests;

pub use device_ranges::{DeviceRanges, device_ranges};
pub use map::{ExtentRun, map};

/// A run of allocated bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub logical: u64,
    /// Offset on the filesystem, in bytes; only meaningful if `addressed`.
    pub physical: u64,
    /// Length in bytes.
    pub length: u64,
    /// True if the physical address identifies the content: the extent is not delayed, inline or
    /// encoded. Equal addresses in two files then mean equal content.
    pub addressed: bool,
}

impl Extent {
    fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }

    /// The part of the extent within `from..until`, if any.
    fn clip(&self, from: u64, until: u64) -> Option<Extent> {
        let start = self.logical.max(from);
        let end = self.end().min(until);
        (start < end).then(|| Extent {
            logical: start,
            physical: self.address_at(start),
            length: end - start,
            addressed: self.addressed,
        })
    }

    /// The address on the filesystem of the byte at `offset`, which the extent must contain.
    fn address_at(&self, offset: u64) -> u64 {
        if self.addressed {
            self.physical.wrapping_add(offset - self.logical)
        } else {
            0
        }
    }

    /// True if `next` continues this extent, both in the file and on the filesystem.
    fn runs_into(&self, next: &Extent) -> bool {
        self.end() == next.logical
            && self.addressed == next.addressed
            && (!self.addressed || self.physical.wrapping_add(self.length) == next.physical)
    }
}

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl ByteRange {
    /// The offset after the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// A range in which two files may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The range in which they may differ.
    pub range: ByteRange,
    /// True if the allocation alone counts as a difference; false if the caller must compare
    /// content.
    pub certain: bool,
}

/// Returns the written extents of a file in order, after writing the file back. Unwritten
/// (preallocated) extents count as holes.
pub fn extents(file: &File) -> Result<Vec<Extent>> {
    let len = length(file)?;
    let mut all = Vec::new();
    let mut at = 0;
    while at < len {
        let window = window(file, at, len)?;
        window.extents.iter().for_each(|e| append(&mut all, *e));
        at = window.end;
    }
    Ok(all)
}

/// Number of bytes in blocks that other files share, after writing the file back. A write to the
/// whole file would allocate this many bytes.
pub fn shared_bytes(file: &File) -> Result<u64> {
    let mut shared = 0;
    each_batch(file, |found| {
        let extents = found.iter().filter(|e| e.flags & fiemap::SHARED != 0);
        shared += extents.map(|e| e.length).sum::<u64>();
        true
    })?;
    Ok(shared)
}

/// Number of bytes of `target` in blocks that it shares with `base` at the same offsets, after
/// writing both back.
pub fn common_bytes(base: &File, target: &File) -> Result<u64> {
    let len = length(base)?.min(length(target)?);
    let (mut at, mut bytes) = (0, 0);
    while at < len {
        let pair = Pair::read(base, target, at, len)?;
        bytes += common(&pair.base, &pair.target);
        at = pair.end;
    }
    Ok(bytes)
}

/// The bytes at the same offsets and addresses in two maps. Pure.
fn common(base: &[Extent], target: &[Extent]) -> u64 {
    let mut bases = base.iter().peekable();
    let mut bytes = 0;
    for extent in target {
        while bases.next_if(|base| base.end() <= extent.logical).is_some() {}
        for base in bases.clone().take_while(|base| base.logical < extent.end()) {
            if let Some(both) = extent.clip(base.logical, base.end())
                && base.addressed
                && extent.addressed
                && both.physical == base.address_at(both.logical)
            {
                bytes += both.length;
            }
        }
    }
    bytes
}

/// Calls `visit` with the extents of a file in order, some at a time, until it returns false.
fn each_batch(file: &File, visit: impl FnMut(&[fiemap::RawExtent]) -> bool) -> Result<()> {
    each_batch_of(file, 0..length(file)?, visit)
}

/// Like [`each_batch`], with the extents that touch a part of the file.
fn each_batch_of(
    file: &File,
    part: Range<u64>,
    mut visit: impl FnMut(&[fiemap::RawExtent]) -> bool,
) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let found = fiemap::fiemap(file.as_fd(), at, part.end - at);
        let found = found.map_err(on_file("FIEMAP", file))?;
        let Some(last) = found.last() else { break };
        if !visit(&found) || last.flags & fiemap::LAST != 0 {
            break;
        }
        at = last.logical.saturating_add(last.length).max(at + 1);
    }
    Ok(())
}

/// Calls `emit` with every written range in `span`, in order, until it returns false.
pub fn allocated(
    file: &File,
    span: ByteRange,
    emit: &mut dyn FnMut(ByteRange) -> bool,
) -> Result<()> {
    let mut at = span.offset;
    while at < span.end() {
        let window = window(file, at, span.end())?;
        for extent in &window.extents {
            let range = ByteRange {
                offset: extent.logical,
                length: extent.length,
            };
            if !emit(range) {
                return Ok(());
            }
        }
        at = window.end;
    }
    Ok(())
}

/// Calls `emit` with every range in `span` in which `target` differs from `base`, in order, until
/// it returns false. While no process writes to either file, it never misses a difference, but may
/// report a range that does not differ. `shares` as in [`delta`].
pub fn changed(
    base: &File,
    target: &File,
    span: ByteRange,
    shares: bool,
    emit: &mut dyn FnMut(ByteRange) -> bool,
) -> Result<()> {
    let mut at = span.offset;
    while at < span.end() {
        let pair = Pair::read(base, target, at, span.end())?;
        for difference in delta(&pair.base, &pair.target, shares) {
            let more = if difference.certain {
                emit(difference.range)
            } else {
                compare::contents(base, target, difference.range, emit)?
            };
            if !more {
                return Ok(());
            }
        }
        at = pair.end;
    }
    Ok(())
}

/// True if the addresses of this filesystem, by its `f_type`, are those of its blocks. Not all that
/// clone give such: SMB gives the offsets in the file itself, which are equal in all files, and a
/// filesystem of several devices may give those on one of them.
fn addresses_are_blocks(f_type: i64) -> bool {
    matches!(f_type, BTRFS | XFS)
}

/// Returns the ranges of `target` that may differ from `base`, before a comparison of content.
/// Pure.
///
/// `shares` means that unchanged data stays shared between the two files. Then a hole against data
/// counts as a difference, and so do different addresses; equal addresses mean equal content. Only
/// extents without an address need a comparison. Without sharing, every range needs one where
/// either file has data: zeros may be written out in one file only.
pub fn delta(base: &[Extent], target: &[Extent], shares: bool) -> Vec<Difference> {
    let (mut bases, mut targets) = (base.iter().peekable(), target.iter().peekable());
    let mut differences = Vec::new();
    let mut at = 0;
    loop {
        while bases.next_if(|e| e.end() <= at).is_some() {}
        while targets.next_if(|e| e.end() <= at).is_some() {}
        let (b, t) = (bases.peek().copied(), targets.peek().copied());
        // The end of the range in which neither map changes.
        let Some(next) = [b, t]
            .into_iter()
            .flatten()
            .map(|e| if e.logical > at { e.logical } else { e.end() })
            .min()
        else {
            return differences;
        };
        if let Some(certain) = difference_at(begun(b, at), begun(t, at), at, shares) {
            push(&mut differences, at, next, certain);
        }
        at = next;
    }
}

/// The extent, if it has begun at the byte `at`.
fn begun(extent: Option<&Extent>, at: u64) -> Option<Extent> {
    extent.filter(|e| e.logical <= at).copied()
}

/// Compares two extents (`None`: a hole) at the byte `at`. `None` if it is the same in both,
/// `Some(true)` if it certainly differs, `Some(false)` if content must decide.
fn difference_at(
    base: Option<Extent>,
    target: Option<Extent>,
    at: u64,
    shares: bool,
) -> Option<bool> {
    match (base, target) {
        (None, None) => None,
        (Some(b), Some(t)) if shares && b.addressed && t.addressed => {
            (b.address_at(at) != t.address_at(at)).then_some(true)
        }
        (Some(_), Some(_)) => Some(false),
        _ => Some(shares),
    }
}

fn push(differences: &mut Vec<Difference>, from: u64, until: u64, certain: bool) {
    match differences.last_mut() {
        Some(last) if last.range.end() == from && last.certain == certain => {
            last.range.length += until - from;
        }
        _ => differences.push(Difference {
            range: ByteRange {
                offset: from,
                length: until - from,
            },
            certain,
        }),
    }
}

/// Two maps of the same range that were valid at the same moment.
struct Pair {
    base: Vec<Extent>,
    target: Vec<Extent>,
    /// The offset at which both maps end.
    end: u64,
}

/// How often maps are read while the filesystem moves extents (a balance, a defragmentation). After
/// that, their addresses do not count.
const ATTEMPTS: usize = 4;

impl Pair {
    /// Reads the target's map between two readings of the base's map. If an extent of the base
    /// moves meanwhile, its old place may hold data of the target: equal addresses of different
    /// content. If the base's map is the same before and after, equal addresses were equal at one
    /// moment.
    fn read(base: &File, target: &File, from: u64, until: u64) -> Result<Pair> {
        let statfs = rustix::fs::fstatfs(target).map_err(on_file("statfs", target))?;
        let has_addresses = addresses_are_blocks(statfs.f_type);
        let mut attempt = 1;
        loop {
            let before = window(base, from, until)?;
            let between = window(target, from, before.end)?;
            let after = window(base, from, between.end)?;
            let end = after.end;
            let mut pair = Pair {
                base: after.extents,
                target: clip(&between.extents, from, end),
                end,
            };
            let settled = clip(&before.extents, from, end) == pair.base;
            if !settled && attempt < ATTEMPTS {
                attempt += 1;
                continue;
            }
            if !settled || !has_addresses {
                pair.forget_addresses();
            }
            return Ok(pair);
        }
    }

    /// Lets content decide wherever both files have data.
    fn forget_addresses(&mut self) {
        self.base.iter_mut().for_each(|e| e.addressed = false);
    }
}

/// A part of a file's map.
struct Window {
    /// Written extents, cut at the window's ends.
    extents: Vec<Extent>,
    /// The offset up to which the map is known, always after the window's start. Less than the
    /// window's end if there are too many extents for one call.
    end: u64,
}

/// Reads the map of `from..until` (not empty), or of its first part.
fn window(file: &File, from: u64, until: u64) -> Result<Window> {
    let found = match fiemap::fiemap(file.as_fd(), from, until - from) {
        Ok(found) => found,
        Err(e) if cannot_map(&e) => return seek_window(file, from, until),
        Err(e) => return Err(on_file("FIEMAP", file)(e)),
    };
    let complete =
        found.len() < fiemap::BATCH || found.last().is_some_and(|e| e.flags & fiemap::LAST != 0);
    let end = match found.last() {
        Some(last) if !complete => last.logical.saturating_add(last.length).min(until),
        _ => until,
    };
    let mut extents = Vec::new();
    let written = found.iter().filter_map(written);
    for extent in written.filter_map(|e| e.clip(from, until)) {
        append(&mut extents, extent);
    }
    Ok(Window { extents, end })
}

/// Converts an extent of the kernel; `None` for a hole.
fn written(raw: &fiemap::RawExtent) -> Option<Extent> {
    // The address stays valid with these flags. Any other flag (delayed, inline, encoded, not
    // aligned, or from a later kernel) makes it doubtful.
    const HARMLESS: u32 = fiemap::LAST | fiemap::MERGED | fiemap::SHARED;
    (raw.flags & fiemap::UNWRITTEN == 0).then(|| {
        let addressed = raw.flags & !HARMLESS == 0;
        Extent {
            logical: raw.logical,
            physical: if addressed { raw.physical } else { 0 },
            length: raw.length,
            addressed,
        }
    })
}

fn cannot_map(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS)
    )
}

/// Like [`window`], but with SEEK_DATA and SEEK_HOLE, for a filesystem without FIEMAP: one extent,
/// without an address.
fn seek_window(file: &File, from: u64, until: u64) -> Result<Window> {
    let Some((start, end)) = next_data(file, from, until)? else {
        return Ok(Window {
            extents: Vec::new(),
            end: until,
        });
    };
    let extent = Extent {
        logical: start,
        physical: 0,
        length: end - start,
        addressed: false,
    };
    Ok(Window {
        extents: vec![extent],
        end,
    })
}

fn append(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last) if last.runs_into(&next) => last.length += next.length,
        _ => extents.push(next),
    }
}

fn clip(extents: &[Extent], from: u64, until: u64) -> Vec<Extent> {
    extents.iter().filter_map(|e| e.clip(from, until)).collect()
}
