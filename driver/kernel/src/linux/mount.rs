//! Mounts. They follow no symlink at the target and have their flags from the start. A volume's XFS
//! shuts down if its metadata can't be written.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount as api;
use sys_mount::{Mount, MountFlags};

use super::{attributes, btrfs, ioctl, read_attribute};
use crate::failpoint::effect;
use crate::file::{mount_id, name_of};
use crate::mount_flags::flags_and_data;
use crate::{BindFlags, Error, FsType, MountEntry, MountSpec, MountTable, Result, mountinfo};

#[cfg(test)]
mod tests;

/// Reads this thread's mount table (its process's, unless the thread alone entered a namespace).
pub(super) fn table() -> Result<MountTable> {
    let mut entries = entries()?;
    // Where a filesystem can't be asked, its devices stay unknown.
    btrfs::find_loops(&mut entries);
    Ok(MountTable::of(entries))
}

/// The mounts of the table, without what it does not show.
pub(super) fn entries() -> Result<Vec<MountEntry>> {
    let path = "/proc/thread-self/mountinfo";
    let text = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    mountinfo::parse(&text).map_err(|e| Error::io("parse", path, io::Error::other(e)))
}

/// True if the mount that contains a directory is shared. False before Linux 5.8, which does not say
/// which mount that is.
pub(super) fn is_shared(dir: &Path) -> Result<bool> {
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(dir)
        .map_err(|e| Error::io("open", dir, e))?;
    let Some(id) = mount_id(&opened, "").map_err(|e| Error::io("statx", dir, e))? else {
        return Ok(false);
    };
    let path = "/proc/thread-self/mountinfo";
    let text = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    Ok(mountinfo::is_shared(&text, id))
}

pub(super) fn mount(spec: &MountSpec<'_>) -> Result<()> {
    let (flags, data) = flags_and_data(spec.read_only, spec.options);
    let data = data.join(",");
    let target = PinnedTarget::open(spec.target)?;
    effect("mount").map_err(|e| Error::io("mount", spec.target, e))?;
    let builder = Mount::builder()
        .fstype(spec.fs.as_str())
        .flags(MountFlags::from_bits_retain(flags))
        .data(&data);
    while_busy(|| builder.mount(spec.device, target.path()))
        .map_err(|e| Error::io("mount", spec.target, explained(e, spec.fs, &data)))?;
    Ok(())
}

/// A pinned mount target: the mount goes onto the inspected file or directory, never a symlink.
struct PinnedTarget(File);

impl PinnedTarget {
    fn open(path: &Path) -> Result<PinnedTarget> {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
            .open(path)
            .map_err(|e| Error::io("open", path, e))?;
        let metadata = file.metadata().map_err(|e| Error::io("open", path, e))?;
        if metadata.is_symlink() {
            return Err(Error::errno("open", path, libc::ELOOP));
        }
        Ok(PinnedTarget(file))
    }

    /// A path to the target for mount(2), which takes no handle.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Finds the wrong option if mount(2) only returns EINVAL. The newer calls take options one by one
/// and return a message. This mounts nothing.
fn explained(e: io::Error, fs: FsType, data: &str) -> io::Error {
    if e.raw_os_error() != Some(libc::EINVAL) {
        return e;
    }
    let Ok(context) = api::fsopen(fs.as_str(), api::FsOpenFlags::FSOPEN_CLOEXEC) else {
        return e;
    };
    let refused = data.split(',').filter(|o| !o.is_empty()).any(|option| {
        match option.split_once('=') {
            Some((key, value)) => api::fsconfig_set_string(context.as_fd(), key, value),
            None => api::fsconfig_set_flag(context.as_fd(), option),
        }
        .is_err()
    });
    let mut words = [0; 512];
    match File::from(context).read(&mut words) {
        // The first character is the level, and a space follows.
        Ok(n) if refused && n > 2 => {
            let words = String::from_utf8_lossy(&words[2..n]).trim_end().to_owned();
            io::Error::new(io::ErrorKind::InvalidInput, words)
        }
        _ => e,
    }
}

/// Device number of a block device.
pub(super) fn device_number(device: &Path) -> Result<u64> {
    let metadata = std::fs::metadata(device).map_err(|e| Error::io("stat", device, e))?;
    if metadata.file_type().is_block_device() {
        Ok(metadata.rdev())
    } else {
        Err(Error::errno("stat", device, libc::ENOTBLK))
    }
}

/// Limits for retries of metadata writes on a volume's XFS: seconds, and a number of retries. The
/// number is about twice as many as fit into that time.
const GIVE_UP: [&str; 2] = ["30", "1000"];
/// The kernel's default: no limit.
const NEVER: [&str; 2] = ["-1", "-1"];

/// Limits retries of a mounted XFS: it shuts down if its metadata can't be written for half a
/// minute. Without a limit, a freeze or unmount that waits for the write would hang in the kernel,
/// and no signal ends it. Limits that an operator has set stay.
pub(super) fn xfs_gives_up(device: u64) -> Result<()> {
    xfs_retries(device, NEVER, GIVE_UP)
}

/// Removes the limit of [`xfs_gives_up`]. Limits that an operator has set stay.
pub(super) fn xfs_retries_forever(device: &Path) -> Result<()> {
    xfs_retries(device_number(device)?, GIVE_UP, NEVER)
}

/// Changes the limits on retries of metadata writes if they have the expected values.
fn xfs_retries(device: u64, before: [&str; 2], after: [&str; 2]) -> Result<()> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let device = std::fs::read_link(&link).map_err(|e| Error::io("readlink", &link, e))?;
    let name = device.file_name().unwrap_or_default();
    let errors = Path::new("/sys/fs/xfs").join(name).join("error/metadata");
    for kind in ["EIO", "ENOSPC", "default"] {
        let limits = ["retry_timeout_seconds", "max_retries"].map(|l| errors.join(kind).join(l));
        if read_attribute(&limits[1])? != before[1] {
            continue;
        }
        effect("mount.retries").map_err(|e| Error::io("write", &limits[1], e))?;
        for (path, value) in limits.iter().zip(after) {
            attributes::write(path, value).map_err(|e| Error::io("write", path, e))?;
        }
    }
    Ok(())
}

