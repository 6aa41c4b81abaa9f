//! Parses `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SharedList;

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
    pub root: PathBuf,
    /// The mount point.
    pub mount_point: PathBuf,
    /// Options of this mount ("ro", "relatime"…).
    pub options: Vec<String>,
    /// Filesystem type.
    pub fs_type: String,
    /// The mount source, often `/dev/loopN`.
    pub source: String,
    /// Options of the filesystem ("rw", "errors=remount-ro"…).
    pub super_options: Vec<String>,
    /// N of `/dev/loopN` if this is a bind mount of that device node, attached or not.
    pub loop_node: Option<u32>,
}

impl MountEntry {
    /// The minor of the loop device that contains the mounted filesystem (`None` for a bind of a
    /// device node). The device number decides, or the source if the number is anonymous.
    pub fn loop_minor(&self) -> Option<u32> {
        match self.device {
            (super::LOOP_MAJOR, minor) => Some(minor),
            // Only btrfs: for other filesystems with an anonymous number, a user can choose any
            // source. The mount of a device node (devtmpfs, tmpfs) has an anonymous number, too.
            (0, _) if self.fs_type == "btrfs" => loop_name(&self.source),
            _ => None,
        }
    }

    /// The entry with its loop node.
    fn in_table(self, nodes: Option<&DeviceNodes>) -> MountEntry {
        let loop_node = nodes.and_then(|nodes| self.loop_node_in(nodes));
        MountEntry { loop_node, ..self }
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

    /// True if the mount is at exactly this path. Comparing bytes is much faster than comparing the
    /// components of paths; both sides are in the kernel's notation.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.mount_point.as_os_str() == path.as_os_str()
    }

    /// True if the mount itself is read-only.
    pub fn read_only(&self) -> bool {
        self.options.iter().any(|o| o == "ro")
    }
}

/// Parses N of `/dev/loopN`, in the kernel's notation only.
pub(crate) fn loop_name(path: &str) -> Option<u32> {
    let digits = path.strip_prefix("/dev/loop")?;
    let minor: u32 = digits.parse().ok()?;
    (minor.to_string() == digits).then_some(minor)
}

/// All mounts of a namespace, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    /// The mounts; a later one at the same path hides an earlier one.
    pub entries: SharedList<MountEntry>,
    /// Where this namespace's device nodes are.
    nodes: Option<DeviceNodes>,
}

/// An entry of the table that follows another.
pub(super) enum Followed {
    /// It was in the earlier table.
    Known(Arc<MountEntry>),
    /// It is new, and its loop node is not known yet. Boxed, because a long table has few new ones.
    New(Box<MountEntry>),
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
        let entries = text
            .split(|&b| b == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| {
                parse_line(line)
                    .ok_or_else(|| format!("no mountinfo: {:?}", String::from_utf8_lossy(line)))
            })
            .collect::<Result<_, _>>()?;
        Ok(MountTable::of(entries))
    }

    /// Makes the table of these mounts, in the kernel's order, and finds bind mounts of loop device
    /// nodes in this namespace's own `/dev`. A node on another filesystem proves nothing: a pod may
    /// create one with any name and number, and have kubelet bind it.
    pub(super) fn of(entries: Vec<MountEntry>) -> MountTable {
        MountTable::default()
            .followed_by(entries.into_iter().map(|entry| Followed::New(Box::new(entry))).collect())
    }

    /// Makes the table that follows this one.
    pub(super) fn followed_by(&self, entries: Vec<Followed>) -> MountTable {
        let nodes = device_nodes(entries.iter().map(|entry| match entry {
            Followed::Known(entry) => &**entry,
            Followed::New(entry) => entry,
        }));
        let same_nodes = nodes == self.nodes;
        let finished = entries.into_iter().map(|entry| match entry {
            Followed::Known(entry) if same_nodes => entry,
            Followed::Known(entry) => Arc::new((*entry).clone().in_table(nodes.as_ref())),
            Followed::New(entry) => Arc::new((*entry).in_table(nodes.as_ref())),
        });
        MountTable { entries: finished.collect(), nodes }
    }

    /// The topmost mount at exactly this path.
    pub fn at(&self, path: &Path) -> Option<&MountEntry> {
        self.place_at(path).map(|place| &self.entries[place])
    }

    /// The place of the topmost mount at exactly this path.
    pub(crate) fn place_at(&self, path: &Path) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.is_at(path))
    }

    /// Bind mounts of a loop device's node, oldest first.
    pub fn of_loop_node(&self, minor: u32) -> impl Iterator<Item = &MountEntry> {
        let entries = self.entries.iter();
        entries.filter(move |e| e.loop_node == Some(minor))
    }

    /// Filesystem mounts of a loop device, the oldest first.
    pub fn of_loop(&self, minor: u32) -> impl Iterator<Item = &MountEntry> {
        self.entries.iter().filter(move |e| e.loop_minor() == Some(minor))
    }
}

/// The topmost mount at exactly this path.
fn topmost<'a>(
    entries: impl DoubleEndedIterator<Item = &'a MountEntry>,
    path: &Path,
) -> Option<&'a MountEntry> {
    entries.rev().find(|entry| entry.is_at(path))
}

fn device_nodes<'a>(
    entries: impl DoubleEndedIterator<Item = &'a MountEntry> + Clone,
) -> Option<DeviceNodes> {
    let dev = Path::new("/dev");
    let on = topmost(entries.clone(), dev).or_else(|| topmost(entries, Path::new("/")))?;
    let below = dev.strip_prefix(&on.mount_point).unwrap_or(dev);
    Some(DeviceNodes { device: on.device, dir: on.root.join(below) })
}

/// Parses `ID PARENT MAJOR:MINOR ROOT MOUNT-POINT OPTIONS [TAG…] - TYPE SOURCE SUPER-OPTIONS`. It
/// splits at single spaces, because a source can be empty.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let id = number(fields.next()?)?;
    let parent = number(fields.next()?)?;
    let device = fields.next()?;
    let colon = device.iter().position(|&b| b == b':')?;
    let device = (number(&device[..colon])?, number(&device[colon + 1..])?);
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let options = words(fields.next()?);
    fields.find(|field| *field == b"-")?;
    Some(MountEntry {
        id,
        unique_id: None,
        parent,
        device,
        root,
        mount_point,
        options,
        fs_type: text(fields.next()?),
        source: text(fields.next()?),
        super_options: fields.next().map(words).unwrap_or_default(),
        loop_node: None,
    })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn words(field: &[u8]) -> Vec<String> {
    field.split(|&b| b == b',').filter(|word| !word.is_empty()).map(text).collect()
}

/// Undoes the kernel's octal escapes (`\040` for a space; also TAB, LF, backslash and `#`). A
/// backslash that does not start an escape stays.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}
