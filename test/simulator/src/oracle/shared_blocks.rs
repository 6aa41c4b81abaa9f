//! What snapshots promise where files share blocks. A block that several snapshots of a volume have is
//! promised once, and a new one promises what has changed since the one before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop_driver::kernel::Filesystems;
use hostloop_driver::storage::{SnapshotRecord, Source};
use hostloop_report::pool_files::{IMAGE, SNAPSHOTS, VOLUMES};

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
/// image, its copies, and their copies. Any of them may share all of its blocks.
pub(super) fn bytes_of_families(pool: &Path, contents: &Contents) -> u64 {
    let volumes = contents.volumes.iter().map(|volume| {
        let source = volume.source.as_deref().map(|source| match source {
            Source::Snapshot(id) => id.to_string(),
            Source::Volume(id) => id.to_string(),
        });
        (VOLUMES, volume.id.to_string(), source)
    });
    let snapshots = contents.snapshots.iter().map(|snapshot| {
        let source = Some(snapshot.source.to_string());
        (SNAPSHOTS, snapshot.id.to_string(), source)
    });
    let images: Vec<(&str, String, Option<String>)> = volumes.chain(snapshots).collect();
    let sources = images
        .iter()
        .filter_map(|(_, handle, source)| Some((handle.as_str(), source.as_deref()?)));
    let sources: BTreeMap<&str, &str> = sources.collect();
    let mut largest = BTreeMap::new();
    for (folder, handle, _) in &images {
        let bytes = space_of(&pool.join(folder).join(handle));
        let most = largest.entry(eldest(handle, &sources)).or_insert(0_u64);
        *most = (*most).max(bytes);
    }
    largest.into_values().sum()
}

/// The oldest handle that this one goes back to, or itself, by the sources of what is there.
fn eldest<'a>(handle: &'a str, sources: &BTreeMap<&'a str, &'a str>) -> &'a str {
    let mut eldest = handle;
    // No handle is its own source.
    while let Some(&source) = sources.get(eldest) {
        eldest = source;
    }
    eldest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_the_oldest_that_any_of_it_names() {
        let sources = BTreeMap::from([("s1", "v1"), ("v2", "s1"), ("s2", "v2"), ("s3", "gone")]);
        for (handle, expected) in [
            ("v1", "v1"),
            ("s2", "v1"),
            ("v2", "v1"),
            ("s3", "gone"),
            ("v3", "v3"),
        ] {
            assert_eq!(eldest(handle, &sources), expected, "{handle}");
        }
    }
}