pub(super) fn bind(source: &Path, target: &Path, flags: BindFlags) -> Result<()> {
    let to = PinnedTarget::open(target)?;
    let tree = api::open_tree(
        CWD,
        source,
        api::OpenTreeFlags::OPEN_TREE_CLONE
            | api::OpenTreeFlags::OPEN_TREE_CLOEXEC
            | api::OpenTreeFlags::AT_SYMLINK_NOFOLLOW,
    )
    .map_err(|e| Error::io("open_tree", source, e.into()))?;
    // The clone is not mounted yet, so no process uses it before it has its flags.
    ioctl::set_flags(&tree, flags).map_err(|e| Error::io("mount_setattr", target, e))?;
    effect("bind").map_err(|e| Error::io("bind", target, e))?;
    api::move_mount(
        &tree,
        "",
        &to.0,
        "",
        api::MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | api::MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
    )
    .map_err(|e| Error::io("bind", target, e.into()))
}

pub(super) fn remount_discard(target: &Path, fs: FsType, on: bool) -> Result<()> {
    let top = PinnedTarget::open(target)?;
    // fspick keeps the filesystem's options; MS_REMOUNT would need all of them again.
    let context = api::fspick(
        &top.0,
        "",
        api::FsPickFlags::FSPICK_CLOEXEC | api::FsPickFlags::FSPICK_EMPTY_PATH,
    )
    .map_err(|e| Error::io("remount", target, e.into()))?;
    let context = context.as_fd();
    effect("remount").map_err(|e| Error::io("remount", target, e))?;
    match (on, fs) {
        // Discards in the background and in large pieces, the default of btrfs.
        (true, FsType::Btrfs) => api::fsconfig_set_string(context, "discard", "async"),
        (true, _) => api::fsconfig_set_flag(context, "discard"),
        (false, _) => api::fsconfig_set_flag(context, "nodiscard"),
    }
    .and_then(|()| api::fsconfig_reconfigure(context))
    .map_err(|e| Error::io("remount", target, e.into()))?;
    // A filesystem may accept the option at a remount and ignore it.
    match entry_of(&top.0)? {
        Some(entry) if entry.discards() == on => Ok(()),
        Some(_) => Err(Error::errno("remount", target, libc::EOPNOTSUPP)),
        None => Err(Error::errno("remount", target, libc::ENOENT)),
    }
}

/// The mount that contains an open file or directory.
fn entry_of(file: &File) -> Result<Option<MountEntry>> {
    let id = mount_id(file, "").map_err(|e| Error::io("statx", name_of(file), e))?;
    Ok(table()?
        .entries
        .iter()
        .find(|entry| Some(entry.id) == id)
        .cloned())
}

/// How long a busy mount or unmount is retried. A process that reads all mounts of the machine
/// holds a mount for an instant. So does a program that another thread is starting: until exec, it
/// has copies of this process's handles. A starting container has copies of all mounts. If one of
/// them was read-only, the filesystem can't be mounted writable until the copy is gone.
const BUSY_WAIT: Duration = Duration::from_secs(2);
/// How many attempts there are at least, on a machine where one may take seconds, and the longest
/// time for them.
const ATTEMPTS: u32 = 20;
const LONGEST: Duration = Duration::from_secs(30);

/// The attempts at a mount or unmount that may be busy for an instant.
pub(super) struct Attempts {
    made: u32,
    since: Instant,
}

impl Attempts {
    pub(super) fn begin() -> Attempts {
        Attempts {
            made: 1,
            since: Instant::now(),
        }
    }

    /// True if there is another attempt.
    pub(super) fn go_on(&mut self) -> bool {
        self.made += 1;
        let longest = if self.made <= ATTEMPTS {
            LONGEST
        } else {
            BUSY_WAIT
        };
        self.since.elapsed() < longest
    }
}

pub(super) fn while_busy<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut attempts = Attempts::begin();
    let mut pause = Duration::from_millis(1);
    loop {
        match call() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && attempts.go_on() => {
                std::thread::sleep(pause);
            }
            answer => return answer,
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
