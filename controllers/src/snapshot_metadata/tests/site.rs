//! A cluster in memory: its API server, a node with a driver, the leader, and backup tools. All of them
//! talk over TLS on the loopback interface.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use hostloop_api_objects::snapshot_metadata::SnapshotMetadataService;
use hostloop_proto::csi::snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer};
use hostloop_proto::snapshot_metadata::snapshot_metadata_client::SnapshotMetadataClient;
use hostloop_proto::{csi, snapshot_metadata as service};
use hyper_util::rt::TokioIo;
use kube::ResourceExt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::api::capacity;
use crate::api::scope::MANAGED_BY;
use crate::cache::Caches;
use crate::controller::Context;
use crate::csi::{Csi, pools};
use crate::node_endpoint::{ANNOTATION, NodeEndpoint};
use crate::own_pod::OwnPod;
use crate::snapshot_metadata::node_server::{self, ClientAuthority};
use crate::snapshot_metadata::upkeep::{self, now};
use crate::snapshot_metadata::{Leader, Metrics, known_bases};
use crate::testing::{DRIVER, FakeApi, World, client, options, read, with};
use crate::tls::certificates::{Fingerprint, Identity, roots};

/// The namespace of the controller.
const HOME: &str = "hostloop";
/// The host of the service's address.
const HOST: &str = "hostloop-snapshot-metadata.hostloop.svc";
/// The right that callers need.
const SNAPSHOTS: &str = "volumesnapshots.snapshot.storage.k8s.io";

/// The namespace of a user with [`TOKEN`].
pub(super) const NAMESPACE: &str = "ns";
pub(super) const TOKEN: &str = "token";
/// A token of the same user that has expired.
pub(super) const EXPIRED: &str = "expired token";
/// A token of the same user for another audience.
pub(super) const FOR_OTHERS: &str = "token for others";
/// A token of a user who sees another namespace alone.
pub(super) const STRANGER: &str = "token of a stranger";

const VOLUME: &str = "vol-p1-0";
/// The size of that volume.
pub(super) const SIZE: i64 = 1 << 20;
/// The handle of a snapshot that others are compared with.
pub(super) const BASE: &str = "snap-p1-1";
/// The handle of a snapshot with a stream that never ends: [`Driver::more`] asks for each message.
pub(super) const ENDLESS: &str = "snap-p1-2";
/// The handle of a snapshot that the driver does not have any more.
pub(super) const LOST: &str = "snap-p1-3";

type Messages<M> = BoxStream<'static, Result<M, Status>>;

/// The driver of the node. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Driver {
    /// Lets the stream of [`ENDLESS`] go on.
    pub(super) more: Arc<Notify>,
    /// Set once that stream has ended.
    pub(super) ended: CancellationToken,
}

fn block(byte_offset: i64) -> csi::BlockMetadata {
    csi::BlockMetadata {
        byte_offset,
        size_bytes: 4096,
    }
}

fn allocated_at(offset: i64) -> csi::GetMetadataAllocatedResponse {
    csi::GetMetadataAllocatedResponse {
        block_metadata_type: 2,
        volume_capacity_bytes: SIZE,
        block_metadata: vec![block(offset)],
    }
}

impl Driver {
    fn endless(&self) -> Messages<csi::GetMetadataAllocatedResponse> {
        let (more, guard) = (self.more.clone(), self.ended.clone().drop_guard());
        let messages = stream::unfold((0, more, guard), |(offset, more, guard)| async move {
            if offset > 0 {
                more.notified().await;
            }
            Some((Ok(allocated_at(offset)), (offset + 4096, more, guard)))
        });
        messages.boxed()
    }
}

#[tonic::async_trait]
impl SnapshotMetadata for Driver {
    type GetMetadataAllocatedStream = Messages<csi::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<csi::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let request = request.into_inner();
        match request.snapshot_id.as_str() {
            LOST => return Err(Status::not_found("no such snapshot")),
            ENDLESS => return Ok(Response::new(self.endless())),
            _ => {}
        }
        if request.starting_offset >= SIZE {
            return Err(Status::out_of_range("starting_offset"));
        }
        let offsets = [0_i64, 8192].into_iter();
        let answers: Vec<Result<_, Status>> = offsets
            .filter(|offset| offset + 4096 > request.starting_offset)
            .map(|offset| Ok(allocated_at(offset)))
            .collect();
        Ok(Response::new(stream::iter(answers).boxed()))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<csi::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        if request.get_ref().base_snapshot_id == LOST {
            return Err(Status::not_found("no such snapshot"));
        }
        let answer = csi::GetMetadataDeltaResponse {
            block_metadata_type: 2,
            volume_capacity_bytes: SIZE,
            block_metadata: vec![block(8192)],
        };
        Ok(Response::new(stream::iter([Ok(answer)]).boxed()))
    }
}

/// Waits for what comes at once.
pub(super) async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    let waited = tokio::time::timeout(Duration::from_secs(60), future).await;
    waited.unwrap_or_else(|_| panic!("not there: {what}"))
}

