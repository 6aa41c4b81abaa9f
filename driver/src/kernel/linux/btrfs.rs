//! The loop devices under mounted btrfs filesystems.
//!
//! The mount table shows an anonymous number for a btrfs, and as its source the path at which its
//! device was scanned last. Any process that may use `/dev/btrfs-control` changes that path with
//! another node of the device, even to the name of another device. So the filesystem itself is
//! asked for its ID (for a mounted copy, Linux 6.7 and later choose a temporary one), and sysfs
//! has the kernel's own names of the devices with this ID.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use uuid::Uuid;

use super::asking::Asking;
use super::ioctl;
use crate::kernel::MountEntry;
use crate::kernel::file::mount_id;
use crate::kernel::mountinfo::loop_name;

/// Asks filesystems, each by the minor part of its anonymous device number. One that hangs delays
/// one look, and then only the answer about itself.
static ASKING: LazyLock<Asking> = LazyLock::new(Asking::default);

/// Sets the loop devices of all btrfs mounts among these. Returns the positions of mounts that
/// can't be asked now: no path leads to a mount of their filesystem, or it hangs.
pub(super) fn find_loops(entries: &mut [MountEntry]) -> Vec<usize> {
    let mut mounts: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        // All mounts of one filesystem have its anonymous number.
        if let (true, (0, number)) = (entry.is_btrfs(), entry.device) {
            mounts.entry(number).or_default().push(at);
        }
    }
    let mut unknown = Vec::new();
    if mounts.is_empty() {
        return unknown;
    }
    let reached: BTreeMap<u32, Vec<(PathBuf, u64)>> = mounts
        .iter()
        .map(|(number, at)| {
            let mounts = at.iter().map(|at| &entries[*at]);
            (*number, mounts.map(|mount| (mount.mount_point.to_path_buf(), mount.id)).collect())
        })
        .collect();
    let numbers: Vec<u32> = mounts.keys().copied().collect();
    let answers = ASKING.ask(&numbers, move |number| {
        reached[&number].iter().find_map(|(path, id)| loops_at(path, *id).ok())
    });
    for (number, answer) in answers {
        for at in &mounts[&number] {
            match answer.clone().flatten() {
                Some(loops) => entries[*at].btrfs_loops = loops,
                None => unknown.push(*at),
            }
        }
    }
    unknown
}

/// The minors of the loop devices under the btrfs that is mounted at a path with this mount ID.
fn loops_at(path: &Path, id: u64) -> io::Result<Vec<u32>> {
    loops_of(&fsid(path, id)?)
}

/// The ID of the btrfs that is mounted at a path with this mount ID.
fn fsid(path: &Path, id: u64) -> io::Result<Uuid> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let place = rustix::fs::open(path, flags, Mode::empty())?;
    if mount_id(place.as_fd(), "")? != Some(id) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mode = rustix::fs::fstat(&place)?.st_mode;
    // Opening a bound device node or pipe would have effects.
    let flags = match FileType::from_raw_mode(mode) {
        FileType::Directory => OFlags::DIRECTORY,
        FileType::RegularFile => OFlags::NONBLOCK,
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let again = format!("/proc/self/fd/{}", place.as_raw_fd());
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, again, flags, Mode::empty())?;
    Ok(Uuid::from_bytes(ioctl::btrfs_info(&File::from(opened))?.fsid))
}

/// The minors of the loop devices of a mounted btrfs, in order.
fn loops_of(fsid: &Uuid) -> io::Result<Vec<u32>> {
    let devices = Path::new("/sys/fs/btrfs").join(fsid.to_string()).join("devices");
    let mut minors = Vec::new();
    for device in std::fs::read_dir(devices)? {
        let name = device?.file_name();
        minors.extend(name.to_str().and_then(|name| loop_name(&format!("/dev/{name}"))));
    }
    minors.sort_unstable();
    Ok(minors)
}
