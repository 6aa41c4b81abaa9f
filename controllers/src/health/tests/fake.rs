//! A driver that tells of health what it was told to.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use csi::controller_server::{Controller, ControllerServer};
use csi::identity_server::{Identity, IdentityServer};
use csi::node_server::{Node, NodeServer};
use hostloop_proto::csi;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use crate::runtime::csi::Csi;
use crate::runtime::driver::{ControllerCapability, NodeCapability, Service};

/// What it answers, by volume.
#[derive(Clone)]
pub(super) enum Answer {
    Healthy,
    Ill(&'static str),
    Error,
}

#[derive(Default)]
pub(super) struct State {
    /// It can tell nothing.
    pub(super) silent: bool,
    pub(super) lists: bool,
    /// ControllerListVolumeHealth is supported but fails now.
    pub(super) list_fails: bool,
    pub(super) volumes: BTreeMap<&'static str, Option<Answer>>,
    pub(super) storage: Vec<&'static str>,
    pub(super) calls: Vec<String>,
}

#[derive(Clone, Default)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn serve(&self) -> Csi {
        let (sender, receiver) = mpsc::unbounded_channel::<DuplexStream>();
        let connections = UnboundedReceiverStream::new(receiver).map(Ok::<_, io::Error>);
        let server = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(connections));
        Csi::over(move || {
            let (here, there) = tokio::io::duplex(1 << 16);
            let sent = sender.send(there);
            async move { sent.map(|()| here).map_err(io::Error::other) }
        })
    }
}

fn health(id: &str, answer: &Answer) -> csi::VolumeHealth {
    let health_statuses = match answer {
        Answer::Ill(reason) => vec![csi::volume_health::VolumeHealthEntry {
            status: csi::VolumeHealthErrorType::Inaccessible as i32,
            reason: (*reason).to_owned(),
            message: "it is away".to_owned(),
        }],
        Answer::Healthy | Answer::Error => Vec::new(),
    };
    csi::VolumeHealth {
        volume_id: id.to_owned(),
        health_statuses,
    }
}

type Answered<T> = Result<Response<T>, Status>;

#[async_trait]
impl Identity for Fake {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Answered<csi::GetPluginInfoResponse> {
        let name = "d".to_owned();
        Ok(Response::new(csi::GetPluginInfoResponse {
            name,
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Answered<csi::GetPluginCapabilitiesResponse> {
        use csi::plugin_capability::{Service as Has, Type};
        let r#type = Some(Type::Service(Has {
            r#type: Service::ControllerService as i32,
        }));
        let capabilities = vec![csi::PluginCapability { r#type }];
        Ok(Response::new(csi::GetPluginCapabilitiesResponse {
            capabilities,
        }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Answered<csi::ProbeResponse> {
        Ok(Response::new(csi::ProbeResponse::default()))
    }
}

macro_rules! service {
    ($service:ident { $($method:ident($request:ident) -> $response:ident;)+ } $($own:tt)*) => {
        #[async_trait]
        impl $service for Fake {
            $(
                async fn $method(
                    &self,
                    _: Request<csi::$request>,
                ) -> Answered<csi::$response> {
                    Err(Status::unimplemented(stringify!($method)))
                }
            )+
            $($own)*
        }
    };
}

service! {
    Controller {
        create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
        delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
        controller_publish_volume(ControllerPublishVolumeRequest)
            -> ControllerPublishVolumeResponse;
        controller_unpublish_volume(ControllerUnpublishVolumeRequest)
            -> ControllerUnpublishVolumeResponse;
        validate_volume_capabilities(ValidateVolumeCapabilitiesRequest)
            -> ValidateVolumeCapabilitiesResponse;
        list_volumes(ListVolumesRequest) -> ListVolumesResponse;
        get_capacity(GetCapacityRequest) -> GetCapacityResponse;
        create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
        delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
        get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
        controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
        controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
        controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answered<csi::ControllerGetCapabilitiesResponse> {
        use csi::controller_service_capability::{Rpc, Type};
        let mut has = vec![ControllerCapability::GetVolumeHealth];
        if self.state().silent {
            has.clear();
        }
        has.extend(self.state().lists.then_some(ControllerCapability::ListVolumeHealth));
        let capabilities = has.into_iter().map(|one| csi::ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: one as i32 })),
        });
        let capabilities = capabilities.collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    /// One on a page.
    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Answered<csi::ControllerListVolumeHealthResponse> {
        let from = request.into_inner().starting_token;
        let mut state = self.state();
        state.calls.push(format!("list {from}"));
        if state.list_fails {
            return Err(Status::unavailable("a pool is missing"));
        }
        let mut ill = state.volumes.iter().filter_map(|(id, answer)| match answer {
            Some(answer @ Answer::Ill(_)) if *id >= from.as_str() => Some(health(id, answer)),
            _ => None,
        });
        let entries = ill.next().into_iter().collect();
        let next_token = ill.next().map(|next| next.volume_id).unwrap_or_default();
        Ok(Response::new(csi::ControllerListVolumeHealthResponse { entries, next_token }))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Answered<csi::ControllerGetVolumeHealthResponse> {
        let id = request.into_inner().volume_id;
        let mut state = self.state();
        state.calls.push(format!("get {id}"));
        match state.volumes.get(id.as_str()) {
            None | Some(None) => Err(Status::not_found(id)),
            Some(Some(Answer::Error)) => Err(Status::internal("no idea")),
            Some(Some(answer)) => Ok(Response::new(csi::ControllerGetVolumeHealthResponse {
                volume_health: Some(health(&id, answer)),
            })),
        }
    }
}

service! {
    Node {
        node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
        node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
        node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
        node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
        node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
        node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
        node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
        node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse;
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answered<csi::NodeGetCapabilitiesResponse> {
        use csi::node_service_capability::{Rpc, Type};
        let r#type = NodeCapability::GetStorageHealth as i32;
        let r#type = Some(Type::Rpc(Rpc { r#type }));
        let mut capabilities = vec![csi::NodeServiceCapability { r#type }];
        if self.state().silent {
            capabilities.clear();
        }
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<csi::NodeGetStorageHealthRequest>,
    ) -> Answered<csi::NodeGetStorageHealthResponse> {
        use csi::node_get_storage_health_response::StorageBackendHealth;
        let entry = |reason: &&str| StorageBackendHealth {
            status: csi::StorageHealthErrorType::StorageDegraded as i32,
            reason: (*reason).to_owned(),
            ..Default::default()
        };
        let backend_health = self.state().storage.iter().map(entry).collect();
        Ok(Response::new(csi::NodeGetStorageHealthResponse { backend_health }))
    }
}
