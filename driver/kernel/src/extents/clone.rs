//! Clones a file step by step. One FICLONE takes as long as the file has extents, and nothing stops
//! it: a quarter of a million take seconds.

use std::fs::File;
use std::os::fd::AsFd;

use super::fiemap::{self, BATCH, LAST};
use crate::failpoint::effect;
use crate::file::{self, Pace, name_of, on_file};
use crate::foreground::{Steps, TimeShare};
use crate::{Error, Result};

/// Makes `to` (empty) share all extents of `from`, and gives it the same length, like
/// [`file::clone`]. `from` must not change meanwhile. Once `stop` returns true, it stops with
/// [`Error::CloneStopped`], but never before the first step: that shows how fast it is. At
/// [`Pace::Gentle`], it gives way to calls between two steps. It ends before its next step once
/// nothing wants it any more.
pub fn clone_in_steps(from: &File, to: &File, pace: Pace, stop: &dyn Fn() -> bool) -> Result<()> {
    let len = file::length(from)?;
    let (mut at, mut extents) = (0, 0);
    let mut steps = (pace == Pace::Gentle).then(|| Steps::begin(TimeShare::Tenth));
    loop {
        let step = match fiemap::fiemap(from.as_fd(), at, len - at) {
            Ok(step) => step,
            // Another filesystem: it has no clones, either.
            Err(_) if at == 0 => return file::clone(from, to),
            Err(e) => return Err(on_file("FS_IOC_FIEMAP", from)(e)),
        };
        extents += step.len() as u64;
        let end = match step.last() {
            Some(last) if step.len() == BATCH && last.flags & LAST == 0 => {
                (last.logical + last.length).min(len)
            }
            _ => len,
        };
        if (at, end) == (0, len) {
            return file::clone(from, to);
        }
        effect("file.clone").map_err(on_file("FICLONERANGE", to))?;
        let length = end - at;
        file::cloned(from, to, "FICLONERANGE", || {
            fiemap::clone_range(from.as_fd(), to.as_fd(), at, length)
        })?;
        if end == len {
            return Ok(());
        }
        if stop() {
            return Err(Error::CloneStopped {
                path: name_of(to),
                extents,
            });
        }
        if let Some(steps) = &mut steps {
            steps.give_way();
        }
        at = end;
    }
}

/// The number of extents that [`clone_in_steps`] clones; 0 if the filesystem does not say.
pub fn count(file: &File) -> u64 {
    fiemap::count(file.as_fd()).unwrap_or(0)
}
