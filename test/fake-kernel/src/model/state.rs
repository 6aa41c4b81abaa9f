//! The model's tables: loop devices, superblocks, mounts, and the holders of each device.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use hostloop_kernel::file::name_of;
use hostloop_kernel::mountinfo::loop_name;
use hostloop_kernel::{
    BLOCK_SIZE, Error, FileId, FsType, LOOP_MAJOR, LoopDevice, LoopInfo, LoopSpec, MountEntry,
    MountTable, Result, file_id, is_discard, loop_path,
};
use rustix::fs::{FlockOperation, MemfdFlags, OFlags};

use super::FIRST_MINOR;
use super::content::{self, Content};
use super::shared_blocks::SharedBlocks;

/// A block device: a loop device, or a regular file in place of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Device {
    Loop(u32),
    Disk(FileId),
}

/// An attached loop device.
pub(super) struct Slot {
    pub(super) backing: FileId,
    pub(super) rdev: u64,
    /// The open file keeps a deleted file, or a loop device below, in use.
    pub(super) file: File,
    pub(super) size: u64,
    pub(super) read_only: bool,
    pub(super) autoclear: bool,
    pub(super) direct_io: bool,
    pub(super) read_ahead_kib: u32,
    pub(super) offset: u64,
    pub(super) size_limit: u64,
    pub(super) block_size: u32,
    pub(super) label: String,
    /// The number of this attachment.
    pub(super) diskseq: u64,
    /// The filesystem of the backing file does not answer.
    pub(super) silent: bool,
}

/// A filesystem in use. It exists while it is mounted or frozen.
pub(super) struct Super {
    pub(super) fs: FsType,
    pub(super) uuid: String,
    pub(super) read_only: bool,
    pub(super) frozen: bool,
    /// It takes and writes nothing any more.
    pub(super) shut_down: bool,
    pub(super) errors: Option<String>,
    /// The last stamp that was written to it, unless its image has it.
    pub(super) dirty: Option<u64>,
    /// Path of the device.
    pub(super) source: PathBuf,
    options: Vec<String>,
}

/// A mount, and the device of its filesystem if it has one.
#[derive(Clone)]
pub(super) struct Mounted {
    pub(super) entry: MountEntry,
    pub(super) device: Option<Device>,
    /// The mount namespace that it is in; `None` for all of them.
    pub(super) namespace: Option<u32>,
}

pub(super) struct State {
    pub(super) loops: BTreeMap<u32, Slot>,
    /// Files in place of `/dev/loopN`: each has its own inode, and every opener has a shared lock
    /// on it.
    nodes: BTreeMap<u32, File>,
    pub(super) supers: BTreeMap<Device, Super>,
    /// The mounts of all namespaces.
    pub(super) mounts: Vec<Mounted>,
    /// The mount namespace of the caller.
    pub(super) namespace: u32,
    /// The number of namespaces besides the first one.
    pub(super) namespaces: u32,
    pub(super) busy: Vec<PathBuf>,
    pub(super) buffered: Vec<FileId>,
    /// No btrfs says on which devices it is.
    pub(super) unasked: bool,
    /// The loop devices that every new mount of a btrfs is on, if not the one that it names.
    pub(super) scanned: Option<Vec<u32>>,
    /// What files share. That is on the disk, and outlives a reboot.
    pub(super) shared: SharedBlocks,
    next_mount: u64,
    next_diskseq: u64,
}

impl Default for State {
    fn default() -> State {
        let base = |id, at: &str, device, fs_type: &str| Mounted {
            entry: MountEntry {
                id,
                unique_id: None,
                parent: id - 1,
                device,
                root: "/".into(),
                mount_point: at.into(),
                options: "rw,relatime".into(),
                fs_type: fs_type.into(),
                source: fs_type.into(),
                super_options: "rw".into(),
                loop_node: None,
                btrfs_loops: None,
            },
            device: None,
            namespace: None,
        };
        State {
            loops: BTreeMap::new(),
            nodes: BTreeMap::new(),
            supers: BTreeMap::new(),
            mounts: vec![
                base(1, "/", (254, 0), "ext4"),
                base(2, "/dev", (0, 5), "devtmpfs"),
            ],
            namespace: 0,
            namespaces: 0,
            busy: Vec::new(),
            buffered: Vec::new(),
            unasked: false,
            scanned: None,
            shared: SharedBlocks::default(),
            next_mount: 3,
            next_diskseq: 1,
        }
    }
}

