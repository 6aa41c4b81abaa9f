//! Everything goes.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;
use hostloop_proto::csi::group_controller_client::GroupControllerClient;

use crate::demo::error::Result;
use crate::demo::picture::Sort;
use crate::demo::world::World;

/// Tries to delete what is in use.
pub(super) fn refuse(w: &mut World) -> Result<()> {
    let before = w.see()?;
    let request = csi::DeleteVolumeRequest {
        volume_id: w.volume("data")?.id.clone(),
        ..csi::DeleteVolumeRequest::default()
    };
    let code = tonic::Code::FailedPrecondition;
    w.refused("DeleteVolume", "data", code, async |channel| {
        ControllerClient::new(channel).delete_volume(request).await
    })?;
    let things = |sort| move |c: &&crate::demo::picture::Change| c.sort == sort;
    let changes = w.see()?.since(&before);
    let changed = [Sort::Record, Sort::Loop, Sort::Mount]
        .iter()
        .any(|sort| changes.iter().any(|c| things(*sort)(&c)));
    w.narrator.check("nothing has changed", !changed);
    Ok(())
}

fn names(w: &World) -> Vec<&'static str> {
    w.volumes.keys().copied().collect()
}

/// Unpublishes and unstages everything.
pub(super) fn pods(w: &mut World) -> Result<()> {
    for name in names(w) {
        let pods: Vec<String> = w.volume(name)?.targets.keys().cloned().collect();
        for pod in pods {
            w.unpublish(name, &pod)?;
        }
        w.unstage(name)?;
    }
    w.look()?;
    let now = w.see()?;
    // The pool's own loop device and mount stay as long as the pool is open.
    let own = usize::from(w.spec.image_bytes.is_some());
    w.narrator.check(
        "no volume is on a loop device",
        now.count(Sort::Loop) == own,
    );
    w.narrator
        .check("no volume is mounted", now.count(Sort::Mount) == own);
    Ok(())
}

/// Deletes the volumes, then the snapshots, then the group.
pub(super) fn volumes(w: &mut World) -> Result<()> {
    for name in names(w) {
        w.detach(name)?;
        w.delete(name)?;
    }
    let count = {
        let request = csi::ListSnapshotsRequest::default();
        let list = w.call("ListSnapshots", "", async |channel| {
            ControllerClient::new(channel).list_snapshots(request).await
        })?;
        list.entries.len()
    };
    let of_group = w.group.as_ref().map_or(0, |g| g.snapshots.len());
    let expected = w.snapshots.len() + of_group;
    w.narrator.check(
        "the snapshots have outlived their volumes",
        count == expected,
    );
    for name in w.snapshots.keys().copied().collect::<Vec<_>>() {
        let request = csi::DeleteSnapshotRequest {
            snapshot_id: w.snapshot(name)?.snapshot_id.clone(),
            ..csi::DeleteSnapshotRequest::default()
        };
        w.call("DeleteSnapshot", name, async |channel| {
            ControllerClient::new(channel)
                .delete_snapshot(request)
                .await
        })?;
    }
    w.snapshots.clear();
    delete_group(w)?;
    w.look()?;
    let now = w.see()?;
    let empty = now.count(Sort::Record) == 0 && now.count(Sort::Image) == 0;
    w.narrator.check("the pool is empty", empty);
    Ok(())
}

fn delete_group(w: &mut World) -> Result<()> {
    let Some(group) = w.group.take() else {
        return Ok(());
    };
    let members = group.snapshots.iter().map(|s| s.snapshot_id.clone());
    let members: Vec<String> = members.collect();
    let request = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids: members.clone(),
        ..csi::GetVolumeGroupSnapshotRequest::default()
    };
    let again = w.call("GetVolumeGroupSnapshot", "both", async |channel| {
        GroupControllerClient::new(channel)
            .get_volume_group_snapshot(request)
            .await
    })?;
    let same = again
        .group_snapshot
        .is_some_and(|g| g.snapshots.len() == members.len());
    w.narrator.check("the group is whole", same);
    let request = csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id,
        snapshot_ids: members,
        ..csi::DeleteVolumeGroupSnapshotRequest::default()
    };
    w.call("DeleteVolumeGroupSnapshot", "both", async |channel| {
        GroupControllerClient::new(channel)
            .delete_volume_group_snapshot(request)
            .await
    })?;
    Ok(())
}

/// Stops the driver, gives the pool back, and compares with the beginning.
pub(super) fn nothing_left(w: &mut World) -> Result<()> {
    let log = std::fs::read_to_string(w.tree.log()).unwrap_or_default();
    // Refused calls have been shown; what else the driver had to warn of has not.
    let told = |line: &&str| line.contains("::observe: call ");
    let warns = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
    for line in log.lines().filter(|line| warns(line) && !told(line)) {
        w.narrator.fact("log", line);
    }
    w.look()?;
    let by_hand = w.undo_by_hand();
    for what in &by_hand {
        w.narrator.fact("left", what.as_str());
    }
    w.narrator.check(
        "the driver has ended and left nothing behind",
        by_hand.is_empty(),
    );
    w.look()?;
    tell_remains(w)
}

/// Checks that nothing of the demo is left, and names what is.
pub(in crate::demo) fn tell_remains(w: &mut World) -> Result<()> {
    let remains = w.baseline.remains(&w.tree, &*w.kernel)?;
    for (what, things) in [
        ("loop device", &remains.loops),
        ("mount", &remains.mounts),
        ("process", &remains.processes),
        ("file", &remains.files),
    ] {
        for thing in things {
            w.narrator.fact("left", format!("{what} {thing}"));
        }
        w.narrator
            .check(format!("no {what} is left"), things.is_empty());
    }
    Ok(())
}
