//! The map of one file, for people who look at it.

use std::fs::File;

use super::fiemap::{SHARED, UNKNOWN, UNWRITTEN};
use super::{Result, each_batch};

/// The most runs of a map. A file with more has a map of its first part.
const MOST: usize = 50_000;

/// A run of a file's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRun {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset on the filesystem, in bytes.
    pub physical: u64,
    /// True if another file has these blocks too.
    pub shared: bool,
}

impl ExtentRun {
    /// True if `next` continues this run.
    fn runs_into(&self, next: &ExtentRun) -> bool {
        self.shared == next.shared
            && self.offset + self.len == next.offset
            && self.physical + self.len == next.physical
    }
}

/// Returns the written blocks of a file in order, after writing the file back.
pub fn map(file: &File) -> Result<Vec<ExtentRun>> {
    let mut runs = Vec::new();
    each_batch(file, |found| {
        for raw in found.iter().filter(|raw| is_placed(raw.flags)) {
            let shared = raw.flags & SHARED != 0;
            append(
                &mut runs,
                ExtentRun {
                    offset: raw.logical,
                    len: raw.length,
                    physical: raw.physical,
                    shared,
                },
            );
        }
        runs.len() < MOST
    })?;
    Ok(runs)
}

/// True for written blocks with an address. Blocks that were just written may have none yet. With
/// address 0, all of them would look shared.
fn is_placed(flags: u32) -> bool {
    flags & (UNWRITTEN | UNKNOWN) == 0
}

fn append(runs: &mut Vec<ExtentRun>, next: ExtentRun) {
    match runs.last_mut() {
        Some(last) if last.runs_into(&next) => last.len += next.len,
        _ => runs.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::fiemap::LAST;

    #[test]
    fn blocks_without_an_address_are_left_out() {
        const DELAYED: u32 = 0x0004;
        for (flags, placed) in [
            (0, true),
            (SHARED | LAST, true),
            (UNWRITTEN, false),
            (UNKNOWN | DELAYED, false),
            (UNKNOWN | LAST, false),
        ] {
            assert_eq!(is_placed(flags), placed, "{flags:x}");
        }
    }

    #[test]
    fn runs_that_continue_each_other_are_one() {
        let run = |offset, len, physical, shared| ExtentRun {
            offset,
            len,
            physical,
            shared,
        };
        let mut runs = Vec::new();
        for next in [
            run(0, 10, 100, true),
            run(10, 10, 110, true),
            run(20, 10, 120, false),
            run(30, 10, 230, false),
            run(50, 10, 250, false),
        ] {
            append(&mut runs, next);
        }
        let expected = [
            run(0, 20, 100, true),
            run(20, 10, 120, false),
            run(30, 10, 230, false),
            run(50, 10, 250, false),
        ];
        assert_eq!(runs, expected);
    }
}
