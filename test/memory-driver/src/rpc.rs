//! The RPCs of all CSI services, and handlers that answer them.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_proto::csi::*;
use parking_lot::Mutex;
use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};

use crate::shared::Door;
use crate::state::State;

/// Adds the driver's handlers of all RPCs.
pub(crate) fn add_all(door: Door) -> Door {
    node(group_controller(controller(identity(door))))
}

/// A request of an RPC.
pub trait Rpc: Any + Clone + Send + Sync {
    /// The name of the RPC, such as `CreateVolume`.
    const METHOD: &'static str;
    /// The response of the RPC.
    type Response: Any + Send;
}

type AnyAnswer = Result<Box<dyn Any + Send>, Status>;
type Handler = Arc<dyn Fn(Box<dyn Any>) -> BoxFuture<'static, AnyAnswer> + Send + Sync>;
type Unhandled = Arc<dyn Fn(&'static str) + Send + Sync>;

/// Handlers of RPCs. An RPC without a handler returns UNIMPLEMENTED. Clones share the handlers.
#[derive(Clone, Default)]
pub struct Handlers(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    by_request: HashMap<TypeId, Handler>,
    unhandled: Option<Unhandled>,
}

impl Handlers {
    /// Sets the asynchronous handler of an RPC.
    pub fn on_async<Q: Rpc>(
        &self,
        handler: impl Fn(Q) -> BoxFuture<'static, Result<Q::Response, Status>> + Send + Sync + 'static,
    ) {
        let handler = move |request: Box<dyn Any>| -> BoxFuture<'static, AnyAnswer> {
            let request = request
                .downcast()
                .expect("handlers are found by request type");
            let answer = handler(*request);
            async move { Ok(Box::new(answer.await?) as Box<dyn Any + Send>) }.boxed()
        };
        let handler = Arc::new(handler);
        self.0.lock().by_request.insert(TypeId::of::<Q>(), handler);
    }

    /// Sets the synchronous handler of an RPC.
    pub fn on<Q: Rpc>(
        &self,
        handler: impl Fn(Q) -> Result<Q::Response, Status> + Send + Sync + 'static,
    ) {
        self.on_async(move |request| std::future::ready(handler(request)).boxed());
    }

    /// Sets a callback that receives the methods of RPCs without a handler, such as `CreateVolume`.
    pub fn on_unhandled(&self, unhandled: impl Fn(&'static str) + Send + Sync + 'static) {
        self.0.lock().unhandled = Some(Arc::new(unhandled));
    }

    /// All CSI services with these handlers.
    pub fn services(&self) -> Routes {
        Routes::default()
            .add_service(identity_server::IdentityServer::new(self.clone()))
            .add_service(controller_server::ControllerServer::new(self.clone()))
            .add_service(group_controller_server::GroupControllerServer::new(
                self.clone(),
            ))
            .add_service(node_server::NodeServer::new(self.clone()))
    }

    async fn answer<Q: Rpc>(&self, request: Request<Q>) -> Result<Response<Q::Response>, Status> {
        let (handler, unhandled) = {
            let inner = self.0.lock();
            let handler = inner.by_request.get(&TypeId::of::<Q>()).cloned();
            (handler, inner.unhandled.clone())
        };
        let Some(handler) = handler else {
            if let Some(unhandled) = unhandled {
                unhandled(Q::METHOD);
            }
            return Err(Status::unimplemented(Q::METHOD));
        };
        let answer = handler(Box::new(request.into_inner()));
        let answer = answer.await?.downcast();
        Ok(Response::new(
            *answer.expect("a handler returns its RPC's response"),
        ))
    }
}

/// The RPCs of a service: a server that answers by handlers, and a function that adds the driver's
/// own handlers.
macro_rules! service {
    ($add:ident: $server:ident::$service:ident {
        $($rpc:literal $method:ident($request:ident) -> $response:ident;)+
    }) => {
        $(impl Rpc for $request {
            const METHOD: &'static str = $rpc;
            type Response = $response;
        })+

        fn $add(door: Door) -> Door {
            door$(.with(State::$method))+
        }

        #[async_trait]
        impl $server::$service for Handlers {
            $(async fn $method(
                &self,
                request: Request<$request>,
            ) -> Result<Response<$response>, Status> {
                self.answer(request).await
            })+
        }
    };
}

service! { identity: identity_server::Identity {
    "GetPluginInfo" get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse;
    "GetPluginCapabilities" get_plugin_capabilities(GetPluginCapabilitiesRequest)
        -> GetPluginCapabilitiesResponse;
    "Probe" probe(ProbeRequest) -> ProbeResponse;
}}

service! { controller: controller_server::Controller {
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

service! { group_controller: group_controller_server::GroupController {
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

service! { node: node_server::Node {
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
