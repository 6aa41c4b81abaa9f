//! Finds the loop devices and mounts that belong to the driver, and the purpose of each.
//!
//! The device and inode number of the backing file identify a loop device. A deleted file has no
//! number to look up. For such a file the path that the kernel remembers decides: it must contain
//! an ID of the driver, and the filesystem must be the pool's.

use std::collections::BTreeMap;

use super::{Contents, Survey};
use crate::diagnose::pool::PoolFiles;
use crate::kernel::{FileId, LoopInfo, MountEntry, loop_path};

/// The object that backs one of the driver's loop devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LoopOwner {
    /// The image file that contains a pool.
    Pool(String),
    /// A volume's image, by its directory name.
    Volume(String),
    /// A snapshot's image, by its directory name.
    Snapshot(String),
    /// An image under `incoming/` or `trash/`, as `<area>/<name>`.
    Leftover(String),
    /// A deleted file of a pool, by the path that the kernel reports.
    Deleted(String),
    /// Another loop device. This one is the read-only second loop of a raw block volume.
    Loop(u32),
}

impl LoopOwner {
    /// The kind of the object in the output, and the object: a pool's name, an ID, a path, or a
    /// device.
    pub fn parts(&self) -> (&'static str, String) {
        match self {
            LoopOwner::Pool(name) => ("pool", name.clone()),
            LoopOwner::Volume(name) => ("volume", name.clone()),
            LoopOwner::Snapshot(name) => ("snapshot", name.clone()),
            LoopOwner::Leftover(name) => ("leftover", name.clone()),
            LoopOwner::Deleted(path) => ("deleted", path.clone()),
            LoopOwner::Loop(minor) => ("loop", loop_path(*minor).display().to_string()),
        }
    }
}

/// A loop device that belongs to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopUse {
    pub device: LoopInfo,
    /// The object that backs the device.
    pub owner: LoopOwner,
    /// Mounts of the device's filesystem and binds of its node, in the mount table's order.
    pub mounts: Vec<MountEntry>,
}

/// Finds the loop devices that belong to the surveyed pools, by minor.
pub fn loop_uses(survey: &Survey) -> BTreeMap<u32, LoopUse> {
    let known = known_images(survey);
    let mut loops = BTreeMap::new();
    for device in survey.kernel.loops.iter() {
        let file = device.backing.as_ref();
        let owner = file
            .and_then(|file| known.get(file).cloned())
            .or_else(|| deleted_owner(survey, device));
        if let Some(owner) = owner {
            loops.insert(device.minor, loop_use(survey, device, owner));
        }
    }
    // A loop over one of the driver's loops is also the driver's. The stack has only this one level
    // above an image.
    for device in survey.kernel.loops.iter() {
        let below = device.below().filter(|minor| loops.contains_key(minor));
        if let Some(minor) = below {
            loops.insert(
                device.minor,
                loop_use(survey, device, LoopOwner::Loop(minor)),
            );
        }
    }
    loops
}

/// All mounts of these devices, each once, ordered by mount ID.
pub fn mounts(loops: &BTreeMap<u32, LoopUse>) -> Vec<(&LoopUse, &MountEntry)> {
    let mut by_id = BTreeMap::new();
    for l in loops.values() {
        for mount in &l.mounts {
            by_id.entry(mount.id).or_insert((l, mount));
        }
    }
    by_id.into_values().collect()
}

fn loop_use(survey: &Survey, device: &LoopInfo, owner: LoopOwner) -> LoopUse {
    LoopUse {
        device: device.clone(),
        owner,
        mounts: survey.kernel.mounts_of(device.minor).cloned().collect(),
    }
}

fn known_images(survey: &Survey) -> BTreeMap<FileId, LoopOwner> {
    let mut known = BTreeMap::new();
    for pool in &survey.pools {
        if let Some(image) = &pool.image {
            known.insert(image.file, LoopOwner::Pool(pool.name.clone()));
        }
        if let Ok(contents) = &pool.state {
            add_contents(&mut known, contents);
        }
    }
    known
}

fn add_contents(known: &mut BTreeMap<FileId, LoopOwner>, contents: &Contents) {
    for volume in &contents.volumes {
        if let Some(image) = &volume.image {
            known.insert(image.file, LoopOwner::Volume(volume.name.clone()));
        }
    }
    for snapshot in &contents.snapshots {
        if let Some(image) = &snapshot.image {
            known.insert(image.file, LoopOwner::Snapshot(snapshot.name.clone()));
        }
    }
    for leftover in &contents.leftovers {
        if let Some(image) = &leftover.image {
            let owner = LoopOwner::Leftover(format!("{}/{}", leftover.area, leftover.name));
            known.insert(image.file, owner);
        }
    }
}

/// Returns an owner if the deleted file was on a pool's filesystem, in a directory named by an ID
/// of the same pool.
fn deleted_owner(survey: &Survey, device: &LoopInfo) -> Option<LoopOwner> {
    let is_here = survey.contents().any(|(_, contents)| {
        let files = PoolFiles {
            id: contents.id,
            device: contents.device,
            root: &contents.root,
        };
        files.holds(device, |_| None)
    });
    (device.is_deleted() && is_here).then(|| LoopOwner::Deleted(device.backing_path.clone()))
}
