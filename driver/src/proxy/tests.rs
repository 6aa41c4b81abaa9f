use std::fs;
use std::time::{Duration, Instant};

use hostloop_controllers::grpc_server;
use hostloop_memory_driver::{MemoryDriver, Options};
use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;
use hostloop_proto::csi::identity_client::IdentityClient;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::DropGuard;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

use super::recording::Recording;
use super::*;
use crate::testkit::{PATIENCE, create_request, create_request_with};

mod streams;

/// A proxy with rules in a file, in front of a driver's socket.
struct Front {
    dir: TempDir,
    faults: Arc<FaultInjector>,
    _stop: DropGuard,
}

impl Front {
    fn before(driver: PathBuf, rules: &str) -> Front {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults.yaml");
        fs::write(&file, rules).unwrap();
        let faults = Arc::new(FaultInjector::open(&file, Some("n1")).unwrap());
        let proxy = Arc::new(Proxy {
            driver,
            faults: Some(faults.clone()),
        });
        let listener = UnixListener::bind(dir.path().join("csi.sock")).unwrap();
        let connections = grpc_server::connections(listener, 64);
        let stop = CancellationToken::new();
        tokio::spawn(faults.clone().follow());
        tokio::spawn(proxy.serve(connections, stop.clone()));
        Front {
            dir,
            faults,
            _stop: stop.drop_guard(),
        }
    }

    fn change(&self, rules: &str) {
        fs::write(self.dir.path().join("faults.yaml"), rules).unwrap();
    }

    async fn channel(&self) -> Channel {
        connect(self.dir.path().join("csi.sock")).await
    }
}

/// A client of the server at this socket.
async fn connect(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("http://localhost").http2_max_header_list_size(1 << 20);
    endpoint.connect_with_connector(connector).await.unwrap()
}

/// A driver in memory, and a client of a proxy before it.
struct Rig {
    driver: MemoryDriver,
    front: Front,
    controller: ControllerClient<Channel>,
    _dir: TempDir,
}

