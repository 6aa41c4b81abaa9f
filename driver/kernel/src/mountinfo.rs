//! Parses `/proc/self/mountinfo`.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mount_words::Words;
use super::{Keyed, MountOptions, MountPath, SharedTable, is_discard};

#[cfg(test)]
mod tests;

/// One mount, which is one line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount ID, unique while the mount exists.
    pub id: u64,
    /// Mount ID that the kernel never uses again (statmount); `None` in a parsed mountinfo.
    pub unique_id: Option<u64>,
    /// Mount ID of the parent.
    pub parent: u64,
    /// Device number, major and minor. Anonymous for btrfs.
    pub device: (u32, u32),
    /// The mounted directory or file of the filesystem ("/" unless it is a bind mount).
    pub root: MountPath,
    pub mount_point: MountPath,
    /// Options of this mount ("ro", "relatime"…).
    pub options: MountOptions,
    /// Filesystem type.
    pub fs_type: Arc<str>,
    /// The mount source, often `/dev/loopN`; for messages.
    pub source: Arc<str>,
    /// Options of the filesystem ("rw", "errors=remount-ro"…).
    pub super_options: MountOptions,
    /// N of `/dev/loopN` if this is a bind mount of that device node, attached or not.
    pub loop_node: Option<u32>,
    /// Minors of the loop devices with the mounted btrfs, which has an anonymous device number.
    /// `None` for other filesystems, for a btrfs that could not be asked, and in a parsed
    /// mountinfo, which does not show them.
    pub btrfs_loops: Option<Vec<u32>>,
}

impl MountEntry {
    /// The minors of the loop devices that contain the mounted filesystem (none for a bind of a
    /// device node). The kernel's numbers decide. The mount source is only a text: a user chooses
    /// that of most filesystems, and `btrfs device scan` changes that of a mounted btrfs.
    pub fn loop_minors(&self) -> impl Iterator<Item = u32> {
        let (major, minor) = self.device;
        let numbered = (major == super::LOOP_MAJOR).then_some(minor);
        numbered
            .into_iter()
            .chain(self.btrfs_loops.iter().flatten().copied())
    }

    /// The first of [`MountEntry::loop_minors`]. Only a btrfs has more than one.
    pub fn loop_minor(&self) -> Option<u32> {
        self.loop_minors().next()
    }

    /// True if the mounted filesystem is on this loop device.
    pub fn is_on_loop(&self, minor: u32) -> bool {
        self.loop_minors().any(|on| on == minor)
    }

    /// True for a btrfs that could not be asked for its devices.
    pub fn may_be_on_any_loop(&self) -> bool {
        self.is_btrfs() && self.btrfs_loops.is_none()
    }

    /// True for a btrfs. [`MountEntry::btrfs_loops`] has its devices.
    pub(super) fn is_btrfs(&self) -> bool {
        *self.fs_type == *"btrfs"
    }

    /// The loop device of a bound device node of this directory.
    fn loop_node_in(&self, nodes: &DeviceNodes) -> Option<u32> {
        if self.device != nodes.device || self.loop_minor().is_some() {
            return None;
        }
        let root = self.root.to_str()?;
        // The kernel adds this suffix if the node was removed while it was bound.
        let root = Path::new(root.strip_suffix("//deleted").unwrap_or(root));
        if root.parent() != Some(&nodes.dir) {
            return None;
        }
        loop_name(&format!("/dev/{}", root.file_name()?.to_str()?))
    }

    /// True if the mount itself is read-only.
    pub fn read_only(&self) -> bool {
        self.options.has("ro")
    }

    /// True if the filesystem itself is read-only. After an error, a recent ext4 says so only in
    /// its own words.
    pub fn fs_read_only(&self) -> bool {
        self.super_options.has("ro") || self.super_options.has("emergency_ro")
    }

    /// True if the filesystem discards freed space (for btrfs: `discard=async`).
    pub fn discards(&self) -> bool {
        self.super_options
            .iter()
            .any(|option| is_discard(option) && option != "nodiscard")
    }
}

/// Parses N of `/dev/loopN`, in the kernel's notation only.
pub fn loop_name(path: &str) -> Option<u32> {
    let digits = path.strip_prefix("/dev/loop")?;
    let minor: u32 = digits.parse().ok()?;
    (minor.to_string() == digits).then_some(minor)
}

/// What a [`MountTable`] finds mounts by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountKey {
    /// The mount point.
    At(MountPath),
    /// Minor of the loop device with the mounted filesystem.
    Loop(u32),
    /// Minor of the loop device with the bound node.
    LoopNode(u32),
    /// The filesystem may be on any loop device: it could not be asked.
    AnyLoop,
}

impl Keyed for MountEntry {
    type Key = MountKey;

    fn keys(&self) -> impl Iterator<Item = MountKey> {
        let at = MountKey::At(self.mount_point.clone());
        let of_loop = self.loop_minors().map(MountKey::Loop);
        std::iter::once(at)
            .chain(of_loop)
            .chain(self.loop_node.map(MountKey::LoopNode))
            .chain(self.may_be_on_any_loop().then_some(MountKey::AnyLoop))
    }
}

/// All mounts of a namespace, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    /// The mounts, by their unique IDs, or else by their lines in mountinfo. A later mount hides
    /// an earlier one at the same path.
    pub entries: SharedTable<MountEntry>,
    /// Where this namespace's device nodes are.
    nodes: Option<DeviceNodes>,
}

/// The directory of this namespace's own device nodes: `/dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceNodes {
    /// Device number of the filesystem that contains it.
    device: (u32, u32),
    /// Its path in that filesystem.
    dir: PathBuf,
}

