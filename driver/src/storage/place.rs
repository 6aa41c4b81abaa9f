//! Compares the place that a pool was opened from with what is there now.
//!
//! The driver works beneath open handles, and a mounted filesystem keeps its device. So a pool
//! with a deleted image works on, until its next opening loses everything.

use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use hostloop_terminal::humanize::exact_bytes;

use super::{PoolKind, PoolSpec};
use crate::diagnose::Lost;
use crate::kernel::{FileId, LoopInfo, loop_path};

/// The place that a pool was opened from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    pub kind: PoolKind,
    /// The image, the block device or the directory.
    pub path: PathBuf,
    /// What was there.
    pub was: AtPath,
    /// The device with the pool's filesystem and its mount point, if the driver mounted it.
    pub mounted: Option<(PathBuf, PathBuf)>,
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AtPath {
    /// Nothing.
    Nothing,
    /// A file or directory, and a file's length in bytes.
    File { id: FileId, bytes: u64 },
    /// A block device, by its number.
    Device(u64),
    /// It can't be looked at, for this reason.
    Unreadable(String),
}

impl AtPath {
    /// Looks at a path. A symlink counts only as a place of a directory or a device, because the
    /// driver opens no image through one.
    pub fn at(path: &Path, kind: PoolKind) -> AtPath {
        let metadata = match kind {
            PoolKind::Image => path.symlink_metadata(),
            PoolKind::Directory | PoolKind::Device => path.metadata(),
        };
        match metadata {
            Ok(m) if m.file_type().is_block_device() && is_removed(m.rdev()) => AtPath::Nothing,
            Ok(m) if m.file_type().is_block_device() => AtPath::Device(m.rdev()),
            Ok(m) => AtPath::File {
                id: FileId {
                    dev: m.dev(),
                    ino: m.ino(),
                },
                bytes: m.len(),
            },
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                AtPath::Nothing
            }
            Err(e) => AtPath::Unreadable(e.to_string()),
        }
    }
}

/// True if the kernel has no such block device any more: a static `/dev` keeps its node.
fn is_removed(rdev: u64) -> bool {
    let all = Path::new("/sys/dev/block");
    let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
    all.exists() && !all.join(number).exists()
}

impl PoolPlace {
    /// A place as it is now.
    pub fn now(kind: PoolKind, path: &Path, mounted: Option<(PathBuf, PathBuf)>) -> PoolPlace {
        PoolPlace {
            kind,
            path: path.to_owned(),
            was: AtPath::at(path, kind),
            mounted,
        }
    }

    /// What is not there any more.
    pub fn lost(&self) -> Option<Lost> {
        lost(self, &AtPath::at(&self.path, self.kind))
    }
}

/// What happened to the image of a pool that is mounted at `at`: this loop device there holds a
/// file that is not at the image's path any more, or is cut off.
pub(crate) fn lost_image(spec: &PoolSpec, device: &LoopInfo, at: PathBuf) -> Option<Lost> {
    let path = spec.path.join(spec.image_name());
    let now = AtPath::at(&path, PoolKind::Image);
    let was = AtPath::File {
        id: device.backing?,
        bytes: device.size_bytes,
    };
    let mounted = Some((loop_path(device.minor), at));
    lost(
        &PoolPlace {
            kind: PoolKind::Image,
            path,
            was,
            mounted,
        },
        &now,
    )
}

/// Compares a place with what is there now; `None` if it is the same.
fn lost(place: &PoolPlace, now: &AtPath) -> Option<Lost> {
    let PoolPlace {
        kind,
        path,
        was,
        mounted,
    } = place;
    let path = path.display();
    let (reason, is_same) = match (kind, was, now) {
        (PoolKind::Image, AtPath::File { id, bytes }, AtPath::File { id: is, bytes: now }) => {
            if id == is && now < bytes {
                return Some(cut_off(&place.path, *now, *bytes));
            }
            ("PoolImageLost", id == is)
        }
        (PoolKind::Image, ..) => ("PoolImageLost", false),
        (PoolKind::Device, was, now) => ("PoolDeviceLost", was == now),
        (PoolKind::Directory, AtPath::File { id, .. }, AtPath::File { id: is, .. }) => {
            ("PoolDirectoryLost", id == is)
        }
        (PoolKind::Directory, ..) => ("PoolDirectoryLost", false),
    };
    if is_same {
        return None;
    }
    let what = match now {
        AtPath::Unreadable(why) => format!("{path} can't be looked at: {why}"),
        AtPath::Nothing => format!("{path} is not there any more"),
        AtPath::File { .. } | AtPath::Device(_) => format!(
            "{path} is something else now: it was replaced, unmounted, or hidden by another mount"
        ),
    };
    Some(match (kind, now, mounted) {
        (
            PoolKind::Image,
            AtPath::Nothing | AtPath::File { .. } | AtPath::Device(_),
            Some(mounted),
        ) => {
            let to_do = save_image(&place.path, mounted);
            Lost {
                reason,
                data: true,
                what: format!("its image {what}"),
                to_do,
            }
        }
        _ => {
            let to_do = format!(
                "The driver still uses what was there, but its next start would not find the pool: \
                 bring it back to {path}"
            );
            Lost {
                reason,
                data: false,
                what,
                to_do,
            }
        }
    })
}

