//! An in-memory CSI driver with scripted answers. All fake drivers in the controllers' tests are
//! this one with different handlers.

use std::any::{Any, TypeId};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_proto::csi::*;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use crate::csi::Csi;

/// The driver's ID of its node.
pub(crate) const NODE_ID: &str = "id-1";

/// A recorded call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    Publish(ControllerPublishVolumeRequest),
    Unpublish(ControllerUnpublishVolumeRequest),
    List(ListVolumesRequest),
    Expand(ControllerExpandVolumeRequest),
    Modify(ControllerModifyVolumeRequest),
    Delete(DeleteVolumeRequest),
}

type AnyAnswer = Result<Box<dyn Any + Send>, Status>;
type Handler = Arc<dyn Fn(Box<dyn Any>) -> BoxFuture<'static, AnyAnswer> + Send + Sync>;
type Unknown = Arc<dyn Fn(&'static str) + Send + Sync>;

/// Handlers of CSI calls, by request type. A call without a handler returns UNIMPLEMENTED.
#[derive(Clone, Default)]
pub(crate) struct Handlers(
    Arc<Mutex<HashMap<TypeId, Handler>>>,
    Arc<Mutex<Option<Unknown>>>,
);

impl Handlers {
    /// Sets the asynchronous handler for a request type.
    pub(crate) fn on_async<Q: Any, R: Any + Send>(
        &self,
        handler: impl Fn(Q) -> BoxFuture<'static, Result<R, Status>> + Send + Sync + 'static,
    ) {
        let handler = move |request: Box<dyn Any>| -> BoxFuture<'static, AnyAnswer> {
            let request = request.downcast().expect("requests are looked up by type");
            let answer = handler(*request);
            async move { Ok(Box::new(answer.await?) as Box<dyn Any + Send>) }.boxed()
        };
        let mut handlers = self.0.lock().expect("the handlers");
        handlers.insert(TypeId::of::<Q>(), Arc::new(handler));
    }

    /// Sets the synchronous handler for a request type.
    pub(crate) fn on<Q: Any, R: Any + Send>(
        &self,
        handler: impl Fn(Q) -> Result<R, Status> + Send + Sync + 'static,
    ) {
        self.on_async(move |request| std::future::ready(handler(request)).boxed());
    }

    /// Sets a callback that receives the names of methods without a handler.
    pub(crate) fn on_unknown(&self, unknown: impl Fn(&'static str) + Send + Sync + 'static) {
        *self.1.lock().expect("the handlers") = Some(Arc::new(unknown));
    }

    async fn answer<Q: Any, R: Any>(
        &self,
        method: &'static str,
        request: Request<Q>,
    ) -> Result<Response<R>, Status> {
        let answer = {
            let handlers = self.0.lock().expect("the handlers");
            let handler = handlers.get(&TypeId::of::<Q>());
            handler.map(|handler| handler(Box::new(request.into_inner())))
        };
        let Some(answer) = answer else {
            if let Some(unknown) = &*self.1.lock().expect("the handlers") {
                unknown(method);
            }
            return Err(Status::unimplemented(method));
        };
        let answer = answer.await?.downcast();
        Ok(Response::new(*answer.expect("the answer to this request")))
    }

    /// Serves all services over in-memory pipes, from the first connection on.
    pub(crate) fn serve(&self) -> Csi {
        let (sender, receiver) = mpsc::unbounded_channel::<DuplexStream>();
        let waiting = Arc::new(Mutex::new(Some((receiver, self.clone()))));
        Csi::over(move || {
            // A Tokio runtime may not exist before the first connection.
            if let Some((receiver, handlers)) = waiting.lock().expect("the driver").take() {
                tokio::spawn(handlers.serve_over(receiver));
            }
            let (ours, theirs) = tokio::io::duplex(64 << 10);
            let sent = sender.send(theirs);
            async move {
                sent.map(|()| ours)
                    .map_err(|_| io::ErrorKind::ConnectionRefused.into())
            }
        })
    }

    async fn serve_over(self, pipes: mpsc::UnboundedReceiver<DuplexStream>) {
        let pipes = UnboundedReceiverStream::new(pipes).map(Ok::<_, io::Error>);
        let served = Server::builder()
            .add_service(identity_server::IdentityServer::new(self.clone()))
            .add_service(controller_server::ControllerServer::new(self.clone()))
            .add_service(group_controller_server::GroupControllerServer::new(
                self.clone(),
            ))
            .add_service(node_server::NodeServer::new(self))
            .serve_with_incoming(pipes);
        served.await.expect("pipes in memory do not fail");
    }
}

macro_rules! service {
    ($server:ident::$service:ident {
        $($method:ident($request:ident) -> $response:ident;)+
    }) => {
        #[async_trait]
        impl $server::$service for Handlers {
            $(
                async fn $method(
                    &self,
                    request: Request<$request>,
                ) -> Result<Response<$response>, Status> {
                    self.answer(stringify!($method), request).await
                }
            )+
        }
    };
}

service! { identity_server::Identity {
    get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse;
    get_plugin_capabilities(GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse;
    probe(ProbeRequest) -> ProbeResponse;
}}

service! { controller_server::Controller {
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    controller_publish_volume(ControllerPublishVolumeRequest) -> ControllerPublishVolumeResponse;
    controller_unpublish_volume(ControllerUnpublishVolumeRequest)
        -> ControllerUnpublishVolumeResponse;
    validate_volume_capabilities(ValidateVolumeCapabilitiesRequest)
        -> ValidateVolumeCapabilitiesResponse;
    list_volumes(ListVolumesRequest) -> ListVolumesResponse;
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
    controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
    controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
    controller_modify_volume(ControllerModifyVolumeRequest) -> ControllerModifyVolumeResponse;
}}

service! { group_controller_server::GroupController {
    group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest)
        -> GroupControllerGetCapabilitiesResponse;
    create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest)
        -> CreateVolumeGroupSnapshotResponse;
    delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest)
        -> DeleteVolumeGroupSnapshotResponse;
    get_volume_group_snapshot(GetVolumeGroupSnapshotRequest) -> GetVolumeGroupSnapshotResponse;
}}

