//! Loop devices, and the files behind them.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{BLOCK_SIZE, Error, Keyed, LOOP_MAJOR, Result, SharedTable};

/// Identifies the file behind a loop device by what never changes: device and inode number.
///
/// A path is not enough: the same file has another path in another mount namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileId {
    /// Device number, as `stat` gives it in `st_dev`.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
}

/// How to attach a loop device.
#[derive(Debug)]
pub struct LoopSpec<'a> {
    /// The file (or, for a read-only second loop, the block device) behind it.
    pub backing: &'a File,
    /// Label that `losetup` shows; the kernel keeps at most 63 bytes. The driver never finds a
    /// device by it.
    pub label: &'a str,
    /// Offset of the device's first byte in the backing file. A device that begins beyond the file's
    /// end has no bytes, and keeps what is below it attached like any other.
    pub offset: u64,
    /// Attach read-only: writes fail with EPERM in the kernel.
    pub read_only: bool,
    /// Request direct I/O. [`LoopDevice::direct_io`] has the result.
    pub direct_io: bool,
    /// Detach at the last close.
    pub autoclear: bool,
    /// Attach exactly this minor, or fail with [`Error::Busy`]; `None` takes a free one.
    pub minor: Option<u32>,
}

/// A loop device that this process attached or opened, and holds open.
#[derive(Debug)]
pub struct LoopDevice {
    /// N of `/dev/loopN`.
    pub minor: u32,
    /// Whether the kernel does direct I/O on the backing file, read back from sysfs.
    pub direct_io: bool,
    /// The device, open only for reading, because a writer may block a mount. Closing it detaches
    /// an autoclear device that nothing else holds.
    pub file: File,
}

impl LoopDevice {
    /// `/dev/loopN`.
    pub fn path(&self) -> PathBuf {
        loop_path(self.minor)
    }
}

impl Error {
    /// The error for a device without a reported backing file.
    pub fn silent(device: &LoopInfo) -> Self {
        Error::Silent {
            device: loop_path(device.minor),
            file: PathBuf::from(&device.backing_path),
        }
    }
}

/// `/dev/loopN`.
pub fn loop_path(minor: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{minor}"))
}

/// The nodes of loop devices, for messages.
pub fn loop_names<'a>(loops: impl IntoIterator<Item = &'a LoopInfo>) -> String {
    let names: Vec<_> = loops
        .into_iter()
        .map(|l| loop_path(l.minor).display().to_string())
        .collect();
    names.join(", ")
}

/// An attached loop device, as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopInfo {
    /// N of `/dev/loopN`.
    pub minor: u32,
    /// The backing file, or the image that it stands in for. For a loop over a block device: the
    /// inode of the device node. `None` if the kernel does not report it, because the file's
    /// filesystem has shut down or hangs.
    pub backing: Option<FileId>,
    /// `st_rdev` of the backing file where that is a block device (a loop over a loop), else 0.
    pub backing_rdev: u64,
    /// Path of the backing file, in the mount namespace of the process that attached it. For a
    /// deleted file it ends in " (deleted)". Empty if the path is longer than the kernel shows.
    pub backing_path: String,
    /// [`LoopSpec::offset`], unless a user of the device changed it.
    pub offset: u64,
    /// Maximum number of bytes of the backing file that the device shows; 0 means no limit. The
    /// driver attaches with 0.
    pub size_limit: u64,
    /// [`LoopSpec::label`], unless a user of the device changed it.
    pub label: String,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Logical block size in bytes; 0 if the kernel does not report it.
    pub block_size: u32,
    /// Attached read-only.
    pub read_only: bool,
    /// Detaches at the last close.
    pub autoclear: bool,
    /// Direct I/O on the backing file is active.
    pub direct_io: bool,
}

/// What the kernel adds to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// What a [`LoopTable`] finds devices by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoopKey {
    /// The backing file.
    Backing(FileId),
    /// The backing file is not reported.
    Silent,
    /// The name of the backing file's directory.
    Directory(String),
    /// Minor of the loop device under this one.
    Below(u32),
}

impl Keyed for LoopInfo {
    type Key = LoopKey;

    fn keys(&self) -> impl Iterator<Item = LoopKey> {
        let backing = self.backing.map_or(LoopKey::Silent, LoopKey::Backing);
        let directory = self
            .directory()
            .map(|name| LoopKey::Directory(name.to_owned()));
        std::iter::once(backing)
            .chain(directory)
            .chain(self.below().map(LoopKey::Below))
    }
}