/// Looks until it is so.
pub(super) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    soon(what, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// An API server with the component's objects and a node, and the controller's surroundings.
pub(super) fn cluster() -> (FakeApi, Context) {
    let world = World::new(&[]);
    let api = world.api.clone();
    api.put(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "snapshotmetadataservices.cbt.storage.k8s.io"},
        "spec": {
            "group": "cbt.storage.k8s.io", "scope": "Cluster",
            "names": {"kind": "SnapshotMetadataService", "plural": "snapshotmetadataservices"},
            "versions": [{"name": "v1beta1", "served": true}],
        },
    }));
    for (kind, name) in [
        ("Secret", upkeep::SECRET),
        ("ConfigMap", upkeep::CONFIG_MAP),
        ("ConfigMap", known_bases::CONFIG_MAP),
    ] {
        api.put(json!({
            "apiVersion": "v1", "kind": kind, "metadata": {"namespace": HOME, "name": name},
        }));
    }
    api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
    let caches = Caches::new(client(&api), world.context.stop.clone());
    let pod = OwnPod {
        namespace: HOME.to_owned(),
        capacity_namespace: Some(HOME.to_owned()),
        ..OwnPod::default()
    };
    let context = Context {
        caches: Arc::new(caches),
        pod,
        ..world.context
    };
    (api, context)
}

/// Connects to this machine instead of a node. A node at a loopback address would be refused.
fn to_loopback(address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
    Box::pin(TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())))
}

/// The leader and the node, as they run.
pub(super) struct Site {
    pub(super) api: FakeApi,
    pub(super) leader: Arc<Leader>,
    /// Where the leader answers.
    address: SocketAddr,
    pub(super) driver: Driver,
    /// Where the node answers.
    pub(super) node: SocketAddr,
    /// The certificate of the node.
    pub(super) fingerprint: Fingerprint,
}

impl Site {
    /// Starts both. The leader's certificates are of this time.
    pub(super) async fn open(made: u64) -> Site {
        let (api, context) = cluster();
        let user = "system:serviceaccount:ns:backup";
        let stranger = "system:serviceaccount:other:backup";
        for (token, user, audience) in [
            (TOKEN, user, DRIVER),
            (EXPIRED, user, DRIVER),
            (FOR_OTHERS, user, "another"),
            (STRANGER, stranger, DRIVER),
        ] {
            api.issue(token, user, &[audience]);
        }
        api.revoke(EXPIRED);
        api.allow(user, "get", SNAPSHOTS, NAMESPACE);
        api.allow(stranger, "get", SNAPSHOTS, "other");

        let leader =
            Leader::new(context.clone(), &options(), Metrics::default(), to_loopback).unwrap();
        leader.upkeep.pass(made).await.unwrap();
        let leader = Arc::new(leader);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (serving, bases) = (leader.clone(), leader.bases.clone());
        tokio::spawn(async move { serving.serve(listener).await });
        tokio::spawn(async move { bases.keep().await });

        let identity = Identity::self_signed(now()).unwrap();
        let fingerprint = identity.fingerprint();
        let driver = Driver::default();
        let services = Routes::default().add_service(SnapshotMetadataServer::new(driver.clone()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let node = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let clients = ClientAuthority::new(context.kube.clone(), HOME.to_owned(), identity);
            node_server::serve(listener, Csi::within(services), clients, &context.stop).await
        });
        let site = Site {
            api,
            leader,
            address,
            driver,
            node,
            fingerprint,
        };
        site.announce(node, fingerprint).await;
        site.snapshot("base", BASE, json!({}));
        site.snapshot("target", "snap-p1-4", json!({}));
        site.snapshot("endless", ENDLESS, json!({}));
        site
    }

