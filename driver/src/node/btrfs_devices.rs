//! Checks on which devices the kernel has mounted a btrfs.
//!
//! A btrfs names itself by the ID in its superblock. The kernel remembers the devices that udev or
//! a person has it scan, and takes those with one ID for one filesystem. The user of a raw block
//! volume can give it the ID of another user's filesystem. Before Linux 6.7, the kernel then mounts
//! that device in place of the one that the mount names, or both.

use std::path::Path;

use super::{Error, Result};
use crate::kernel::{self, FsType, Kernel, MountEntry, loop_path, topmost_mount};
use crate::storage::VolumeId;

/// Checks that the btrfs that was just mounted at a path is on this loop device alone. If not,
/// unmounts it.
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
    let checked = check(volume, &mount, minor);
    if checked.is_err()
        && let Err(error) = kernel.unmount_exactly(&mount)
    {
        tracing::warn!(%volume, path = %path.display(), %error, "a wrong btrfs stays mounted");
    }
    checked
}

/// Checks that a mounted btrfs is on this loop device alone.
pub(super) fn check(volume: VolumeId, mount: &MountEntry, minor: u32) -> Result<()> {
    let device = loop_path(minor);
    let Some(loops) = &mount.btrfs_loops else {
        let mount_point = mount.mount_point.to_path_buf();
        return Err(kernel::Error::UnknownMount {
            device,
            mount_point,
        }
        .into());
    };
    match others(loops, minor) {
        None => Ok(()),
        Some(others) => Err(Error::FailedPrecondition(format!(
            "the kernel has mounted {others} for volume {volume}, which is on {}: {REMEDY}",
            device.display()
        ))),
    }
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