fn cut_off(path: &Path, now: u64, was: u64) -> Lost {
    Lost {
        reason: "PoolImageLost",
        data: true,
        what: format!(
            "its image {} was cut off to {} of its {}: what was at its end is lost",
            path.display(),
            exact_bytes(now),
            exact_bytes(was)
        ),
        to_do: "Copy what its volumes still show to another pool or node, then make a new pool \
                and restore what is missing from backups"
            .to_owned(),
    }
}

/// How to save an image that only its loop device still holds.
fn save_image(path: &Path, (device, at): &(PathBuf, PathBuf)) -> String {
    let (path, device, at) = (path.display(), device.display(), at.display());
    format!(
        "{device} still holds the image, until the node restarts or {at} is unmounted: then all in \
         the pool is lost. If the image was moved, move it back. If not, copy it now to a disk with \
         room: fsfreeze -f {at}; dd if={device} of=COPY bs=4M iflag=direct conv=sparse; fsfreeze \
         -u {at}. Then drain the node, move the copy to {path}, and restart the node"
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use PoolKind::{Device, Directory, Image};

    fn file(ino: u64, bytes: u64) -> AtPath {
        AtPath::File {
            id: FileId { dev: 1, ino },
            bytes,
        }
    }

    fn unreadable() -> AtPath {
        AtPath::Unreadable("Input/output error".to_owned())
    }

    #[rstest]
    #[case::image(Image, file(7, 100), file(7, 100), None)]
    #[case::image_grown(Image, file(7, 100), file(7, 200), None)]
    #[case::image_cut_off(Image, file(7, 100), file(7, 99), Some(("PoolImageLost", true, "to 99 bytes of its 100 bytes")))]
    #[case::image_deleted(Image, file(7, 100), AtPath::Nothing, Some(("PoolImageLost", true, "dd if=/dev/loop3 of=")))]
    #[case::image_replaced(Image, file(7, 100), file(8, 100), Some(("PoolImageLost", true, "dd if=/dev/loop3 of=")))]
    #[case::image_unreadable(Image, file(7, 100), unreadable(), Some(("PoolImageLost", false, "can't be looked at")))]
    #[case::directory(Directory, file(7, 10), file(7, 20), None)]
    #[case::directory_gone(Directory, file(7, 0), AtPath::Nothing, Some(("PoolDirectoryLost", false, "is not there")))]
    #[case::directory_replaced(Directory, file(7, 0), file(8, 0), Some(("PoolDirectoryLost", false, "something else")))]
    #[case::directory_unreadable(Directory, file(7, 0), unreadable(), Some(("PoolDirectoryLost", false, "Input/output")))]
    #[case::device(Device, AtPath::Device(9), AtPath::Device(9), None)]
    #[case::device_gone(Device, AtPath::Device(9), AtPath::Nothing, Some(("PoolDeviceLost", false, "is not there")))]
    #[case::device_replaced(Device, AtPath::Device(9), AtPath::Device(8), Some(("PoolDeviceLost", false, "something else")))]
    #[case::device_now_a_file(Device, AtPath::Device(9), file(7, 0), Some(("PoolDeviceLost", false, "something else")))]
    fn what_is_lost(
        #[case] kind: PoolKind,
        #[case] was: AtPath,
        #[case] now: AtPath,
        #[case] expected: Option<(&str, bool, &str)>,
    ) {
        let mounted = Some(("/dev/loop3".into(), "/state/pools/p".into()));
        let path = "/pools/p".into();
        let lost = lost(
            &PoolPlace {
                kind,
                path,
                was,
                mounted,
            },
            &now,
        );
        match (&lost, expected) {
            (None, None) => {}
            (Some(lost), Some((reason, data, says))) => {
                assert_eq!((lost.reason, lost.data), (reason, data));
                let message = lost.message();
                assert!(
                    message.contains(says) && message.contains("/pools/p"),
                    "{message}"
                );
            }
            _ => panic!("{lost:?}, not {expected:?}"),
        }
    }
}
