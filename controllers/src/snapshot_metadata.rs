//! Serves the changed blocks of snapshots to backup tools, as Kubernetes' external-snapshot-metadata
//! does (KEP-3314).
//!
//! The leader has the one address for all nodes. It checks a call ([`service`]), and passes on the
//! stream of the node that has the snapshot ([`forward`]). The caller's token goes to the API server
//! alone. Between pods, each side knows the other's certificate: the node's by its fingerprint
//! ([`node_endpoint`](crate::node_endpoint)), the leader's by the authority that lives in the cluster
//! ([`upkeep`]).
//!
//! The checks are in the order of upstream's and have its codes, except that what does not exist is
//! NOT_FOUND. A base needs one more: a snapshot with its handle is or was in the request's namespace
//! ([`base`]). Otherwise, a user who sees one snapshot of a volume could compare it with any other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::snapshot_metadata::snapshot_metadata_server::SnapshotMetadataServer;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cache::Store;
use crate::capacity;
use crate::controller::Context;
use crate::grpc_server;
use crate::node_endpoint::OwnEndpoint;
use crate::tls::certificates::CertificateError;
use crate::tls::listener;

mod base;
mod base_history;
mod credentials;
mod forward;
mod known_bases;
mod metrics;
mod node_location;
mod node_server;
mod options;
mod published_object;
mod refusal;
mod request;
mod reviews;
mod service;
mod shares;
mod target;
mod upkeep;

use credentials::CurrentCredentials;
use forward::Dial;
use known_bases::KnownBases;
use node_server::ClientAuthority;
use service::MetadataService;
use upkeep::Upkeep;

pub use metrics::Metrics;
pub use options::{Options, host_of};

/// Connections of backup tools at a time.
const CONNECTIONS: usize = 128;
/// Calls of one connection at a time.
const CALLS: u32 = 16;
/// The largest request: a token has a few KiB. All connections and calls may have one, from anyone.
const MAX_REQUEST: usize = 32 << 10;
/// What a connection, and a call, may send before it is read.
const WINDOW: u32 = 64 << 10;
/// How long a call may take until its stream begins, with the request of a slow client.
const BEGINNING: Duration = Duration::from_secs(60);

/// How long connections may end after the stop.
const GRACE: Duration = Duration::from_secs(5);

/// Why the service does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listening on port {port} for changed blocks: {source}")]
    Listen { port: u16, source: io::Error },
    #[error("--snapshot-metadata-address {0:?} is not HOST:PORT")]
    Address(String),
    #[error("the namespace of the objects is unknown: set NAMESPACE or POD_NAMESPACE")]
    NoNamespace,
    #[error("serving changed blocks: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// The endpoint of this node's process, with a new key; `None` if the pod's address is unknown.
pub fn own_endpoint(options: &Options) -> Result<Option<Arc<OwnEndpoint>>, CertificateError> {
    let Some(ip) = options.pod_ip else {
        return Ok(None);
    };
    let address = SocketAddr::new(ip, options.snapshot_metadata_port);
    let endpoint = OwnEndpoint::new(address, upkeep::now())?;
    Ok(Some(Arc::new(endpoint)))
}

/// Serves backup tools until `context.stop`, which is set when the lead is lost. `context` has
/// cluster-wide caches.
pub async fn run(context: Context, options: Options, metrics: Metrics) -> Result<(), Error> {
    let leader = Leader::new(context, &options, metrics, forward::dial)?;
    let listener = listen(options.snapshot_metadata_port).await?;
    tokio::select! {
        served = leader.serve(listener) => served,
        () = leader.upkeep.keep() => Ok(()),
        () = leader.bases.keep() => Ok(()),
        () = overdue(&leader.context.stop) => Ok(()),
    }
}

/// What the leader serves with, and what it keeps beside.
struct Leader {
    context: Context,
    credentials: CurrentCredentials,
    capacities: Store<CSIStorageCapacity>,
    bases: Arc<KnownBases>,
    upkeep: Upkeep,
    metrics: Metrics,
    dial: Dial,
}

impl Leader {
    fn new(
        context: Context,
        options: &Options,
        metrics: Metrics,
        dial: Dial,
    ) -> Result<Self, Error> {
        let namespace = context.pod.namespace.clone();
        let address = options.address(&namespace);
        let host = host_of(&address).ok_or_else(|| Error::Address(address.clone()))?;
        let hosts = vec![host.to_owned()];
        let capacities = capacity::of_all(&context).ok_or(Error::NoNamespace)?;
        let kube = context.kube.managed_by("hostloop-snapshot-metadata");
        let driver = context.driver.name.clone();
        let credentials = CurrentCredentials::default();
        let bases = Arc::new(KnownBases::new(
            kube.clone(),
            namespace.clone(),
            driver.clone(),
            context.caches.contents(),
        ));
        let upkeep = Upkeep {
            kube,
            namespace,
            driver,
            address,
            hosts,
            credentials: credentials.clone(),
        };
        Ok(Leader {
            context,
            credentials,
            capacities,
            bases,
            upkeep,
            metrics,
            dial,
        })
    }

    /// Serves until `context.stop`.
    async fn serve(&self, listener: TcpListener) -> Result<(), Error> {
        let service = MetadataService::new(
            self.context.clone(),
            self.credentials.clone(),
            self.capacities.clone(),
            self.bases.clone(),
            self.metrics.clone(),
            self.dial,
        );
        let service = SnapshotMetadataServer::new(service).max_decoding_message_size(MAX_REQUEST);
        let credentials = Arc::new(self.credentials.clone());
        let connections = listener::connections(listener, CONNECTIONS, credentials);
        let mut server = grpc_server::builder()
            .max_concurrent_streams(CALLS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .timeout(BEGINNING);
        let served = server
            .add_service(service)
            .serve_with_incoming_shutdown(connections, self.context.stop.cancelled());
        served.await.map_err(Error::Serve)
    }
}

/// Returns a while after `stop`. A caller may hold its connection open.
async fn overdue(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(GRACE).await;
}

/// Serves the leader on a node until `context.stop`.
pub async fn run_on_node(context: Context, own: Arc<OwnEndpoint>) -> Result<(), Error> {
    let listener = listen(own.endpoint.address.port()).await?;
    let clients = ClientAuthority::new(
        context.kube.clone(),
        context.pod.namespace.clone(),
        own.identity.clone(),
    );
    let csi = context.driver.csi.clone();
    let served = node_server::serve(listener, csi, clients, &context.stop).await;
    served.map_err(Error::Serve)
}

/// Listens on all addresses of the pod, of IPv4 and IPv6 if this machine has both.
async fn listen(port: u16) -> Result<TcpListener, Error> {
    let everywhere: IpAddr = if Path::new("/proc/net/if_inet6").exists() {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    TcpListener::bind(SocketAddr::new(everywhere, port))
        .await
        .map_err(|source| Error::Listen { port, source })
}

#[cfg(test)]
mod tests;
