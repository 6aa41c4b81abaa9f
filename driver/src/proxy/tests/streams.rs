//! Streams, metadata, and calls of services that the proxy does not know.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::stream::{self, BoxStream};
use hostloop_proto::csi::snapshot_metadata_client::SnapshotMetadataClient;
use hostloop_proto::csi::snapshot_metadata_server::{SnapshotMetadata, SnapshotMetadataServer};
use hostloop_proto::registration as plugin;
use hostloop_proto::registration::registration_client::RegistrationClient;
use hostloop_proto::registration::registration_server::{Registration, RegistrationServer};
use parking_lot::Mutex;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, async_trait};

use super::*;

type Allocated = csi::GetMetadataAllocatedResponse;
type Delta = csi::GetMetadataDeltaResponse;

/// A server that answers with streams, and shows what it gets.
#[derive(Clone, Default)]
struct Extents(Arc<Seen>);

#[derive(Default)]
struct Seen {
    metadata: Mutex<MetadataMap>,
    /// The caller of the endless stream hung up.
    hung_up: AtomicBool,
}

struct HungUp(Arc<Seen>);

impl Drop for HungUp {
    fn drop(&mut self) {
        self.0.hung_up.store(true, Ordering::SeqCst);
    }
}

fn allocated(volume_capacity_bytes: i64) -> Allocated {
    Allocated {
        volume_capacity_bytes,
        ..Default::default()
    }
}

#[async_trait]
impl SnapshotMetadata for Extents {
    type GetMetadataAllocatedStream = BoxStream<'static, Result<Allocated, Status>>;
    type GetMetadataDeltaStream = BoxStream<'static, Result<Delta, Status>>;

    /// Sends three messages, and then an error with metadata.
    async fn get_metadata_allocated(
        &self,
        request: Request<csi::GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        *self.0.metadata.lock() = request.metadata().clone();
        let mut status = Status::new(Code::OutOfRange, "the end: 100 %");
        status
            .metadata_mut()
            .insert("x-trailer", "late".parse().unwrap());
        let messages = (1..=3).map(|number| Ok(allocated(number)));
        let all = messages.chain([Err(status)]);
        let mut answer = Response::new(stream::iter(all.collect::<Vec<_>>()).boxed());
        answer
            .metadata_mut()
            .insert("x-header", "early".parse().unwrap());
        Ok(answer)
    }

    /// Sends one message, and nothing more.
    async fn get_metadata_delta(
        &self,
        _: Request<csi::GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let hung_up = HungUp(self.0.clone());
        let endless = stream::once(async { Ok(Delta::default()) }).chain(stream::pending());
        let watched = endless.map(move |message| {
            let _hung_up = &hung_up;
            message
        });
        Ok(Response::new(watched.boxed()))
    }
}