impl State {
    /// Forgets all but what is on the disk, and how many namespaces there were: those of before
    /// keep their numbers.
    pub(super) fn reboot(&mut self) {
        *self = State {
            namespaces: self.namespaces,
            shared: self.shared.clone(),
            ..State::default()
        };
    }

    /// Detaches the autoclear devices that nothing holds. Repeats this, since one may hold another.
    pub(super) fn settle(&mut self) {
        let supers = self.supers.iter();
        let unused: Vec<Device> = supers
            .filter(|(device, sb)| {
                !sb.frozen && !self.mounts.iter().any(|m| m.device == Some(**device))
            })
            .map(|(device, _)| *device)
            .collect();
        for device in unused {
            // As on the real kernel, what can't be written back at the unmount is lost.
            let _ = self.write_back(device);
            self.supers.remove(&device);
        }
        while let Some(minor) = self
            .loops
            .iter()
            .find(|(minor, slot)| slot.autoclear && !self.is_held(**minor))
            .map(|(minor, _)| *minor)
        {
            self.loops.remove(&minor);
        }
    }

    /// True if anything holds the device open: a handle, a filesystem, or a loop device over it.
    pub(super) fn is_held(&self, minor: u32) -> bool {
        let opened = self.nodes.get(&minor).is_some_and(|node| {
            let exclusive = rustix::fs::flock(node, FlockOperation::NonBlockingLockExclusive);
            let _ = rustix::fs::flock(node, FlockOperation::Unlock);
            exclusive.is_err()
        });
        opened || self.supers.contains_key(&Device::Loop(minor))
    }

    pub(super) fn attach(&mut self, spec: &LoopSpec<'_>) -> Result<LoopDevice> {
        let minor = match spec.minor {
            Some(minor) => minor,
            None => (FIRST_MINOR..)
                .find(|minor| !self.loops.contains_key(minor) && !self.is_bound(*minor))
                .unwrap_or(FIRST_MINOR),
        };
        let path = loop_path(minor);
        if self.loops.contains_key(&minor) {
            return Err(Error::errno("LOOP_CONFIGURE", path, libc::EBUSY));
        }
        let backing = file_id(spec.backing)?;
        let failed = |e| Error::io("LOOP_CONFIGURE", &path, e);
        let below = self.node_minor(backing);
        let (size, below_read_only) = match below {
            Some(below) => self
                .loops
                .get(&below)
                .map(|slot| (slot.size, slot.read_only))
                .ok_or_else(|| Error::errno("LOOP_CONFIGURE", &path, libc::ENXIO))?,
            None => (spec.backing.metadata().map_err(failed)?.len(), false),
        };
        let slot = Slot {
            backing,
            rdev: below.map_or(0, |below| rustix::fs::makedev(LOOP_MAJOR, below)),
            file: spec.backing.try_clone().map_err(failed)?,
            size: size.saturating_sub(spec.offset),
            read_only: spec.read_only
                || below_read_only
                || below.is_none() && !takes_writes(spec.backing),
            autoclear: spec.autoclear,
            direct_io: spec.direct_io && !self.buffered.contains(&backing),
            read_ahead_kib: hostloop_kernel::READ_AHEAD_KIB,
            offset: spec.offset,
            size_limit: 0,
            block_size: BLOCK_SIZE,
            label: spec.label.to_owned(),
            diskseq: self.next_diskseq,
            silent: false,
        };
        self.next_diskseq += 1;
        self.loops.insert(minor, slot);
        self.open(minor)
    }

