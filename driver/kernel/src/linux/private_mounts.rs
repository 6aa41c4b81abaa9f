//! A mount namespace without volumes, for a program that looks behind mounted loop devices.
//!
//! mkfs.btrfs looks up the backing file of every mounted loop device, and mkfs.ext4 does so for an
//! image. If one of these files is on a dead filesystem, mkfs fails or hangs. Another volume could
//! cause that, or a pod that mounted a device of its own. The lookup also takes longer with each
//! volume.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::MountEntry;

/// Directories that programs need, with the mounts on the way to them and beneath them.
const NEEDED: [&str; 9] = [
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev",
];

/// The namespace, which the first call makes.
pub(super) fn namespace() -> io::Result<&'static File> {
    static MADE: OnceLock<File> = OnceLock::new();
    if let Some(made) = MADE.get() {
        return Ok(made);
    }
    // A thread of its own enters the namespace, because no thread comes back from there.
    let made = thread::spawn(make)
        .join()
        .map_err(|_| io::Error::other("a thread panicked"))??;
    Ok(MADE.get_or_init(|| made))
}

fn make() -> io::Result<File> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    let table = super::mount::table().map_err(io::Error::other)?;
    // A copy of a mount keeps its filesystem alive, so only the mounts that programs need stay.
    for entry in table.entries.iter().filter(|entry| !is_needed(entry)) {
        // It may be beneath a mount that is gone already.
        let _ = umount2(
            &*entry.mount_point,
            MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW,
        );
    }
    File::open("/proc/thread-self/ns/mnt")
}

fn is_needed(entry: &MountEntry) -> bool {
    let point = &*entry.mount_point;
    let is_on_the_way = NEEDED
        .iter()
        .map(Path::new)
        .any(|needed| needed.starts_with(point) || point.starts_with(needed));
    point == Path::new("/") || entry.loop_minor().is_none() && is_on_the_way
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::MountTable;

    #[rstest]
    #[case::root("8:0 / / rw - ext4 /dev/vda rw", true)]
    #[case::root_on_a_loop_device("8:0 / / rw - ext4 /dev/loop0 rw", true)]
    #[case::programs("8:0 / /usr rw - ext4 /dev/vdb rw", true)]
    #[case::devices("8:0 / /dev rw - devtmpfs devtmpfs rw", true)]
    #[case::beneath("8:0 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", true)]
    #[case::another_disk("8:0 / /srv rw - xfs /dev/vdc rw", false)]
    #[case::of_a_pod("8:0 / /var/lib/kubelet/pods/a rw - nfs server:/ rw", false)]
    #[case::volume("7:3 / /usr/x rw - ext4 /dev/loop3 rw", false)]
    fn mounts_that_programs_need(#[case] line: &str, #[case] needed: bool) {
        let table = MountTable::parse(format!("30 1 {line}\n").as_bytes()).unwrap();
        assert_eq!(is_needed(table.entries.iter().next().unwrap()), needed);
    }
}
