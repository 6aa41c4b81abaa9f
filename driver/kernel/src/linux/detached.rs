//! Mounts in no mount namespace: only their handle keeps them, so a killed process leaves none.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount as api;

use super::kernel_log::KernelLog;
use super::loopdev;
use super::mount::{device_number, xfs_gives_up};
use crate::failpoint::effect;
use crate::mount_flags::flags_and_data;
use crate::{Error, FsType, Result, default_mount_options};

/// Opens the root directory of the filesystem on a device, mounted or not. If it is mounted
/// read-only, so is this mount.
pub(super) fn open(device: &Path, fs: FsType) -> Result<File> {
    effect("mount").map_err(|e| Error::io("mount", device, e))?;
    let log = KernelLog::from_now();
    let root = match root(device, fs, false) {
        // A second mount of a filesystem must match the first one.
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => root(device, fs, true),
        other => other,
    };
    let root = root.map_err(|e| explained(&e, &log, device))?;
    if fs == FsType::Xfs {
        // The unmount of a filesystem that retries without limit would hang on a full pool.
        xfs_gives_up(device_number(device)?)?;
    }
    Ok(root)
}

fn root(device: &Path, fs: FsType, read_only: bool) -> io::Result<File> {
    let context = api::fsopen(fs.as_str(), api::FsOpenFlags::FSOPEN_CLOEXEC)?;
    let context = context.as_fd();
    api::fsconfig_set_string(context, "source", device)?;
    if read_only {
        api::fsconfig_set_flag(context, "ro")?;
    }
    set_options(context, fs)?;
    api::fsconfig_create(context)?;
    let mount = api::fsmount(
        context,
        api::FsMountFlags::FSMOUNT_CLOEXEC,
        api::MountAttrFlags::MOUNT_ATTR_NOSUID
            | api::MountAttrFlags::MOUNT_ATTR_NODEV
            | api::MountAttrFlags::MOUNT_ATTR_NOEXEC,
    )?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&mount, ".", flags, Mode::empty())?.into())
}

/// Sets the options that every volume is mounted with. Also lets XFS mount a copy beside its
/// original, and keeps btrfs from discarding a thick volume's blocks.
fn set_options(context: BorrowedFd<'_>, fs: FsType) -> io::Result<()> {
    let options: Vec<String> = default_mount_options(fs)
        .iter()
        .map(|o| (*o).to_owned())
        .collect();
    let (_, mut data) = flags_and_data(false, &options);
    data.extend(match fs {
        FsType::Ext4 => None,
        FsType::Xfs => Some("nouuid".to_owned()),
        FsType::Btrfs => Some("nodiscard".to_owned()),
    });
    for option in data {
        match option.split_once('=') {
            Some((key, value)) => api::fsconfig_set_string(context, key, value)?,
            None => api::fsconfig_set_flag(context, &option)?,
        }
    }
    Ok(())
}

/// The error of a mount. One that depends on the filesystem alone says why, from the kernel's log
/// if possible.
fn explained(e: &io::Error, log: &KernelLog, device: &Path) -> Error {
    let number = e.raw_os_error().unwrap_or_default();
    if !REFUSALS.contains(&number) {
        return Error::errno("mount", device, number);
    }
    let name = device.file_name().unwrap_or_default().to_string_lossy();
    let why = match log.of_device(&name) {
        Some(cause) => cause,
        None => format!("{e} (the kernel's log, dmesg, may say more)"),
    };
    Error::NotMountable {
        path: loopdev::image_of(device),
        why,
    }
}

/// What the kernel answers if it can't use a filesystem.
const REFUSALS: [i32; 8] = [
    libc::EINVAL,
    libc::ENOSYS,
    libc::EOPNOTSUPP,
    libc::EUCLEAN,
    libc::EBADMSG,
    libc::EROFS,
    libc::EFBIG,
    libc::E2BIG,
];
