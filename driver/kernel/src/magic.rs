//! Values of `f_type` in `statfs`, from `linux/magic.h`.

/// btrfs.
pub(crate) const BTRFS: i64 = 0x9123_683e;
/// ext4 (and ext2, ext3). Also the magic number in the superblock.
pub(crate) const EXT4: i64 = 0xef53;
/// tmpfs.
pub(crate) const TMPFS: i64 = 0x0102_1994;
/// XFS.
pub(crate) const XFS: i64 = 0x5846_5342;
