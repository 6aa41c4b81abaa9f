//! Answers the leader on a node: the two calls of CSI's SnapshotMetadata, and nothing else. A client that
//! has no certificate of the cluster's authority gets no connection.

use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi;
use hostloop_proto::csi::snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer};
use k8s_openapi::api::core::v1::ConfigMap;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::upkeep::{CERTIFICATE, CONFIG_MAP};
use crate::client::Kube;
use crate::csi::Csi;
use crate::grpc_server;
use crate::tls::certificates::{Identity, roots};
use crate::tls::config;
use crate::tls::listener::{ServerConfigs, connections};

/// Connections at a time: the leader opens one for each stream.
const CONNECTIONS: usize = 64;
/// How old the authority's certificate may be. It is read when a connection comes.
const FRESH: Duration = Duration::from_secs(60);
/// How long the API server may take: less than a handshake.
const READ: Duration = Duration::from_secs(5);
/// How long after a failure it is not read again.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Serves on a listener until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    csi: Csi,
    clients: ClientAuthority,
    stop: &CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let connections = connections(listener, CONNECTIONS, Arc::new(clients));
    grpc_server::builder()
        .add_service(SnapshotMetadataServer::new(NodeService { csi }))
        .serve_with_incoming_shutdown(connections, stop.cancelled())
        .await
}

/// The driver's own service.
struct NodeService {
    csi: Csi,
}

#[tonic::async_trait]
impl SnapshotMetadata for NodeService {
    type GetMetadataAllocatedStream = Streaming<csi::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Streaming<csi::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let mut driver = self.csi.snapshot_metadata();
        driver.get_metadata_allocated(request.into_inner()).await
    }

    async fn get_metadata_delta(
        &self,
        request: Request<csi::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let mut driver = self.csi.snapshot_metadata();
        driver.get_metadata_delta(request.into_inner()).await
    }
}

/// The authority that the leader's certificate must be of.
pub(super) struct ClientAuthority {
    kube: Kube,
    namespace: String,
    identity: Identity,
    read: Mutex<ReadAuthority>,
}

/// The configuration as it was made last.
#[derive(Default)]
struct ReadAuthority {
    config: Option<Arc<ServerConfig>>,
    /// When it is read again.
    until: Option<Instant>,
}

impl ClientAuthority {
    pub(super) fn new(kube: Kube, namespace: String, identity: Identity) -> Self {
        ClientAuthority {
            kube,
            namespace,
            identity,
            read: Mutex::default(),
        }
    }

    /// Reads the authority's certificate. The leader alone may write it.
    async fn read(&self) -> Result<Option<Arc<ServerConfig>>, String> {
        let map = self
            .kube
            .get::<ConfigMap>(&self.namespace, CONFIG_MAP)
            .await;
        let map = map.map_err(|error| error.to_string())?;
        let data = map.and_then(|map| map.data).unwrap_or_default();
        let Some(certificate) = data.get(CERTIFICATE) else {
            return Ok(None);
        };
        let clients = roots(certificate).map_err(|error| error.to_string())?;
        let config = config::private_server(&self.identity, clients);
        config.map(Some).map_err(|error| error.to_string())
    }
}

impl ServerConfigs for ClientAuthority {
    const ARE_CLIENTS_KNOWN: bool = true;

    async fn current(&self) -> Option<Arc<ServerConfig>> {
        let mut known = self.read.lock().await;
        let now = Instant::now();
        if known.until.is_some_and(|until| now < until) {
            return known.config.clone();
        }
        // A handshake ends before an API server that hangs.
        let found = timeout(READ, self.read()).await;
        let life = match found.unwrap_or_else(|_| Err("no answer".to_owned())) {
            Ok(config) => {
                known.config = config;
                if known.config.is_some() {
                    FRESH
                } else {
                    AFTER_FAILURE
                }
            }
            // The API server may be away for long: what is known stays.
            Err(error) => {
                tracing::warn!(error, "cannot read who may ask for changed blocks");
                AFTER_FAILURE
            }
        };
        known.until = Some(Instant::now() + life);
        known.config.clone()
    }
}