/// The devices that a look needs in full.
#[derive(Clone, Copy, Debug)]
pub enum LoopScope<'a> {
    /// All of them.
    All,
    /// Those that may be over one image.
    Image {
        /// The name of the image's directory.
        directory: &'a str,
        /// Devices that are needed whatever is attached to them.
        minors: &'a BTreeSet<u32>,
    },
}

impl LoopScope<'_> {
    /// False if the backing file's path shows that the device is over another image: its directory
    /// has a name of the same form. (The name of a volume's directory is the volume's ID.)
    pub(crate) fn needs(self, minor: u32, backing_path: &str) -> bool {
        match self {
            LoopScope::All => true,
            LoopScope::Image { directory, minors } => {
                let other = directory_name(backing_path);
                minors.contains(&minor) || !other.is_some_and(|other| is_sibling(other, directory))
            }
        }
    }
}

/// True for two different names of the same form: of one length, and equal up to the last hyphen.
fn is_sibling(a: &str, b: &str) -> bool {
    fn form(name: &str) -> Option<(&str, usize)> {
        name.rsplit_once('-').map(|(form, end)| (form, end.len()))
    }
    a != b && form(a).is_some() && form(a) == form(b)
}

/// The name of the directory that contains this file. The file of a fault disk is in the root
/// directory of its filesystem, and has the name itself.
fn directory_name(path: &str) -> Option<&str> {
    let path = Path::new(path);
    let directory = path.parent()?.file_name();
    directory.or_else(|| path.file_name())?.to_str()
}

/// Loop devices in the order of their minors.
pub type LoopTable = SharedTable<LoopInfo>;

/// What is known of the loop devices, see
/// [`LoopDevices::known_loops`](crate::LoopDevices::known_loops).
#[derive(Clone, Debug, Default)]
pub struct KnownLoops {
    /// The devices.
    pub table: LoopTable,
    /// Minors of devices that were queried just now: nothing of them is old.
    pub asked: BTreeSet<u32>,
}

impl KnownLoops {
    /// Those of these devices that were not queried just now. Before a caller relies on them, the
    /// kernel must confirm them
    /// ([`LoopDevices::confirm_loops`](crate::LoopDevices::confirm_loops)).
    pub fn old<'l>(&self, devices: impl Iterator<Item = &'l LoopInfo>) -> Vec<&'l LoopInfo> {
        devices
            .filter(|device| !self.asked.contains(&device.minor))
            .collect()
    }
}

impl Deref for KnownLoops {
    type Target = LoopTable;

    fn deref(&self) -> &LoopTable {
        &self.table
    }
}

impl From<Vec<LoopInfo>> for KnownLoops {
    fn from(devices: Vec<LoopInfo>) -> Self {
        KnownLoops {
            table: devices.into(),
            ..KnownLoops::default()
        }
    }
}

impl LoopTable {
    /// The device with this minor.
    pub fn device(&self, minor: u32) -> Option<&LoopInfo> {
        self.get(minor.into()).map(|info| &**info)
    }

    /// The devices over this file.
    pub fn over(&self, file: FileId) -> impl Iterator<Item = &LoopInfo> {
        self.with(LoopKey::Backing(file)).map(|info| &**info)
    }

    /// The devices without a reported backing file.
    pub fn silent(&self) -> impl Iterator<Item = &LoopInfo> {
        self.with(LoopKey::Silent).map(|info| &**info)
    }
}

impl FromIterator<LoopInfo> for LoopTable {
    fn from_iter<I: IntoIterator<Item = LoopInfo>>(devices: I) -> Self {
        let mut table = LoopTable::default();
        for info in devices {
            table.insert(info.minor.into(), info.into());
        }
        table
    }
}

impl From<Vec<LoopInfo>> for LoopTable {
    fn from(devices: Vec<LoopInfo>) -> Self {
        devices.into_iter().collect()
    }
}

impl LoopInfo {
    /// The name of the backing file's directory.
    pub fn directory(&self) -> Option<&str> {
        directory_name(&self.backing_path)
    }

