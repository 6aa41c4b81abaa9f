//! The Node service over gRPC.

use super::controller::staging;
use super::dispatch::service;
use super::operation_locks::Key;
use super::pool_threads::{Lane, Work};
use crate::node::Node;
use crate::storage::{Freed, Pools, VolumeHandle};
use hostloop_proto::csi;

service! {
    NodeService: "csi.v1.Node", node_server::Node, done by Node;

    "NodeStageVolume" node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse
        about |r| &r.volume_id, as |r, pools| staging(&r.volume_id, pools),
        holding |r, _| Key::volume_mount(&r.volume_id), but for [secrets, volume_context];
    "NodeUnstageVolume" node_unstage_volume(NodeUnstageVolumeRequest)
        -> NodeUnstageVolumeResponse
        about |r| &r.volume_id, as |_, _| Work::Unstage,
        holding |r, _| Key::volume_mount(&r.volume_id), but for [],
        freeing |r| Freed::Volume(r.volume_id.clone());
    "NodePublishVolume" node_publish_volume(NodePublishVolumeRequest)
        -> NodePublishVolumeResponse
        about |r| &r.volume_id,
        in |r, pools| Lane::of_publication(pools, &r.volume_id, &r.volume_context),
        by |r| &r.volume_context,
        holding |r, _| Key::volume_mount(&r.volume_id),
        but for [secrets, volume_context];
    "NodeUnpublishVolume" node_unpublish_volume(NodeUnpublishVolumeRequest)
        -> NodeUnpublishVolumeResponse
        about |r| &r.volume_id, as unpublishing,
        holding |r, _| Key::volume_mount(&r.volume_id), but for [],
        freeing unpublished;
    "NodeGetVolumeStats" node_get_volume_stats(NodeGetVolumeStatsRequest)
        -> NodeGetVolumeStatsResponse
        about |r| &r.volume_id;
    "NodeGetVolumeHealth" node_get_volume_health(NodeGetVolumeHealthRequest)
        -> NodeGetVolumeHealthResponse
        about |r| &r.volume_id;
    "NodeGetStorageHealth" node_get_storage_health(NodeGetStorageHealthRequest)
        -> NodeGetStorageHealthResponse
        about |_| "", in |_, pools| Lane::of_all(pools);
    "NodeExpandVolume" node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse
        about |r| &r.volume_id, as |r, pools| staging(&r.volume_id, pools),
        holding |r, _| Key::volume_mount(&r.volume_id), but for [secrets];
    "NodeGetCapabilities" node_get_capabilities(NodeGetCapabilitiesRequest)
        -> NodeGetCapabilitiesResponse
        about |_| "";
    "NodeGetInfo" node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse
        about |_| "";
}

/// Nothing else unstages an inline volume.
fn unpublishing(request: &csi::NodeUnpublishVolumeRequest, _: &Pools) -> Work {
    match request.volume_id.parse() {
        Ok(VolumeHandle::Inline(_)) => Work::Unstage,
        _ => Work::Leave,
    }
}

/// An inline volume is deleted when it is unpublished.
fn unpublished(request: &csi::NodeUnpublishVolumeRequest) -> Freed {
    match request.volume_id.parse() {
        Ok(VolumeHandle::Inline(_)) => Freed::Room,
        _ => Freed::Volume(request.volume_id.clone()),
    }
}
