//! Repairs at the opening of a pool.
//!
//! After a crash, a reboot, or the loss of the container's mounts, recovery compares the records
//! with the state of the kernel. It removes idle leftovers of the driver. It restores or reports
//! what a pod still uses, and leaves alone what is not the driver's. A volume that can't be
//! repaired is noted and never prevents the opening of the pool.

use std::fmt::Display;
use std::io::ErrorKind::NotFound;
use std::path::Path;
use std::sync::Arc;

use super::file_names::EntryKind;
use super::image_stat::ImageStat;
use super::index::{Index, NamedRecord, RecordTable};
use super::kept_bases;
use super::layout::Left;
use super::load;
use super::noted_problem::Until;
use super::record_io::{Record, UnusableEntry};
use super::scratch_mount;
use super::state_until_reboot;
use super::{
    About, Error, Format, GroupId, Pool, PoolOptions, Pools, Result, SnapshotId, SnapshotRecord,
    VolumeId, VolumeRecord,
};
use crate::diagnose::Problem;
use crate::diagnose::volume::{ImageState, image_problem};
use crate::kernel::{Kernel, file, loops_holding, whole_blocks};

mod blank_images;
mod recheck;
mod reconcile_loops;
mod reread;
mod sweep;
#[cfg(test)]
mod tests;
mod thaw;
mod unfinished;

pub(super) use recheck::recheck;
use thaw::Thawed;
pub(super) use thaw::thaw;
pub(super) use unfinished::Unfinished;

/// Reads a pool's records, and repairs the effects of a crash, a reboot or outside changes. The
/// caller has called [`thaw()`] first.
pub(super) fn recover(
    pool: &Pool,
    kernel: &dyn Kernel,
    options: &PoolOptions,
    thawed: Thawed,
) -> Result<()> {
    sweep::sweep(pool)?;
    *pool.index.write() = read_records(pool)?;
    kept_bases::recover(pool)?;
    split_old_records(pool);
    let mut images = look_at_images(pool);
    unmount_old_scratch(pool, kernel, options, &images);
    thaw::record(pool, kernel, &images, thawed);
    adopt_lengths(pool, &mut images);
    reconcile_loops::reconcile(pool, kernel, &images)?;
    blank_images::take_formats_back(pool, kernel, &images);
    drop_left_inline(pool, kernel, &images);
    Ok(())
}

/// Deletes inline volumes for which kubelet makes no further calls: their pods ended while the pool
/// took no writes or was missing, or their first publication failed. The volume of a running pod
/// keeps its target, because NodeUnpublishVolume was not called.
fn drop_left_inline(pool: &Pool, kernel: &dyn Kernel, images: &[VolumeImage]) {
    let left = images.iter().filter(|f| is_left(&f.volume));
    for found in left {
        let id = found.volume.id;
        let dropped = match loops_holding(kernel, found.image.file, &id.to_string()) {
            Ok(loops) if loops.is_empty() => pool.drop_volume(id),
            Ok(_) => continue,
            Err(e) => Err(e.into()),
        };
        match dropped {
            Ok(()) => tracing::info!(volume = %id, "deleted an inline volume without a pod"),
            Err(e) => pool.note_unrepaired(
                About::Volume(id),
                Until::Reopened,
                format!("its pod is gone, and it can't be deleted: {e}"),
            ),
        }
    }
}

/// True for an inline volume without a pod: its target does not exist, or it was never published.
/// False if the directory above all targets (of kubelet's
/// `pods/<uid>/volumes/<plugin>/<name>/mount`) is not visible here.
fn is_left(volume: &VolumeRecord) -> bool {
    let Some(stage) = &volume.stage else {
        // The first publication failed. A published volume is formatted and holds a pod's data.
        return volume.inline.is_some() && !matches!(volume.format, Format::Done(_));
    };
    let target = stage.path.symlink_metadata();
    let is_gone = target.is_err_and(|e| e.kind() == NotFound);
    let pods = stage.path.ancestors().nth(5);
    let is_visible = pods.is_some_and(|pods| pods != Path::new("/") && pods.is_dir());
    volume.inline.is_some() && is_gone && is_visible
}

/// Removes an entry under `incoming/` or `trash/`.
fn remove(pool: &Pool, from: Left, entry: String) {
    if let Err(e) = pool.layout.remove(from, entry.clone()) {
        note_left(pool, from, &entry, format!("can't be freed: {e}"));
    }
}

