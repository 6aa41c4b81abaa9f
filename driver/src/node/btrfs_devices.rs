//! Checks on which devices the kernel has mounted a btrfs.
//!
//! A btrfs names itself by the ID in its superblock. The kernel remembers the devices that udev or
//! a person has it scan, and takes those with one ID for one filesystem. The user of a raw block
//! volume can give it the ID of another user's filesystem. Before Linux 6.7, the kernel then mounts
//! that device in place of the one that the mount names, or both.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Error, Node, Result};
use crate::diagnose::VolumeState;
use crate::kernel::{self, FsType, Kernel, MountEntry, loop_path, topmost_mount};
use crate::storage::VolumeId;

/// The devices of a mounted btrfs, beside the one that it should be on.
enum Devices {
    /// That one alone.
    Own,
    /// It does not say now, and may be on that one.
    Unknown,
    /// These, in words.
    Others(String),
}

impl Devices {
    fn of(kernel: &dyn Kernel, mount: &MountEntry, minor: u32) -> Devices {
        match &mount.btrfs_loops {
            Some(loops) => others(loops, minor).map_or(Devices::Own, Devices::Others),
            None if is_claimed(kernel, minor) => Devices::Unknown,
            // A mounted filesystem claims its devices.
            None => Devices::Others(ANOTHER_DEVICE.to_owned()),
        }
    }
}

impl Node {
    /// Unmounts the btrfs that an earlier staging of this process left, if it is on none of the
    /// volume's devices. Returns its devices in words. Only that mount is known to be the driver's.
    pub(super) fn unmount_wrong(&self, state: &VolumeState) -> Result<Option<String>> {
        let volume = state.identity().id();
        let Some(left) = self.unknown_mounts.of(volume) else {
            return Ok(None);
        };
        let kernel = self.pools.kernel();
        let Some(now) = state
            .top(&left.mount_point)
            .filter(|now| is_same(now, &left))
        else {
            return Ok(None);
        };
        let Some(others) = only_others(kernel, state, now) else {
            return Ok(None);
        };
        kernel.unmount_exactly(now)?;
        self.unknown_mounts.forget(volume);
        Ok(Some(others))
    }
}

/// True for the same mount. The ID of a mount without a unique ID is used again after its end.
fn is_same(now: &MountEntry, before: &MountEntry) -> bool {
    now.id == before.id
        && now.unique_id == before.unique_id
        && now.mount_point == before.mount_point
        && (now.device, &now.root) == (before.device, &before.root)
}

/// The devices of a mounted btrfs, in words. `None` if it is on one of the volume's, or may be.
fn only_others(kernel: &dyn Kernel, state: &VolumeState, mount: &MountEntry) -> Option<String> {
    let mut own = state.own().map(|device| device.minor);
    match &mount.btrfs_loops {
        Some(loops) if own.any(|minor| loops.contains(&minor)) => None,
        Some(loops) => Some(names(loops)),
        None if own.any(|minor| is_claimed(kernel, minor)) => None,
        None => Some(ANOTHER_DEVICE.to_owned()),
    }
}

/// True if a loop device is claimed for longer than a moment. Other programs claim a device while
/// they look at it, a mounted filesystem for good. An error does not say that it is unused.
fn is_claimed(kernel: &dyn Kernel, minor: u32) -> bool {
    /// A look at a device takes milliseconds.
    const PATIENCE: Duration = Duration::from_millis(200);
    let (device, end) = (loop_path(minor), Instant::now() + PATIENCE);
    while kernel.is_claimed(&device).unwrap_or(true) {
        if Instant::now() >= end {
            return true;
        }
        sleep(PATIENCE / 10);
    }
    false
}

/// Checks the btrfs that was just mounted at a path, as [`check_unused`] does. One that does not
/// answer is known to the next call as the driver's.
pub(super) fn check_new(node: &Node, volume: VolumeId, path: &Path, minor: u32) -> Result<()> {
    let kernel = node.pools.kernel();
    let mount = topmost_mount(kernel, path)?;
    let Some(mount) = mount.filter(is_btrfs) else {
        return Err(Error::FailedPrecondition(format!(
            "others have changed the mounts of volume {volume} at {}: stage it again",
            path.display()
        )));
    };
    let checked = check_unused(kernel, volume, &mount, minor);
    if checked.as_ref().is_err_and(is_unknown) {
        node.unknown_mounts.note(&node.pools, volume, mount);
    }
    checked
}

/// Checks a mount that no pod has, as [`check`] does. One with other devices is unmounted. One that
/// does not answer stays mounted, and the next staging asks again: it may only be slow.
pub(super) fn check_unused(
    kernel: &dyn Kernel,
    volume: VolumeId,
    mount: &MountEntry,
    minor: u32,
) -> Result<()> {
    let checked = check(kernel, volume, mount, minor);
    if checked.as_ref().is_err_and(|error| !is_unknown(error))
        && let Err(error) = kernel.unmount_exactly(mount)
    {
        let path = mount.mount_point.display();
        tracing::warn!(%volume, %path, %error, "a wrong btrfs stays mounted");
    }
    checked
}