    /// True if a bind of the device's node is mounted anywhere.
    fn is_bound(&self, minor: u32) -> bool {
        self.table().of_loop_node(minor).next().is_some()
    }

    /// The minor of the device node with this identity.
    fn node_minor(&self, id: FileId) -> Option<u32> {
        self.nodes
            .iter()
            .find(|(_, node)| file_id(node).is_ok_and(|node| node == id))
            .map(|(minor, _)| *minor)
    }

    /// Opens a new handle on an attached device.
    pub(super) fn open(&mut self, minor: u32) -> Result<LoopDevice> {
        let path = loop_path(minor);
        let failed = |e| Error::io("open", &path, e);
        let Some(slot) = self.loops.get(&minor) else {
            return Err(Error::errno("open", &path, libc::ENXIO));
        };
        let node = match self.nodes.entry(minor) {
            Entry::Occupied(node) => node.into_mut(),
            Entry::Vacant(vacant) => {
                let node = rustix::fs::memfd_create(path.as_os_str(), MemfdFlags::CLOEXEC);
                vacant.insert(node.map_err(|e| failed(e.into()))?.into())
            }
        };
        // Not a duplicate: only a separate open file has its own lock.
        let file = File::open(format!("/proc/self/fd/{}", node.as_raw_fd())).map_err(failed)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|e| failed(e.into()))?;
        Ok(LoopDevice {
            minor,
            direct_io: slot.direct_io,
            file,
        })
    }

    pub(super) fn info(&self, minor: u32) -> Option<LoopInfo> {
        self.loops.get(&minor).map(|slot| LoopInfo {
            minor,
            backing: (!slot.silent).then_some(slot.backing),
            backing_rdev: if slot.silent { 0 } else { slot.rdev },
            backing_path: match slot.rdev {
                0 => name_of(&slot.file).display().to_string(),
                below => loop_path(rustix::fs::minor(below)).display().to_string(),
            },
            offset: slot.offset,
            size_limit: slot.size_limit,
            label: if slot.silent {
                String::new()
            } else {
                slot.label.clone()
            },
            size_bytes: slot.size,
            block_size: slot.block_size,
            read_only: slot.read_only,
            autoclear: slot.autoclear,
            direct_io: slot.direct_io,
        })
    }

    /// Sets the device's size to that of the file or device below.
    pub(super) fn resize(&mut self, minor: u32) -> Result<()> {
        let below = self
            .loops
            .get(&minor)
            .and_then(|slot| self.node_minor(slot.backing));
        let below = below
            .and_then(|below| self.loops.get(&below))
            .map(|slot| slot.size);
        let slot = self.slot(minor, "LOOP_SET_CAPACITY")?;
        let size = match below {
            Some(size) => size,
            None => slot
                .file
                .metadata()
                .map_err(|e| Error::io("fstat", loop_path(minor), e))?
                .len(),
        };
        let size = size.saturating_sub(slot.offset);
        slot.size = match slot.size_limit {
            0 => size,
            limit => size.min(limit),
        };
        Ok(())
    }

    pub(super) fn slot(&mut self, minor: u32, op: &'static str) -> Result<&mut Slot> {
        self.loops
            .get_mut(&minor)
            .ok_or_else(|| Error::errno(op, loop_path(minor), libc::ENXIO))
    }

    /// The device at a path.
    pub(super) fn device(&self, path: &Path) -> Result<Device> {
        if let Some(minor) = path.to_str().and_then(loop_name) {
            return if self.loops.contains_key(&minor) {
                Ok(Device::Loop(minor))
            } else {
                Err(Error::errno("open", path, libc::ENXIO))
            };
        }
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        file_id(&file).map(Device::Disk)
    }

    /// The file that contains a device's bytes, and whether the device accepts writes.
    pub(super) fn bytes(&self, path: &Path) -> Result<(File, bool)> {
        let mut minor = match self.device(path)? {
            Device::Loop(minor) => minor,
            Device::Disk(_) => {
                let file = File::options().read(true).write(true).open(path);
                return Ok((file.map_err(|e| Error::io("open", path, e))?, true));
            }
        };
        let mut writable = true;
        while let Some(slot) = self.loops.get(&minor) {
            writable &= !slot.read_only;
            match self.node_minor(slot.backing) {
                Some(below) => minor = below,
                None => {
                    let file = slot.file.try_clone();
                    return Ok((file.map_err(|e| Error::io("open", path, e))?, writable));
                }
            }
        }
        Err(Error::errno("open", path, libc::ENXIO))
    }

    /// A device that begins beyond the end of its file has no bytes.
    pub(super) fn content(&self, device: &Path) -> Result<Content> {
        if self.size(device)? == 0 {
            return Ok(Content::Blank);
        }
        content::read(&self.bytes(device)?.0)
    }

    /// Changes what a device is. Its users' stamp stays.
    pub(super) fn set_content(&self, device: &Path, content: &Content) -> Result<()> {
        let file = self.bytes_to_write(device)?;
        content::write(&file, content, content::read_stamp(&file)?)?;
        self.shared.first_is_written(&file);
        Ok(())
    }

    /// Gives a device a stamp.
    pub(super) fn set_stamp(&self, device: &Path, stamp: u64) -> Result<()> {
        let file = self.bytes_to_write(device)?;
        content::write_stamp(&file, stamp)?;
        self.shared.first_is_written(&file);
        Ok(())
    }

    /// Gives a device another content, in which its users have written nothing.
    pub(super) fn overwrite(&self, device: &Path, content: &Content) -> Result<()> {
        let file = self.bytes_to_write(device)?;
        content::write(&file, content, 0)?;
        self.shared.all_are_written(&file);
        Ok(())
    }

    /// Writes so many bytes of tables to a device, as far as it has room for them.
    pub(super) fn write_tables(&self, device: &Path, bytes: u64) -> Result<()> {
        let begin = u64::from(BLOCK_SIZE);
        let room = self.size(device)?.saturating_sub(begin);
        let tables = vec![0xa5; usize::try_from(bytes.min(room)).unwrap_or_default()];
        let written = self.bytes_to_write(device)?.write_all_at(&tables, begin);
        written.map_err(|e| Error::io("write", device, e))
    }

    /// The file that contains a device's bytes. Fails if the device accepts no writes.
    pub(super) fn bytes_to_write(&self, device: &Path) -> Result<File> {
        let (file, writable) = self.bytes(device)?;
        if !writable {
            return Err(Error::errno("write", device, libc::EPERM));
        }
        Ok(file)
    }

    /// Size of a device in bytes.
    pub(super) fn size(&self, device: &Path) -> Result<u64> {
        match self.device(device)? {
            Device::Loop(minor) => Ok(self.loops.get(&minor).map_or(0, |slot| slot.size)),
            Device::Disk(_) => std::fs::metadata(device)
                .map(|m| m.len())
                .map_err(|e| Error::io("stat", device, e)),
        }
    }

    pub(super) fn is_mounted(&self, device: &Path) -> bool {
        self.device(device)
            .is_ok_and(|device| self.supers.contains_key(&device))
    }

    /// True if the kernel has mounted other devices for the btrfs on this one.
    pub(super) fn is_passed_over(&self, device: &Path) -> bool {
        let Ok(Device::Loop(minor)) = self.device(device) else {
            return false;
        };
        let mounts = self.mounts.iter();
        mounts
            .filter(|mounted| mounted.device == Some(Device::Loop(minor)))
            .filter_map(|mounted| mounted.entry.btrfs_loops.as_ref())
            .any(|loops| !loops.contains(&minor))
    }

    pub(super) fn takes_writes(&self, device: &Path) -> Result<bool> {
        Ok(self.bytes(device)?.1)
    }

    /// The mounts that the caller sees.
    fn visible(&self) -> impl DoubleEndedIterator<Item = &Mounted> {
        self.mounts.iter().filter(move |mounted| {
            mounted
                .namespace
                .is_none_or(|namespace| namespace == self.namespace)
        })
    }

    /// The topmost mount at exactly this path.
    pub(super) fn at(&self, path: &Path) -> Option<&Mounted> {
        self.visible()
            .rev()
            .find(|mounted| mounted.entry.mount_point == path)
    }

    /// The mount that contains a path.
    pub(super) fn containing(&self, path: &Path) -> Option<&Mounted> {
        path.ancestors().find_map(|above| self.at(above))
    }

    /// A handle to the filesystem on a device, which [`State::super_of`] finds by its name.
    pub(super) fn open_node(&mut self, device: &Path) -> Result<File> {
        match self.device(device)? {
            Device::Loop(minor) => Ok(self.open(minor)?.file),
            Device::Disk(_) => File::open(device).map_err(|e| Error::io("open", device, e)),
        }
    }

    /// The filesystem of a path, or of a handle from [`State::open_node`], if it is on a device of
    /// the model.
    pub(super) fn super_of(&mut self, path: &Path) -> Option<&mut Super> {
        let device = self.device_of(path)?;
        self.supers.get_mut(&device)
    }

    /// The device of a filesystem, as [`State::super_of`] finds it.
    pub(super) fn device_of(&self, path: &Path) -> Option<Device> {
        let node = self.nodes.iter().find(|(_, node)| name_of(node) == path);
        match node {
            Some((minor, _)) => Some(Device::Loop(*minor)),
            None => self.containing(path)?.device,
        }
    }

    pub(super) fn push(&mut self, mut mounted: Mounted) {
        mounted.entry.id = self.next_mount;
        mounted.namespace = Some(self.namespace);
        mounted.entry.parent = self
            .containing(&mounted.entry.mount_point)
            .map_or(0, |m| m.entry.id);
        self.next_mount += 1;
        self.mounts.push(mounted);
    }

    /// The mount table, with the current options of the superblocks.
    pub(super) fn table(&self) -> MountTable {
        let entries = self.visible().map(|mounted| {
            let mut entry = mounted.entry.clone();
            if let Some(sb) = mounted.device.and_then(|device| self.supers.get(&device)) {
                entry.super_options = sb.words().join(",").as_str().into();
            }
            if self.unasked {
                entry.btrfs_loops = None;
            }
            entry
        });
        MountTable::of(entries.collect())
    }
}

