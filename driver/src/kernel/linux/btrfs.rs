//! The loop devices under mounted btrfs filesystems.
//!
//! The mount table shows an anonymous number for a btrfs, and as its source the path at which its
//! device was scanned last. Any process that may use `/dev/btrfs-control` changes that path with
//! another node of the device, even to the name of another device. So the filesystem itself is
//! asked for its ID (for a mounted copy, Linux 6.7 and later choose a temporary one), and sysfs
//! has the kernel's own names of the devices with this ID.
//!
//! To ask for the whole ID, its root must be opened, which waits for the disk and for writers in the
//! root directory. statfs waits for neither, and has some bits of the ID. Mounted filesystems differ
//! in them, except by chance or by chosen IDs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use uuid::Uuid;

use super::asking::Asking;
use super::ioctl;
use crate::kernel::MountEntry;
use crate::kernel::file::mount_id;
use crate::kernel::mountinfo::loop_name;

/// Where the kernel shows the mounted btrfs filesystems, each by its ID.
const SYSFS: &str = "/sys/fs/btrfs";

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
                Some(loops) => entries[*at].btrfs_loops = Some(loops),
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
    // statvfs has the first half of statfs's ID in the lower bits.
    let folded = rustix::fs::fstatvfs(&place)?.f_fsid as u32;
    match of_folded(folded, &mounted()?) {
        Some(fsid) => Ok(fsid),
        None => whole_fsid(&place),
    }
}

/// Asks a btrfs for its ID by one of its directories or files.
fn whole_fsid(place: &OwnedFd) -> io::Result<Uuid> {
    let mode = rustix::fs::fstat(place)?.st_mode;
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

/// The IDs of all mounted btrfs filesystems.
fn mounted() -> io::Result<Vec<Uuid>> {
    let names = std::fs::read_dir(SYSFS)?.flatten().map(|entry| entry.file_name());
    Ok(names.filter_map(|name| Uuid::try_parse(name.to_str()?).ok()).collect())
}

/// The one ID among these of which statfs shows these bits: the first and the third quarter of the
/// ID, combined with the upper half of the subvolume's ID. That half is zero, because subvolumes are
/// counted. `None` if more than one ID has them.
fn of_folded(folded: u32, mounted: &[Uuid]) -> Option<Uuid> {
    let quarter = |fsid: &Uuid, bits: u32| (fsid.as_u128() >> bits) as u32;
    let has = |fsid: &&Uuid| quarter(fsid, 96) ^ quarter(fsid, 32) == folded;
    let mut found = mounted.iter().filter(has);
    found.next().copied().filter(|_| found.next().is_none())
}

/// The minors of the loop devices of a mounted btrfs, in order.
fn loops_of(fsid: &Uuid) -> io::Result<Vec<u32>> {
    let devices = Path::new(SYSFS).join(fsid.to_string()).join("devices");
    let mut minors = Vec::new();
    for device in std::fs::read_dir(devices)? {
        let name = device?.file_name();
        minors.extend(name.to_str().and_then(|name| loop_name(&format!("/dev/{name}"))));
    }
    minors.sort_unstable();
    Ok(minors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statfs_tells_most_filesystems_apart() {
        let [one, other] = [0x1111_2222_3333_4444_5555_6666_7777_8888_u128, 7].map(Uuid::from_u128);
        // The same bits in another order.
        let twin = Uuid::from_u128(0x5555_6666_3333_4444_1111_2222_7777_8888);
        let folded = 0x1111_2222 ^ 0x5555_6666;
        for (mounted, expected) in [
            (vec![], None),
            (vec![other], None),
            (vec![other, one], Some(one)),
            (vec![one, twin], None),
        ] {
            assert_eq!(of_folded(folded, &mounted), expected, "{mounted:?}");
        }
    }
}