impl MountTable {
    /// Parses mountinfo text. An invalid line is an error that contains the line.
    pub fn parse(text: &[u8]) -> Result<MountTable, String> {
        parse(text).map(MountTable::of)
    }

    /// Makes the table of these mounts, in the kernel's order.
    pub fn of(entries: Vec<MountEntry>) -> MountTable {
        let mut table = MountTable::default();
        table.change([], (0..).zip(entries));
        table
    }

    /// Removes and adds mounts by their numbers. Finds bind mounts of loop device nodes in this
    /// namespace's own `/dev`. A node on another filesystem proves nothing: a pod may create one
    /// with any name and number, and have kubelet bind it.
    pub(super) fn change(
        &mut self,
        gone: impl IntoIterator<Item = u64>,
        new: impl IntoIterator<Item = (u64, MountEntry)>,
    ) {
        for number in gone {
            self.entries.remove(number);
        }
        let mut to_tag = Vec::new();
        for (number, entry) in new {
            self.entries.insert(number, Arc::new(entry));
            to_tag.push(number);
        }
        let nodes = self.device_nodes();
        if nodes != self.nodes {
            self.nodes = nodes;
            to_tag = self.entries.numbers().collect();
        }
        for number in to_tag {
            let Some(entry) = self.entries.get(number) else {
                continue;
            };
            let loop_node = self
                .nodes
                .as_ref()
                .and_then(|nodes| entry.loop_node_in(nodes));
            if loop_node != entry.loop_node {
                let entry = MountEntry {
                    loop_node,
                    ..(**entry).clone()
                };
                self.entries.insert(number, Arc::new(entry));
            }
        }
    }

    fn device_nodes(&self) -> Option<DeviceNodes> {
        let dev = Path::new("/dev");
        let on = self.at(dev).or_else(|| self.at(Path::new("/")))?;
        let below = dev.strip_prefix(&*on.mount_point).unwrap_or(dev);
        Some(DeviceNodes {
            device: on.device,
            dir: on.root.join(below),
        })
    }

    /// The topmost mount at exactly this path.
    pub fn at(&self, path: &Path) -> Option<&MountEntry> {
        self.shared_at(path).map(|entry| &**entry)
    }

    /// The topmost mount at exactly this path, to keep it.
    pub(crate) fn shared_at(&self, path: &Path) -> Option<&Arc<MountEntry>> {
        self.entries.with(at(path)).next_back()
    }

    /// The numbers of all mounts at exactly this path.
    pub(super) fn numbers_at(&self, path: &Path) -> impl Iterator<Item = u64> {
        self.entries.numbers_with(at(path))
    }

    /// Bind mounts of a loop device's node, oldest first.
    pub fn of_loop_node(&self, minor: u32) -> impl Iterator<Item = &MountEntry> {
        self.entries
            .with(MountKey::LoopNode(minor))
            .map(|entry| &**entry)
    }

    /// Mounts of a btrfs that could not be asked for its devices.
    pub fn of_any_loop(&self) -> impl Iterator<Item = &MountEntry> {
        self.entries.with(MountKey::AnyLoop).map(|entry| &**entry)
    }

    /// Filesystem mounts of a loop device, the oldest first.
    pub fn of_loop(&self, minor: u32) -> impl Iterator<Item = &MountEntry> {
        self.entries
            .with(MountKey::Loop(minor))
            .map(|entry| &**entry)
    }
}

fn at(path: &Path) -> MountKey {
    MountKey::At(path.into())
}

/// Parses the lines of mountinfo.
pub(super) fn parse(text: &[u8]) -> Result<Vec<MountEntry>, String> {
    let mut words = Words::default();
    text.split(|&b| b == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            parse_line(line, &mut words)
                .ok_or_else(|| format!("no mountinfo: {:?}", String::from_utf8_lossy(line)))
        })
        .collect()
}

/// Parses `ID PARENT MAJOR:MINOR ROOT MOUNT-POINT OPTIONS [TAG…] - TYPE SOURCE SUPER-OPTIONS`. It
/// splits at single spaces, because a source can be empty.
fn parse_line(line: &[u8], words: &mut Words) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = fields.next()?;
    let colon = device.iter().position(|&b| b == b':')?;
    let device = (number(&device[..colon])?, number(&device[colon + 1..])?);
    let root = words.path(OsStr::from_bytes(&unescape(fields.next()?)));
    let mount_point = OsStr::from_bytes(&unescape(fields.next()?)).into();
    let options = words.options(&String::from_utf8_lossy(fields.next()?));
    fields.find(|field| *field == b"-")?;
    let fs_type = words.text(&String::from_utf8_lossy(&unescape(fields.next()?)));
    let source = words.text(&String::from_utf8_lossy(&unescape(fields.next()?)));
    let super_options = String::from_utf8_lossy(fields.next().unwrap_or_default());
    Some(MountEntry {
        id,
        unique_id: None,
        parent,
        device,
        root,
        mount_point,
        options,
        fs_type,
        source,
        super_options: words.options(&super_options),
        loop_node: None,
        btrfs_loops: None,
    })
}

/// True if mountinfo shows the mount with this ID as one of a group of peers.
pub(super) fn is_shared(text: &[u8], id: u64) -> bool {
    text.split(|&b| b == b'\n').any(|line| {
        let mut fields = line.split(|&b| b == b' ');
        fields.next().and_then(number) == Some(id)
            && fields
                .skip(5)
                .take_while(|field| *field != b"-")
                .any(|field| field.starts_with(b"shared:"))
    })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Undoes the kernel's octal escapes (`\040` for a space; also TAB, LF, backslash and `#`). A
/// backslash that does not start an escape stays.
fn unescape(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    Cow::Owned(out)
}
