//! Which bytes of a file are there, and which ones two files share (FIEMAP).
//!
//! A map is read in windows, so that a file of a million extents costs no more memory than one of
//! a few. What two maps say about each other is a pure function, [`delta`].

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{Error, Result};

mod compare;
mod fiemap;
#[cfg(test)]
mod tests;

/// A run of allocated bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file, in bytes.
    pub logical: u64,
    /// Where it is on the filesystem, in bytes; only meaningful if `addressed`.
    pub physical: u64,
    /// Length in bytes.
    pub length: u64,
    /// The physical address stands for the content: not delayed, inline or encoded. Equal
    /// addresses of two files then mean equal content.
    pub addressed: bool,
}

impl Extent {
    fn end(&self) -> u64 {
        self.logical.saturating_add(self.length)
    }

    /// The part of it in `from..until`, if any.
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

    /// Where the byte at `offset`, which is in it, is on the filesystem.
    fn address_at(&self, offset: u64) -> u64 {
        if self.addressed {
            self.physical.wrapping_add(offset - self.logical)
        } else {
            0
        }
    }

    /// Whether `next` goes on where this one ends, in the file and on the filesystem.
    fn runs_into(&self, next: &Extent) -> bool {
        self.end() == next.logical
            && self.addressed == next.addressed
            && (!self.addressed || self.physical.wrapping_add(self.length) == next.physical)
    }
}

/// A run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Range {
    /// The offset behind its last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// A range in which two files may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where.
    pub range: Range,
    /// Taken as different by allocation alone; otherwise content has to be compared.
    pub certain: bool,
}

/// Written extents of a file in order, flushed first. Unwritten (preallocated) ones are holes.
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

/// Bytes of a file in blocks that other files share, flushed first: what writing to all of it
/// would allocate anew.
pub fn shared_bytes(file: &File) -> Result<u64> {
    let len = length(file)?;
    let (mut at, mut shared) = (0, 0);
    while at < len {
        let found = fiemap::fiemap(file.as_fd(), at, len - at)
            .map_err(|e| Error::io("FIEMAP", super::file::name_of(file), e))?;
        let Some(last) = found.last() else { break };
        shared += found
            .iter()
            .filter(|e| e.flags & fiemap::SHARED != 0)
            .map(|e| e.length)
            .sum::<u64>();
        if last.flags & fiemap::LAST != 0 {
            break;
        }
        at = last.logical.saturating_add(last.length).max(at + 1);
    }
    Ok(shared)
}

/// Calls `emit` with every written run in `span`, in order, until it returns false.
pub fn allocated(file: &File, span: Range, emit: &mut dyn FnMut(Range) -> bool) -> Result<()> {
    let mut at = span.offset;
    while at < span.end() {
        let window = window(file, at, span.end())?;
        for extent in &window.extents {
            let range = Range {
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

/// Calls `emit` with every run in `span` in which `target` differs from `base`, in order, until it
/// returns false. Never misses a difference while neither file is written to; tells too much
/// rather than too little. `shares` as in [`delta`].
pub fn changed(
    base: &File,
    target: &File,
    span: Range,
    shares: bool,
    emit: &mut dyn FnMut(Range) -> bool,
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

/// Ranges of `target` that may differ from `base`, before content is looked at: pure.
///
/// `shares` says that unchanged data stays shared between the two. Then a hole against data is
/// taken as a difference, as are different addresses, and equal addresses are equal content; only
/// extents without an address need a compare. Files that don't share need it wherever one of them
/// has data: zeros may have been written out on one side only.
pub fn delta(base: &[Extent], target: &[Extent], shares: bool) -> Vec<Difference> {
    let (mut bases, mut targets) = (base.iter().peekable(), target.iter().peekable());
    let mut differences = Vec::new();
    let mut at = 0;
    loop {
        while bases.next_if(|e| e.end() <= at).is_some() {}
        while targets.next_if(|e| e.end() <= at).is_some() {}
        let (b, t) = (bases.peek().copied(), targets.peek().copied());
        // As far as nothing changes in either map.
        let edge = |e: &Extent| if e.logical > at { e.logical } else { e.end() };
        let Some(next) = [b, t].into_iter().flatten().map(edge).min() else {
            return differences;
        };
        let here = |e: Option<&Extent>| e.filter(|e| e.logical <= at).copied();
        if let Some(certain) = judge(here(b), here(t), at, shares) {
            push(&mut differences, at, next, certain);
        }
        at = next;
    }
}

/// What two extents (`None`: a hole) say about the byte at `at`: `None` if it is the same in both,
/// else whether it certainly differs.
fn judge(base: Option<Extent>, target: Option<Extent>, at: u64, shares: bool) -> Option<bool> {
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
            range: Range {
                offset: from,
                length: until - from,
            },
            certain,
        }),
    }
}

/// Two maps of the same stretch that were true at one moment.
struct Pair {
    base: Vec<Extent>,
    target: Vec<Extent>,
    /// How far they go.
    end: u64,
}

/// How often maps are read again while the filesystem moves extents about (a balance, a
/// defragmentation) before their addresses are given up on.
const ATTEMPTS: usize = 4;

impl Pair {
    /// Reads the target's map between two readings of the base's. If an extent of the base moved
    /// meanwhile, its old place may hold the target's data by now: equal addresses of different
    /// content. With the base's map the same before and after, equal addresses were equal at once.
    fn read(base: &File, target: &File, from: u64, until: u64) -> Result<Pair> {
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
            if !settled {
                pair.base.iter_mut().for_each(|e| e.addressed = false);
            }
            return Ok(pair);
        }
    }
}

/// A stretch of a file's map.
struct Window {
    /// Written extents, cut at the window's ends.
    extents: Vec<Extent>,
    /// How far the map is known: the window's end, or less if it has too many extents for one
    /// look, but always further than its start.
    end: u64,
}

/// Reads the map of `from..until` (not empty), or of the first part of it.
fn window(file: &File, from: u64, until: u64) -> Result<Window> {
    let found = match fiemap::fiemap(file.as_fd(), from, until - from) {
        Ok(found) => found,
        Err(e) if cannot_map(&e) => return seek_window(file, from, until),
        Err(e) => return Err(Error::io("FIEMAP", super::file::name_of(file), e)),
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

/// What an extent of the kernel's means to us; `None` is a hole.
fn written(raw: &fiemap::RawExtent) -> Option<Extent> {
    // Known to leave the address meaningful. Any other flag (delayed, inline, encoded, not
    // aligned, one of a later kernel) makes it doubtful.
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

/// The same by SEEK_DATA and SEEK_HOLE, for a filesystem without FIEMAP: one extent, without an
/// address.
fn seek_window(file: &File, from: u64, until: u64) -> Result<Window> {
    let failed = |op, e: Errno| Error::io(op, super::file::name_of(file), e.into());
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start.min(until),
        Err(Errno::NXIO) => until,
        Err(e) => return Err(failed("SEEK_DATA", e)),
    };
    if start == until {
        return Ok(Window {
            extents: Vec::new(),
            end: until,
        });
    }
    let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => end.min(until),
        Err(Errno::NXIO) => until,
        Err(e) => return Err(failed("SEEK_HOLE", e)),
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

fn length(file: &File) -> Result<u64> {
    match file.metadata() {
        Ok(metadata) => Ok(metadata.len()),
        Err(e) => Err(Error::io("fstat", super::file::name_of(file), e)),
    }
}