/// Checks that a mounted btrfs is on this loop device alone.
pub(super) fn check(
    kernel: &dyn Kernel,
    volume: VolumeId,
    mount: &MountEntry,
    minor: u32,
) -> Result<()> {
    match Devices::of(kernel, mount, minor) {
        Devices::Own => Ok(()),
        Devices::Unknown => Err(unknown(mount, minor)),
        Devices::Others(others) => Err(Error::FailedPrecondition(format!(
            "the kernel has mounted {others} for volume {volume}, which is on {}: {REMEDY}",
            loop_path(minor).display()
        ))),
    }
}

/// Fails if a btrfs that does not answer now is mounted at a path, and may be the volume's.
pub(super) fn refuse_unknown(kernel: &dyn Kernel, state: &VolumeState, path: &Path) -> Result<()> {
    let mount = state.top(path).filter(|mount| mount.may_be_on_any_loop());
    match (mount, state.own().next()) {
        (Some(mount), Some(own)) if is_claimed(kernel, own.minor) => Err(unknown(mount, own.minor)),
        _ => Ok(()),
    }
}

/// The error for a volume for which these devices were mounted.
pub(super) fn wrong(volume: VolumeId, others: &str) -> Error {
    Error::FailedPrecondition(format!(
        "the kernel has mounted {others} for volume {volume}: {REMEDY}"
    ))
}

/// What a person can do about a btrfs at a path that is not the volume's. This process does not
/// know whether an earlier one mounted it for the volume.
pub(super) fn advice(state: &VolumeState, path: &Path) -> &'static str {
    if state.top(path).is_some_and(is_btrfs) {
        "; unmount it if nothing uses it: an interrupted staging may have mounted it"
    } else {
        ""
    }
}

fn is_btrfs(mount: &MountEntry) -> bool {
    *mount.fs_type == *FsType::Btrfs.as_str()
}

fn unknown(mount: &MountEntry, minor: u32) -> Error {
    Error::Kernel(kernel::Error::UnknownMount {
        device: loop_path(minor),
        mount_point: mount.mount_point.to_path_buf(),
    })
}

/// True if a btrfs has not said on which devices it is.
pub(super) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::Kernel(kernel::Error::UnknownMount { .. }))
}

/// Says what to do if the kernel refuses to mount a btrfs, because it has scanned another device
/// with the same ID and a later state.
pub(super) fn explain(fs: FsType, error: Error) -> Error {
    let has_twin = fs == FsType::Btrfs
        && matches!(
            &error,
            Error::Kernel(kernel::Error::Io { source, .. })
                if source.raw_os_error() == Some(libc::EEXIST)
        );
    if has_twin {
        Error::FailedPrecondition(format!("{error}: {REMEDY}"))
    } else {
        error
    }
}

/// What a person can do about two devices with one ID.
const REMEDY: &str = "another device of this node has the same filesystem ID (`blkid -t \
                      TYPE=btrfs` lists them); end its use, and run `btrfs device scan --forget` \
                      with its path";

/// What a btrfs is on that does not answer, and is on none of the volume's devices.
const ANOTHER_DEVICE: &str = "another device";

/// The loop devices of a mounted btrfs, unless they are this one alone.
fn others(loops: &[u32], minor: u32) -> Option<String> {
    (loops != [minor]).then(|| names(loops))
}

fn names(loops: &[u32]) -> String {
    if loops.is_empty() {
        return "no loop device".to_owned();
    }
    let paths: Vec<_> = loops
        .iter()
        .map(|minor| loop_path(*minor).display().to_string())
        .collect();
    paths.join(" and ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::its_own(&[3], None)]
    #[case::that_of_another(&[5], Some("/dev/loop5"))]
    #[case::both(&[3, 5], Some("/dev/loop3 and /dev/loop5"))]
    #[case::a_disk(&[], Some("no loop device"))]
    fn a_btrfs_is_on_its_own_device_alone(#[case] loops: &[u32], #[case] expected: Option<&str>) {
        assert_eq!(others(loops, 3).as_deref(), expected);
    }

    #[rstest]
    #[case::a_later_twin(FsType::Btrfs, libc::EEXIST, true)]
    #[case::wrong_options(FsType::Btrfs, libc::EINVAL, false)]
    #[case::another_filesystem(FsType::Xfs, libc::EEXIST, false)]
    fn an_error_of_a_mount_says_what_to_do(
        #[case] fs: FsType,
        #[case] errno: i32,
        #[case] twin: bool,
    ) {
        let error = Error::Kernel(kernel::Error::errno("mount", "/stage", errno));
        let explained = explain(fs, error).to_string();
        assert_eq!(explained.contains("--forget"), twin, "{explained}");
    }
}
