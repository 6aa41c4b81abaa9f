//! The table of the objects behind a claim, a snapshot or a group.

use hostloop_api_objects::snapshots::{DeletionPolicy, VolumeGroupSnapshot, VolumeSnapshotContent};
use hostloop_terminal::color::{BAD, paint};
use hostloop_terminal::columns::or_dash;
use hostloop_terminal::humanize::bytes;
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::words;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;

use crate::describe::Facts;
use crate::output::one_line;
use crate::status::SnapshotRow;
use crate::volume_objects::phase;

/// Kind, name, state and UID of an object.
type Row = [String; 4];

/// Adds the table, and behind it why snapshots are stuck.
pub(super) fn objects(facts: &Facts, page: &mut Page) {
    let objects = &facts.objects;
    let snapshots = &facts.report.snapshots;
    let mut rows: Vec<Row> = objects.claims.iter().map(claim).collect();
    rows.extend(objects.volumes.iter().map(volume));
    rows.extend(objects.attachments.iter().map(attachment));
    rows.extend(objects.pods.iter().map(pod));
    rows.extend(snapshots.iter().map(|row| snapshot(facts, row)));
    rows.extend(objects.groups.iter().map(group));
    rows.extend(objects.contents.iter().map(content));
    let cells: [Cell<Row>; 4] = [
        (words("KIND"), |row, _| row[0].clone()),
        (words("NAME"), |row, _| row[1].clone()),
        (words("STATE"), |row, _| row[2].clone()),
        (words("UID"), |row, _| row[3].clone()),
    ];
    page.table("Objects", &cells, &rows);
    page.lines.extend(snapshots.iter().filter_map(|row| {
        let why = one_line(&row.stuck.as_ref()?.why);
        let name = or_dash(row.name.clone());
        Some(paint(BAD, &format!("  snapshot {name}: {why}")))
    }));
}

fn row(kind: &str, name: String, state: &str, uid: Option<String>) -> Row {
    [
        kind.to_owned(),
        name,
        or_dash(Some(one_line(state))),
        or_dash(uid),
    ]
}

fn claim(claim: &PersistentVolumeClaim) -> Row {
    let status = claim.status.as_ref();
    let phase = or_dash(status.and_then(|status| status.phase.clone()));
    let kind = "PersistentVolumeClaim";
    row(kind, claim.name_any(), &phase, claim.uid())
}

fn volume(volume: &PersistentVolume) -> Row {
    let status = volume.status.as_ref();
    let phase = or_dash(status.and_then(|status| status.phase.clone()));
    let spec = volume.spec.as_ref();
    let policy = or_dash(spec.and_then(|spec| spec.persistent_volume_reclaim_policy.clone()));
    let state = format!("{phase}, policy {policy}");
    row("PersistentVolume", volume.name_any(), &state, volume.uid())
}

fn attachment(attachment: &VolumeAttachment) -> Row {
    let status = attachment.status.as_ref();
    let word = if status.is_some_and(|status| status.attached) {
        "attached"
    } else {
        "not attached"
    };
    let state = format!("{word} to {}", attachment.spec.node_name);
    let kind = "VolumeAttachment";
    row(kind, attachment.name_any(), &state, attachment.uid())
}

fn pod(pod: &Pod) -> Row {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let node = node.map(|node| format!(" on {node}")).unwrap_or_default();
    let state = format!("{}{node}", phase(pod));
    row("Pod", pod.name_any(), &state, pod.uid())
}

fn snapshot(facts: &Facts, snapshot: &SnapshotRow) -> Row {
    let state = match (&snapshot.stuck, snapshot.ready, snapshot.used_bytes) {
        (Some(_), ..) => "stuck".to_owned(),
        (None, Some(true), Some(used)) => format!("ready, {}", bytes(used).replace(' ', "")),
        (None, Some(true), None) => "ready".to_owned(),
        (None, ..) => "being taken".to_owned(),
    };
    let state = if snapshot.is_powercut() {
        format!("{state}, power cut")
    } else {
        state
    };
    let name = or_dash(snapshot.name.clone());
    let mut objects = facts.objects.snapshots.iter();
    let object = objects.find(|object| object.name_any() == name);
    row(
        "VolumeSnapshot",
        name,
        &state,
        object.and_then(ResourceExt::uid),
    )
}

fn group(group: &VolumeGroupSnapshot) -> Row {
    let ready = group.status.as_ref().and_then(|status| status.ready_to_use);
    let state = if ready == Some(true) {
        "ready"
    } else {
        "being taken"
    };
    row("VolumeGroupSnapshot", group.name_any(), state, group.uid())
}

fn content(content: &VolumeSnapshotContent) -> Row {
    let status = content.status.as_ref();
    let handle = or_dash(status.and_then(|status| status.snapshot_handle.clone()));
    let policy = match content.spec.deletion_policy {
        DeletionPolicy::Delete => "Delete",
        DeletionPolicy::Retain => "Retain",
    };
    let state = format!("{handle}, policy {policy}");
    let kind = "VolumeSnapshotContent";
    row(kind, content.name_any(), &state, content.uid())
}
