//! Compares the content of two files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::ByteRange;
use crate::file::on_file;
use crate::{BLOCK_SIZE, Result, wanted};

/// Bytes to read from each file at a time.
const STEP: usize = 256 << 10;

/// Differences are reported in units of this size, in bytes.
const UNIT: usize = BLOCK_SIZE as usize;

/// Calls `emit` with every run of differing blocks in `range`, in order, until it returns false.
/// Returns false if it did. Bytes after a file's end read as zeros. It ends before its next step once
/// nothing wants it any more: equal content is not emitted.
pub(super) fn contents(
    base: &File,
    target: &File,
    range: ByteRange,
    emit: &mut dyn FnMut(ByteRange) -> bool,
) -> Result<bool> {
    let (mut left, mut right) = (vec![0; STEP], vec![0; STEP]);
    let mut run: Option<ByteRange> = None;
    let mut at = range.offset;
    while at < range.end() {
        wanted::check(target)?;
        let n = usize::try_from(range.end() - at).map_or(STEP, |left| left.min(STEP));
        fill(base, &mut left[..n], at)?;
        fill(target, &mut right[..n], at)?;
        let pairs = left[..n].chunks(UNIT).zip(right[..n].chunks(UNIT));
        for (i, (l, r)) in pairs.enumerate() {
            let block = ByteRange {
                offset: at + (i * UNIT) as u64,
                length: l.len() as u64,
            };
            if l == r {
                if !run.take().is_none_or(&mut *emit) {
                    return Ok(false);
                }
            } else if let Some(run) = &mut run {
                run.length += block.length;
            } else {
                run = Some(block);
            }
        }
        at += n as u64;
    }
    Ok(run.is_none_or(emit))
}

/// Fills the whole buffer, with zeros after the end of the file.
fn fill(from: &File, buffer: &mut [u8], at: u64) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match from.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(on_file("read", from)(e)),
        }
    }
    buffer[done..].fill(0);
    Ok(())
}