    /// The node says where it answers, and with which certificate.
    pub(super) async fn announce(&self, address: SocketAddr, fingerprint: Fingerprint) {
        let endpoint = NodeEndpoint {
            address: SocketAddr::from(([192, 0, 2, 7], address.port())),
            fingerprint,
        };
        let endpoint = endpoint.to_string();
        self.api.put(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {
                "namespace": HOME, "name": "n1",
                "labels": {
                    capacity::DRIVER: DRIVER,
                    capacity::MANAGED_BY: capacity::managed_by(Some("n1")),
                },
                "annotations": {pools::ANNOTATION: "p1", ANNOTATION: &endpoint},
            },
            "storageClassName": "a",
        }));
        let capacities = &self.leader.capacities;
        until("the node's endpoint", || {
            capacities
                .each()
                .any(|object| object.annotations().get(ANNOTATION) == Some(&endpoint))
        })
        .await;
    }

    /// Makes a snapshot and its content, with this change of the content.
    pub(super) fn snapshot(&self, name: &str, handle: &str, change: Value) {
        self.snapshot_in(NAMESPACE, name, handle, change);
    }

    pub(super) fn snapshot_in(&self, namespace: &str, name: &str, handle: &str, change: Value) {
        let bound = format!("{namespace}-{name}");
        let snapshot = self.api.put(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"source": {"persistentVolumeClaimName": "claim"}},
            "status": {"readyToUse": true, "boundVolumeSnapshotContentName": bound},
        }));
        let reference = json!({
            "namespace": namespace, "name": name, "uid": snapshot["metadata"]["uid"],
        });
        let content = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": bound, "labels": {MANAGED_BY: "n1"}},
            "spec": {
                "driver": DRIVER, "deletionPolicy": "Delete",
                "source": {"volumeHandle": VOLUME}, "volumeSnapshotRef": reference,
            },
            "status": {"readyToUse": true, "snapshotHandle": handle},
        });
        self.api.put(with(content, change));
    }

    /// Deletes a snapshot and its content.
    pub(super) fn delete(&self, name: &str) {
        self.api.take(&format!("/volumesnapshots/{name}"));
        self.api
            .take(&format!("/volumesnapshotcontents/{NAMESPACE}-{name}"));
    }

    /// Waits until the leader knows all contents, and those that are gone.
    pub(super) async fn settle(&self) {
        let known = self.leader.context.caches.contents();
        until("the contents", || {
            known.all().len() == self.api.all("volumesnapshotcontents").len()
        })
        .await;
        until("the history of bases", || {
            self.leader.bases.has(BASE, NAMESPACE).is_some()
        })
        .await;
    }

    /// The authority that backup tools read.
    pub(super) fn published(&self) -> String {
        let object = self.api.get(&format!("snapshotmetadataservices/{DRIVER}"));
        let object: SnapshotMetadataService = read(object.expect("it is published"));
        String::from_utf8(object.spec.ca_cert.0).unwrap()
    }

    /// Connects a backup tool that trusts this authority.
    pub(super) async fn connect(&self, authority: String) -> Result<Tool, tonic::transport::Error> {
        let address = self.address;
        let connector = tower::service_fn(move |_: Uri| {
            let authority = authority.clone();
            async move {
                let stream = shake_hands(address, &authority).await?;
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("http://leader");
        let channel = endpoint.connect_with_connector(connector).await?;
        Ok(SnapshotMetadataClient::new(channel))
    }

    /// Connects a backup tool.
    pub(super) async fn tool(&self) -> Tool {
        self.connect(self.published()).await.unwrap()
    }

    /// The certificate that a new connection gets to see.
    pub(super) async fn shown(&self) -> Fingerprint {
        let stream = shake_hands(self.address, &self.published()).await.unwrap();
        let (_, session) = stream.get_ref();
        Fingerprint::of(&session.peer_certificates().unwrap()[0])
    }
}

/// Connects to the leader as a client that trusts this authority alone.
async fn shake_hands(address: SocketAddr, authority: &str) -> io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots(authority).unwrap())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(HOST).unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

/// A backup tool.
pub(super) type Tool = SnapshotMetadataClient<Channel>;

/// A range: its offset and its size.
pub(super) type Range = (i64, i64);

pub(super) fn allocated(snapshot: &str) -> service::GetMetadataAllocatedRequest {
    service::GetMetadataAllocatedRequest {
        security_token: TOKEN.to_owned(),
        namespace: NAMESPACE.to_owned(),
        snapshot_name: snapshot.to_owned(),
        ..Default::default()
    }
}

pub(super) fn delta(base: &str) -> service::GetMetadataDeltaRequest {
    service::GetMetadataDeltaRequest {
        security_token: TOKEN.to_owned(),
        namespace: NAMESPACE.to_owned(),
        base_snapshot_id: base.to_owned(),
        target_snapshot_name: "target".to_owned(),
        ..Default::default()
    }
}

/// All ranges of a stream, or the code with which it failed.
pub(super) async fn read_allocated(
    tool: &mut Tool,
    request: service::GetMetadataAllocatedRequest,
) -> Result<Vec<Range>, Code> {
    let answer = tool.get_metadata_allocated(request).await;
    ranges(answer, |message| {
        (message.volume_capacity_bytes, message.block_metadata)
    })
    .await
}

/// [`read_allocated`], of what changed.
pub(super) async fn read_delta(
    tool: &mut Tool,
    request: service::GetMetadataDeltaRequest,
) -> Result<Vec<Range>, Code> {
    let answer = tool.get_metadata_delta(request).await;
    ranges(answer, |message| {
        (message.volume_capacity_bytes, message.block_metadata)
    })
    .await
}

/// The ranges of an answer. `parts` are the volume's size and the blocks of a message.
async fn ranges<M>(
    answer: Result<Response<Streaming<M>>, Status>,
    parts: fn(M) -> (i64, Vec<service::BlockMetadata>),
) -> Result<Vec<Range>, Code> {
    let mut messages = answer.map_err(|status| status.code())?.into_inner();
    let mut ranges = Vec::new();
    while let Some(message) = messages.message().await.map_err(|status| status.code())? {
        let (size, blocks) = parts(message);
        assert_eq!(size, SIZE);
        ranges.extend(blocks.iter().map(range));
    }
    Ok(ranges)
}

fn range(block: &service::BlockMetadata) -> Range {
    (block.byte_offset, block.size_bytes)
}
