//! Unmounts exactly one mount, whatever others mount or unmount at its path meanwhile.
//!
//! umount2 takes a path only, and unmounts what it finds on top there. A check before the call does
//! not help: another program may mount something in between. MNT_EXPIRE helps: the first call marks
//! the mount that it finds, and the next one unmounts what it finds only if that has a mark. Any
//! use of a mount through a path removes its mark, and a list of mounts uses none. So a mount that
//! is marked, and then is still there with nothing on it, is the one that the next call unmounts;
//! if another one is on top by then, that one has no mark, unless its owner is just unmounting it
//! in the same way.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use super::mount::{Attempts, device_number, entries, while_busy};
use super::statmount;
use crate::failpoint::effect;
use crate::{Error, MountEntry, MountSpec, Result};

/// The answer to one attempt.
enum Attempt {
    Unmounted,
    /// Something used the mount between the two calls.
    Used,
    /// The path leads to another mount, or to none.
    Elsewhere,
}

pub(super) fn exactly(mount: &MountEntry) -> Result<()> {
    let path = &*mount.mount_point;
    effect("unmount").map_err(|e| Error::io("unmount", path, e))?;
    let mut attempts = Attempts::begin();
    loop {
        let attempt = while_busy(|| attempt(mount)).map_err(|e| Error::io("unmount", path, e))?;
        match attempt {
            Attempt::Unmounted => return Ok(()),
            Attempt::Used if attempts.go_on() => {}
            Attempt::Used => return Err(Error::errno("unmount", path, libc::EBUSY)),
            Attempt::Elsewhere if is_attached(mount)? => {
                return Err(Error::Covered {
                    op: "unmount",
                    path: path.to_path_buf(),
                });
            }
            Attempt::Elsewhere => return Err(Error::errno("unmount", path, libc::ENOENT)),
        }
    }
}

fn attempt(mount: &MountEntry) -> io::Result<Attempt> {
    let path = &*mount.mount_point;
    // This look also removes a mark that an earlier attempt left on another mount.
    match topmost(path) {
        Ok(Some(id)) if id == mount.id => {}
        Ok(_) => return Ok(Attempt::Elsewhere),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Attempt::Elsewhere),
        Err(e) => return Err(e),
    }
    match expire(path) {
        Err(Errno::EAGAIN) => {}
        marked => return answer(marked),
    }
    if is_uncovered(mount)? {
        return answer(expire(path));
    }
    // A mount that came over this one may be marked now.
    topmost(path).ok();
    Ok(Attempt::Elsewhere)
}

/// The ID of the mount to which a path leads. It asks no filesystem: one that has shut down
/// answers nothing, and must be unmounted too.
fn topmost(path: &Path) -> io::Result<Option<u64>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(path, flags, Mode::empty())?;
    let shown = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", place.as_raw_fd()))?;
    let id = shown.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    Ok(id.and_then(|id| id.trim().parse().ok()))
}

/// Marks the mount that is on top at a path (EAGAIN), or unmounts it if it is marked.
fn expire(path: &Path) -> nix::Result<()> {
    umount2(path, MntFlags::MNT_EXPIRE | MntFlags::UMOUNT_NOFOLLOW)
}

fn answer(expired: nix::Result<()>) -> io::Result<Attempt> {
    match expired {
        Ok(()) => Ok(Attempt::Unmounted),
        Err(Errno::EAGAIN) => Ok(Attempt::Used),
        // No mount has its root there.
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(Attempt::Elsewhere),
        Err(e) => Err(e.into()),
    }
}

/// True if the mount is at its path and nothing is mounted on it.
fn is_uncovered(mount: &MountEntry) -> io::Result<bool> {
    if let Some(id) = mount.unique_id {
        let at_path = statmount::stat(id, |now| now.is_at(&mount.mount_point))?;
        return Ok(at_path == Some(true) && !statmount::has_beneath(id)?);
    }
    let entries = entries().map_err(io::Error::other)?;
    Ok(entries.iter().any(|e| is_same(e, mount)) && entries.iter().all(|e| e.parent != mount.id))
}

/// True if the mount is at its path, on top or not.
fn is_attached(mount: &MountEntry) -> Result<bool> {
    if let Some(id) = mount.unique_id {
        let at_path = statmount::stat(id, |now| now.is_at(&mount.mount_point));
        let at_path = at_path.map_err(|e| Error::io("statmount", &mount.mount_point, e))?;
        return Ok(at_path == Some(true));
    }
    Ok(entries()?.iter().any(|now| is_same(now, mount)))
}

/// True for the same mount. Without a unique ID, the ID may be that of a later one.
fn is_same(now: &MountEntry, mount: &MountEntry) -> bool {
    now.id == mount.id
        && now.mount_point == mount.mount_point
        && (now.device, &now.root) == (mount.device, &mount.root)
}

/// Unmounts what was just mounted, if it is on top at the target.
pub(super) fn just_mounted(spec: &MountSpec<'_>) -> Result<()> {
    let path = spec.target;
    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let top = rustix::fs::statx(CWD, path, how, StatxFlags::MNT_ID);
    let top = top.map_err(|e| Error::io("statx", path, e.into()))?;
    let device = rustix::fs::makedev(top.stx_dev_major, top.stx_dev_minor);
    let id = (device == device_number(spec.device)?).then_some(top.stx_mnt_id);
    match entries()?.into_iter().find(|e| Some(e.id) == id) {
        Some(mount) => exactly(&mount),
        None => Err(Error::errno("unmount", path, libc::ENOENT)),
    }
}
