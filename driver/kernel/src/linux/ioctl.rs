//! System calls that no crate wraps: loop, freeze and filesystem ioctls, mount_setattr, and the
//! parent-death signal. Each function is one call.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use linux_raw_sys::loop_device::{self as lo, loop_config, loop_info64};

use crate::BindFlags;

mod ioctls {
    use linux_raw_sys::loop_device as lo;

    nix::ioctl_write_ptr_bad!(loop_configure, lo::LOOP_CONFIGURE, lo::loop_config);
    nix::ioctl_read_bad!(loop_get_status64, lo::LOOP_GET_STATUS64, lo::loop_info64);
    nix::ioctl_write_ptr_bad!(loop_set_status64, lo::LOOP_SET_STATUS64, lo::loop_info64);
    nix::ioctl_write_int_bad!(loop_set_direct_io, lo::LOOP_SET_DIRECT_IO);
    nix::ioctl_none_bad!(loop_clr_fd, lo::LOOP_CLR_FD);
    nix::ioctl_none_bad!(loop_set_capacity, lo::LOOP_SET_CAPACITY);
    nix::ioctl_none_bad!(loop_ctl_get_free, lo::LOOP_CTL_GET_FREE);
    nix::ioctl_write_int_bad!(loop_ctl_add, lo::LOOP_CTL_ADD);

    // The kernel declares these two with an `int` argument, but never reads it.
    nix::ioctl_none_bad!(
        fifreeze,
        nix::request_code_readwrite!(b'X', 119, size_of::<libc::c_int>())
    );
    nix::ioctl_none_bad!(
        fithaw,
        nix::request_code_readwrite!(b'X', 120, size_of::<libc::c_int>())
    );

    // EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: declared as a read, and only written.
    nix::ioctl_write_ptr_bad!(
        shut_down,
        nix::request_code_read!(b'X', 125, size_of::<u32>()),
        u32
    );

    nix::ioctl_none!(blkflsbuf, 0x12, 97);
    nix::ioctl_read_bad!(mnt_get_info, libc::NS_MNT_GET_INFO, libc::mnt_ns_info);
    nix::ioctl_readwrite!(btrfs_dev_info, 0x94, 30, super::BtrfsDevice);
    nix::ioctl_read!(btrfs_fs_info, 0x94, 31, super::BtrfsInfo);
    nix::ioctl_readwrite!(btrfs_dev_stats, 0x94, 52, super::BtrfsStats);
}

/// `struct btrfs_ioctl_dev_info_args`.
#[repr(C)]
pub(super) struct BtrfsDevice {
    devid: u64,
    uuid: [u8; 16],
    bytes_used: u64,
    pub(super) total_bytes: u64,
    after: [u64; 507],
}

/// `struct btrfs_ioctl_fs_info_args`.
#[repr(C)]
pub(super) struct BtrfsInfo {
    max_id: u64,
    num_devices: u64,
    pub(super) fsid: [u8; 16],
    after: [u64; 124],
}

/// `struct btrfs_ioctl_get_dev_stats`: write, read, flush, corruption and generation errors.
#[repr(C)]
pub(super) struct BtrfsStats {
    devid: u64,
    nr_items: u64,
    flags: u64,
    pub(super) values: [u64; 5],
    after: [u64; 121],
}

const _: () = {
    assert!(size_of::<BtrfsDevice>() == 4096);
    assert!(size_of::<BtrfsInfo>() == 1024);
    assert!(size_of::<BtrfsStats>() == 1032);
    assert!(size_of::<loop_config>() == 304);
};

/// The arguments of LOOP_CONFIGURE.
pub(super) struct Configure<'a> {
    pub(super) backing: BorrowedFd<'a>,
    pub(super) block_size: u32,
    pub(super) flags: u32,
    pub(super) label: &'a str,
    pub(super) offset: u64,
}

/// The number of mounts of a mount namespace (Linux 6.12).
pub(super) fn count_mounts(namespace: &File) -> io::Result<u32> {
    let size = size_of::<libc::mnt_ns_info>() as u32;
    let mut info = libc::mnt_ns_info {
        size,
        nr_mounts: 0,
        mnt_ns_id: 0,
    };
    // SAFETY: the structure is whole and has its size.
    done(unsafe { ioctls::mnt_get_info(namespace.as_raw_fd(), &raw mut info) })?;
    Ok(info.nr_mounts)
}

fn done<T>(result: nix::Result<T>) -> io::Result<T> {
    result.map_err(io::Error::from)
}

