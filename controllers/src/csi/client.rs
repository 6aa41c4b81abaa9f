//! The client for a CSI driver: its channel, calls with a deadline, and the meaning of errors.

use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use hostloop_proto::{csi, status_details};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::service::Routes;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, Request, Status};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt};

use crate::client::Leadership;
use crate::filtered_stream::{Filter, FilteredStream};
use crate::metrics::Metrics;

/// The largest accepted answer in bytes. A list of all volumes of a large node exceeds the usual 4
/// MiB.
const MAX_ANSWER: usize = 64 << 20;

const PANICKED: &str = "the driver met a bug in this call: its log has the panic";

/// Sends a request to a driver, and returns its answer.
type Channel = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// A client for a CSI driver. Clones share the services or the connection. The connection opens on
/// the first call, and again after it breaks.
#[derive(Clone)]
pub struct Csi {
    channel: Channel,
    /// The driver's socket, if the client connects to one.
    socket: Option<Arc<PathBuf>>,
    metrics: Option<Arc<Metrics>>,
}

/// Ends the connection of a process that no longer leads before it writes the next byte.
struct Fence(Leadership);

impl Filter for Fence {
    type ConnectInfo = ();

    fn connect_info(&self) {}

    fn before_write(&mut self) -> io::Result<()> {
        if self.0.leads() {
            Ok(())
        } else {
            Err(io::Error::other("this process no longer leads"))
        }
    }
}

impl fmt::Debug for Csi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Csi")
    }
}

impl Csi {
    /// A client for the driver at a Unix socket.
    pub fn at_socket(path: impl Into<PathBuf>) -> Self {
        let path = Arc::new(path.into());
        Csi {
            socket: Some(path.clone()),
            ..Csi::over(connecting(path))
        }
    }

    /// A client for the same driver with a connection of its own, which carries nothing more to the
    /// driver once `leader` no longer leads.
    ///
    /// A check before a call does not suffice: the process may be paused after the check, while the
    /// request waits for the connection. The request would leave when the process resumes. Drivers
    /// know nothing of leaders, and a deadline in the request is counted from its arrival. So only
    /// the sender can stop it, at the last step before the kernel.
    ///
    /// Services in this process are called at once, so a check before the call suffices for them.
    pub fn fenced(&self, leader: &Leadership) -> Self {
        let fenced = match &self.socket {
            Some(path) => Csi::fenced_over(connecting(path.clone()), leader),
            None => self.clone(),
        };
        Csi {
            socket: self.socket.clone(),
            metrics: self.metrics.clone(),
            ..fenced
        }
    }

    fn fenced_over<F, S>(open: impl Fn() -> F + Clone + Send + 'static, leader: &Leadership) -> Self
    where
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let leader = leader.clone();
        Csi::over(move || {
            let (opened, filter) = (open(), Fence(leader.clone()));
            async move {
                Ok(FilteredStream {
                    stream: opened.await?,
                    filter,
                })
            }
        })
    }

    /// A client of services in this process. It calls them without a connection. A panic of a
    /// service fails the call, not the caller.
    pub fn within(services: Routes) -> Self {
        let services = services.prepare();
        Csi::through(tower::service_fn(move |request: http::Request<Body>| {
            let mut services = services.clone();
            async move {
                match AssertUnwindSafe(services.call(request))
                    .catch_unwind()
                    .await
                {
                    Ok(answer) => answer.map_err(BoxError::from),
                    Err(_) => Err(Status::unavailable(PANICKED).into()),
                }
            }
        }))
    }

    /// A client that opens a stream to the driver.
    fn over<F, S>(open: impl Fn() -> F + Clone + Send + 'static) -> Self
    where
        F: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connector = tower::service_fn(move |_: Uri| {
            let opened = open();
            async move { opened.await.map(TokioIo::new) }
        });
        // The authority is meaningless on this channel, but drivers expect the value that other
        // clients send.
        Csi::through(
            Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector),
        )
    }

    fn through<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>>,
        S: Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
    {
        let service = service.map_err(|error| Status::from_error(error.into()));
        Csi {
            channel: BoxCloneSyncService::new(service),
            socket: None,
            metrics: None,
        }
    }

    /// A channel without a driver: every call fails. For processes that only need the driver's
    /// capabilities.
    pub fn none() -> Self {
        Csi::over(|| async {
            let why = "this process has no CSI driver";
            Err::<UnixStream, _>(io::Error::new(io::ErrorKind::NotConnected, why))
        })
    }

    /// A client for the same driver that counts its calls.
    pub fn counted(self, metrics: Arc<Metrics>) -> Self {
        let metrics = Some(metrics);
        Csi { metrics, ..self }
    }

    /// A client of the driver's SnapshotMetadata service. Its answers are streams, which have no
    /// deadline.
    pub(crate) fn snapshot_metadata(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel.clone())
    }

    fn count(&self, method: &'static str, code: Code, took: Duration) {
        if let Some(metrics) = &self.metrics {
            metrics.csi_call(method, code, took);
        }
    }
}

/// Opens connections to a Unix socket.
fn connecting(
    path: Arc<PathBuf>,
) -> impl Fn() -> BoxFuture<'static, io::Result<UnixStream>> + Clone + Send {
    move || {
        let path = path.clone();
        async move { UnixStream::connect(path.as_ref()).await }.boxed()
    }
}

/// A failed call.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{call}: {status}")]
pub struct Failure {
    /// The name of the RPC.
    pub call: &'static str,
    /// The gRPC status, or the status that stands for a missing answer.
    pub status: Status,
}

