//! Copies of files: clones, and copies of data that keep holes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{length, name_of, on_file, retry, set_len, sync};
use crate::failpoint::effect;
use crate::foreground::{self, Steps, TimeShare};
use crate::linux::page_cache;
use crate::{Error, Result, file_changes, magic, wanted};

/// Maximum number of bytes to copy between two calls of `stop`.
pub(super) const COPY_STEP: u64 = 4 << 20;

/// The same while calls come that the copy gives way to: none of them waits for more.
const SHORT_STEP: u64 = 512 << 10;

/// How a copy was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// Cloned (FICLONE): the copy shares its extents with the source, whatever its size.
    Shared,
    /// Copied this many bytes.
    Bytes(u64),
}

/// How a copy treats the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it can: a filesystem is frozen meanwhile.
    Fast,
    /// It writes each step back before it goes on, gives way to calls, and keeps neither file in
    /// the page cache. So an fsync of another file waits for no more than one step, and the page
    /// cache keeps what others have in it.
    Gentle,
}

/// Makes `to` (empty) share all extents of `from` (FICLONE). `Unsupported` if this pair of files
/// can't be cloned, but may be copied.
pub fn clone(from: &File, to: &File) -> Result<()> {
    effect("file.clone").map_err(on_file("FICLONE", to))?;
    cloned(from, to, "FICLONE", || {
        Ok(retry(|| rustix::fs::ioctl_ficlone(to, from))?)
    })
}

/// How often a clone is tried while its source has blocks that are not on disk yet.
const CLONE_ATTEMPTS: usize = 3;

/// Calls a clone of (a part of) `from`, unless nothing wants it any more: the call itself can't be
/// stopped. Writes `from` to disk and calls it again where the filesystem asks for that.
/// `Unsupported` if this pair of files can't be cloned.
pub(crate) fn cloned(
    from: &File,
    to: &File,
    op: &'static str,
    clone: impl Fn() -> io::Result<()>,
) -> Result<()> {
    wanted::check(to)?;
    file_changes::written(to);
    for attempt in 1.. {
        let Err(error) = clone() else { break };
        match AfterClone::of(error.raw_os_error().unwrap_or_default()) {
            AfterClone::Sync if attempt < CLONE_ATTEMPTS => sync(from, &name_of(from))?,
            AfterClone::Copy => return Err(on_file(op, to)(Errno::OPNOTSUPP)),
            AfterClone::Sync | AfterClone::Fail => return Err(on_file(op, to)(error)),
        }
    }
    Ok(())
}

/// What follows a clone that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterClone {
    /// Write the source to disk, and clone again. In the end, copy: see [`is_too_new`].
    Sync,
    /// Copy the data: these files have no common extents.
    Copy,
    /// The disk or the filesystem failed, or is full: a copy would not help.
    Fail,
}

/// True for the error of a clone if its source still has blocks that are not on disk.
pub fn is_too_new(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EAGAIN))
}

impl AfterClone {
    fn of(errno: i32) -> AfterClone {
        /// For the kernel alone, but NFS passes it on: the server's filesystem has no clones.
        const ENOTSUPP: i32 = 524;
        match errno {
            // ZFS clones no blocks that are not on disk yet.
            libc::EAGAIN => AfterClone::Sync,
            libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EXDEV | ENOTSUPP => {
                AfterClone::Copy
            }
            // btrfs: only one of the files is copied on write. ZFS: another block size.
            libc::EINVAL => AfterClone::Copy,
            _ => AfterClone::Fail,
        }
    }
}

/// Copies data, keeps holes and gives `to` the length of `from` (SEEK_DATA/SEEK_HOLE,
/// copy_file_range, then read and write). Allocated space in `to` stays allocated, and must read as
/// zeros. The copy shares nothing. Once `stop` returns true, it stops with `Stopped`, but never
/// before the first step: that shows how fast the files are. Returns the number of copied bytes.
pub fn copy_sparse(from: &File, to: &File, pace: Pace, stop: &dyn Fn() -> bool) -> Result<u64> {
    let len = length(from)?;
    if length(to)? != len {
        set_len(to, len)?;
    }
    effect("file.copy").map_err(on_file("copy", to))?;
    file_changes::written(to);
    let mut by_kernel = copies_by_value(from);
    let mut write_back = (pace == Pace::Gentle).then(|| WriteBack::begin(Some(from), to));
    let mut copied = 0;
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, len)? {
        at = start;
        while at < end {
            wanted::check(to)?;
            if copied > 0 && stop() {
                return Err(Error::Stopped {
                    path: name_of(to),
                    copied,
                });
            }
            let room = write_back.as_ref().map_or(COPY_STEP, WriteBack::room);
            let done = copy_step(from, to, at, (end - at).min(room), &mut by_kernel)?;
            if done == 0 {
                // The source became shorter; the rest of `to` is a hole.
                return Ok(copied);
            }
            at += done;
            copied += done;
            if let Some(write_back) = &mut write_back {
                write_back.add(at, done)?;
            }
        }
    }
    Ok(copied)
}

