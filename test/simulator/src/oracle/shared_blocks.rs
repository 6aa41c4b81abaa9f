//! What snapshots promise where files share blocks. A block that several snapshots of a volume have is
//! promised once, and a new one promises what has changed since the one before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::Filesystems;
use hostloop_driver::storage::SnapshotRecord;
use hostloop_report::pool_files::{IMAGE, SNAPSHOTS, VOLUMES};
use uuid::Uuid;

use crate::machine::disk_usage::identity;
use crate::machine::{Contents, Machine};

/// How many bytes of each snapshot were not in the one before it, by volume and in the order of time.
/// Those of deleted snapshots stay, because other snapshots may promise them instead.
#[derive(Default)]
pub(super) struct ChangedBlocks(BTreeMap<String, BTreeMap<String, u64>>);

impl ChangedBlocks {
    /// Compares the new snapshots of a node with those before them.
    pub(super) fn note(&mut self, machine: &Machine, contents: &Contents) {
        let mut snapshots: Vec<&SnapshotRecord> =
            contents.snapshots.iter().map(|one| &**one).collect();
        snapshots.sort_by_key(|snapshot| snapshot.id);
        for snapshot in snapshots {
            let (volume, handle) = (snapshot.source.to_string(), snapshot.id.to_string());
            let of_volume = self.0.entry(volume).or_default();
            if of_volume.contains_key(&handle) {
                continue;
            }
            let before = of_volume.range(..handle.clone()).next_back();
            let common = before.map_or(0, |(before, _)| common_bytes(machine, before, &handle));
            of_volume.insert(handle, promised_to(snapshot).saturating_sub(common));
        }
    }

    /// The most that these snapshots promise, in bytes.
    pub(super) fn most_of_snapshots(&self, snapshots: &[&SnapshotRecord]) -> u64 {
        let mut all = BTreeMap::new();
        for snapshot in snapshots {
            *all.entry(snapshot.source.to_string()).or_insert(0_u64) += promised_to(snapshot);
        }
        let each = all.into_iter().map(|(volume, alone)| {
            let changed = self
                .0
                .get(&volume)
                .map(|changed| changed.values().sum::<u64>());
            alone.min(changed.unwrap_or(alone))
        });
        each.sum()
    }
}

/// What a snapshot that shares no blocks promises, in bytes.
pub(super) fn promised_to(snapshot: &SnapshotRecord) -> u64 {
    snapshot.allocated_bytes.min(snapshot.size_bytes)
}

/// The space of the image in a folder, in bytes.
pub(super) fn space_of(folder: &Path) -> u64 {
    let image = std::fs::metadata(folder.join(IMAGE));
    image.map_or(0, |image| image.blocks() * 512)
}

/// The path of the image of a snapshot.
fn image_of(machine: &Machine, snapshot: &str) -> PathBuf {
    machine.pool().join(SNAPSHOTS).join(snapshot).join(IMAGE)
}

/// The bytes of a snapshot in blocks that it shares with one before it; none if that is gone.
fn common_bytes(machine: &Machine, before: &str, snapshot: &str) -> u64 {
    let images = [before, snapshot].map(|handle| File::open(image_of(machine, handle)));
    let [Ok(before), Ok(snapshot)] = images else {
        return 0;
    };
    let common = machine.kernel().common_bytes(&before, &snapshot);
    common.unwrap_or_default()
}

/// What the snapshots of a node have on its disk if nothing else has it, in bytes. What the snapshots
/// of two volumes share counts twice, because both promise it.
pub(super) fn bytes_of_snapshots(machine: &Machine, snapshots: &[&SnapshotRecord]) -> u64 {
    let mut of_volumes: BTreeMap<String, Vec<&SnapshotRecord>> = BTreeMap::new();
    for snapshot in snapshots {
        let volume = snapshot.source.to_string();
        of_volumes.entry(volume).or_default().push(*snapshot);
    }
    let bytes = of_volumes.into_values().map(|snapshots| {
        let all: u64 = snapshots.iter().map(|snapshot| promised_to(snapshot)).sum();
        let images = snapshots.iter();
        let images = images.map(|snapshot| image_of(machine, &snapshot.id.to_string()));
        all.saturating_sub(saved_by(machine, images))
    });
    bytes.sum()
}

/// The bytes that sharing saves the images of a node's volumes and snapshots on its disk.
pub(super) fn saved_by_images(machine: &Machine) -> u64 {
    let folders = [VOLUMES, SNAPSHOTS].map(|folder| machine.pool().join(folder));
    let entries = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    saved_by(machine, entries.map(|entry| entry.path().join(IMAGE)))
}

fn saved_by(machine: &Machine, images: impl Iterator<Item = PathBuf>) -> u64 {
    let found = images.filter_map(|image| std::fs::metadata(image).ok());
    let files: BTreeSet<_> = found.map(|image| identity(&image)).collect();
    machine.kernel().shared_blocks().saved_bytes(&files)
}

/// What images have on the disk beyond doubt, in bytes: the largest of each family. A family is an
/// image, its copies, and their copies, also if some of them are gone. Any of them may share all of its
/// blocks.
pub(super) fn bytes_of_families(pool: &Path, contents: &Contents) -> u64 {
    let volumes = contents.volumes.iter().map(|volume| {
        let folder = pool.join(VOLUMES).join(volume.id.to_string());
        (volume.id.uuid(), volume.eldest(), folder)
    });
    let snapshots = contents.snapshots.iter().map(|snapshot| {
        let folder = pool.join(SNAPSHOTS).join(snapshot.id.to_string());
        (snapshot.id.uuid(), Some(snapshot.eldest()), folder)
    });
    let images: Vec<(Uuid, Option<Uuid>, PathBuf)> = volumes.chain(snapshots).collect();
    let elders = images
        .iter()
        .filter_map(|(id, eldest, _)| Some((*id, (*eldest)?)));
    let elders: BTreeMap<Uuid, Uuid> = elders.collect();
    let mut largest = BTreeMap::new();
    for (id, _, folder) in &images {
        let most = largest.entry(eldest(*id, &elders)).or_insert(0_u64);
        *most = (*most).max(space_of(folder));
    }
    largest.into_values().sum()
}

/// The eldest that this one goes back to, or itself, by the records of what is there.
fn eldest(id: Uuid, elders: &BTreeMap<Uuid, Uuid>) -> Uuid {
    let mut eldest = id;
    // No copy is its own elder.
    while let Some(elder) = elders.get(&eldest) {
        eldest = *elder;
    }
    eldest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_the_oldest_that_any_of_it_names() {
        let [v1, s1, v2, s2, v3, s3, gone] = [1, 2, 3, 4, 5, 6, 7].map(Uuid::from_u128);
        let elders = BTreeMap::from([(s1, v1), (v2, s1), (s2, v2), (s3, gone)]);
        for (id, expected) in [(v1, v1), (s2, v1), (v2, v1), (s3, gone), (v3, v3)] {
            assert_eq!(eldest(id, &elders), expected, "{id}");
        }
    }
}
