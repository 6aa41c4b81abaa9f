//! The service for backup tools: checks a call, and lets the node that has the snapshot answer it.

use std::sync::Arc;
use std::time::Duration;

use hostloop_api_objects::snapshot_metadata::SnapshotMetadataService;
use hostloop_proto::csi;
use hostloop_proto::snapshot_metadata::snapshot_metadata_server::SnapshotMetadata;
use hostloop_proto::snapshot_metadata::{
    GetMetadataAllocatedRequest, GetMetadataAllocatedResponse, GetMetadataDeltaRequest,
    GetMetadataDeltaResponse,
};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status, Streaming};

use super::base::{BaseFacts, check_base, handle_of};
use super::credentials::CurrentCredentials;
use super::forward::{Answers, Dial, NodeClient, connect, pass_on, status_for_caller};
use super::known_bases::KnownBases;
use super::metrics::{Method, Metrics, RunningCall};
use super::node_location::locate;
use super::refusal::Refusal;
use super::request::MetadataRequest;
use super::reviews::{access_review, caller, check_access, token_review};
use super::shares::{Share, Shares};
use super::target::{SnapshotName, Target, content_name, target};
use crate::api::scope::node_label;
use crate::cache::Store;
use crate::client::ApiError;
use crate::controller::Context;
use crate::grpc_server::{CallConnection, KeptConnection};
use crate::node_endpoint::NodeEndpoint;
use crate::snapshots::{VolumeSnapshot, VolumeSnapshotContent};

/// Calls that are checked at the same time. Each asks the API server a few times. Each address gets
/// its share, because who the caller is only follows from the check.
const CHECKS: usize = 32;
/// How long a check counts at least, also if the caller hangs up. Anyone can make the API server review
/// a token, and it serves the requests of all controllers of this account in turn.
const CHECK: Duration = Duration::from_secs(1);
/// How long a call waits for its check, and for each place of its stream.
const PATIENCE: Duration = Duration::from_secs(10);
/// Streams at the same time, of which a namespace gets three quarters at most.
const STREAMS: usize = 64;
/// Streams of a node at the same time: those that a pool's driver reads at once. Further ones would
/// wait there.
const NODE_STREAMS: usize = 16;
/// How long the node may take until it answers.
const ANSWER: Duration = Duration::from_secs(30);

/// The service.
pub(super) struct MetadataService {
    context: Context,
    credentials: CurrentCredentials,
    capacities: Store<CSIStorageCapacity>,
    contents: Store<VolumeSnapshotContent>,
    bases: Arc<KnownBases>,
    metrics: Metrics,
    dial: Dial,
    checks: Arc<Shares>,
    /// By namespace.
    streams: Arc<Shares>,
    /// By node and namespace.
    node_streams: Arc<Shares>,
}

/// A call that may be answered.
struct Admitted {
    handle: String,
    node: NodeEndpoint,
}

/// A call that the node may answer now.
struct OpenCall {
    handle: String,
    node: NodeClient,
    places: StreamPlaces,
}

/// A stream that has begun.
struct Begun<M> {
    messages: Streaming<M>,
    places: StreamPlaces,
}

/// What a stream holds until its end.
struct StreamPlaces {
    _of_node: Share,
    _of_all: Share,
    _connection: Option<KeptConnection>,
}

impl MetadataService {
    pub(super) fn new(
        context: Context,
        credentials: CurrentCredentials,
        capacities: Store<CSIStorageCapacity>,
        bases: Arc<KnownBases>,
        metrics: Metrics,
        dial: Dial,
    ) -> Self {
        MetadataService {
            contents: context.caches.contents(),
            context,
            credentials,
            capacities,
            bases,
            metrics,
            dial,
            checks: Shares::new(CHECKS),
            streams: Shares::new(STREAMS),
            node_streams: Shares::new(NODE_STREAMS),
        }
    }

    /// Checks a call, waits for its places, and connects to the node.
    async fn open(
        &self,
        request: &MetadataRequest,
        connection: Option<&CallConnection>,
    ) -> Result<OpenCall, Status> {
        let admitted = self.admit(request, connection).await?;
        let places = self.places(&request.namespace, admitted.node, connection);
        Ok(OpenCall {
            handle: admitted.handle,
            places: places.await?,
            node: self.client(admitted.node).await?,
        })
    }

