//! How often a device was written to.

use crate::Result;
use crate::linux::{read_attribute, sysfs};

/// See `Documentation/block/stat.rst` of the kernel: the fifth field counts writes, the twelfth
/// discards.
pub(in crate::linux) fn writes(minor: u32) -> Result<u64> {
    const WRITES: usize = 4;
    const DISCARDS: usize = 11;
    let text = read_attribute(&sysfs(minor, "stat"))?;
    let fields: Vec<u64> = text
        .split_whitespace()
        .map_while(|f| f.parse().ok())
        .collect();
    Ok([WRITES, DISCARDS]
        .into_iter()
        .filter_map(|n| fields.get(n))
        .sum())
}
