//! The Controller service over gRPC.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::Type;

use super::dispatch::service;
use super::operation_locks::{Hold, Key};
use super::pool_threads::{Lane, Work};
use crate::controller::Controller;
use crate::controller::parameters::makes_thick;
use crate::storage::{self, Freed, Pools, Provisioning, SnapshotId};

service! {
    ControllerService: "csi.v1.Controller", controller_server::Controller, done by Controller;

    "CreateVolume" create_volume(CreateVolumeRequest) -> CreateVolumeResponse
        about |r| &r.name,
        in |r, pools| Lane::of_class(pools, &r.parameters, source(r).as_ref().map(|s| s.key.text())),
        as creation, unless Controller::refuses_volume, by |r| &r.parameters,
        holding new_volume, but for [secrets];
    "DeleteVolume" delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse
        about |r| &r.volume_id, as |_, _| Work::Delete,
        holding |r, _| Key::volume(&r.volume_id), but for [secrets],
        freeing |_| Freed::Room;
    "ControllerPublishVolume" controller_publish_volume(ControllerPublishVolumeRequest)
        -> ControllerPublishVolumeResponse
        about |r| &r.volume_id, as |r, pools| publication(&r.volume_id, pools),
        holding |r, pools| attachment(&r.volume_id, pools),
        but for [secrets, volume_context];
    "ControllerUnpublishVolume" controller_unpublish_volume(ControllerUnpublishVolumeRequest)
        -> ControllerUnpublishVolumeResponse
        about |r| &r.volume_id, as |r, pools| unpublication(&r.volume_id, pools),
        holding |r, pools| attachment(&r.volume_id, pools), but for [secrets],
        freeing |r| Freed::Volume(r.volume_id.clone());
    "ValidateVolumeCapabilities" validate_volume_capabilities(ValidateVolumeCapabilitiesRequest)
        -> ValidateVolumeCapabilitiesResponse
        about |r| &r.volume_id;
    "ListVolumes" list_volumes(ListVolumesRequest) -> ListVolumesResponse
        about |_| "";
    "ControllerListVolumeHealth" controller_list_volume_health(ControllerListVolumeHealthRequest)
        -> ControllerListVolumeHealthResponse
        about |_| "", in |_, pools| Lane::of_all(pools);
    "ControllerGetVolumeHealth" controller_get_volume_health(ControllerGetVolumeHealthRequest)
        -> ControllerGetVolumeHealthResponse
        about |r| &r.volume_id;
    "GetCapacity" get_capacity(GetCapacityRequest) -> GetCapacityResponse
        about |_| "", in |r, pools| Lane::of_class(pools, &r.parameters, None);
    "ControllerGetCapabilities" controller_get_capabilities(ControllerGetCapabilitiesRequest)
        -> ControllerGetCapabilitiesResponse
        about |_| "";
    "CreateSnapshot" create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse
        about |r| &r.name, in |r, pools| Lane::of_ids(pools, [r.source_volume_id.as_str()]),
        as snapshot, unless Controller::refuses_snapshot, by |r| &r.parameters,
        holding new_snapshot, but for [secrets];
    "DeleteSnapshot" delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse
        about |r| &r.snapshot_id, as |_, _| Work::Delete,
        holding |r, _| vec![Key::Snapshot(r.snapshot_id.clone()).changed()], but for [secrets],
        freeing |_| Freed::Room;
    "ListSnapshots" list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse
        about |r| if r.snapshot_id.is_empty() { &r.source_volume_id } else { &r.snapshot_id };
    "GetSnapshot" get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse
        about |r| &r.snapshot_id;
    "ControllerExpandVolume" controller_expand_volume(ControllerExpandVolumeRequest)
        -> ControllerExpandVolumeResponse
        about |r| &r.volume_id,
        as expansion, unless Controller::refuses_expansion,
        holding |r, _| Key::volume(&r.volume_id), but for [secrets];
    "ControllerGetVolume" controller_get_volume(ControllerGetVolumeRequest)
        -> ControllerGetVolumeResponse
        about |r| &r.volume_id;
    "ControllerModifyVolume" controller_modify_volume(ControllerModifyVolumeRequest)
        -> ControllerModifyVolumeResponse
        about |r| &r.volume_id,
        as modification, unless Controller::refuses_modification,
        holding |r, _| Key::volume(&r.volume_id), but for [secrets],
        freeing |_| Freed::Room;
}

/// The snapshot or volume that a new volume is copied from.
fn source(request: &csi::CreateVolumeRequest) -> Option<Hold> {
    let source = request.volume_content_source.as_ref()?;
    let key = match source.r#type.as_ref()? {
        Type::Snapshot(snapshot) => Key::Snapshot(snapshot.snapshot_id.clone()),
        Type::Volume(volume) => Key::Volume(volume.volume_id.clone()),
    };
    Some(key.copied())
}

/// The work of CreateVolume. A copy in a pool with reflinks copies no bytes, unless source or copy
/// must have blocks of its own. A call for a volume that is there, or from a source that is not,
/// copies nothing. If it waited for the copies of others, its caller would hang up and repeat it as
/// long as there are enough of them.
fn creation(request: &csi::CreateVolumeRequest, pools: &Pools) -> Work {
    if pools.volume_named(&request.name).is_some() {
        return Work::Change;
    }
    let maps = [&request.parameters, &request.mutable_parameters];
    let thick = maps.into_iter().any(makes_thick);
    let Some(source) = source(request) else {
        return if thick { Work::Allocate } else { Work::Change };
    };
    let Some(provisioning) = provisioning(source.key.text(), pools) else {
        return Work::Change;
    };
    let lane = Lane::of_class(pools, &request.parameters, Some(source.key.text()));
    let shares = lane.shares_blocks(pools) && !lane.is_between_pools();
    if shares && !thick && provisioning != Provisioning::Thick {
        Work::Clone
    } else {
        Work::Copy
    }
}