    /// Checks a call. The order is upstream's: a caller who is not authenticated learns nothing.
    async fn admit(
        &self,
        request: &MetadataRequest,
        connection: Option<&CallConnection>,
    ) -> Result<Admitted, Status> {
        let address = connection.and_then(|connection| connection.peer);
        let address = address.map_or_else(String::new, |address| address.to_string());
        let Ok(check) = timeout(PATIENCE, self.checks.take("", &address)).await else {
            return Err(Status::resource_exhausted(
                "too many calls: try again later",
            ));
        };
        let check = Arc::new(check);
        tokio::spawn(count(check.clone()));
        self.authorize(request).await?;
        let of = SnapshotName {
            namespace: &request.namespace,
            name: &request.snapshot,
        };
        let target = self.target(of).await?;
        if let Some(base) = &request.base {
            self.check_base(of, base, &target).await?;
        }
        let node = self.locate(of, &target).await?;
        drop(check);
        Ok(Admitted {
            handle: target.handle,
            node,
        })
    }

    /// Waits for the places of a stream of a node. First that of the node: a namespace that waits for
    /// it takes nothing from others.
    async fn places(
        &self,
        namespace: &str,
        node: NodeEndpoint,
        connection: Option<&CallConnection>,
    ) -> Result<StreamPlaces, Status> {
        let of_node = node.fingerprint.to_string();
        let of_node = timeout(PATIENCE, self.node_streams.take(&of_node, namespace)).await;
        let of_node = of_node.map_err(|_| exhausted(namespace))?;
        let of_all = timeout(PATIENCE, self.streams.take("", namespace)).await;
        Ok(StreamPlaces {
            _of_node: of_node,
            _of_all: of_all.map_err(|_| exhausted(namespace))?,
            _connection: connection.map(CallConnection::keep),
        })
    }

    /// Fails unless the API server knows the caller, and allows it to see the namespace's snapshots.
    async fn authorize(&self, request: &MetadataRequest) -> Result<(), Refusal> {
        let kube = &self.context.kube;
        let driver = &self.context.driver.name;
        let service = kube.get::<SnapshotMetadataService>("", driver).await;
        let service =
            service.map_err(|error| not_reviewed("find the audience of tokens", &error))?;
        let audience = service.map(|service| service.spec.audience);
        let Some(audience) = audience.filter(|audience| !audience.is_empty()) else {
            return Err(Refusal::NoAudience {
                name: driver.clone(),
            });
        };
        let review = kube.create(&token_review(&request.token, &audience)).await;
        let review = review.map_err(|error| not_reviewed("authenticate the caller", &error))?;
        let caller = caller(review, &audience)?;
        let review = access_review(caller, &request.namespace);
        let review = kube.create(&review).await;
        let review = review.map_err(|error| not_reviewed("authorize the caller", &error))?;
        check_access(review, &request.namespace)
    }

    /// The snapshot at the driver. Both objects are read from the API server: a cache may not have a
    /// snapshot that was just made, or still have one that is gone.
    async fn target(&self, of: SnapshotName<'_>) -> Result<Target, Refusal> {
        let kube = &self.context.kube;
        let snapshot = kube.get::<VolumeSnapshot>(of.namespace, of.name).await;
        let snapshot = snapshot.map_err(|error| of.not_available(error.to_string()))?;
        let content_name = content_name(of, snapshot.as_ref())?;
        let content = kube.get::<VolumeSnapshotContent>("", &content_name).await;
        let content = content.map_err(|error| of.not_available(error.to_string()))?;
        let Some(snapshot) = snapshot else {
            return Err(of.not_available("it is gone"));
        };
        target(of, &snapshot, content.as_ref(), &self.context.driver.name)
    }

    async fn check_base(
        &self,
        of: SnapshotName<'_>,
        base: &str,
        target: &Target,
    ) -> Result<(), Refusal> {
        let unknown = "the snapshots of the cluster are not known yet";
        let synced = timeout(PATIENCE, self.contents.synced()).await;
        synced.map_err(|_| of.not_available(unknown))?;
        let was_in_namespace = self
            .bases
            .has(base, of.namespace)
            .ok_or_else(|| of.not_available(unknown))?;
        let driver = &self.context.driver.name;
        let contents: Vec<_> = self
            .contents
            .each()
            .filter(|content| content.spec.driver == *driver && handle_of(content) == Some(base))
            .collect();
        let facts = BaseFacts {
            handle: base,
            namespace: of.namespace,
            was_in_namespace,
        };
        check_base(facts, target, contents.iter().map(|content| &**content))
    }

