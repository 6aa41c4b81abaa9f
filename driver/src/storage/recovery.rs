//! What is put right when a pool is opened.
//!
//! After a crash, a reboot, or the loss of the container's mounts, the records say what was meant
//! and the kernel says what is. What is ours and idle goes; what a pod still holds is given back
//! to it or reported; what is not ours is not touched. Nothing here ends the opening of a pool: a
//! volume that can't be put right is a finding.

use std::io::ErrorKind::NotFound;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::{EntryKind, IMAGE, ImageStat, Left};
use super::freeze;
use super::index::{Index, Named};
use super::issue::Holds;
use super::record_io::{self, Loaded, Record};
use super::sync::{lock, read, write};
use super::{
    About, Error, Format, GroupId, GroupRecord, Pool, PoolOptions, Pools, Result, SnapshotId,
    VolumeId, VolumeRecord,
};
use crate::diagnose::volume::{Length, length};
use crate::kernel::{self, Kernel, file};

mod recheck;
mod reconcile_loops;
#[cfg(test)]
mod tests;

pub(super) use recheck::recheck;

/// Reads a pool's records and puts right what a crash, a reboot or somebody else left.
pub(super) fn recover(pool: &Pool, kernel: &dyn Kernel, options: &PoolOptions) -> Result<()> {
    sweep(pool)?;
    *write(&pool.index) = read_records(pool)?;
    let images = look_at_images(pool)?;
    thaw(pool, kernel, options, &images);
    reconcile_loops::reconcile(pool, kernel, &images)?;
    drop_left_inline(pool, kernel, &images);
    Ok(())
}

/// Deletes inline volumes that kubelet does not call about again: their pods left while the pool
/// took no writes or was missing, or their first publication failed. A volume that a pod still uses
/// keeps its target, because NodeUnpublishVolume was not called.
fn drop_left_inline(pool: &Pool, kernel: &dyn Kernel, images: &[Found]) {
    let left = images.iter().filter(|f| is_left(&f.volume));
    for found in left {
        let id = found.volume.id;
        let dropped = match kernel.loops_holding(found.image.id, &id.to_string()) {
            Ok(loops) if loops.is_empty() => pool.drop_volume(id),
            Ok(_) => continue,
            Err(e) => Err(e.into()),
        };
        match dropped {
            Ok(()) => tracing::info!(volume = %id, "deleted an inline volume without a pod"),
            Err(e) => pool.note(
                About::Volume(id),
                Holds::Open,
                format!("its pod is gone, and it can't be deleted: {e}"),
            ),
        }
    }
}

/// True for an inline volume without a pod: its target is gone, or it was never published. False if
/// the directory above all targets (of kubelet's `pods/<uid>/volumes/<plugin>/<name>/mount`) is not
/// visible here.
fn is_left(volume: &VolumeRecord) -> bool {
    let Some(stage) = &volume.stage else {
        // Its first publication failed. One that was published has a pod's data in it.
        return volume.inline.is_some() && !matches!(volume.format, Format::Done(_));
    };
    let gone = |path: &Path| path.symlink_metadata().is_err_and(|e| e.kind() == NotFound);
    let pods = stage.path.ancestors().nth(5);
    let seen = pods.is_some_and(|pods| pods != Path::new("/") && pods.is_dir());
    volume.inline.is_some() && gone(&stage.path) && seen
}

/// A group that was never finished, or is half deleted: the second witness, besides its members'
/// own records, that these are to be freed.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Where its record is.
    left: Left,
    group: GroupRecord,
}

/// Removes what was not finished, and frees what was deleted. The records of groups stay until
/// their members are freed, which [`settle_groups`] does. They are collected here, before the pool
/// serves: what a CreateVolumeGroupSnapshot has under way later is not among them.
fn sweep(pool: &Pool) -> Result<()> {
    for (left, what) in [(Left::Incoming, "unfinished"), (Left::Trash, "deleted")] {
        let dir = pool.layout.dir(left);
        for entry in file::list(dir)? {
            let id = entry.parse::<GroupId>().ok();
            let id = id.filter(|id| id.pool() == pool.id);
            let group = id.and_then(|id| group_in(dir, id));
            match group {
                Some(group) => lock(&pool.unfinished).push(Unfinished { left, group }),
                None => remove(pool, left, what, entry),
            }
        }
    }
    Ok(())
}

