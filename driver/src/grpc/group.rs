//! The GroupController service over gRPC.

use hostloop_proto::csi;

use super::controller::snapshots;
use super::dispatch::service;
use super::operation_locks::{Hold, Key};
use super::pool_threads::{Lane, Work};
use crate::controller::Controller;
use crate::storage::{Freed, Pools};

service! {
    GroupService: "csi.v1.GroupController", group_controller_server::GroupController,
        done by Controller;

    "GroupControllerGetCapabilities"
        group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest)
        -> GroupControllerGetCapabilitiesResponse
        about |_| "";
    "CreateVolumeGroupSnapshot" create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest)
        -> CreateVolumeGroupSnapshotResponse
        about |r| &r.name,
        in |r, pools| Lane::of_ids(pools, r.source_volume_ids.iter().map(String::as_str)),
        as group, unless Controller::refuses_group, by |r| &r.parameters,
        holding new_group, but for [secrets];
    "DeleteVolumeGroupSnapshot" delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest)
        -> DeleteVolumeGroupSnapshotResponse
        about |r| &r.group_snapshot_id,
        in |r, pools| {
            let members = r.snapshot_ids.iter().map(String::as_str);
            Lane::of_ids(pools, members.chain([r.group_snapshot_id.as_str()]))
        },
        as |_, _| Work::Delete,
        holding old_group, but for [secrets],
        freeing |_| Freed::Room;
    "GetVolumeGroupSnapshot" get_volume_group_snapshot(GetVolumeGroupSnapshotRequest)
        -> GetVolumeGroupSnapshotResponse
        about |r| &r.group_snapshot_id;
}

/// The work of CreateVolumeGroupSnapshot.
fn group(request: &csi::CreateVolumeGroupSnapshotRequest, pools: &Pools) -> Work {
    if pools.group_named(&request.name).is_some() {
        return Work::Change;
    }
    snapshots(&request.source_volume_ids, pools)
}

/// The locks of CreateVolumeGroupSnapshot: the group's name and all source volumes.
fn new_group(request: &csi::CreateVolumeGroupSnapshotRequest, _: &Pools) -> Vec<Hold> {
    let mut holds = vec![Key::GroupName(request.name.clone()).changed()];
    let volumes = request.source_volume_ids.iter().cloned();
    holds.extend(volumes.map(|id| Key::Volume(id).copied()));
    holds
}

/// The locks of DeleteVolumeGroupSnapshot: the group, and its snapshots, which must not be copied
/// meanwhile.
fn old_group(request: &csi::DeleteVolumeGroupSnapshotRequest, _: &Pools) -> Vec<Hold> {
    let mut holds = vec![Key::Group(request.group_snapshot_id.clone()).changed()];
    let snapshots = request.snapshot_ids.iter().cloned();
    holds.extend(snapshots.map(|id| Key::Snapshot(id).changed()));
    holds
}
