//! Attributes in sysfs, which are written also where the container's `/sys` is read-only.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags};
use rustix::mount as api;

use crate::{Error, Result};

/// Where the kernel's attributes are.
const SYS: &str = "/sys";

/// Writes an attribute.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    open(path)?.write_all(value.as_bytes())
}

/// Fails if attributes of block devices can't be written. Changes nothing.
pub(super) fn check() -> Result<()> {
    match tunable() {
        Some(path) => open(&path)
            .map(drop)
            .map_err(|e| Error::io("open for writing", path, e)),
        None => Ok(()),
    }
}

/// True unless it is certain that there is no such attribute: a device that sysfs can't show may be in
/// use.
pub(super) fn may_exist(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// An attribute that the driver may write; `None` on a machine without block devices.
fn tunable() -> Option<PathBuf> {
    let devices = std::fs::read_dir(Path::new(SYS).join("block"))
        .ok()?
        .flatten();
    devices
        .map(|device| device.path().join("queue/read_ahead_kb"))
        .find(|path| path.exists())
}

/// True for the error of an attribute that this container may not write.
pub(super) fn is_refused(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EROFS | libc::EACCES | libc::EPERM)
    )
}

fn open(path: &Path) -> io::Result<File> {
    match File::options().write(true).open(path) {
        Err(e) if e.raw_os_error() == Some(libc::EROFS) => {
            let beneath = path.strip_prefix(SYS).map_err(|_| e)?;
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(own_sysfs()?, beneath, flags, Mode::empty())?.into())
        }
        opened => opened,
    }
}

/// The root of a writable sysfs that is mounted nowhere. The kernel has one sysfs for each network
/// namespace, and that of the container may be read-only as a whole. So this one has its own.
fn own_sysfs() -> io::Result<&'static OwnedFd> {
    static OWN: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(made) = OWN.get() {
        return Ok(made);
    }
    // The namespace becomes that of the thread alone.
    let made = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let context = api::fsopen("sysfs", api::FsOpenFlags::FSOPEN_CLOEXEC)?;
        api::fsconfig_create(&context)?;
        let flags = api::MountAttrFlags::MOUNT_ATTR_NOSUID
            | api::MountAttrFlags::MOUNT_ATTR_NODEV
            | api::MountAttrFlags::MOUNT_ATTR_NOEXEC;
        api::fsmount(&context, api::FsMountFlags::FSMOUNT_CLOEXEC, flags).map_err(io::Error::from)
    });
    let made = made
        .join()
        .map_err(|_| io::Error::other("the thread that mounts sysfs failed"))?;
    let made = made?;
    Ok(OWN.get_or_init(|| made))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::read_only(libc::EROFS, true)]
    #[case::by_a_profile(libc::EACCES, true)]
    #[case::without_rights(libc::EPERM, true)]
    #[case::wrong_value(libc::EINVAL, false)]
    #[case::no_such_device(libc::ENOENT, false)]
    fn what_this_container_may_not_write(#[case] errno: i32, #[case] expected: bool) {
        assert_eq!(is_refused(&io::Error::from_raw_os_error(errno)), expected);
    }

    #[test]
    fn an_attribute_that_can_not_be_looked_at_may_exist() {
        let root = Path::new("/");
        let table = [
            (root.to_owned(), true),
            (root.join("no such directory/backing_file"), false),
            // A name that the kernel refuses, as it may refuse any other.
            (root.join("n".repeat(1000)), true),
        ];
        for (path, expected) in table {
            assert_eq!(may_exist(&path), expected, "{}", path.display());
        }
    }
}
