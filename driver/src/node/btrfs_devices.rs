//! Checks on which devices the kernel has mounted a btrfs.
//!
//! A btrfs names itself by the ID in its superblock. The kernel remembers the devices that udev or
//! a person has it scan, and takes those with one ID for one filesystem. The user of a raw block
//! volume can give it the ID of another user's filesystem. Before Linux 6.7, the kernel then mounts
//! that device in place of the one that the mount names, or both.

use std::path::Path;

use super::{Error, Result};
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
            // An error does not say that it is unused.
            None if kernel.is_claimed(&loop_path(minor)).unwrap_or(true) => Devices::Unknown,
            // A mounted filesystem claims its devices.
            None => Devices::Others("another device".to_owned()),
        }
    }
}

/// Does [`check_unused`] for the btrfs that was just mounted at a path.
pub(super) fn check_new(
    kernel: &dyn Kernel,
    volume: VolumeId,
    path: &Path,
    minor: u32,
) -> Result<()> {
    let mount = topmost_mount(kernel, path)?;
    let Some(mount) = mount.filter(|mount| *mount.fs_type == *FsType::Btrfs.as_str()) else {
        return Err(Error::FailedPrecondition(format!(
            "others have changed the mounts of volume {volume} at {}: stage it again",
            path.display()
        )));
    };
    check_unused(kernel, volume, &mount, minor)
}

/// Does [`check`] for a mount that no pod has. One with other devices is unmounted. One that does
/// not answer stays mounted, and the next staging asks again: it may only be slow.
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
        (Some(mount), Some(own)) if kernel.is_claimed(&loop_path(own.minor))? => {
            Err(unknown(mount, own.minor))
        }
        _ => Ok(()),
    }
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

/// The loop devices of a mounted btrfs, unless they are this one alone.
fn others(loops: &[u32], minor: u32) -> Option<String> {
    match loops {
        [only] if *only == minor => None,
        [] => Some("no loop device".to_owned()),
        loops => {
            let paths: Vec<_> = loops
                .iter()
                .map(|minor| loop_path(*minor).display().to_string())
                .collect();
            Some(paths.join(" and "))
        }
    }
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