/// Notes an entry that stays under `incoming/` or `trash/`, until it is gone.
fn note_left(pool: &Pool, from: Left, entry: &str, why: impl Display) {
    let until = Until::FileGone(pool.root().join(from.name()).join(entry));
    pool.note_unrepaired(About::Pool, until, format!("{}/{entry} {why}", from.name()));
}

fn read_records(pool: &Pool) -> Result<Index> {
    let mut index = Index::default();
    let unusable = read_kind(pool, About::Volume, |mut record| {
        index.share(&mut record);
        index.put_volume(Arc::new(record));
    })?;
    put_unusable(&mut index.volumes, unusable);
    index.volumes.pack();
    let unusable = read_kind(pool, About::Snapshot, |record: SnapshotRecord| {
        let all = record.promised();
        index.put_snapshot(Arc::new(record), all);
    })?;
    put_unusable(&mut index.snapshots, unusable);
    let groups = &mut index.groups;
    let unusable = read_kind(pool, About::Group, |record| groups.put(Arc::new(record)))?;
    put_unusable(groups, unusable);
    Ok(index)
}

/// Unusable records stay in the index, because calls for them must not answer "not found".
fn put_unusable<R: NamedRecord>(table: &mut RecordTable<R>, unusable: Vec<(R::Id, UnusableEntry)>) {
    for (id, unusable) in unusable {
        table.put_unusable(id, unusable);
    }
}

/// Hands over the usable records of a kind, and returns the unusable ones, which are noted.
fn read_kind<R: Record>(
    pool: &Pool,
    about: impl Fn(R::Id) -> About,
    put: impl FnMut(R),
) -> Result<Vec<(R::Id, UnusableEntry)>> {
    let unloaded = load::load(&pool.layout, pool.id, put)?;
    for (id, unusable) in &unloaded.unusable {
        let problem = Problem::RecordUnusable(unusable.why.clone());
        pool.note(about(*id), Until::RecordUsable(about(*id)), problem);
    }
    for path in unloaded.unknown_files {
        let until = Until::FileGone(path.clone());
        pool.note(About::File(path), until, Problem::UnknownFile);
    }
    Ok(unloaded.unusable)
}

/// Moves the state that version 0.1.0 kept in `volume.json` to `state.json`. If that fails, the
/// state in `volume.json` counts again at the next start.
fn split_old_records(pool: &Pool) {
    let volumes: Vec<_> = pool.index.read().volumes.all().cloned().collect();
    for volume in volumes
        .iter()
        .filter(|volume| volume.durable() != ***volume)
    {
        if let Err(error) = split_old_record(pool, volume) {
            tracing::warn!(volume = %volume.id, %error, "cannot move a stage to state.json");
        }
    }
}

fn split_old_record(pool: &Pool, volume: &VolumeRecord) -> Result<()> {
    let stored: VolumeRecord = load::read_one(&pool.layout, volume.id)?;
    if stored == volume.durable() {
        return Ok(());
    }
    let state = state_until_reboot::encode(volume, pool.layout.boot())?;
    pool.layout.replace_state(volume.id, state.as_deref())?;
    Ok(pool.layout.replace(volume)?)
}

/// A volume and the file status of its image.
struct VolumeImage {
    volume: Arc<VolumeRecord>,
    image: ImageStat,
}

/// Checks all images, and notes a missing or short one. [`adopt_lengths`] handles longer ones.
fn look_at_images(pool: &Pool) -> Vec<VolumeImage> {
    let volumes: Vec<_> = pool.index.read().volumes.all().cloned().collect();
    let mut found = Vec::with_capacity(volumes.len());
    for volume in volumes {
        let (image, state) = match pool.stat_image(&volume.id) {
            Ok(image) => (image, ImageState::from(image)),
            Err(e) => {
                let why = format!("its image can't be examined: {e}");
                (None, ImageState::Unreadable(why))
            }
        };
        match image_problem(&state, volume.capacity_bytes) {
            None | Some(Problem::ImageLong { .. }) => {}
            Some(problem) => {
                if let Some(image) = image {
                    // Writes never go beyond the image's end, whatever the record promises.
                    let most = Some(image.bytes);
                    pool.index.write().volumes.count_at_most(volume.id, most);
                }
                note_image(pool, &volume, problem);
            }
        }
        found.extend(image.map(|image| VolumeImage { volume, image }));
    }
    found
}