/// Calls LOOP_CONFIGURE.
pub(super) fn loop_configure(device: &File, with: &Configure<'_>) -> io::Result<()> {
    let mut config = loop_config {
        fd: with.backing.as_raw_fd().cast_unsigned(),
        block_size: with.block_size,
        info: empty_info(),
        __reserved: [0; 8],
    };
    config.info.lo_flags = with.flags;
    config.info.lo_offset = with.offset;
    let kept = config.info.lo_file_name.len() - 1;
    for (to, from) in config.info.lo_file_name[..kept]
        .iter_mut()
        .zip(with.label.bytes())
    {
        *to = from;
    }
    // SAFETY: `config` is a whole loop_config that lives across the call; the kernel only reads.
    done(unsafe { ioctls::loop_configure(device.as_raw_fd(), &raw const config) }).map(drop)
}

fn empty_info() -> loop_info64 {
    loop_info64 {
        lo_device: 0,
        lo_inode: 0,
        lo_rdevice: 0,
        lo_offset: 0,
        lo_sizelimit: 0,
        lo_number: 0,
        lo_encrypt_type: 0,
        lo_encrypt_key_size: 0,
        lo_flags: 0,
        lo_file_name: [0; 64],
        lo_crypt_name: [0; 64],
        lo_encrypt_key: [0; 32],
        lo_init: [0; 2],
    }
}

/// The flag bits of `lo_flags`.
pub(super) mod flags {
    use super::lo;

    pub(in crate::linux) const READ_ONLY: u32 = lo::LO_FLAGS_READ_ONLY as u32;
    pub(in crate::linux) const AUTOCLEAR: u32 = lo::LO_FLAGS_AUTOCLEAR as u32;
    pub(in crate::linux) const DIRECT_IO: u32 = lo::LO_FLAGS_DIRECT_IO as u32;
}

/// Calls LOOP_GET_STATUS64; ENXIO if nothing is attached.
pub(super) fn loop_get_status(device: &File) -> io::Result<loop_info64> {
    let mut info = empty_info();
    // SAFETY: `info` is a whole loop_info64 for the kernel to fill.
    done(unsafe { ioctls::loop_get_status64(device.as_raw_fd(), &raw mut info) })?;
    Ok(info)
}

/// Calls LOOP_SET_STATUS64.
pub(super) fn loop_set_status(device: &File, info: &loop_info64) -> io::Result<()> {
    // SAFETY: `info` is a whole loop_info64, which the kernel only reads.
    done(unsafe { ioctls::loop_set_status64(device.as_raw_fd(), &raw const *info) }).map(drop)
}

/// Calls LOOP_CLR_FD.
pub(super) fn loop_clear(device: &File) -> io::Result<()> {
    // SAFETY: takes no argument.
    done(unsafe { ioctls::loop_clr_fd(device.as_raw_fd()) }).map(drop)
}

/// Calls LOOP_SET_CAPACITY.
pub(super) fn loop_set_capacity(device: &File) -> io::Result<()> {
    // SAFETY: takes no argument.
    done(unsafe { ioctls::loop_set_capacity(device.as_raw_fd()) }).map(drop)
}

/// Calls LOOP_SET_DIRECT_IO.
pub(super) fn loop_set_direct_io(device: &File, on: bool) -> io::Result<()> {
    // SAFETY: takes an integer.
    done(unsafe { ioctls::loop_set_direct_io(device.as_raw_fd(), on.into()) }).map(drop)
}

/// Calls LOOP_CTL_GET_FREE: returns the lowest unattached minor, and adds a device if there is
/// none.
pub(super) fn loop_get_free(control: &impl AsRawFd) -> io::Result<u32> {
    // SAFETY: takes no argument.
    let minor = done(unsafe { ioctls::loop_ctl_get_free(control.as_raw_fd()) })?;
    u32::try_from(minor).map_err(io::Error::other)
}

/// Calls LOOP_CTL_ADD; EEXIST if the device exists.
pub(super) fn loop_add(control: &impl AsRawFd, minor: u32) -> io::Result<()> {
    let minor = i32::try_from(minor).map_err(io::Error::other)?;
    // SAFETY: takes an integer.
    done(unsafe { ioctls::loop_ctl_add(control.as_raw_fd(), minor) }).map(drop)
}

/// Calls FIFREEZE; EBUSY if the filesystem is frozen.
pub(super) fn freeze(on: &File) -> io::Result<()> {
    // SAFETY: the kernel does not read the argument.
    done(unsafe { ioctls::fifreeze(on.as_raw_fd()) }).map(drop)
}

/// Calls FITHAW; EINVAL if the filesystem is not frozen.
pub(super) fn thaw(on: &File) -> io::Result<()> {
    // SAFETY: the kernel does not read the argument.
    done(unsafe { ioctls::fithaw(on.as_raw_fd()) }).map(drop)
}

/// Calls EXT4_IOC_SHUTDOWN or XFS_IOC_GOINGDOWN, which are one number, so that the log is not
/// written.
pub(super) fn shut_down(on: &File) -> io::Result<()> {
    /// EXT4_GOING_FLAGS_NOLOGFLUSH and XFS_FSOP_GOING_FLAGS_NOLOGFLUSH.
    const WITHOUT_LOG: u32 = 2;
    let flags = WITHOUT_LOG;
    // SAFETY: the kernel reads a 32-bit number, which lives across the call.
    done(unsafe { ioctls::shut_down(on.as_raw_fd(), &raw const flags) }).map(drop)
}

