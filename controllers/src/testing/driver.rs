//! A CSI driver in memory that answers as it is told.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use hostloop_proto::csi::controller_server::{Controller, ControllerServer};
use hostloop_proto::csi::node_server::{Node, NodeServer};
use hostloop_proto::csi::*;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use crate::runtime::csi::Csi;

/// The driver's ID of its node.
pub(crate) const NODE_ID: &str = "id-1";

/// A call it got.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Publish(ControllerPublishVolumeRequest),
    Unpublish(ControllerUnpublishVolumeRequest),
    List(ListVolumesRequest),
    Expand(ControllerExpandVolumeRequest),
    Modify(ControllerModifyVolumeRequest),
    Delete(DeleteVolumeRequest),
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    errors: VecDeque<Status>,
    pages: VecDeque<ListVolumesResponse>,
    expanded: Option<ControllerExpandVolumeResponse>,
}

/// The driver. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Script(Arc<Mutex<State>>);

impl Script {
    /// The next call fails so.
    pub(crate) fn fail(&self, status: Status) {
        self.0.lock().expect("the driver").errors.push_back(status);
    }

    /// The next list is this page.
    pub(crate) fn page(&self, page: ListVolumesResponse) {
        self.0.lock().expect("the driver").pages.push_back(page);
    }

    /// What expanding answers.
    pub(crate) fn expands(&self, answer: ControllerExpandVolumeResponse) {
        self.0.lock().expect("the driver").expanded = Some(answer);
    }

    /// The calls since last asked.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.0.lock().expect("the driver").calls)
    }

    fn called<T>(&self, call: Call, answer: T) -> Result<Response<T>, Status> {
        let mut state = self.0.lock().expect("the driver");
        state.calls.push(call);
        match state.errors.pop_front() {
            Some(status) => Err(status),
            None => Ok(Response::new(answer)),
        }
    }

    /// A channel to it.
    pub(crate) fn serve(&self) -> Csi {
        let (sender, receiver) = mpsc::unbounded_channel::<DuplexStream>();
        let receiver = Mutex::new(Some((receiver, self.clone())));
        let receiver = Arc::new(receiver);
        Csi::over(move || {
            // It is begun by the first connection: there is a runtime then.
            if let Some((receiver, script)) = receiver.lock().expect("the driver").take() {
                let connections = UnboundedReceiverStream::new(receiver);
                tokio::spawn(
                    Server::builder()
                        .add_service(ControllerServer::new(script.clone()))
                        .add_service(NodeServer::new(script))
                        .serve_with_incoming(connections.map(Ok::<_, io::Error>)),
                );
            }
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            let sent = sender.send(theirs);
            async move {
                sent.map(|()| ours)
                    .map_err(|_| io::ErrorKind::ConnectionRefused.into())
            }
        })
    }
}

macro_rules! controller {
    ($($method:ident($request:ident) -> $response:ident;)+) => {
        #[async_trait]
        impl Controller for Script {
            async fn controller_publish_volume(
                &self,
                request: Request<ControllerPublishVolumeRequest>,
            ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
                let publish_context = [("path".to_owned(), "/dev/x".to_owned())].into();
                let answer = ControllerPublishVolumeResponse { publish_context };
                self.called(Call::Publish(request.into_inner()), answer)
            }

            async fn controller_unpublish_volume(
                &self,
                request: Request<ControllerUnpublishVolumeRequest>,
            ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
                self.called(Call::Unpublish(request.into_inner()), Default::default())
            }

            async fn list_volumes(
                &self,
                request: Request<ListVolumesRequest>,
            ) -> Result<Response<ListVolumesResponse>, Status> {
                let page = self.0.lock().expect("the driver").pages.pop_front();
                self.called(Call::List(request.into_inner()), page.unwrap_or_default())
            }

            async fn controller_expand_volume(
                &self,
                request: Request<ControllerExpandVolumeRequest>,
            ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
                let answer = self.0.lock().expect("the driver").expanded;
                self.called(Call::Expand(request.into_inner()), answer.unwrap_or_default())
            }

            async fn controller_modify_volume(
                &self,
                request: Request<ControllerModifyVolumeRequest>,
            ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
                self.called(Call::Modify(request.into_inner()), Default::default())
            }

            async fn delete_volume(
                &self,
                request: Request<DeleteVolumeRequest>,
            ) -> Result<Response<DeleteVolumeResponse>, Status> {
                self.called(Call::Delete(request.into_inner()), Default::default())
            }

            $(
                async fn $method(
                    &self,
                    _: Request<$request>,
                ) -> Result<Response<$response>, Status> {
                    Err(Status::unimplemented(stringify!($method)))
                }
            )+
        }
    };
}

controller! {
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    validate_volume_capabilities(ValidateVolumeCapabilitiesRequest)
        -> ValidateVolumeCapabilitiesResponse;
    controller_list_volume_health(ControllerListVolumeHealthRequest)
        -> ControllerListVolumeHealthResponse;
    controller_get_volume_health(ControllerGetVolumeHealthRequest)
        -> ControllerGetVolumeHealthResponse;
    get_capacity(GetCapacityRequest) -> GetCapacityResponse;
    controller_get_capabilities(ControllerGetCapabilitiesRequest)
        -> ControllerGetCapabilitiesResponse;
    create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse;
    get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse;
    controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
}

macro_rules! node {
    ($($method:ident($request:ident) -> $response:ident;)+) => {
        #[async_trait]
        impl Node for Script {
            async fn node_get_info(
                &self,
                _: Request<NodeGetInfoRequest>,
            ) -> Result<Response<NodeGetInfoResponse>, Status> {
                let node_id = NODE_ID.to_owned();
                Ok(Response::new(NodeGetInfoResponse { node_id, ..Default::default() }))
            }

            $(
                async fn $method(
                    &self,
                    _: Request<$request>,
                ) -> Result<Response<$response>, Status> {
                    Err(Status::unimplemented(stringify!($method)))
                }
            )+
        }
    };
}

node! {
    node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
    node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
    node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
}
