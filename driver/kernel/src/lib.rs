//! The kernel interface of the driver: loop devices, mounts, filesystems and freezing.
//!
//! A [`Kernel`] has [`LoopDevices`], [`Mounts`] and [`Filesystems`]. [`linux::Linux`] calls the
//! real kernel. The fake kernel of the tests keeps a loop table and a mount table in memory, so
//! that a test can cause what a real kernel rarely shows, such as an error in the middle of a
//! mount. Files are real in both: [`file`] has plain functions for operations that need only a
//! file.
//!
//! Everything here blocks. The server calls it from threads that may block.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod allowed_mount_options;
mod default_mount_options;
pub mod error;
mod ext4_layout;
pub mod extents;
pub mod failpoint;
pub mod file;
pub mod file_changes;
mod file_name;
mod filesystems;
pub mod foreground;
mod fs_type;
pub mod interned;
pub mod linux;
mod look;
mod loop_device;
mod loop_devices;
mod magic;
mod mkfs_options;
mod mount_flags;
mod mount_words;
pub mod mountinfo;
mod mounts;
mod option_value;
pub mod reflink_support;
pub mod shared_dir;
mod shared_table;
mod stand_ins;
pub mod under_way;
pub mod wanted;

pub use allowed_mount_options::{
    LABELS, RefusedOption, check_mount_options, refused_mount_options,
};
pub use default_mount_options::default_mount_options;
pub use error::{Error, Result, silent_device};
pub use ext4_layout::{Ext4Growth, Ext4Layout, NoGrowth};
pub use filesystems::{
    Ext4, Filesystems, Freeze, FsState, FsUsage, MkfsSpec, Probe, Superblock, ext4_growth,
};
pub use fs_type::FsType;
pub use look::{
    confirm, confirmed, loops_holding, loops_of, mounts_of_loop, refuse_unknown_mount,
    topmost_mount,
};
pub use loop_device::{
    Detached, FileId, KnownLoops, LoopDevice, LoopInfo, LoopKey, LoopScope, LoopSpec, LoopTable,
    file_id, loop_names, loop_path,
};
pub use loop_devices::LoopDevices;
pub use mkfs_options::check_mkfs_options;
pub use mount_flags::{BindFlags, flags_and_data, is_discard, mounts_read_only};
pub use mount_words::{MountOptions, MountPath};
pub use mountinfo::{MountEntry, MountKey, MountTable};
pub use mounts::{MountSpec, Mounts};
pub use shared_table::{Keyed, SharedTable};
pub use stand_ins::{forget_stand_in, forget_stand_ins_of, image_of, stand_in};

/// The logical block size of every loop device and the unit of every volume's size, in bytes.
///
/// Volumes have this block size from the first mkfs on. A reflinked file on XFS requires 4096-byte
/// direct I/O, and a filesystem made for 512-byte sectors would no longer mount.
pub const BLOCK_SIZE: u32 = 4096;

/// Rounds a number of bytes down to whole blocks.
pub fn whole_blocks(bytes: u64) -> u64 {
    bytes - bytes % u64::from(BLOCK_SIZE)
}

/// Rounds a number of bytes up to whole blocks.
pub fn blocks_for(bytes: u64) -> u64 {
    let up = bytes.checked_next_multiple_of(BLOCK_SIZE.into());
    up.unwrap_or_else(|| whole_blocks(bytes))
}

/// Read-ahead of a loop device for a volume without its own setting, in KiB: the kernel's default.
/// The driver sets it at every attach, because a device keeps the value of its last user.
pub const READ_AHEAD_KIB: u32 = 128;

/// Major number of loop devices.
pub const LOOP_MAJOR: u32 = 7;

/// The kernel, and the tools that act on its devices.
pub trait Kernel: LoopDevices + Mounts + Filesystems + Send + Sync + 'static {}

impl<K: LoopDevices + Mounts + Filesystems + Send + Sync + 'static> Kernel for K {}

impl std::fmt::Debug for dyn Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kernel")
    }
}