/// An image longer than its record comes from an interrupted expansion: the record adopts its
/// length, because the filesystem in it may have grown already. No volume may be frozen any more,
/// because this waits for the disk.
fn adopt_lengths(pool: &Pool, images: &mut [VolumeImage]) {
    for found in images {
        let state = ImageState::from(Some(found.image));
        let problem = image_problem(&state, found.volume.capacity_bytes);
        if let Some(Problem::ImageLong { bytes, .. }) = problem {
            found.volume = adopt_length(pool, found.volume.clone(), bytes);
        }
    }
}

fn adopt_length(pool: &Pool, volume: Arc<VolumeRecord>, bytes: u64) -> Arc<VolumeRecord> {
    let len = whole_blocks(bytes);
    match record_length(pool, volume.id, len) {
        Ok(volume) => {
            tracing::info!(volume = %volume.id, len, "the record adopts the length of an interrupted expansion");
            volume
        }
        Err(e) => {
            let why =
                format!("its image is longer than its record says, which can't be changed: {e}");
            note_image(pool, &volume, Problem::Unrepaired(why));
            volume
        }
    }
}

/// Records the length of an image. The image is synced first, as by an expansion: the process that
/// made it longer may have died before that. With gigabytes in the page cache, that takes a while,
/// and the pool serves no calls meanwhile.
fn record_length(pool: &Pool, id: VolumeId, len: u64) -> Result<Arc<VolumeRecord>> {
    let entry = id.to_string();
    let image = pool.layout.open_image(EntryKind::Volumes, &entry, false)?;
    let path = pool.image_path(&id);
    tracing::info!(
        volume = %id, path = %path.display(), len,
        "syncing an image that an interrupted expansion has made longer than its record says: the \
         pool opens once its data is on disk"
    );
    file::sync(&image, &path)?;
    pool.update(&id, |record| record.capacity_bytes = len)
}

fn note_image(pool: &Pool, volume: &VolumeRecord, problem: Problem) {
    if let Problem::ImageMissing { .. } = &problem {
        let path = pool.image_path(&volume.id);
        tracing::warn!(volume = %volume.id, path = %path.display(), "the image is missing");
    }
    let until = Until::ImageWhole(volume.id);
    pool.note(About::Volume(volume.id), until, problem);
}

/// Takes away the mounts that earlier versions may have left.
fn unmount_old_scratch(
    pool: &Pool,
    kernel: &dyn Kernel,
    options: &PoolOptions,
    images: &[VolumeImage],
) {
    for id in scratch_mount::volumes(&options.state_dir) {
        let Some(found) = images.iter().find(|found| found.volume.id == id) else {
            continue;
        };
        let image = found.image.file;
        if let Err(e) = scratch_mount::unmount(kernel, &options.state_dir, id, image) {
            let at = scratch_mount::directory_of(&options.state_dir, id);
            let what = format!("an interrupted thaw left it mounted: {e}");
            pool.note_unrepaired(About::Volume(id), Until::FileGone(at), what);
        }
    }
}

/// Frees the members of groups that were never finished or are partly deleted, then the records of
/// the groups.
pub(super) fn finish_groups(pools: &Pools) {
    for pool in pools.pools() {
        let mut unfinished = std::mem::take(&mut *pool.unfinished.lock());
        unfinished.retain_mut(|unfinished| !finish(pools, &pool, unfinished));
        pool.unfinished.lock().append(&mut unfinished);
    }
}

/// Notes the members of groups that can't be found, which are kept, and groups with missing
/// members.
pub(super) fn note_groups(pools: &Pools) {
    for pool in pools.pools() {
        note_lone_members(pools, &pool);
        note_missing_members(pools, &pool);
    }
}

/// Frees a group's members, then its record. False if the record can't leave its place, or a member
/// must wait, for example until its pool is open and synced.
fn finish(pools: &Pools, home: &Pool, unfinished: &mut Unfinished) -> bool {
    let group = unfinished.group;
    match pools.indexed_group(&group) {
        Err(Error::NoGroup(_)) => {
            if !withdraw(home, unfinished) {
                return false;
            }
            // Every member is tried, even after a failure.
            unfinished
                .waiting
                .retain(|member| !free_member(pools, *member, group));
        }
        // The record is in its final place as well: an operator has restored it.
        Ok(_) => unfinished.waiting.clear(),
        Err(_) => return false,
    }
    let is_finished = unfinished.waiting.is_empty();
    if is_finished {
        remove(home, unfinished.left, group.to_string());
    } else {
        note_unknown_pool(pools, home, unfinished);
    }
    is_finished
}