/// The record of a group in one of these two; `None` if it can't be read.
fn group_in(dir: BorrowedFd<'_>, id: GroupId) -> Option<GroupRecord> {
    let path = Path::new(&id.to_string()).join(GroupRecord::FILE);
    let mut bytes = Vec::new();
    record_io::read_whole(dir, &path, &mut bytes).ok()?;
    record_io::decode(&bytes, id).ok()
}

fn remove(pool: &Pool, from: Left, what: &str, entry: String) {
    if let Err(e) = pool.layout.remove(from, entry.clone()) {
        let holds = Holds::File(pool.root().join(from.name()).join(&entry));
        let what = format!("{what} {entry} can't be freed: {e}");
        pool.note(About::Pool, holds, what);
    }
}

fn read_records(pool: &Pool) -> Result<Index> {
    let mut index = Index::default();
    for record in read_shelf(pool, &mut index.volumes, About::Volume)? {
        index.put_volume(record);
    }
    for record in read_shelf(pool, &mut index.snapshots, About::Snapshot)? {
        index.snapshots.put(record);
    }
    for record in read_shelf(pool, &mut index.groups, About::Group)? {
        index.groups.put(record);
    }
    Ok(index)
}

/// The good records of a shelf. The others are noted, and stay in the way of whoever asks for
/// them: "not found" would be a lie.
fn read_shelf<R: Named>(
    pool: &Pool,
    table: &mut super::index::Table<R>,
    about: impl Fn(R::Id) -> About,
) -> Result<Vec<Arc<R>>> {
    let loaded: Loaded<R> = record_io::load(&pool.layout, pool.id)?;
    for (id, broken) in loaded.broken {
        // Holds even after a repair: the record is not read again before the next start.
        pool.note(about(id), Holds::Open, format!("its record {}", broken.why));
        table.put_broken(id, broken);
    }
    for path in loaded.strangers {
        pool.note(
            About::File(path.clone()),
            Holds::File(path),
            "is no entry of this pool: it is left alone",
        );
    }
    Ok(loaded.records.into_iter().map(Arc::new).collect())
}

/// A volume's image as it is on disk.
struct Found {
    volume: Arc<VolumeRecord>,
    image: ImageStat,
}

/// Looks at all images: one that is missing or too short is noted; one that is longer than its
/// record says was being expanded when the process died, and its record is brought up to it (the
/// filesystem in it may have grown already).
fn look_at_images(pool: &Pool) -> Result<Vec<Found>> {
    let volumes: Vec<_> = read(&pool.index).volumes.all().cloned().collect();
    let mut found = Vec::with_capacity(volumes.len());
    for volume in volumes {
        let entry = volume.id.to_string();
        let about = About::Volume(volume.id);
        let holds = Holds::Image(volume.id);
        match pool.layout.stat_image(EntryKind::Volumes, &entry) {
            Ok(Some(image)) => found.push(Found {
                volume: adopt_length(pool, volume, image.len),
                image,
            }),
            Ok(None) => pool.note(
                about,
                holds,
                format!(
                    "its image {} is missing",
                    pool.layout
                        .path_of(EntryKind::Volumes, &entry, IMAGE)
                        .display()
                ),
            ),
            Err(e) => pool.note(about, holds, format!("its image can't be looked at: {e}")),
        }
    }
    Ok(found)
}

fn adopt_length(pool: &Pool, volume: Arc<VolumeRecord>, len: u64) -> Arc<VolumeRecord> {
    let about = About::Volume(volume.id);
    let len = match length(len, volume.capacity_bytes) {
        Length::Same => return volume,
        Length::Short => {
            let why = format!(
                "its image has {len} bytes, and its record says {}",
                volume.capacity_bytes
            );
            pool.note(about, Holds::Image(volume.id), why);
            return volume;
        }
        Length::Long(len) => len,
    };
    match pool.update(&volume.id, |record| record.capacity_bytes = len) {
        Ok(volume) => {
            tracing::info!(volume = %volume.id, len, "an expansion was cut short: its record follows");
            volume
        }
        Err(e) => {
            pool.note(
                about,
                Holds::Image(volume.id),
                format!("its image is longer than its record says, which can't be changed: {e}"),
            );
            volume
        }
    }
}

/// Thaws what was frozen for a copy when the process died: pods that write there hang.
fn thaw(pool: &Pool, kernel: &dyn Kernel, options: &PoolOptions, images: &[Found]) {
    for found in images.iter().filter(|f| f.volume.freeze.is_some()) {
        let id = found.volume.id;
        let thawed = scratch(options, &id).and_then(|scratch| {
            let thawed = freeze::thaw_leftover(kernel, id, found.image.id, &scratch);
            // Empty again, or in use: then it is better left.
            let _ = std::fs::remove_dir(&scratch);
            thawed
        });
        let cleared = thawed.and_then(|what| {
            tracing::info!(volume = %id, ?what, "a freeze was cut short: thawed");
            pool.update(&id, |record| record.freeze = None)
        });
        if let Err(e) = cleared {
            let what = format!("it may still be frozen: {e}");
            pool.note(About::Volume(id), Holds::Frozen(id), what);
        }
    }
}