/// Calls BLKFLSBUF: syncs the filesystem that is mounted from the device, in whichever mount
/// namespace, or else writes the device's own pages back. Then drops its pages.
pub(super) fn flush_device(device: &File) -> io::Result<()> {
    // SAFETY: takes no argument.
    done(unsafe { ioctls::blkflsbuf(device.as_raw_fd()) }).map(drop)
}

/// Calls BTRFS_IOC_DEV_INFO for the first device.
pub(super) fn btrfs_device(on: &File) -> io::Result<BtrfsDevice> {
    let mut device = BtrfsDevice {
        devid: 1,
        uuid: [0; 16],
        bytes_used: 0,
        total_bytes: 0,
        after: [0; 507],
    };
    // SAFETY: the kernel fills a structure of the same size as its own (asserted above).
    done(unsafe { ioctls::btrfs_dev_info(on.as_raw_fd(), &raw mut device) })?;
    Ok(device)
}

/// Calls BTRFS_IOC_FS_INFO.
pub(super) fn btrfs_info(on: &File) -> io::Result<BtrfsInfo> {
    let mut info = BtrfsInfo {
        max_id: 0,
        num_devices: 0,
        fsid: [0; 16],
        after: [0; 124],
    };
    // SAFETY: the kernel fills a structure of the same size as its own (asserted above).
    done(unsafe { ioctls::btrfs_fs_info(on.as_raw_fd(), &raw mut info) })?;
    Ok(info)
}

/// Calls BTRFS_IOC_GET_DEV_STATS for the first device.
pub(super) fn btrfs_stats(on: &File) -> io::Result<BtrfsStats> {
    let mut stats = BtrfsStats {
        devid: 1,
        nr_items: 5,
        flags: 0,
        values: [0; 5],
        after: [0; 121],
    };
    // SAFETY: the kernel fills a structure of the same size as its own (asserted above).
    done(unsafe { ioctls::btrfs_dev_stats(on.as_raw_fd(), &raw mut stats) })?;
    Ok(stats)
}

/// Calls sync_file_range, which starts to write the file's dirty pages and does not wait.
pub(super) fn start_writeback(file: &File) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: the call has no pointers.
    let answer = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
    done(nix::errno::Errno::result(answer)).map(drop)
}

/// Calls sync_file_range, which writes a range's dirty pages and waits for that.
pub(super) fn write_back(file: &File, range: Range<u64>) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (offset, len) = (
        range.start.cast_signed(),
        (range.end - range.start).cast_signed(),
    );
    // SAFETY: the call has no pointers.
    let answer = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) };
    done(nix::errno::Errno::result(answer)).map(drop)
}

/// Calls mount_setattr on an open mount. Flags that are not in `flags` stay unchanged.
pub(super) fn set_flags(mount: impl AsFd, flags: BindFlags) -> io::Result<()> {
    let bits = [
        (flags.read_only, libc::MOUNT_ATTR_RDONLY),
        (flags.nosuid, libc::MOUNT_ATTR_NOSUID),
        (flags.nodev, libc::MOUNT_ATTR_NODEV),
        (flags.noexec, libc::MOUNT_ATTR_NOEXEC),
    ];
    let set = bits.iter().filter(|(on, _)| *on).map(|(_, bit)| bit);
    let attr = libc::mount_attr {
        attr_set: set.fold(0, |all, bit| all | bit),
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: an empty path with AT_EMPTY_PATH means the handle itself. `attr` is whole, its size
    // is given, and the kernel only reads it.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes the kernel kill the command's process when the thread that starts it ends. That thread
/// must wait for the process; otherwise the kernel kills it too early.
pub(super) fn dies_with_us(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing allocates.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // This process may have died before the call above.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Makes the command's process have this soft limit of open files.
pub(super) fn opens_at_most(command: &mut Command, soft: u64) {
    // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing allocates.
    unsafe {
        command.pre_exec(move || {
            let mut limit = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
                return Err(io::Error::last_os_error());
            }
            limit.rlim_cur = soft.min(limit.rlim_max);
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Makes the command's process enter a mount namespace, and a directory after that: entering a
/// namespace changes to its root.
pub(super) fn enters(command: &mut Command, namespace: &'static File, dir: BorrowedFd<'static>) {
    let (namespace, dir) = (namespace.as_raw_fd(), dir.as_raw_fd());
    // SAFETY: between fork and exec only async-signal-safe calls are made, and nothing allocates.
    // Both descriptors stay open for the life of this process.
    unsafe {
        command.pre_exec(move || {
            if libc::setns(namespace, libc::CLONE_NEWNS) == 0 && libc::fchdir(dir) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        });
    }
}
