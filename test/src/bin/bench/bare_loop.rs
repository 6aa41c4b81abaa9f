//! Loop devices with the fewest calls: a floor for what the driver does, and the end of devices that
//! a benchmark has added.
#![allow(unsafe_code, reason = "no crate wraps these system calls")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use linux_raw_sys::loop_device as lo;

mod ioctls {
    use linux_raw_sys::loop_device as lo;

    nix::ioctl_write_ptr_bad!(loop_configure, lo::LOOP_CONFIGURE, lo::loop_config);
    nix::ioctl_none_bad!(loop_ctl_get_free, lo::LOOP_CTL_GET_FREE);
    nix::ioctl_write_int_bad!(loop_ctl_remove, lo::LOOP_CTL_REMOVE);
}

/// The size of a device's blocks, as the driver's have.
const BLOCK_BYTES: u32 = 4096;

/// `/dev/loopN`.
pub(crate) fn path(minor: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{minor}"))
}

/// Attaches a file to the free loop device that the kernel offers, with direct I/O. The device
/// detaches when the handle is closed. ResourceBusy if another thread was faster.
pub(crate) fn attach(backing: &File) -> io::Result<(u32, File)> {
    // SAFETY: takes no argument.
    let offered = unsafe { ioctls::loop_ctl_get_free(control()?.as_raw_fd()) }?;
    let minor = u32::try_from(offered).map_err(io::Error::other)?;
    let device = File::options().read(true).write(true).open(path(minor))?;
    // SAFETY: all of its fields are numbers.
    let mut config: lo::loop_config = unsafe { std::mem::zeroed() };
    config.fd = backing.as_raw_fd().cast_unsigned();
    config.block_size = BLOCK_BYTES;
    config.info.lo_flags = lo::LO_FLAGS_AUTOCLEAR as u32 | lo::LO_FLAGS_DIRECT_IO as u32;
    // SAFETY: `config` is whole and lives across the call, and the kernel only reads it.
    unsafe { ioctls::loop_configure(device.as_raw_fd(), &raw const config) }?;
    Ok((minor, device))
}

/// Removes a loop device that is neither attached nor open: many free ones slow down all that lists
/// loop devices.
pub(crate) fn remove(minor: u32) -> io::Result<()> {
    let minor = i32::try_from(minor).map_err(io::Error::other)?;
    // SAFETY: takes an integer.
    unsafe { ioctls::loop_ctl_remove(control()?.as_raw_fd(), minor) }?;
    Ok(())
}

fn control() -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/loop-control")
}