/// The work of CreateSnapshot.
fn snapshot(request: &csi::CreateSnapshotRequest, pools: &Pools) -> Work {
    if pools.snapshot_named(&request.name).is_some() {
        return Work::Change;
    }
    snapshots([&request.source_volume_id], pools)
}

/// The work of ControllerExpandVolume.
fn expansion(request: &csi::ControllerExpandVolumeRequest, pools: &Pools) -> Work {
    let id = request.volume_id.parse().ok();
    let volume = id.and_then(|handle| pools.volume(&handle).ok());
    let requested = request.capacity_range.as_ref();
    let requested = requested.map_or(0, |range| range.required_bytes);
    let allocates = volume.is_some_and(|volume| {
        let grows = u64::try_from(requested).is_ok_and(|bytes| bytes > volume.capacity_bytes);
        grows && volume.settings.provisioning == Provisioning::Thick
    });
    if allocates {
        Work::Allocate
    } else {
        Work::Change
    }
}

/// The work of ControllerModifyVolume.
fn modification(request: &csi::ControllerModifyVolumeRequest, pools: &Pools) -> Work {
    if makes_thick(&request.mutable_parameters) && !is_thick(&request.volume_id, pools) {
        Work::Allocate
    } else {
        Work::Change
    }
}

/// The work to take snapshots of these volumes.
pub(super) fn snapshots<'a>(
    volumes: impl IntoIterator<Item = &'a String> + Clone,
    pools: &Pools,
) -> Work {
    let lane = Lane::of_ids(pools, volumes.clone().into_iter().map(String::as_str));
    let provisioned: Option<Vec<_>> = volumes
        .into_iter()
        .map(|id| provisioning(id, pools))
        .collect();
    let Some(provisioned) = provisioned else {
        return Work::Change;
    };
    if lane.shares_blocks(pools) && !provisioned.contains(&Provisioning::Thick) {
        Work::Clone
    } else {
        Work::Copy
    }
}

/// The work to stage a volume, or to grow it where it is staged. Both give a thick volume the
/// blocks that it has lost. Its image alone says whether it lacks any, and this must not wait for a
/// disk.
pub(super) fn staging(volume_id: &str, pools: &Pools) -> Work {
    if is_thick(volume_id, pools) {
        Work::StageThick
    } else {
        Work::Change
    }
}

/// True for a thick volume, or a snapshot of one: its restore is thick, too.
fn is_thick(id: &str, pools: &Pools) -> bool {
    provisioning(id, pools) == Some(Provisioning::Thick)
}

/// How a volume, or the source of a snapshot, is provisioned. `None` if it is not there.
fn provisioning(id: &str, pools: &Pools) -> Option<Provisioning> {
    if let Ok(id) = id.parse::<SnapshotId>() {
        let snapshot = pools.snapshot(&id).ok()?;
        return Some(snapshot.provisioning);
    }
    let volume = pools.volume(&id.parse().ok()?).ok()?;
    Some(volume.settings.provisioning)
}

/// True for a volume that is mounted when it is published to a node, and unmounted when it is
/// unpublished: all nodes of a kernel may use it.
fn is_shared(id: &str, pools: &Pools) -> bool {
    let volume = id.parse().ok().map(|handle| pools.volume(&handle));
    volume.is_some_and(|volume| volume.is_ok_and(|volume| volume.is_shared()))
}

/// The work of ControllerPublishVolume.
fn publication(id: &str, pools: &Pools) -> Work {
    if is_shared(id, pools) {
        staging(id, pools)
    } else {
        Work::Change
    }
}

/// The work of ControllerUnpublishVolume.
fn unpublication(id: &str, pools: &Pools) -> Work {
    if is_shared(id, pools) {
        Work::Unstage
    } else {
        Work::Leave
    }
}

/// The locks of ControllerPublishVolume and ControllerUnpublishVolume. A volume that can't be found
/// now may turn out to be a shared one by the time of the call: its pool may open.
fn attachment(id: &str, pools: &Pools) -> Vec<Hold> {
    let volume = id.parse().ok().map(|handle| pools.volume(&handle));
    let may_mount = match volume {
        Some(Ok(volume)) => volume.is_shared(),
        Some(Err(error)) => matches!(error, storage::Error::Unavailable { .. }),
        None => false,
    };
    if may_mount {
        Key::volume_mount(id)
    } else {
        Key::volume_record(id)
    }
}

/// The locks of CreateVolume: the new name, and the source, which must not change or be deleted.
fn new_volume(request: &csi::CreateVolumeRequest, _: &Pools) -> Vec<Hold> {
    let name = Key::VolumeName(request.name.clone()).changed();
    std::iter::once(name).chain(source(request)).collect()
}

fn new_snapshot(request: &csi::CreateSnapshotRequest, _: &Pools) -> Vec<Hold> {
    let name = Key::SnapshotName(request.name.clone()).changed();
    vec![name, Key::Volume(request.source_volume_id.clone()).copied()]
}
