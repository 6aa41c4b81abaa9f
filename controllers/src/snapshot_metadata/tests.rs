//! The leader and a node, over TLS, and backup tools before both.

use futures::stream;
use hostloop_proto::csi;
use hostloop_proto::csi::snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

use super::metrics::Method;
use super::metrics::tests::count;
use super::*;
use crate::csi::Csi;
use crate::node_endpoint::NodeEndpoint;
use crate::testing::World;
use crate::tls::certificates::{Authority, Identity};

mod calls;
mod site;

type Messages<M> = stream::Iter<std::vec::IntoIter<Result<M, Status>>>;

/// A driver with one snapshot.
struct Driver;

#[tonic::async_trait]
impl SnapshotMetadata for Driver {
    type GetMetadataAllocatedStream = Messages<csi::GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<csi::GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        if request.get_ref().snapshot_id != "h" {
            return Err(Status::not_found("no such snapshot"));
        }
        let answer = csi::GetMetadataAllocatedResponse {
            volume_capacity_bytes: 8192,
            ..Default::default()
        };
        let answers = vec![Ok(answer), Err(Status::unknown("the disk failed"))];
        Ok(Response::new(stream::iter(answers)))
    }

    async fn get_metadata_delta(
        &self,
        _: Request<csi::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        Err(Status::failed_precondition("do a full backup"))
    }
}

fn allocated(handle: &str) -> csi::GetMetadataAllocatedRequest {
    csi::GetMetadataAllocatedRequest {
        snapshot_id: handle.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_node_answers_the_leader_alone() {
    let now = upkeep::now();
    let ours = Authority::new(now).unwrap();
    let theirs = Authority::new(now).unwrap();
    let world = World::new(&[]);
    world.api.put(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "ns", "name": upkeep::CONFIG_MAP},
        "data": {upkeep::CERTIFICATE: ours.pem()},
    }));
    let own = Identity::self_signed(now).unwrap();
    let kube = world.context.kube.clone();
    let clients = ClientAuthority::new(kube, "ns".to_owned(), own.clone());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let driver = Csi::within(Routes::default().add_service(SnapshotMetadataServer::new(Driver)));
    let (stop, ending) = (CancellationToken::new(), CancellationToken::new());
    let served = tokio::spawn({
        let ending = ending.clone();
        async move { node_server::serve(listener, driver, clients, &ending).await }
    });

    let leader = ours.client(now).unwrap();
    let stranger = theirs.client(now).unwrap();
    let other_node = Identity::self_signed(now).unwrap();
    for (what, caller, known_as, answered) in [
        ("the leader", &leader, &own, true),
        ("a stranger", &stranger, &own, false),
        ("another node", &other_node, &own, false),
        ("a node in place of this one", &leader, &other_node, false),
    ] {
        let node = NodeEndpoint {
            address,
            fingerprint: known_as.fingerprint(),
        };
        let found = match forward::connect(node, caller, forward::dial).await {
            Ok(mut client) => client
                .get_metadata_allocated(allocated("h"))
                .await
                .map(drop),
            Err(status) => Err(status),
        };
        assert_eq!(found.is_ok(), answered, "{what}: {found:?}");
    }

    let node = NodeEndpoint {
        address,
        fingerprint: own.fingerprint(),
    };
    let mut client = forward::connect(node, &leader, forward::dial)
        .await
        .unwrap();
    let refused = client.get_metadata_allocated(allocated("i")).await;
    assert_eq!(refused.unwrap_err().code(), Code::NotFound);
    let messages = client.get_metadata_allocated(allocated("h")).await.unwrap();
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let metrics = Metrics::default();
    let running = metrics.begin("d", Method::Allocated);
    let answers = forward::pass_on(
        messages.into_inner(),
        |one| one.block_metadata.len(),
        permit,
        running,
        stop,
    );
    let answers: Vec<_> = answers
        .map(|answer| {
            answer
                .map(|answer| answer.volume_capacity_bytes)
                .map_err(|status| (status.code(), status.message().to_owned()))
        })
        .collect()
        .await;
    let failed = Err((Code::Internal, "the disk failed".to_owned()));
    assert_eq!(answers, [Ok(8192), failed]);
    assert_eq!(count(&metrics, "d", Method::Allocated, "Internal"), 1);

    drop(client);
    ending.cancel();
    served.await.unwrap().unwrap();
}
