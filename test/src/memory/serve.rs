//! The services on the wire.

use std::sync::Arc;

use hostloop_proto::csi;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::calls::RequestOf;
use super::shared::Shared;
use super::state::State;

/// What answers the calls that come by one socket.
#[derive(Clone)]
struct Door {
    shared: Arc<Shared>,
    number: usize,
}

/// Serves all services for as long as it is let. `number` tells the sockets of one driver apart.
pub(super) async fn serve(shared: Arc<Shared>, number: usize, listener: UnixListener) {
    let shared = Door { shared, number };
    let served = tonic::transport::Server::builder()
        .add_service(csi::identity_server::IdentityServer::new(Identity(
            shared.clone(),
        )))
        .add_service(csi::controller_server::ControllerServer::new(Controller(
            shared.clone(),
        )))
        .add_service(csi::group_controller_server::GroupControllerServer::new(
            GroupController(shared.clone()),
        ))
        .add_service(csi::node_server::NodeServer::new(Node(shared)))
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await;
    if let Err(e) = served {
        eprintln!("memory driver: {e}");
    }
}

/// A service with methods of [`State`] as its calls.
macro_rules! service {
    ($server:ident::$service:ident {
        $($rpc:literal $method:ident($request:ident) -> $response:ident;)+
    }) => {
        struct $service(Door);

        $(impl RequestOf for csi::$request {
            const METHOD: &'static str = $rpc;
        })+

        #[tonic::async_trait]
        impl csi::$server::$service for $service {
            $(async fn $method(
                &self,
                request: Request<csi::$request>,
            ) -> Result<Response<csi::$response>, Status> {
                self.0.shared.answer(self.0.number, request, State::$method).await
            })+
        }
    };
}

service! { identity_server::Identity {
    "GetPluginInfo" get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse;
    "GetPluginCapabilities" get_plugin_capabilities(GetPluginCapabilitiesRequest)
        -> GetPluginCapabilitiesResponse;
    "Probe" probe(ProbeRequest) -> ProbeResponse;
}}

service! { controller_server::Controller {
    "CreateVolume" create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    "DeleteVolume" delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    "ControllerPublishVolume" controller_publish_volume(ControllerPublishVolumeRequest)
        -> ControllerPublishVolumeResponse;
    "ControllerUnpublishVolume" controller_unpublish_volume(ControllerUnpublishVolumeRequest)
        -> ControllerUnpublishVolumeResponse;
    "ValidateVolumeCapabilities" validate_volume_capabilities(ValidateVolumeCapabilitiesRequest)
        -> ValidateVolumeCapabilitiesResponse;
    "ListVolumes" list_volumes(ListVolumesRequest) -> ListVolumesResponse;
    "ControllerListVolumeHealth" controller_list_volume_health(ControllerListVolumeHealthRequest)
        -> ControllerListVolumeHealthResponse;
    "ControllerGetVolumeHealth" controller_get_volume_health(ControllerGetVolumeHealthRequest)
        -> ControllerGetVolumeHealthResponse;
    "GetCapacity" get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    "ControllerGetCapabilities" controller_get_capabilities(ControllerGetCapabilitiesRequest)
        -> ControllerGetCapabilitiesResponse;
    "CreateSnapshot" create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    "DeleteSnapshot" delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    "ListSnapshots" list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    "GetSnapshot" get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
    "ControllerExpandVolume" controller_expand_volume(ControllerExpandVolumeRequest)
        -> ControllerExpandVolumeResponse;
    "ControllerGetVolume" controller_get_volume(ControllerGetVolumeRequest)
        -> ControllerGetVolumeResponse;
    "ControllerModifyVolume" controller_modify_volume(ControllerModifyVolumeRequest)
        -> ControllerModifyVolumeResponse;
}}

service! { group_controller_server::GroupController {
    "GroupControllerGetCapabilities"
        group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest)
        -> GroupControllerGetCapabilitiesResponse;
    "CreateVolumeGroupSnapshot" create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest)
        -> CreateVolumeGroupSnapshotResponse;
    "DeleteVolumeGroupSnapshot" delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest)
        -> DeleteVolumeGroupSnapshotResponse;
    "GetVolumeGroupSnapshot" get_volume_group_snapshot(GetVolumeGroupSnapshotRequest)
        -> GetVolumeGroupSnapshotResponse;
}}

service! { node_server::Node {
    "NodeStageVolume" node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    "NodeUnstageVolume" node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    "NodePublishVolume" node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    "NodeUnpublishVolume" node_unpublish_volume(NodeUnpublishVolumeRequest)
        -> NodeUnpublishVolumeResponse;
    "NodeGetVolumeStats" node_get_volume_stats(NodeGetVolumeStatsRequest)
        -> NodeGetVolumeStatsResponse;
    "NodeGetVolumeHealth" node_get_volume_health(NodeGetVolumeHealthRequest)
        -> NodeGetVolumeHealthResponse;
    "NodeGetStorageHealth" node_get_storage_health(NodeGetStorageHealthRequest)
        -> NodeGetStorageHealthResponse;
    "NodeExpandVolume" node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    "NodeGetCapabilities" node_get_capabilities(NodeGetCapabilitiesRequest)
        -> NodeGetCapabilitiesResponse;
    "NodeGetInfo" node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse;
}}
