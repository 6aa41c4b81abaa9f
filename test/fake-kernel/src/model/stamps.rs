//! Stamps: numbers in place of the data that users write to filesystems and raw block devices.

use std::fs::File;
use std::path::{Path, PathBuf};

use hostloop_kernel::file::name_of;
use hostloop_kernel::mountinfo::loop_name;
use hostloop_kernel::{Error, Result, file_id};

use super::mounting::place;
use super::state::{Device, State};
use super::{Model, content};

/// The stamps of a filesystem or raw block device; 0 if nothing was written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// What its users read.
    pub written: u64,
    /// What its image has, and a reboot leaves.
    pub synced: u64,
}

impl Stamps {
    /// Those of an image that has this, and of a filesystem on it that has this in memory.
    fn of(synced: u64, dirty: Option<u64>) -> Stamps {
        Stamps {
            written: dirty.unwrap_or(synced),
            synced,
        }
    }
}

/// What is mounted at a path.
enum Target {
    Filesystem {
        device: Device,
        read_only: bool,
    },
    /// The node of a block device.
    Node(PathBuf),
}

impl Model {
    /// The stamps of an image, whether it is in use or not.
    pub fn stamps_of(&self, image: &Path) -> Result<Stamps> {
        let file = File::open(image).map_err(|e| Error::io("open", image, e))?;
        let id = file_id(&file)?;
        // Without settling: handles of devices do not matter to filesystems.
        let s = self.state.lock();
        let synced = content::read_stamp(&file)?;
        let mut supers = s.supers.iter();
        let dirty = supers.find_map(|(device, sb)| {
            let Device::Loop(minor) = device else {
                return None;
            };
            let slot = s.loops.get(minor)?;
            sb.dirty.filter(|_| slot.backing == id)
        });
        Ok(Stamps::of(synced, dirty))
    }

    /// The path of the image of the filesystem or raw block device that is mounted at a path, and
    /// its stamps.
    pub fn stamps_at(&self, path: &Path) -> Result<(PathBuf, Stamps)> {
        self.settled(|s| {
            let (node, dirty) = match s.target(path)? {
                Target::Node(node) => (node, None),
                Target::Filesystem { device, .. } => {
                    let sb = s.supers.get(&device);
                    let sb = sb.filter(|sb| !sb.shut_down);
                    let sb = sb.ok_or_else(|| refused(path, libc::EIO))?;
                    (sb.source.clone(), sb.dirty)
                }
            };
            let (file, _) = s.bytes(&node)?;
            let synced = content::read_stamp(&file)?;
            Ok((name_of(&file), Stamps::of(synced, dirty)))
        })
    }

    /// Writes a stamp to what is mounted at a path. A raw block device has it at once. A frozen
    /// filesystem would let its writer wait: the write fails with EAGAIN.
    pub fn write_stamp(&self, path: &Path, stamp: u64) -> Result<()> {
        self.settled(|s| match s.target(path)? {
            Target::Node(node) => s.set_stamp(&node, stamp),
            Target::Filesystem { device, read_only } => {
                let sb = s.supers.get_mut(&device);
                let sb = sb.ok_or_else(|| refused(path, libc::EIO))?;
                if read_only || sb.read_only {
                    return Err(refused(path, libc::EROFS));
                }
                if sb.shut_down {
                    return Err(refused(path, libc::EIO));
                }
                if sb.frozen {
                    return Err(refused(path, libc::EAGAIN));
                }
                sb.dirty = Some(stamp);
                Ok(())
            }
        })
    }

    /// Syncs the filesystem that is mounted at a path, as a process in it can.
    pub fn sync_stamp(&self, path: &Path) -> Result<()> {
        self.settled(|s| match s.target(path)? {
            Target::Node(_) => Ok(()),
            Target::Filesystem { device, .. } => s.write_back(device),
        })
    }
}

fn refused(path: &Path, number: i32) -> Error {
    Error::errno("stamp", path, number)
}

impl State {
    /// Finds what is mounted at exactly this path.
    fn target(&self, path: &Path) -> Result<Target> {
        let at = place("open", path)?;
        let mounted = self.at(&at).ok_or_else(|| refused(path, libc::ENOENT))?;
        if let Some(device) = mounted.device {
            let read_only = mounted.entry.read_only();
            return Ok(Target::Filesystem { device, read_only });
        }
        // A bind of a device's node has its path in devtmpfs as its root.
        let root = mounted
            .entry
            .root
            .strip_prefix("/")
            .unwrap_or(Path::new(""));
        let node = Path::new("/dev").join(root);
        match node.to_str().and_then(loop_name) {
            Some(_) => Ok(Target::Node(node)),
            None => Err(refused(path, libc::ENOENT)),
        }
    }

    /// Writes back the filesystem of a path, if there is one.
    pub(super) fn sync(&mut self, path: &Path) -> Result<()> {
        match self.device_of(path) {
            Some(device) => self.write_back(device),
            None => Ok(()),
        }
    }

    /// Writes what is dirty in the filesystem of a device into its image. One that has become
    /// read-only or shut down, as after an error, writes nothing.
    pub(super) fn write_back(&mut self, device: Device) -> Result<()> {
        let supers = self.supers.get(&device);
        let Some(sb) = supers.filter(|sb| !sb.read_only && !sb.shut_down) else {
            return Ok(());
        };
        if let Some(stamp) = sb.dirty {
            self.set_stamp(&sb.source, stamp)?;
        }
        if let Some(sb) = self.supers.get_mut(&device) {
            sb.dirty = None;
        }
        Ok(())
    }
}