impl Failure {
    /// The code that decides the next step: the driver's own code, or UNAVAILABLE if the transport
    /// lost the answer, regardless of the transport's error.
    pub fn code(&self) -> Code {
        let from_driver = std::error::Error::source(&self.status).is_none();
        if from_driver {
            self.status.code()
        } else {
            Code::Unavailable
        }
    }

    /// True if the driver says that it refused the call for lack of room. The call had no effect.
    /// A call that met a full disk half-way does not count: it may only have lacked the room that
    /// its own failure freed again.
    pub fn lacks_room(&self) -> bool {
        status_details::lacks_room(&self.status)
    }
}

/// Waits for an answer until the deadline, which the request also carries.
async fn timely<T, R, F>(
    call: &'static str,
    message: T,
    deadline: Duration,
    send: impl FnOnce(Request<T>) -> F,
) -> Result<R, Failure>
where
    F: Future<Output = Result<tonic::Response<R>, Status>>,
{
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    // The client enforces the deadline too: the connection may hang, and the driver may ignore it.
    let status = match tokio::time::timeout(deadline, send(request)).await {
        Ok(Ok(response)) => return Ok(response.into_inner()),
        Ok(Err(status)) => status,
        Err(_) => Status::deadline_exceeded(format!("no answer within {deadline:?}")),
    };
    Err(Failure { call, status })
}

/// Defines methods for unary RPCs.
macro_rules! calls {
    ($($service:literal $client:ident::$type:ident {
        $($method:ident($request:ident) -> $response:ident, $name:literal;)+
    })+) => {
        impl Csi {
            $($(
                #[doc = concat!($name, ", within a deadline.")]
                pub async fn $method(
                    &self,
                    request: csi::$request,
                    deadline: Duration,
                ) -> Result<csi::$response, Failure> {
                    let client = csi::$client::$type::new(self.channel.clone());
                    let mut client = client.max_decoding_message_size(MAX_ANSWER);
                    let started = Instant::now();
                    let answer = timely($name, request, deadline, |request| async move {
                        client.$method(request).await
                    })
                    .await;
                    let code = answer.as_ref().err().map_or(Code::Ok, Failure::code);
                    self.count(concat!("/csi.v1.", $service, "/", $name), code, started.elapsed());
                    answer
                }
            )+)+
        }
    };
}

calls! {
    "Identity" identity_client::IdentityClient {
        get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse, "GetPluginInfo";
        get_plugin_capabilities(GetPluginCapabilitiesRequest)
            -> GetPluginCapabilitiesResponse, "GetPluginCapabilities";
        probe(ProbeRequest) -> ProbeResponse, "Probe";
    }
    "Controller" controller_client::ControllerClient {
        create_volume(CreateVolumeRequest) -> CreateVolumeResponse, "CreateVolume";
        delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse, "DeleteVolume";
        controller_publish_volume(ControllerPublishVolumeRequest)
            -> ControllerPublishVolumeResponse, "ControllerPublishVolume";
        controller_unpublish_volume(ControllerUnpublishVolumeRequest)
            -> ControllerUnpublishVolumeResponse, "ControllerUnpublishVolume";
        list_volumes(ListVolumesRequest) -> ListVolumesResponse, "ListVolumes";
        controller_list_volume_health(ControllerListVolumeHealthRequest)
            -> ControllerListVolumeHealthResponse, "ControllerListVolumeHealth";
        controller_get_volume_health(ControllerGetVolumeHealthRequest)
            -> ControllerGetVolumeHealthResponse, "ControllerGetVolumeHealth";
        get_capacity(GetCapacityRequest) -> GetCapacityResponse, "GetCapacity";
        controller_get_capabilities(ControllerGetCapabilitiesRequest)
            -> ControllerGetCapabilitiesResponse, "ControllerGetCapabilities";
        create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse, "CreateSnapshot";
        delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse, "DeleteSnapshot";
        list_snapshots(ListSnapshotsRequest) -> ListSnapshotsResponse, "ListSnapshots";
        get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse, "GetSnapshot";
        controller_expand_volume(ControllerExpandVolumeRequest)
            -> ControllerExpandVolumeResponse, "ControllerExpandVolume";
        controller_get_volume(ControllerGetVolumeRequest)
            -> ControllerGetVolumeResponse, "ControllerGetVolume";
        controller_modify_volume(ControllerModifyVolumeRequest)
            -> ControllerModifyVolumeResponse, "ControllerModifyVolume";
    }
    "GroupController" group_controller_client::GroupControllerClient {
        group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest)
            -> GroupControllerGetCapabilitiesResponse, "GroupControllerGetCapabilities";
        create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest)
            -> CreateVolumeGroupSnapshotResponse, "CreateVolumeGroupSnapshot";
        delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest)
            -> DeleteVolumeGroupSnapshotResponse, "DeleteVolumeGroupSnapshot";
        get_volume_group_snapshot(GetVolumeGroupSnapshotRequest)
            -> GetVolumeGroupSnapshotResponse, "GetVolumeGroupSnapshot";
    }
    "Node" node_client::NodeClient {
        node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse, "NodeGetInfo";
        node_get_capabilities(NodeGetCapabilitiesRequest)
            -> NodeGetCapabilitiesResponse, "NodeGetCapabilities";
        node_get_storage_health(NodeGetStorageHealthRequest)
            -> NodeGetStorageHealthResponse, "NodeGetStorageHealth";
    }
}

#[cfg(test)]
mod tests;
