//! What the kernel shows of a volume: its loop devices, and where they are mounted or bound.
//!
//! The kernel is what unpublish and unstage go by. A loop device belongs to a volume if the file
//! behind it is the volume's image, by device and inode.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::Result;
use crate::pool::{Access, Stage, VolumeId, VolumeRecord};
use crate::sys::{FileId, Kernel, LOOP_MAJOR, LoopInfo, MountEntry, MountTable};

/// Tells what belongs to a volume.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    id: VolumeId,
    image: Option<FileId>,
    recorded: BTreeSet<u32>,
}

impl Owner {
    /// A volume with its record, and its image unless that is missing.
    pub(crate) fn of(record: &VolumeRecord, image: Option<FileId>) -> Owner {
        let minors = record.stage.iter().flat_map(|stage| {
            let read_only = stage.read_only_loops.values().copied();
            stage.minor.into_iter().chain(read_only)
        });
        Owner {
            id: record.id,
            image,
            recorded: minors.collect(),
        }
    }

    /// A volume whose record is gone, or can't be read now.
    pub(crate) fn unrecorded(id: VolumeId) -> Owner {
        Owner {
            id,
            image: None,
            recorded: BTreeSet::new(),
        }
    }

    pub(crate) fn id(&self) -> VolumeId {
        self.id
    }

    /// The volume's image, if it is at hand.
    pub(crate) fn image(&self) -> Option<FileId> {
        self.image
    }

    /// True if a loop device is over the volume's image. If the image can't be opened, or the
    /// kernel does not report the device's backing file, this compares the name of the image's
    /// directory. That name is the volume's ID, which is unique.
    fn owns(&self, device: &LoopInfo) -> bool {
        match (self.image, device.backing) {
            (Some(image), Some(backing)) => backing == image,
            _ => {
                let dir = Path::new(&device.backing_path).parent();
                let name = dir.and_then(Path::file_name).and_then(|n| n.to_str());
                device.backing_rdev == 0 && name == Some(self.id.to_string().as_str())
            }
        }
    }
}

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing is mounted there.
    Nothing,
    /// The volume's filesystem.
    Filesystem {
        /// Of its loop device.
        minor: u32,
        /// The mount is read-only.
        read_only: bool,
    },
    /// The volume's loop device, or the read-only one over it.
    Device {
        /// Of the device that is bound there.
        minor: u32,
        /// It is the read-only one.
        read_only: bool,
    },
    /// A loop device that was the volume's, or that nothing is attached to any more.
    Stale,
    /// Something else, in words.
    Foreign(String),
}

/// The kernel's tables, read once.
pub(crate) struct View {
    owner: Owner,
    loops: Vec<LoopInfo>,
    mounts: MountTable,
}

impl View {
    /// Reads them.
    pub(crate) fn take(kernel: &dyn Kernel, owner: &Owner) -> Result<View> {
        Ok(View {
            owner: owner.clone(),
            // In this order, a loop that is mounted meanwhile is not taken for a stranger's.
            mounts: kernel.mounts()?,
            loops: kernel.loops()?,
        })
    }

    /// The volume's loop devices.
    pub(crate) fn own(&self) -> impl Iterator<Item = &LoopInfo> {
        self.loops.iter().filter(|l| self.owner.owns(l))
    }

    /// Loop devices over the volume's loop devices: our read-only ones, and kubelet's.
    pub(crate) fn over(&self) -> impl Iterator<Item = &LoopInfo> {
        self.loops
            .iter()
            .filter(|l| self.own().any(|own| l.backing_rdev == rdev(own.minor)))
    }

    /// The read-only ones among them that this driver attached.
    pub(crate) fn read_only(&self) -> impl Iterator<Item = &LoopInfo> {
        self.over()
            .filter(|l| l.read_only && self.owner.recorded.contains(&l.minor))
    }

    /// All read-only devices that this driver attached, and that it must detach. They count even if
    /// a user of the device replaced the backing file (LOOP_CHANGE_FD needs only read access).
    pub(crate) fn attached_read_only(&self) -> impl Iterator<Item = &LoopInfo> {
        let id = self.owner.id.to_string();
        let ours = move |l: &LoopInfo| l.label.strip_suffix(" ro").unwrap_or(&l.label) == id;
        self.loops.iter().filter(move |l| {
            let known = l.read_only && self.owner.recorded.contains(&l.minor);
            known && (ours(l) || self.over().any(|over| over.minor == l.minor))
        })
    }

    /// Size of an attached device, in bytes.
    pub(crate) fn size_of(&self, minor: u32) -> Option<u64> {
        let device = self.loops.iter().find(|l| l.minor == minor)?;
        Some(device.size_bytes)
    }