/// An empty directory to mount a frozen filesystem on.
fn scratch(options: &PoolOptions, id: &VolumeId) -> Result<PathBuf> {
    let path = options.state_dir.join("thaw").join(id.to_string());
    std::fs::create_dir_all(&path).map_err(|e| kernel::Error::io("mkdir", &path, e))?;
    Ok(path)
}

/// Frees the members of groups that were never finished, or are half deleted. Members of groups
/// that can't be found are noted and kept, and groups that miss a member are noted.
pub(super) fn settle_groups(pools: &Pools) {
    for pool in pools.pools() {
        let mut unfinished = std::mem::take(&mut *lock(&pool.unfinished));
        unfinished.retain(|unfinished| !finish(pools, &pool, unfinished));
        lock(&pool.unfinished).append(&mut unfinished);
    }
    for pool in pools.pools() {
        note_lone_members(pools, &pool);
        note_missing_members(pools, &pool);
    }
}

/// Frees a group's members, then its record. False if one of them has to wait, such as for its
/// pool.
fn finish(pools: &Pools, home: &Pool, Unfinished { left, group }: &Unfinished) -> bool {
    let freed = match pools.group(&group.id) {
        Err(Error::NoGroup(_)) => {
            // Each of them, whatever became of the one before.
            let waits = |id: &&SnapshotId| !free_member(pools, **id, group.id);
            group.snapshots.iter().filter(waits).count() == 0
        }
        // Its record is in place as well: an operator has restored it.
        Ok(_) => true,
        Err(_) => false,
    };
    if freed {
        remove(home, *left, "the group", group.id.to_string());
    }
    freed
}

/// Frees a snapshot if its own record, too, says that it is of this group. False if that can't be
/// seen, or it can't be freed.
fn free_member(pools: &Pools, id: SnapshotId, group: GroupId) -> bool {
    match pools.snapshot(&id) {
        Ok(member) if member.group == Some(group) => {}
        Ok(_) | Err(Error::NoSnapshot(_) | Error::ForeignPool(_)) => return true,
        Err(_) => return false,
    }
    let Ok(pool) = pools.with_id(id.pool()) else {
        return false;
    };
    tracing::info!(snapshot = %id, %group, "its group was never finished, or is deleted: freed");
    let dropped = pool.drop_snapshot(id);
    if let Err(e) = &dropped {
        let what = format!("its group is gone, and it can't be freed: {e}");
        pool.note(About::Snapshot(id), Holds::Snapshot(id), what);
    }
    dropped.is_ok()
}

/// Nothing but its own record says that such a member is not needed: a damaged byte in that, or
/// the loss of the group's, must not cost it.
fn note_lone_members(pools: &Pools, pool: &Pool) {
    let members: Vec<(SnapshotId, GroupId)> = {
        let index = read(&pool.index);
        let members = index.snapshots.all().filter_map(|s| Some((s.id, s.group?)));
        members.collect()
    };
    let unfinished = |pool: &Arc<Pool>| -> Vec<GroupId> {
        let unfinished = lock(&pool.unfinished);
        unfinished.iter().map(|u| u.group.id).collect()
    };
    let waiting: Vec<GroupId> = pools.pools().iter().flat_map(unfinished).collect();
    for (member, group) in members {
        if waiting.contains(&group) || !matches!(pools.group(&group), Err(Error::NoGroup(_))) {
            continue;
        }
        let about = About::Snapshot(member);
        pool.forget(&about);
        let what = format!(
            "its record names {group}, which is not here: it is kept. Put the group's record back, \
             or delete the snapshot if it is not needed"
        );
        pool.note(about, Holds::Snapshot(member), what);
    }
}

fn note_missing_members(pools: &Pools, pool: &Pool) {
    let groups: Vec<_> = read(&pool.index).groups.all().cloned().collect();
    for group in groups {
        for member in &group.snapshots {
            if let Err(e @ Error::NoSnapshot(_)) = pools.snapshot(member) {
                let about = About::Group(group.id);
                pool.forget(&about);
                pool.note(about, Holds::Open, e.to_string());
            }
        }
    }
}