/// Writes a file to disk in steps, and gives way to calls between them. An fsync that follows is
/// short.
pub fn write_back_in_steps(file: &File) -> Result<()> {
    let len = length(file)?;
    let mut write_back = WriteBack::begin(None, file);
    let mut at = 0;
    while let Some((start, end)) = next_data(file, at, len)? {
        at = start;
        while at < end {
            wanted::check(file)?;
            let step = (end - at).min(write_back.room());
            at += step;
            write_back.add(at, step)?;
        }
    }
    Ok(())
}

/// Writes what was added to a file back, step by step.
struct WriteBack<'a> {
    /// The file that the data was read from.
    from: Option<&'a File>,
    to: &'a File,
    /// The range of the step, and its bytes of data.
    range: Range<u64>,
    bytes: u64,
    /// Its maximum number of bytes.
    longest: u64,
    steps: Steps,
}

impl<'a> WriteBack<'a> {
    fn begin(from: Option<&'a File>, to: &'a File) -> Self {
        let (longest, steps) = (longest_step(), Steps::begin(TimeShare::Tenth));
        WriteBack {
            from,
            to,
            range: 0..0,
            bytes: 0,
            longest,
            steps,
        }
    }

    /// The number of bytes until the step ends.
    fn room(&self) -> u64 {
        self.longest - self.bytes
    }

    /// Adds bytes before `end`. At the end of the step, it writes them to disk, drops them from the
    /// page cache and gives way.
    fn add(&mut self, end: u64, bytes: u64) -> Result<()> {
        self.range.end = end;
        self.bytes += bytes;
        if self.bytes < self.longest {
            return Ok(());
        }
        page_cache::write_back(self.to, self.range.clone())?;
        for file in self.from.into_iter().chain([self.to]) {
            page_cache::forget(file, self.range.clone())?;
        }
        self.steps.give_way();
        (self.range.start, self.bytes, self.longest) = (end, 0, longest_step());
        Ok(())
    }
}

/// The maximum number of bytes in a step of work that gives way to calls.
pub(super) fn longest_step() -> u64 {
    if foreground::is_busy() {
        SHORT_STEP
    } else {
        COPY_STEP
    }
}

/// Number of bytes that [`copy_sparse`] would copy. Space that is allocated but never written to is
/// not copied.
pub fn data_bytes(file: &File) -> Result<u64> {
    let len = length(file)?;
    let (mut at, mut bytes) = (0, 0);
    while let Some((start, end)) = next_data(file, at, len)? {
        bytes += end - start;
        at = end;
    }
    Ok(bytes)
}

/// True if copy_file_range on this filesystem always copies. On a filesystem with reflinks it
/// shares extents, and an independent (thick) copy must not.
fn copies_by_value(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|s| [magic::EXT4, magic::TMPFS].contains(&{ s.f_type }))
}

/// The next range of data at or after `at`, cut at `len`; `None` if only a hole is left.
pub(crate) fn next_data(file: &File, at: u64, len: u64) -> Result<Option<(u64, u64)>> {
    if at >= len {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) if start < len => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(on_file("SEEK_DATA", file)(e)),
    };
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end.min(len)))),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(on_file("SEEK_HOLE", file)(e)),
    }
}

/// Copies up to `step` bytes at the same offset in both files. Returns 0 at the end of `from`.
pub(super) fn copy_step(
    from: &File,
    to: &File,
    at: u64,
    step: u64,
    by_kernel: &mut bool,
) -> Result<u64> {
    let len = usize::try_from(step).unwrap_or(usize::MAX);
    if *by_kernel {
        let (mut off_in, mut off_out) = (at, at);
        let copied = retry(|| {
            rustix::fs::copy_file_range(from, Some(&mut off_in), to, Some(&mut off_out), len)
        });
        match copied {
            Ok(n) if n > 0 => return Ok(n as u64),
            // Also 0: some filesystems return it for files that the kernel can't copy.
            Ok(_) | Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                *by_kernel = false;
            }
            Err(e) => return Err(on_file("copy_file_range", to)(e)),
        }
    }
    let mut buffer = vec![0; len.min(1 << 20)];
    let n = loop {
        match from.read_at(&mut buffer, at) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => break other.map_err(on_file("read", from))?,
        }
    };
    to.write_all_at(&buffer[..n], at)
        .map_err(on_file("write", to))?;
    Ok(n as u64)
}