impl Rig {
    async fn with(rules: &str) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("driver.sock");
        let driver = MemoryDriver::start(socket.clone(), Options::default());
        let front = Front::before(socket, rules);
        let controller = ControllerClient::new(front.channel().await);
        Rig {
            driver,
            front,
            controller,
            _dir: dir,
        }
    }

    async fn create(&mut self, name: &str) -> Result<String, Status> {
        self.create_as(create_request(name)).await
    }

    async fn create_as(&mut self, request: csi::CreateVolumeRequest) -> Result<String, Status> {
        let answer = self.controller.create_volume(request).await?;
        Ok(answer.into_inner().volume.unwrap().volume_id)
    }

    async fn delete(&mut self, volume_id: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest {
            volume_id: volume_id.to_owned(),
            ..Default::default()
        };
        self.controller.delete_volume(request).await.map(drop)
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, message: &str) {
    let status = answer.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, message));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_errors_pass_as_they_are() {
    let mut rig = Rig::with("").await;
    let request = csi::CreateVolumeRequest {
        secrets: [("password".to_owned(), "hush".to_owned())].into(),
        ..create_request_with("one", "pool=default")
    };
    let id = rig.create_as(request.clone()).await.unwrap();
    assert_eq!(rig.driver.volume_named("one").unwrap().id, id);
    assert_eq!(rig.driver.requests::<csi::CreateVolumeRequest>(), [request]);

    let mut direct = ControllerClient::new(connect(rig.driver.socket().to_owned()).await);
    let refused = csi::CreateVolumeRequest {
        name: "two".to_owned(),
        ..Default::default()
    };
    let expected = direct.create_volume(refused.clone()).await.unwrap_err();
    let seen = rig.create_as(refused).await.unwrap_err();
    assert_eq!(
        (seen.code(), seen.message(), seen.details()),
        (expected.code(), expected.message(), expected.details())
    );

    rig.delete(&id).await.unwrap();
    rig.driver.assert_nothing_left();
    let mut identity = IdentityClient::new(rig.front.channel().await);
    let info = identity.get_plugin_info(csi::GetPluginInfoRequest {}).await;
    assert_eq!(info.unwrap().into_inner().name, Options::default().name);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_calls_are_refused_without_an_effect() {
    let mut rig = Rig::with(
        "rules: [{name: full, method: CreateVolume, object: pvc-*, times: 2, \
         code: RESOURCE_EXHAUSTED, message: 'full: 100 %, und größer'}]",
    )
    .await;
    let (code, message) = (Code::ResourceExhausted, "full: 100 %, und größer");
    assert_refused(rig.create("pvc-1").await, code, message);
    rig.create("other").await.unwrap();
    assert_refused(rig.create("pvc-1").await, code, message);
    rig.create("pvc-1").await.unwrap();
    assert_eq!(rig.driver.count("CreateVolume"), 2);
    let counts = rig.front.faults.counts();
    assert_eq!((&*counts[0].rule, counts[0].calls), ("full", 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_know_the_claim_and_the_node() {
    let metadata = "csi.storage.k8s.io/pvc/name=data-0 csi.storage.k8s.io/pvc/namespace";
    let rules = "rules:\n\
         - {method: '*', claim: data-0, namespace: shop, code: ABORTED, message: claim}\n\
         - {method: DeleteVolume, node: n1, code: INTERNAL, message: node}\n\
         - {method: CreateVolume, node: n2, code: INTERNAL, message: other node}\n";
    let mut rig = Rig::with(rules).await;
    let shop = create_request_with("one", &format!("{metadata}=shop"));
    assert_refused(rig.create_as(shop).await, Code::Aborted, "claim");
    let bank = create_request_with("one", &format!("{metadata}=bank"));
    let id = rig.create_as(bank).await.unwrap();
    assert_refused(rig.delete(&id).await, Code::Internal, "node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_has_its_effect_and_a_retry_finds_it() {
    let mut rig = Rig::with("rules: [{name: lost, method: '*', times: 2, answer: lost}]").await;
    let message = "fault rule \"lost\": the call is done, and its answer is lost";
    assert_refused(rig.create("one").await, Code::Unavailable, message);
    let made = rig.driver.volume_named("one").unwrap().id;
    // An error is lost, too.
    let invalid = csi::CreateVolumeRequest::default();
    assert_refused(rig.create_as(invalid).await, Code::Unavailable, message);
    assert_eq!(rig.create("one").await.unwrap(), made);
    assert_eq!(rig.driver.volumes().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_never_comes_ends_with_the_caller() {
    for seconds in [2, 10, 50] {
        let mut rig = Rig::with("rules: [{method: CreateVolume, times: 1, answer: never}]").await;
        let mut request = tonic::Request::new(create_request("one"));
        request.set_timeout(Duration::from_secs(seconds));
        let status = rig.controller.create_volume(request).await.unwrap_err();
        // The client's own end of the wait, in the words of its library.
        assert!(
            matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
            "{status:?}"
        );
        // On a busy machine, it may not get there in time.
        if rig.driver.volume_named("one").is_some() {
            rig.create("one").await.unwrap();
            return;
        }
    }
    panic!("the call does not get to the driver");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_come_before_and_after_the_call() {
    let rules = "rules: [{method: CreateVolume, delayBefore: 300ms, delayAfter: 500ms}]";
    let mut rig = Rig::with(rules).await;
    let started = Instant::now();
    rig.create("one").await.unwrap();
    let ended = started.elapsed();
    let calls = rig.driver.calls();
    let arrived = calls[0].at.duration_since(started);
    assert!(arrived >= Duration::from_millis(300), "{arrived:?}");
    assert!(
        ended - arrived >= Duration::from_millis(500),
        "{arrived:?} {ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_counts_for_the_next_calls() {
    let mut rig = Rig::with("rules: [{method: CreateVolume, code: ABORTED}]").await;
    assert_eq!(rig.create("one").await.unwrap_err().code(), Code::Aborted);
    // A mistake changes nothing.
    rig.front.change("rules: [{metod: CreateVolume}]");
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(rig.create("one").await.unwrap_err().code(), Code::Aborted);
    rig.front.change("");
    let deadline = Instant::now() + PATIENCE;
    while rig.create("one").await.is_err() {
        assert!(Instant::now() < deadline, "the rule is still in force");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    rig.front
        .change("rules: [{method: DeleteVolume, code: DATA_LOSS}]");
    while rig
        .front
        .faults
        .decide("/csi.v1.Controller/DeleteVolume", &Default::default())
        .is_none()
    {
        assert!(Instant::now() < deadline, "the rule is not in force");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(rig.delete("v").await.unwrap_err().code(), Code::DataLoss);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_restarts_is_found_again() {
    let mut rig = Rig::with("").await;
    rig.create("one").await.unwrap();
    rig.driver.away();
    rig.create("one").await.unwrap_err();
    rig.driver.resume();
    let deadline = Instant::now() + PATIENCE;
    while rig.create("one").await.is_err() {
        assert!(Instant::now() < deadline, "the driver is not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(rig.driver.volumes().len(), 1);
}

/// The events in a recording about one subject: kind, name, code and error.
fn recorded(text: &str, about: &str) -> Vec<[String; 4]> {
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let call = lines.clone().find(|line| line["about"] == about).unwrap();
    let events = lines.filter(|line| {
        line["about"] == about || (line["parent"] == call["id"] && line["trace"] == call["trace"])
    });
    let texts = events.map(|event| {
        ["kind", "name", "code", "error"]
            .map(|field| event[field].as_str().unwrap_or_default().to_owned())
    });
    texts.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_recorded_in_the_form_of_events() {
    let rules =
        "rules: [{name: once, method: CreateVolume, times: 1, code: ABORTED, message: later}]";
    let mut rig = Rig::with(rules).await;
    let path = rig.front.dir.path().join("calls.jsonl");
    let recording = Recording::open(&path).await.unwrap();
    let process = hostloop_events::serve::Process {
        process: "proxy".to_owned(),
        node: None,
        version: "0".to_owned(),
    };
    let stop = CancellationToken::new();
    let following = tokio::spawn(recording.follow(process, stop.clone()));
    let name = "recorded-by-the-proxy";
    let request = csi::CreateVolumeRequest {
        secrets: [("password".to_owned(), "hush-77ab".to_owned())].into(),
        ..create_request(name)
    };
    rig.create_as(request.clone()).await.unwrap_err();
    rig.create_as(request).await.unwrap();
    stop.cancel();
    following.await.unwrap();

    let text = fs::read_to_string(&path).unwrap();
    let (header, events) = text.split_once('\n').unwrap();
    let header = hostloop_events::read::header(header).unwrap();
    assert_eq!(header.process.process, "proxy");
    let expected = [
        ["call", "CreateVolume", "", ""],
        ["phase", "fault", "", "rule \"once\": refused"],
        ["call", "CreateVolume", "ABORTED", "later"],
        ["call", "CreateVolume", "", ""],
        ["call", "CreateVolume", "OK", ""],
    ];
    assert_eq!(
        recorded(events, name),
        expected.map(|event| event.map(str::to_owned))
    );
    assert!(!text.contains("hush-77ab"), "a secret is recorded");
}
