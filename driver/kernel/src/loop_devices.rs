//! What the kernel does with loop devices.

use std::path::Path;

use crate::{
    Detached, Error, FileId, KnownLoops, LoopDevice, LoopInfo, LoopScope, LoopSpec, Result,
};

/// The loop devices of the machine.
///
/// Every method blocks; every mutating one is an *effect* (see [`failpoint`](crate::failpoint)).
pub trait LoopDevices {
    /// The ID of the running boot, which no attached device outlasts. It differs after each start
    /// of the kernel, and is the same in all containers.
    fn boot_id(&self) -> Result<String>;

    /// Attaches a loop device with blocks of [`BLOCK_SIZE`](crate::BLOCK_SIZE) bytes
    /// (LOOP_CONFIGURE), then reads back whether it does direct I/O. If `/dev` is static, creates
    /// the device node. A backing file that can't do direct I/O is attached buffered. Skips free
    /// minors with a bind mount of their device node: a process that can reach such a node would
    /// reach the file.
    fn loop_attach(&self, spec: &LoopSpec<'_>) -> Result<LoopDevice>;

    /// All attached loop devices of the machine, including those of other programs, lowest minor
    /// first. A device that can't be queried has the fields that sysfs shows.
    fn loops(&self) -> Result<Vec<LoopInfo>>;

    /// The attached loop devices as far as they are known: like [`LoopDevices::loops`], but their
    /// settings may be old, see [`LoopDevices::confirm_loops`]. A device that the scope does not
    /// need may have no more than its path, as if the kernel did not report its backing file. It
    /// costs the same with any number of devices.
    fn known_loops(&self, scope: LoopScope<'_>) -> Result<KnownLoops>;

    /// Makes the next look at loop devices read all of them.
    fn forget_loops(&self);

    /// Asks the kernel for devices that a caller relies on. True if they are still like this. If
    /// not, the next look reads them again.
    fn confirm_loops(&self, loops: &[&LoopInfo]) -> bool;

    /// One loop device; `None` if nothing is attached to it.
    fn loop_info(&self, minor: u32) -> Result<Option<LoopInfo>>;

    /// The number of this attachment: no other one of any disk has it, in this boot. `None` before
    /// Linux 5.15. It says nothing unless the device is open: another file may be attached next.
    fn loop_diskseq(&self, minor: u32) -> Result<Option<u64>>;

    /// Opens an attached device, which keeps the kernel from detaching it under the caller.
    /// [`Error::NotFound`] if it no longer has this backing file.
    fn loop_open(&self, minor: u32, backing: FileId) -> Result<LoopDevice>;

    /// Opens a device that was listed before. [`Error::Silent`] if the kernel did not report its
    /// backing file.
    fn loop_reopen(&self, device: &LoopInfo) -> Result<LoopDevice> {
        let backing = device.backing.ok_or_else(|| Error::silent(device))?;
        self.loop_open(device.minor, backing)
    }

    /// Detaches the device if it still has this backing file, and verifies that it is gone.
    /// [`Detached::Gone`] if it has another one.
    fn loop_detach(&self, minor: u32, backing: FileId) -> Result<Detached>;

    /// Detaches a device without a reported backing file, if it still has this backing path.
    /// Verifies that it is gone.
    fn loop_detach_silent(&self, minor: u32, backing_path: &str) -> Result<Detached>;

    /// Detaches a device, identified by its backing file or, if that is unknown, by its backing
    /// path.
    fn loop_release(&self, device: &LoopInfo) -> Result<Detached> {
        match device.backing {
            Some(backing) => self.loop_detach(device.minor, backing),
            None => self.loop_detach_silent(device.minor, &device.backing_path),
        }
    }

    /// Size of an open device in bytes. Unlike [`LoopDevices::loop_info`], this asks no filesystem.
    fn loop_size(&self, device: &LoopDevice) -> Result<u64>;

    /// Makes the device as large as its backing file is now (LOOP_SET_CAPACITY).
    fn loop_grow(&self, device: &LoopDevice) -> Result<()>;

    /// Limits an attached device to the first bytes of its file, in use or not (LOOP_SET_STATUS64).
    /// I/O behind the limit fails with EIO; 0 ends the limit. Nothing else of the device changes.
    fn loop_limit(&self, device: &LoopDevice, bytes: u64) -> Result<()>;

    /// Turns direct I/O on or off; returns what the kernel reports afterwards.
    fn loop_set_direct_io(&self, device: &LoopDevice, on: bool) -> Result<bool>;

    /// Sets `queue/read_ahead_kb`. The value survives a detach: set it at every attach. Changes
    /// nothing where attributes can't be written, see [`LoopDevices::check_device_attributes`].
    fn loop_set_read_ahead(&self, device: &LoopDevice, kib: u32) -> Result<()>;

    /// Fails if attributes of devices can't be written: a container's `/sys` may be read-only.
    /// Changes nothing.
    fn check_device_attributes(&self) -> Result<()>;

    /// What else has a block device or one of its partitions in use, and how a person ends that.
    /// Empty if nothing is known.
    fn holders(&self, device: &Path) -> Vec<String>;

    /// True if the device is open exclusively: a filesystem on it is mounted in any mount
    /// namespace, or a program works on it.
    fn is_claimed(&self, device: &Path) -> Result<bool>;

    /// Writes back everything of a device, to its file and to the disk: the data of a filesystem
    /// that any mount namespace has mounted from it, and the dirty pages of the device itself.
    fn loop_flush(&self, device: &LoopDevice) -> Result<()>;

    /// How many writes and discards the devices of this minor have completed, from sysfs. A change
    /// means that something was written.
    fn loop_writes(&self, minor: u32) -> Result<u64>;

    /// Drops the page cache of a read-only device (BLKFLSBUF).
    fn loop_drop_cache(&self, device: &LoopDevice) -> Result<()>;
}