service! { node_server::Node {
    node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
    node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
    node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
    node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse;
    node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse;
}}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    errors: VecDeque<Status>,
    pages: VecDeque<ListVolumesResponse>,
    expanded: Option<ControllerExpandVolumeResponse>,
}

impl State {
    fn called<T>(&mut self, call: Call, answer: T) -> Result<T, Status> {
        self.calls.push(call);
        self.errors.pop_front().map_or(Ok(answer), Err)
    }
}

/// A driver that records its calls and fails on request. Clones share it.
#[derive(Clone)]
pub(crate) struct Script {
    state: Arc<Mutex<State>>,
    handlers: Handlers,
}

impl Default for Script {
    fn default() -> Self {
        let script = Script {
            state: Arc::default(),
            handlers: Handlers::default(),
        };
        script.records(Call::Publish, |_| ControllerPublishVolumeResponse {
            publish_context: [("path".to_owned(), "/dev/x".to_owned())].into(),
        });
        script.records(Call::Unpublish, |_| ControllerUnpublishVolumeResponse {});
        script.records(Call::List, |state| {
            state.pages.pop_front().unwrap_or_default()
        });
        script.records(Call::Expand, |state| state.expanded.unwrap_or_default());
        script.records(Call::Modify, |_| ControllerModifyVolumeResponse {});
        script.records(Call::Delete, |_| DeleteVolumeResponse {});
        script.handlers.on(|_: NodeGetInfoRequest| {
            let node_id = NODE_ID.to_owned();
            Ok(NodeGetInfoResponse {
                node_id,
                ..Default::default()
            })
        });
        script
    }
}

impl Script {
    fn records<Q: Any, R: Any + Send>(&self, call: fn(Q) -> Call, answer: fn(&mut State) -> R) {
        let state = self.state.clone();
        self.handlers.on(move |request: Q| {
            let mut state = state.lock().expect("the driver");
            let answer = answer(&mut state);
            state.called(call(request), answer)
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the driver")
    }

    /// Makes the next call fail with this status.
    pub(crate) fn fail(&self, status: Status) {
        self.lock().errors.push_back(status);
    }

    /// Sets the next page of ListVolumes.
    pub(crate) fn page(&self, page: ListVolumesResponse) {
        self.lock().pages.push_back(page);
    }

    /// Sets the answer to ControllerExpandVolume.
    pub(crate) fn expands(&self, answer: ControllerExpandVolumeResponse) {
        self.lock().expanded = Some(answer);
    }

    /// The calls since the last look.
    pub(crate) fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().calls)
    }

    /// Returns a channel to the driver.
    pub(crate) fn serve(&self) -> Csi {
        self.handlers.serve()
    }
}