/// Moves the record of a failed group out of its place, for good: a later start would find a group
/// that lacks the members freed until then. False if it may still be there.
fn withdraw(home: &Pool, unfinished: &mut Unfinished) -> bool {
    let Left::On(kind) = unfinished.left else {
        return true;
    };
    match home.layout.withdraw(kind, &unfinished.group.to_string()) {
        Ok(left) => {
            unfinished.left = left;
            true
        }
        Err(error) => {
            let group = unfinished.group;
            tracing::debug!(%group, %error, "a failed group is still in its place");
            false
        }
    }
}

/// Notes once that a member is in a pool that is not configured, perhaps for good.
fn note_unknown_pool(pools: &Pools, home: &Pool, unfinished: &Unfinished) {
    let mut waiting = unfinished.waiting.iter();
    let Some(member) =
        waiting.find(|id| matches!(pools.with_id(id.pool()), Err(Error::ForeignPool(_))))
    else {
        return;
    };
    let (from, entry) = (unfinished.left, unfinished.group.to_string());
    let until = Until::FileGone(home.root().join(from.name()).join(&entry));
    if home.noted.lock().iter().any(|noted| noted.until == until) {
        return;
    }
    let why = format!(
        "is kept: the pool of its snapshot {member} is not configured. Configure that pool, and the \
         driver frees the snapshot. If the pool is gone for good, move this directory out of the \
         pool and restart the driver"
    );
    note_left(home, from, &entry, why);
}

/// Frees a snapshot. One in the index is freed only if its record names this group. One that is not
/// there was never complete, or is gone, and the group's record alone decides. False if the record
/// is unavailable, if the snapshot can't be freed, or if it is gone but may come back: after a power
/// cut, or with the next configuration, if this one does not have its pool.
fn free_member(pools: &Pools, id: SnapshotId, group: GroupId) -> bool {
    let is_there = match pools.snapshot(&id) {
        Ok(member) if member.group == Some(group) => true,
        // Its move to `trash/` may have failed, or only an fsync of that.
        Err(Error::NoSnapshot(_)) => false,
        Ok(_) => return true,
        Err(_) => return false,
    };
    let Ok(pool) = pools.with_id(id.pool()) else {
        return false;
    };
    match pool.drop_snapshot(id) {
        Ok(()) if is_there => {
            tracing::info!(snapshot = %id, %group, "freed a snapshot without a complete group")
        }
        Ok(()) => {}
        Err(e) => {
            tracing::debug!(snapshot = %id, %group, error = %e, "can't free a snapshot yet");
            if is_there {
                note_kept_member(&pool, id, &e);
            }
            return false;
        }
    }
    true
}

/// Notes once that a member without a group can't be freed.
fn note_kept_member(pool: &Pool, id: SnapshotId, error: &Error) {
    let until = Until::SnapshotGone(id);
    if pool.noted.lock().iter().any(|noted| noted.until == until) {
        return;
    }
    let what = format!("its group is gone, and it can't be freed: {error}");
    pool.note_unrepaired(About::Snapshot(id), until, what);
}

/// Notes snapshots of a group that does not exist, and keeps them: a lost or damaged group record
/// must not delete a snapshot.
fn note_lone_members(pools: &Pools, pool: &Pool) {
    let members: Vec<(SnapshotId, GroupId)> = {
        let index = pool.index.read();
        let members = index.snapshots.all().filter_map(|s| Some((s.id, s.group?)));
        members.collect()
    };
    let waiting: Vec<GroupId> = pools
        .pools()
        .iter()
        .flat_map(|pool: &Arc<Pool>| -> Vec<GroupId> {
            let unfinished = pool.unfinished.lock();
            unfinished.iter().map(|u| u.group).collect()
        })
        .collect();
    for (member, group) in members {
        if waiting.contains(&group)
            || !matches!(pools.indexed_group(&group), Err(Error::NoGroup(_)))
        {
            continue;
        }
        let about = About::Snapshot(member);
        pool.forget(&about);
        let until = Until::SnapshotGone(member);
        pool.note(about, until, Problem::GroupMissing(group));
    }
}

fn note_missing_members(pools: &Pools, pool: &Pool) {
    let groups: Vec<_> = pool.index.read().groups.all().cloned().collect();
    for group in groups {
        let members = group.snapshots.iter().copied();
        let missing: Vec<SnapshotId> = members
            .filter(|member| matches!(pools.indexed_snapshot(member), Err(Error::NoSnapshot(_))))
            .collect();
        if !missing.is_empty() {
            let about = About::Group(group.id);
            pool.forget(&about);
            pool.note(about, Until::Reopened, Problem::GroupIncomplete(missing));
        }
    }
}
