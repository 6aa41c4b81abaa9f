//! The options that every volume is mounted with.

use crate::FsType;

/// The first options of every volume mount. Later options can override them: `dev`, `suid`,
/// `errors=continue`.
///
/// The superblock has its own error policy, which may be to panic. The author of the filesystem
/// chose it; the mount option overrides it.
///
/// Without `noinit_itable` ext4 zeroes its inode tables in the background. The loop device turns
/// these zeros into holes, so a thick volume would lose 1.6 % of its blocks. Images start as zeros.
pub fn default_mount_options(fs: FsType) -> &'static [&'static str] {
    match fs {
        FsType::Ext4 => &["nosuid", "nodev", "errors=remount-ro", "noinit_itable"],
        // XFS and btrfs never panic on errors.
        FsType::Xfs | FsType::Btrfs => &["nosuid", "nodev"],
    }
}
