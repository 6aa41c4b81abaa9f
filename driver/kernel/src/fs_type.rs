//! The filesystems that the driver makes.

use crate::BLOCK_SIZE;

/// The filesystems a volume can have.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum FsType {
    /// ext4, the default.
    Ext4,
    Xfs,
    Btrfs,
}

impl FsType {
    /// All supported filesystems.
    pub const ALL: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

    /// The kernel's name of the filesystem type.
    pub fn as_str(self) -> &'static str {
        match self {
            FsType::Ext4 => "ext4",
            FsType::Xfs => "xfs",
            FsType::Btrfs => "btrfs",
        }
    }

    /// Parses the kernel's name; `None` for a filesystem that the driver does not make.
    pub fn parse(name: &str) -> Option<FsType> {
        FsType::ALL.into_iter().find(|fs| fs.as_str() == name)
    }

    /// The smallest device that mkfs accepts, in bytes, a multiple of [`BLOCK_SIZE`].
    pub fn minimum_bytes(self) -> u64 {
        match self {
            FsType::Ext4 => 1 << 20,
            FsType::Xfs => 300 << 20,
            FsType::Btrfs => 110 << 20,
        }
    }

    /// The smallest size to which the filesystem can be grown, in bytes: the kernel resizes no
    /// btrfs to less than 256 MiB.
    pub fn minimum_grown_bytes(self) -> u64 {
        match self {
            FsType::Ext4 | FsType::Xfs => BLOCK_SIZE.into(),
            FsType::Btrfs => 256 << 20,
        }
    }
}

impl std::fmt::Display for FsType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
