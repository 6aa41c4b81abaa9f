//! Where the blocks of an image are on the pool's filesystem, for `hostloop status --extents`.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::inspect::Error;
use crate::inspect::inventory::{Contents, Item, Survey};
use crate::kernel::extents::{Mapped, map};
use crate::kernel::{self, linux::Linux};
use crate::storage::file_names::{EntryKind, IMAGE};
use crate::storage::{PoolSpec, VolumeRecord};

/// Reads the map of a volume's or snapshot's image. It first writes the image back.
pub(crate) fn image_map(
    specs: &[PoolSpec],
    state_dir: &Path,
    id: &str,
) -> Result<Vec<Mapped>, Error> {
    let survey = Survey::take(specs, state_dir, &Linux::new())?;
    let found = survey.contents().find_map(|(_, contents)| entry(contents, id));
    let path = found.ok_or_else(|| Error::NoImage(id.to_owned()))?;
    let image = File::open(&path).map_err(|error| kernel::Error::io("open", &path, error))?;
    Ok(map(&image)?)
}

/// The path of the image of a volume or snapshot, by its ID or kubelet's handle.
fn entry(contents: &Contents, id: &str) -> Option<PathBuf> {
    let is_volume = |record: &VolumeRecord| record.inline.as_deref() == Some(id);
    let is_it =
        |item: &&Item<VolumeRecord>| item.name == id || item.record.as_ref().is_ok_and(is_volume);
    let volume = contents.volumes.iter().find(is_it);
    let snapshot = || contents.snapshots.iter().find(|item| item.name == id);
    let (kind, name) = match volume {
        Some(volume) => (EntryKind::Volumes, &volume.name),
        None => (EntryKind::Snapshots, &snapshot()?.name),
    };
    Some(contents.root.join(kind.name()).join(name).join(IMAGE))
}