    /// The minor of the loop device under this one, if there is one.
    pub fn below(&self) -> Option<u32> {
        let below = self.backing_rdev;
        let is_loop = below != 0 && rustix::fs::major(below) == LOOP_MAJOR;
        is_loop.then(|| rustix::fs::minor(below))
    }

    /// The minor of the loop device that this one may be over: the kernel does not describe this one at
    /// present, and its file has the name of that one's node. In another mount namespace, the node may
    /// have any directory.
    pub fn may_be_over(&self) -> Option<u32> {
        let node = self.file_path().file_name()?.to_str()?;
        let over = node.strip_prefix("loop")?.parse().ok()?;
        self.backing.is_none().then_some(over)
    }

    /// True if the kernel does not report the backing file, but the path contains this file or
    /// directory name. The device may or may not hold the file in question.
    ///
    /// False for a read-only device. It harms no image, and any process that may read the device
    /// can put a file with any path behind it (LOOP_CHANGE_FD).
    pub fn may_hold(&self, name: &str) -> bool {
        if self.backing.is_some() || self.read_only {
            return false;
        }
        self.file_path().iter().any(|word| word == name)
    }

    /// The path of the backing file, without what the kernel adds to that of a deleted one.
    pub fn file_path(&self) -> &Path {
        let path = self.backing_path.as_str();
        Path::new(path.strip_suffix(DELETED).unwrap_or(path))
    }

    /// True if the backing file was deleted.
    pub fn is_deleted(&self) -> bool {
        self.backing_path.ends_with(DELETED)
    }

    /// True if `other` shows the same attachment at another time.
    pub fn is_same(&self, other: &LoopInfo) -> bool {
        self.minor == other.minor
            && match (self.backing, other.backing) {
                (Some(a), Some(b)) => a == b,
                _ => self.backing_path == other.backing_path,
            }
    }

    /// Describes how a user of the device changed it after the driver attached it to a file. Any
    /// process that may open the device can do that. Such a device shows other bytes of its file,
    /// or other blocks, than it should.
    ///
    /// A device over a block device may have blocks of any size: kubelet attaches such devices.
    pub fn tampered(&self) -> Option<String> {
        self.tampered_beside(None)
    }

    /// Like [`LoopInfo::tampered`], for a device that the driver itself may have limited to this
    /// many bytes.
    pub fn tampered_beside(&self, limit: Option<u64>) -> Option<String> {
        let is_own = limit.is_some_and(|limit| limit == self.size_limit);
        let size_limit = if is_own { 0 } else { self.size_limit };
        let blocks = self.block_size;
        match (self.offset, size_limit) {
            (0, 0) if self.backing_rdev != 0 || matches!(blocks, 0 | BLOCK_SIZE) => None,
            (0, 0) => Some(format!(
                "its blocks are of {blocks} bytes, not {BLOCK_SIZE}"
            )),
            (offset, 0) => Some(format!("it begins at byte {offset} of its file")),
            (0, limit) => Some(format!("it is limited to {limit} bytes of its file")),
            (offset, limit) => Some(format!(
                "it is limited to {limit} bytes of its file, from byte {offset} on"
            )),
        }
    }
}

/// Result of a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detached {
    /// The device has no backing file any more.
    Gone,
    /// Another handle holds the device open; the kernel detaches it at the last close.
    WhenClosed,
}

