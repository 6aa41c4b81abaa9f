//! The loop devices under mounted btrfs filesystems.
//!
//! The mount table shows an anonymous number for a btrfs, and as its source the path at which its
//! device was scanned last. Any process that may use `/dev/btrfs-control` changes that path with
//! another node of the device, even to the name of another device. So the filesystem itself is
//! asked for its ID (for a mounted copy, Linux 6.7 and later choose a temporary one), and sysfs
//! has the kernel's own names of the devices with this ID.
//!
//! To ask for the whole ID, its root must be opened, which waits for the disk and for writers in
//! the root directory. statfs waits for neither, and shows the ID in half as many bits. Mounted
//! filesystems differ in them, except by chance or by chosen IDs.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use uuid::Uuid;

use super::asking::Asking;
use super::ioctl;
use crate::MountEntry;
use crate::file::mount_id;
use crate::mountinfo::loop_name;

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
    let reached: BTreeMap<u32, Vec<BtrfsMount>> = mounts
        .iter()
        .map(|(number, at)| {
            (
                *number,
                at.iter().map(|at| BtrfsMount::of(&entries[*at])).collect(),
            )
        })
        .collect();
    let numbers: Vec<u32> = mounts.keys().copied().collect();
    let ids = by_folded(mounted_ids());
    let answers = ASKING.ask(&numbers, move |number| {
        reached[&number]
            .iter()
            .find_map(|mount| loops_of(&mount.fsid(&ids).ok()?).ok())
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

/// A mount of a btrfs.
struct BtrfsMount {
    path: PathBuf,
    id: u64,
    /// The ID of the mounted subvolume.
    subvolume: Option<u64>,
}

impl BtrfsMount {
    fn of(mount: &MountEntry) -> BtrfsMount {
        let mut options = mount.super_options.iter();
        BtrfsMount {
            path: mount.mount_point.to_path_buf(),
            id: mount.id,
            subvolume: options.find_map(|o| o.strip_prefix("subvolid=")?.parse().ok()),
        }
    }

    /// The filesystem's ID. It is one of `ids`, unless they do not tell.
    fn fsid(&self, ids: &HashMap<u64, Option<Uuid>>) -> io::Result<Uuid> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let place = rustix::fs::open(&self.path, flags, Mode::empty())?;
        if mount_id(place.as_fd(), "")? != Some(self.id) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if let Some(subvolume) = self.subvolume {
            let shown = rustix::fs::fstatvfs(&place)?.f_fsid;
            if let Some(Some(fsid)) = ids.get(&without_subvolume(shown, subvolume)) {
                return Ok(*fsid);
            }
        }
        whole_fsid(&place)
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
    Ok(Uuid::from_bytes(
        ioctl::btrfs_info(&File::from(opened))?.fsid,
    ))
}

/// The IDs of all mounted btrfs filesystems.
fn mounted_ids() -> Vec<Uuid> {
    let names = std::fs::read_dir(SYSFS).into_iter().flatten().flatten();
    names
        .filter_map(|entry| Uuid::try_parse(entry.file_name().to_str()?).ok())
        .collect()
}

/// The IDs by their halves, combined with each other: statvfs shows them so. `None` if several IDs
/// have the same. Linux 7.2 and later show the mount of a copy in another way, so that none
/// matches.
fn by_folded(ids: Vec<Uuid>) -> HashMap<u64, Option<Uuid>> {
    let mut found = HashMap::with_capacity(ids.len());
    for id in ids {
        let (upper, lower) = id.as_u64_pair();
        found
            .entry(upper ^ lower)
            .and_modify(|same| *same = None)
            .or_insert(Some(id));
    }
    found
}

/// What statvfs shows of a filesystem's ID, without the ID of the subvolume. It shows the first of
/// two words in the lower bits.
fn without_subvolume(shown: u64, subvolume: u64) -> u64 {
    shown.rotate_left(32) ^ subvolume
}

/// The minors of the loop devices of a mounted btrfs, in order.
fn loops_of(fsid: &Uuid) -> io::Result<Vec<u32>> {
    let devices = Path::new(SYSFS).join(fsid.to_string()).join("devices");
    let mut minors = Vec::new();
    for device in std::fs::read_dir(devices)? {
        let name = device?.file_name();
        minors.extend(
            name.to_str()
                .and_then(|name| loop_name(&format!("/dev/{name}"))),
        );
    }
    minors.sort_unstable();
    Ok(minors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statvfs_tells_most_filesystems_apart() {
        let one = Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_7777_8888);
        // The same bits in another order.
        let twin = Uuid::from_u128(0x5555_6666_7777_8888_1111_2222_3333_4444);
        // The same upper half of what is shown.
        let near = Uuid::from_u128(0x1111_2222_3333_4444_5555_6666_0000_0000);
        let shown = 0x4444_cccc_4444_4444 ^ (5 << 32);
        for (subvolume, mounted, expected) in [
            (5, vec![], None),
            (5, vec![near], None),
            (5, vec![near, one], Some(one)),
            (5, vec![one, twin], None),
            (256, vec![one], None),
        ] {
            let ids = by_folded(mounted.clone());
            let found = ids
                .get(&without_subvolume(shown, subvolume))
                .copied()
                .flatten();
            assert_eq!(found, expected, "{subvolume} {mounted:?}");
        }
    }
}