    /// Minors with nothing attached and no bind of their device node, lowest first.
    pub(crate) fn free_minors(&self) -> impl Iterator<Item = u32> {
        (0..).filter(|n| self.loops.iter().all(|l| l.minor != *n) && !self.is_bound(*n))
    }

    /// Mounts of the volume's filesystem.
    pub(crate) fn mounts(&self) -> impl Iterator<Item = &MountEntry> {
        self.mounts.entries.iter().filter(|e| {
            e.loop_minor()
                .is_some_and(|minor| self.own().any(|own| own.minor == minor))
        })
    }

    /// The mount of the volume's filesystem at a path, if it is the topmost one there.
    pub(crate) fn mount_at(&self, path: &Path) -> Option<&MountEntry> {
        let top = self.mounts.at(path)?;
        self.mounts().find(|e| e.id == top.id)
    }

    /// A mount of all of the volume's filesystem that can be written through, at this path or
    /// anywhere: a read-only bind can't be grown by, and its superblock is read-only if none can.
    pub(crate) fn whole_mount(&self, path: &Path) -> Option<&MountEntry> {
        let writable = |e: &&MountEntry| {
            let read_only = e.read_only() || e.super_options.iter().any(|o| o == "ro");
            !read_only && e.root == Path::new("/")
        };
        let here = self.mount_at(path).filter(writable);
        here.or_else(|| {
            self.mounts().filter(writable).find(|e| {
                self.mount_at(&e.mount_point)
                    .is_some_and(|top| top.id == e.id)
            })
        })
    }

    /// What is mounted or bound at a path.
    pub(crate) fn at(&self, path: &Path) -> Found {
        let Some(entry) = self.mounts.at(path) else {
            return Found::Nothing;
        };
        let foreign = || Found::Foreign(format!("{} ({})", entry.fs_type, entry.source));
        match (entry.loop_minor(), entry.loop_node) {
            (Some(minor), _) if self.own().any(|own| own.minor == minor) => Found::Filesystem {
                minor,
                read_only: entry.read_only(),
            },
            (None, Some(minor)) => self.device(minor),
            _ => foreign(),
        }
    }

    fn device(&self, minor: u32) -> Found {
        let attached = self.loops.iter().find(|l| l.minor == minor);
        if self.own().any(|l| l.minor == minor) {
            return Found::Device {
                minor,
                read_only: false,
            };
        }
        if self.over().any(|l| l.minor == minor && l.read_only) {
            return Found::Device {
                minor,
                read_only: true,
            };
        }
        match attached {
            Some(device) if !self.owner.recorded.contains(&minor) => {
                Found::Foreign(format!("/dev/loop{minor} ({})", device.backing_path))
            }
            _ => Found::Stale,
        }
    }

    /// Where the device nodes of the volume's loop devices, and of those over them, are bound.
    pub(crate) fn bound(&self) -> Vec<PathBuf> {
        let minors: BTreeSet<u32> = self.own().chain(self.over()).map(|l| l.minor).collect();
        let bound = minors.iter().flat_map(|m| self.mounts.of_loop_node(*m));
        bound.map(|e| e.mount_point.clone()).collect()
    }

    /// Whether the node of a loop device is bound anywhere, attached or not.
    pub(crate) fn is_bound(&self, minor: u32) -> bool {
        self.mounts.of_loop_node(minor).next().is_some()
    }

    /// Everywhere the volume is besides its staging path: its filesystem, or its device.
    ///
    /// The node of a mounted volume's device is bound nowhere: where it seems so, somebody else's
    /// volume was on a device of that number before.
    pub(crate) fn published(&self, stage: &Stage) -> Vec<PathBuf> {
        let mut all: Vec<_> = match stage.capability.access {
            Access::Mount { .. } => self.mounts().map(|e| e.mount_point.clone()).collect(),
            Access::Block => self.bound(),
        };
        all.retain(|path| *path != stage.path);
        all.sort();
        all.dedup();
        all
    }

    /// Targets the volume is published at. A bind of one of its directories is none: kubelet makes
    /// such for `subPath`.
    pub(crate) fn targets(&self, stage: &Stage) -> Vec<PathBuf> {
        let parts: Vec<&Path> = self
            .mounts()
            .filter(|e| e.root != Path::new("/"))
            .map(|e| e.mount_point.as_path())
            .collect();
        let mut all = self.published(stage);
        all.retain(|path| !parts.contains(&path.as_path()));
        all
    }
}

/// The device number of a loop device.
pub(crate) fn rdev(minor: u32) -> u64 {
    rustix::fs::makedev(LOOP_MAJOR, minor)
}