/// Device and inode of an open file.
pub fn file_id(file: impl AsFd) -> Result<FileId> {
    let stat = rustix::fs::fstat(file).map_err(|e| Error::io("fstat", "an open file", e.into()))?;
    Ok(FileId {
        dev: stat.st_dev,
        ino: stat.st_ino,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_changed_by_its_user_is_recognised() {
        // Offset, limit, block size, device number of the backing block device → expected text.
        let table = [
            (0, 0, BLOCK_SIZE, 0, None),
            (4096, 0, BLOCK_SIZE, 0, Some("begins at byte 4096")),
            (0, 8192, BLOCK_SIZE, 0, Some("limited to 8192 bytes")),
            (4096, 8192, 512, 0, Some("from byte 4096 on")),
            (0, 0, 512, 0, Some("blocks are of 512 bytes")),
            // Block size unknown.
            (0, 0, 0, 0, None),
            // Kubelet's loop device over a volume's device.
            (0, 0, 512, 0x700, None),
            (4096, 0, 512, 0x700, Some("begins at byte 4096")),
        ];
        for (offset, size_limit, block_size, backing_rdev, expected) in table {
            let info = LoopInfo {
                offset,
                size_limit,
                block_size,
                backing_rdev,
                ..LoopInfo::default()
            };
            let found = info.tampered();
            let fits = match (&found, expected) {
                (Some(found), Some(expected)) => found.contains(expected),
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(fits, "{info:?}: {found:?}, not {expected:?}");
        }
    }

    #[test]
    fn a_limit_of_the_driver_itself_is_no_change_by_a_user() {
        // Offset, limit, the driver's own limit → changed by a user
        let table = [
            (0, 8192, Some(8192), false),
            (0, 8192, Some(4096), true),
            (0, 8192, None, true),
            (0, 0, Some(8192), false),
            (4096, 8192, Some(8192), true),
        ];
        for (offset, size_limit, own, is_changed) in table {
            let info = LoopInfo {
                offset,
                size_limit,
                block_size: BLOCK_SIZE,
                ..LoopInfo::default()
            };
            let found = info.tampered_beside(own);
            assert_eq!(found.is_some(), is_changed, "{info:?} {own:?}: {found:?}");
        }
    }

    #[test]
    fn a_look_for_an_image_needs_no_device_of_another_one() {
        const OTHER: &str = "/pool/volumes/vol-aa-22/image";
        let none = BTreeSet::new();
        let recorded = BTreeSet::from([3]);
        // Path of the file behind device 3 → needed in full
        let table = [
            ("/pool/volumes/vol-aa-11/image", true),
            ("/elsewhere/vol-aa-11/image (deleted)", true),
            (OTHER, false),
            ("/elsewhere/vol-aa-22/file", false),
            ("/pool/volumes/vol-bb-11/image", true),
            ("/pool/volumes/vol-aa-222/image", true),
            ("/pool/volumes/vol-aa-11/below/image", true),
            ("/dev/loop5", true),
            ("/image", true),
            ("/vol-aa-11", true),
            ("/vol-aa-22", false),
            ("", true),
        ];
        for (path, needed) in table {
            let scope = LoopScope::Image {
                directory: "vol-aa-11",
                minors: &none,
            };
            assert_eq!(scope.needs(3, path), needed, "{path}");
            assert!(LoopScope::All.needs(3, path), "{path}");
        }
        let of_device = LoopScope::Image {
            directory: "vol-aa-11",
            minors: &recorded,
        };
        assert_eq!(
            [3, 4].map(|minor| of_device.needs(minor, OTHER)),
            [true, false]
        );
        let of_pool = LoopScope::Image {
            directory: "default.img",
            minors: &none,
        };
        assert!(of_pool.needs(3, OTHER), "another kind of image");
    }

    #[test]
    fn only_a_writable_device_without_a_reported_file_may_hold_an_image() {
        let known = Some(FileId { dev: 1, ino: 2 });
        let table = [
            (None, "/pool/volumes/vol-x/image", false, true),
            (None, "/pool/volumes/vol-x/image (deleted)", false, true),
            (None, "/pool/volumes/vol-xy/image", false, false),
            (None, "", false, false),
            (known, "/pool/volumes/vol-x/image", false, false),
            (None, "/pool/volumes/vol-x/image", true, false),
        ];
        for (backing, path, read_only, may) in table {
            let info = LoopInfo {
                backing,
                backing_path: path.to_owned(),
                read_only,
                ..LoopInfo::default()
            };
            assert_eq!(info.may_hold("vol-x"), may, "{info:?}");
        }
    }

    #[test]
    fn a_device_that_does_not_answer_may_be_over_the_one_that_its_path_names() {
        let table = [
            ("/dev/loop7", Some(7)),
            ("/loop7", Some(7)),
            ("/run/dev/loop7 (deleted)", Some(7)),
            ("/pool/volumes/vol-1/image", None),
            ("/dev/loop", None),
            ("/dev/loop7p1", None),
            ("", None),
        ];
        for (path, over) in table {
            let device = LoopInfo {
                backing_path: path.to_owned(),
                ..LoopInfo::default()
            };
            let known = LoopInfo {
                backing: Some(FileId { dev: 5, ino: 1 }),
                ..device.clone()
            };
            assert_eq!(device.may_be_over(), over, "{path}");
            assert_eq!(known.may_be_over(), None, "{path}");
        }
    }
}
