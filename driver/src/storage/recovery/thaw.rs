//! Thaws filesystems that a dead process froze for a copy; until then, writes of pods hang.
//!
//! The thaw itself comes before all else at the opening of a pool. Everything after it may wait for
//! the disk, and an fsync may take minutes while a cache full of data is written back. What came of
//! it is recorded later, once the records are read.

use std::collections::BTreeMap;

use super::VolumeImage;
use crate::kernel::{Kernel, file};
use crate::storage::file_names::EntryKind;
use crate::storage::freeze;
use crate::storage::load::{self, EntryName};
use crate::storage::noted_problem::Until;
use crate::storage::state_until_reboot;
use crate::storage::{About, Pool, Result, VolumeId, VolumeRecord};

/// The volumes that a dead process may have left frozen, and whether they are thawed.
pub(in crate::storage) type Thawed = BTreeMap<VolumeId, Result<()>>;

/// Thaws the volumes of a pool by their `state.json`, which needs no records and no fsync.
pub(in crate::storage) fn thaw(pool: &Pool, kernel: &dyn Kernel) -> Thawed {
    // If the directory can't be read, the reading of the records reports that.
    let entries = file::list(pool.layout.entries(EntryKind::Volumes)).unwrap_or_default();
    let mut thawed = Thawed::new();
    for entry in entries {
        let EntryName::Here(id) = load::entry_name::<VolumeRecord>(&entry, pool.id) else {
            continue;
        };
        if let (_, Some(_)) = pool.state_until_reboot(id) {
            thawed.insert(id, thaw_one(pool, kernel, id));
        }
    }
    thawed
}

fn thaw_one(pool: &Pool, kernel: &dyn Kernel, id: VolumeId) -> Result<()> {
    let Some(image) = pool.stat_image(&id)? else {
        return Ok(());
    };
    let what = freeze::thaw_leftover(kernel, id, image.file)?;
    tracing::info!(volume = %id, ?what, "thawed a filesystem after an interrupted freeze");
    Ok(())
}

/// Clears the intents of thawed volumes, and notes those that may still be frozen.
pub(super) fn record(pool: &Pool, kernel: &dyn Kernel, images: &[VolumeImage], mut thawed: Thawed) {
    // These need no fsync, so they don't wait for those that do.
    record_without_records(pool, kernel, &mut thawed);
    let frozen = images.iter().filter(|found| found.volume.freeze.is_some());
    for found in frozen {
        let id = found.volume.id;
        let cleared = take(pool, kernel, id, &mut thawed)
            .and_then(|()| pool.update(&id, |record| record.freeze = None).map(drop));
        if let Err(e) = cleared {
            let what = format!("it may still be frozen: {e}");
            pool.note_unrepaired(About::Volume(id), Until::Thawed(id), what);
        }
    }
}

/// Does the same for volumes without a usable record, by their `state.json`: pods must be able to
/// leave.
fn record_without_records(pool: &Pool, kernel: &dyn Kernel, thawed: &mut Thawed) {
    let ids = pool.index.read().volumes.unusable_ids();
    for id in ids {
        let (stage, Some(_)) = pool.state_until_reboot(id) else {
            continue;
        };
        let cleared = take(pool, kernel, id, thawed).and_then(|()| {
            let boot = pool.layout.boot();
            let state = state_until_reboot::encode_parts(stage.as_deref(), None, boot)?;
            pool.layout.replace_state(id, state.as_deref())
        });
        if let Err(e) = cleared {
            let what = format!("it may still be frozen: {e}");
            pool.note_unrepaired(About::Volume(id), Until::Reopened, what);
        }
    }
}

/// Whether a volume is thawed. Version 0.1.0 kept the intent in `volume.json`, so it may not be
/// thawed yet.
fn take(pool: &Pool, kernel: &dyn Kernel, id: VolumeId, thawed: &mut Thawed) -> Result<()> {
    let known = thawed.remove(&id);
    known.unwrap_or_else(|| thaw_one(pool, kernel, id))
}
