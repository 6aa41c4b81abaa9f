//! Takes the free room of a filesystem, for a fault on request.

use std::fs::File;

use crate::kernel::{self, BLOCK_SIZE, Kernel, file};

/// The name of the file that takes it, in the root directory of a pool or of a volume.
pub(crate) const FILLER: &str = "hostloop-fault-full";

/// The most calls. One succeeds and one fails for each size, unless users free room meanwhile, or cut the
/// file off: they could go on with that.
const MOST_PARTS: usize = 256;

/// Allocates `free` bytes at the end of a file, or as many as there are, in ever smaller parts: a
/// filesystem keeps some for itself. The file may have others already.
pub(crate) fn take(kernel: &dyn Kernel, file: &File, free: u64) -> kernel::Result<()> {
    // A btrfs writes zeros into the rest of a block, which then counts as data of users.
    let block = u64::from(BLOCK_SIZE);
    let end = file::length(file)?.saturating_add(free);
    let mut part = free / block * block;
    for _ in 0..MOST_PARTS {
        if part == 0 {
            break;
        }
        let taken = file::length(file)?;
        match kernel.allocate(file, taken..taken + part) {
            Ok(()) => part = part.min(end.saturating_sub(taken + part) / block * block),
            Err(error) if error.is_no_space() => part = part / 2 / block * block,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