#[async_trait]
impl Registration for Extents {
    async fn get_info(
        &self,
        _: Request<plugin::InfoRequest>,
    ) -> Result<Response<plugin::PluginInfo>, Status> {
        Ok(Response::new(plugin::PluginInfo {
            name: "passed.example".to_owned(),
            ..Default::default()
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<plugin::RegistrationStatus>,
    ) -> Result<Response<plugin::RegistrationStatusResponse>, Status> {
        let error = request.into_inner().error;
        Err(Status::unimplemented(format!("not here{error}")))
    }
}

/// A proxy before a server with streams.
struct Streams {
    extents: Extents,
    front: Front,
    _dir: TempDir,
}

impl Streams {
    fn with(rules: &str) -> Streams {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("driver.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let extents = Extents::default();
        let server = tonic::transport::Server::builder()
            .add_service(SnapshotMetadataServer::new(extents.clone()))
            .add_service(RegistrationServer::new(extents.clone()));
        let connections = tokio_stream::wrappers::UnixListenerStream::new(listener);
        tokio::spawn(server.serve_with_incoming(connections));
        Streams {
            extents,
            front: Front::before(socket, rules),
            _dir: dir,
        }
    }

    async fn client(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.front.channel().await)
    }
}

fn request() -> Request<csi::GetMetadataAllocatedRequest> {
    Request::new(csi::GetMetadataAllocatedRequest {
        snapshot_id: "snap-1".to_owned(),
        ..Default::default()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_metadata_and_trailers_pass() {
    let rig = Streams::with("");
    let mut request = request();
    request.set_timeout(Duration::from_secs(300));
    let metadata = request.metadata_mut();
    metadata.insert("x-caller", "me".parse().unwrap());
    let timeout = metadata.get("grpc-timeout").cloned();
    let answer = rig.client().await.get_metadata_allocated(request).await;
    let answer = answer.unwrap();
    assert_eq!(answer.metadata().get("x-header").unwrap(), "early");
    let mut messages = answer.into_inner();
    for number in 1..=3 {
        assert_eq!(messages.message().await.unwrap(), Some(allocated(number)));
    }
    let status = messages.message().await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::OutOfRange, "the end: 100 %")
    );
    assert_eq!(status.metadata().get("x-trailer").unwrap(), "late");
    let seen = rig.extents.0.metadata.lock().clone();
    assert_eq!(seen.get("x-caller").unwrap(), "me");
    assert_eq!(seen.get("grpc-timeout"), timeout.as_ref());
    assert!(timeout.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_hangs_up_ends_the_work_of_the_driver() {
    let rig = Streams::with("");
    let mut client = rig.client().await;
    let request = csi::GetMetadataDeltaRequest::default();
    let mut messages = client.get_metadata_delta(request).await.unwrap();
    let first = messages.get_mut().message().await.unwrap();
    assert_eq!(first, Some(Delta::default()));
    assert!(!rig.extents.0.hung_up.load(Ordering::SeqCst));
    drop(messages);
    let deadline = Instant::now() + PATIENCE;
    while !rig.extents.0.hung_up.load(Ordering::SeqCst) {
        assert!(Instant::now() < deadline, "the driver still sends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_refused_or_lost_as_a_whole() {
    let rules = "rules:\n\
         - {method: GetMetadataAllocated, object: snap-1, times: 1, code: ABORTED, message: refused}\n\
         - {method: GetMetadataAllocated, times: 1, answer: lost, code: UNKNOWN, message: lost}\n";
    let rig = Streams::with(rules);
    let mut client = rig.client().await;
    for (code, message) in [(Code::Aborted, "refused"), (Code::Unknown, "lost")] {
        let refused = client.get_metadata_allocated(request()).await;
        assert_refused(refused.map(drop), code, message);
    }
    assert!(client.get_metadata_allocated(request()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_other_services_pass_and_have_faults_by_their_whole_names() {
    let rules = "rules: [{method: pluginregistration.Registration/GetInfo, times: 1, \
         code: UNAVAILABLE, message: later}]";
    let rig = Streams::with(rules);
    let mut client = RegistrationClient::new(rig.front.channel().await);
    let refused = client.get_info(plugin::InfoRequest {}).await;
    assert_refused(refused.map(drop), Code::Unavailable, "later");
    let info = client.get_info(plugin::InfoRequest {}).await.unwrap();
    assert_eq!(info.into_inner().name, "passed.example");
    let status = plugin::RegistrationStatus::default();
    let refused = client.notify_registration_status(status).await;
    assert_refused(refused.map(drop), Code::Unimplemented, "not here");
}

/// As some drivers do with what mkfs and mount print.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_long_message_of_an_error_passes() {
    let rig = Streams::with("");
    let mut client = RegistrationClient::new(rig.front.channel().await);
    let status = plugin::RegistrationStatus {
        error: ", said mkfs".repeat(3_000),
        ..Default::default()
    };
    let expected = format!("not here{}", status.error);
    let refused = client.notify_registration_status(status).await;
    assert_refused(refused.map(drop), Code::Unimplemented, &expected);
}