/// True if a file is open for writing. Otherwise the kernel makes a read-only device over it.
fn takes_writes(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.intersects(OFlags::WRONLY | OFlags::RDWR))
}

impl Super {
    pub(super) fn new(
        fs: FsType,
        uuid: String,
        source: &Path,
        read_only: bool,
        options: Vec<String>,
    ) -> Super {
        Super {
            fs,
            uuid,
            read_only,
            frozen: false,
            shut_down: false,
            errors: None,
            dirty: None,
            source: source.to_path_buf(),
            options,
        }
    }

    pub(super) fn set_discard(&mut self, on: bool) {
        self.options.retain(|o| !is_discard(o));
        self.options.push(match (on, self.fs) {
            (true, FsType::Btrfs) => "discard=async".to_owned(),
            (true, _) => "discard".to_owned(),
            (false, _) => "nodiscard".to_owned(),
        });
    }

    /// The options that differ from the default, as mountinfo shows them.
    fn words(&self) -> Vec<String> {
        let mut words = vec![if self.read_only { "ro" } else { "rw" }.to_owned()];
        // As of Linux 6.10, and only ext4 says so.
        if self.shut_down && self.fs == FsType::Ext4 {
            words.push("shutdown".to_owned());
        }
        let said = self.options.iter().any(|o| is_discard(o));
        if self.fs == FsType::Btrfs && !said {
            words.push("discard=async".to_owned());
        }
        let shown = |o: &&String| self.fs == FsType::Btrfs || *o != "nodiscard";
        words.extend(self.options.iter().filter(shown).cloned());
        words
    }
}
