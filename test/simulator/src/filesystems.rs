//! The sizes of filesystems.

/// The bytes of the smallest volume with a filesystem. A smaller btrfs grows to this size at least.
pub(crate) fn smallest(fs: &str) -> u64 {
    const MI: u64 = 1 << 20;
    match fs {
        "xfs" => 300 * MI,
        "btrfs" => 256 * MI,
        _ => 16 * MI,
    }
}