    /// The endpoint of the node that has a snapshot.
    async fn locate(&self, of: SnapshotName<'_>, target: &Target) -> Result<NodeEndpoint, Refusal> {
        let nodes = self.context.caches.nodes();
        let synced = timeout(PATIENCE, async {
            nodes.synced().await;
            self.capacities.synced().await;
        });
        let unknown = "the nodes of the cluster are not known yet";
        synced.await.map_err(|_| of.not_available(unknown))?;
        // The label holds a hash if the node's name is too long for a label.
        let node = match &target.node {
            None => None,
            Some(label) => {
                let mut names = nodes.each().map(|node| node.name_any());
                let Some(name) = names.find(|name| node_label(name) == *label) else {
                    return Err(of.not_available(format!("its node {label} does not exist")));
                };
                Some(name)
            }
        };
        let capacities = self.capacities.all();
        locate(&target.handle, node.as_deref(), &capacities).map_err(|why| of.not_available(why))
    }

    /// Begins to count a call.
    fn begin(&self, method: Method) -> RunningCall {
        self.metrics.begin(&self.context.driver.name, method)
    }

    /// Opens the stream of what is allocated.
    async fn allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Begun<GetMetadataAllocatedResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let request = MetadataRequest::try_from(request)?;
        let mut call = self.open(&request, extensions.get()).await?;
        let answer = call
            .node
            .get_metadata_allocated(csi::GetMetadataAllocatedRequest {
                snapshot_id: call.handle,
                starting_offset: request.starting_offset,
                max_results: request.max_results,
                ..Default::default()
            });
        Ok(Begun {
            messages: answer_of_node(answer).await?,
            places: call.places,
        })
    }

    /// Opens the stream of what has changed.
    async fn delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Begun<GetMetadataDeltaResponse>, Status> {
        let (_, extensions, request) = request.into_parts();
        let request = MetadataRequest::try_from(request)?;
        let mut call = self.open(&request, extensions.get()).await?;
        let answer = call.node.get_metadata_delta(csi::GetMetadataDeltaRequest {
            base_snapshot_id: request.base.unwrap_or_default(),
            target_snapshot_id: call.handle,
            starting_offset: request.starting_offset,
            max_results: request.max_results,
            ..Default::default()
        });
        Ok(Begun {
            messages: answer_of_node(answer).await?,
            places: call.places,
        })
    }

    /// Answers a call. It is counted when its stream has ended.
    fn answer<M: Send + 'static>(
        &self,
        running: RunningCall,
        begun: Result<Begun<M>, Status>,
        blocks: fn(&M) -> usize,
    ) -> Result<Response<Answers<M>>, Status> {
        match begun {
            Ok(Begun { messages, places }) => {
                let stop = self.context.stop.clone();
                let answers = pass_on(messages, blocks, places, running, stop);
                Ok(Response::new(answers))
            }
            Err(status) => {
                running.end(status.code());
                Err(status)
            }
        }
    }

    async fn client(&self, node: NodeEndpoint) -> Result<NodeClient, Status> {
        let credentials = self.credentials.get();
        let credentials =
            credentials.ok_or_else(|| Status::unavailable("the service is not ready yet"))?;
        connect(node, &credentials.client, self.dial).await
    }
}

/// Holds the place of a check for as long as it counts.
async fn count(check: Arc<Share>) {
    sleep(CHECK).await;
    drop(check);
}

fn exhausted(namespace: &str) -> Status {
    Status::resource_exhausted(format!(
        "too many streams of namespace {namespace}: try again later"
    ))
}

/// Waits for the beginning of a node's answer.
async fn answer_of_node<M>(
    answer: impl Future<Output = Result<Response<M>, Status>>,
) -> Result<M, Status> {
    match timeout(ANSWER, answer).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(status_for_caller(&status)),
        Err(_) => Err(Status::unavailable(
            "the node that has the snapshot does not answer: try again",
        )),
    }
}

/// The caller is not known yet, so only the log has the error: it names servers and accounts.
fn not_reviewed(what: &'static str, error: &ApiError) -> Refusal {
    tracing::warn!(what, %error, "a call for changed blocks can't be checked");
    Refusal::NotReviewed(what)
}

#[tonic::async_trait]
impl SnapshotMetadata for MetadataService {
    type GetMetadataAllocatedStream = Answers<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Answers<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let running = self.begin(Method::Allocated);
        let begun = self.allocated(request).await;
        self.answer(running, begun, |one| one.block_metadata.len())
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let running = self.begin(Method::Delta);
        let begun = self.delta(request).await;
        self.answer(running, begun, |one| one.block_metadata.len())
    }
}
