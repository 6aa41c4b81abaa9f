use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as BlockingListener;
use std::path::Path;
use std::time::Duration;

use hostloop_proto::registration::registration_client::RegistrationClient;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint, Server};

use super::health::Verdict;
use super::*;
use driver::{Driver, State};

pub(crate) mod driver;

const SOON: Duration = Duration::from_secs(300);
const SOCKET: &str = "memory.csi.dev-reg.sock";
const ENDPOINT: &str = "/var/lib/kubelet/plugins/memory.csi.dev/csi.sock";

/// The bytes of two GetInfo calls by grpc-go 1.79, as kubelet 1.36 uses it, to
/// `/var/lib/kubelet/plugins_registry/hostloop.csi.dev-reg.sock`. The second call refers to the
/// first one's authority by its index.
const KUBELET: &str = "\
    505249202a20485454502f322e300d0a0d0a534d0d0a0d0a000000040000000000000000040100000000\
    00008b0104000000018386459c62ba2d98d558598c84d83498f52fb4b31909b06931ea63115392a94f41b25458\
    7b8ec545868346a8b0f5b632d054aa2c35d16cc6a91158598c84d9e951619ce84d073d6b91065e42f75ac2ccba\
    0e4ebf5f8b1d75d0620d263d4c4d65647a8b9acac8b4c7602bbafaecff40027465864d833505b11f40899acac8\
    b24d494f6a7f860befbecbb6ff0000050001000000010000000000\
    00000f0104000000038386c3c2c1c0bf7e860befbee376ff0000050001000000030000000000";

fn unhex(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// The data of a stream, as the server sent it.
fn data(mut sent: &[u8], stream: u32) -> Vec<u8> {
    const DATA: u8 = 0;
    let mut found = Vec::new();
    while let Some((header, rest)) = sent.split_at_checked(9) {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            break;
        };
        let on = u32::from_be_bytes(header[5..].try_into().unwrap());
        if (header[3], on) == (DATA, stream) {
            found.extend(payload);
        }
        sent = rest;
    }
    found
}

/// Sends [`KUBELET`] in pieces of this size, and returns the data of both answers.
async fn exchange(mut connection: DuplexStream, size: usize) -> [Vec<u8>; 2] {
    for piece in unhex(KUBELET).chunks(size) {
        connection.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut sent = Vec::new();
    let answered = async {
        loop {
            assert_ne!(connection.read_buf(&mut sent).await.unwrap(), 0, "{sent:?}");
            let answers = [1, 3].map(|stream| data(&sent, stream));
            if answers.iter().all(|answer| !answer.is_empty()) {
                return answers;
            }
        }
    };
    tokio::time::timeout(SOON, answered)
        .await
        .expect("two answers")
}

pub(crate) fn service() -> RegistrationServer<Service> {
    RegistrationServer::new(Service {
        info: PluginInfo {
            name: "hostloop.csi.dev".to_owned(),
            ..PluginInfo::default()
        },
        health: Health::default(),
        refused: mpsc::channel(1).0,
    })
}

#[tokio::test]
async fn a_repaired_stream_is_answered() {
    for size in [1, 7, 64, 1000] {
        let (here, there) = tokio::io::duplex(1 << 16);
        let incoming = tokio_stream::once(Ok::<_, io::Error>(RewrittenStream::new(there)));
        tokio::spawn(
            Server::builder()
                .add_service(service())
                .serve_with_incoming(incoming),
        );
        for answer in exchange(here, size).await {
            let name = b"hostloop.csi.dev";
            assert!(
                answer.windows(name.len()).any(|window| window == name),
                "{answer:?}"
            );
        }
    }
}

/// A running registrar with its own directory.
struct Run {
    dir: TempDir,
    driver: Driver,
    health: Health,
    stop: CancellationToken,
    ended: JoinHandle<Result<(), Error>>,
}

impl Run {
    fn of(driver: Driver, dir: TempDir) -> Run {
        let health = Health::default();
        let stop = CancellationToken::new();
        let options = Options {
            registration_dir: dir.path().to_owned(),
            endpoint: ENDPOINT.into(),
            health: health.clone(),
        };
        let ended = tokio::spawn(run(options, driver.serve(), stop.clone()));
        Run {
            dir,
            driver,
            health,
            stop,
            ended,
        }
    }

    fn new(state: State) -> Run {
        Run::of(Driver::new(state), TempDir::new().unwrap())
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join(SOCKET)
    }

    async fn is_good(&self) {
        let good = async {
            while self.health.verdict() != Verdict::Good {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, good)
            .await
            .expect("a registration socket");
    }

    async fn kubelet(&self) -> RegistrationClient<Channel> {
        let path = self.socket();
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint
            .connect_with_connector(tower::service_fn(move |_| {
                let path = path.clone();
                async move {
                    UnixStream::connect(path)
                        .await
                        .map(hyper_util::rt::TokioIo::new)
                }
            }))
            .await
            .unwrap();
        RegistrationClient::new(channel)
    }

    async fn ended(self) -> (TempDir, Result<(), Error>) {
        let ended = tokio::time::timeout(SOON, self.ended).await;
        assert_eq!(self.health.verdict(), Verdict::Idle);
        (self.dir, ended.expect("an end").unwrap())
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[tokio::test]
async fn a_driver_is_registered_while_it_runs() {
    for state in [State::Ready, State::Unset] {
        let run = Run::new(state);
        run.is_good().await;
        let meta = fs::symlink_metadata(run.socket()).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(names(run.dir.path()), [SOCKET]);

        let mut kubelet = run.kubelet().await;
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        let expected = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: "memory.csi.dev".to_owned(),
            endpoint: ENDPOINT.to_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        };
        assert_eq!(info, expected);
        let good = RegistrationStatus {
            plugin_registered: true,
            error: String::new(),
        };
        kubelet.notify_registration_status(good).await.unwrap();

        // Kubelet's open connection does not delay the end.
        run.stop.cancel();
        let (dir, ended) = run.ended().await;
        ended.unwrap();
        assert!(names(dir.path()).is_empty());
    }
}

#[tokio::test]
async fn kubelet_finds_another_socket_when_it_is_to_register_again() {
    let run = Run::new(State::Ready);
    run.is_good().await;
    let inode = || fs::symlink_metadata(run.socket()).map(|meta| (meta.ino(), meta.ctime_nsec()));
    let good = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    for _ in 0..2 {
        let mut kubelet = run.kubelet().await;
        assert!(!run.health.is_registered());
        kubelet
            .notify_registration_status(good.clone())
            .await
            .unwrap();
        assert!(run.health.is_registered());
        let before = inode().unwrap();
        run.health.register_again();
        let changed = async {
            while inode().map_or(true, |now| now == before) || run.health.is_registered() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, changed)
            .await
            .expect("another socket");
    }
    run.is_good().await;
    run.kubelet().await.get_info(InfoRequest {}).await.unwrap();
    run.stop.cancel();
    run.ended().await.1.unwrap();
}

#[tokio::test]
async fn a_refusal_ends_it() {
    let run = Run::new(State::Ready);
    run.is_good().await;
    let mut kubelet = run.kubelet().await;
    let bad = RegistrationStatus {
        plugin_registered: false,
        error: "no such luck".to_owned(),
    };
    kubelet.notify_registration_status(bad).await.unwrap();
    let (dir, ended) = run.ended().await;
    let shown = ended.unwrap_err().to_string();
    assert_eq!(
        shown,
        "kubelet refused to register driver memory.csi.dev: no such luck"
    );
    assert!(names(dir.path()).is_empty());
}

#[tokio::test]
async fn nothing_is_registered_before_the_driver_is_ready() {
    for state in [State::NotReady, State::Broken] {
        let run = Run::new(state);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(run.health.verdict(), Verdict::Idle);
        assert!(names(run.dir.path()).is_empty());
        run.driver.set(State::Ready);
        run.is_good().await;
        // A registrar that goes on would create its directory again.
        run.stop.cancel();
        run.ended().await.1.unwrap();
    }
    let run = Run::new(State::Hanging);
    tokio::time::sleep(Duration::from_millis(50)).await;
    run.stop.cancel();
    run.ended().await.1.unwrap();
}

#[tokio::test]
async fn a_socket_that_goes_is_made_again() {
    let run = Run::new(State::Ready);
    run.is_good().await;
    fs::remove_file(run.socket()).unwrap();
    assert!(run.health.check().unwrap_err().ends_with("is not there"));
    run.is_good().await;
    run.kubelet().await.get_info(InfoRequest {}).await.unwrap();

    // Removing the whole directory has the same effect.
    fs::remove_file(run.socket()).unwrap();
    fs::remove_dir(run.dir.path()).unwrap();
    run.is_good().await;
    run.kubelet().await.get_info(InfoRequest {}).await.unwrap();
}

#[tokio::test]
async fn one_that_took_the_place_is_left_alone() {
    let run = Run::new(State::Ready);
    run.is_good().await;
    fs::remove_file(run.socket()).unwrap();
    let _other = BlockingListener::bind(run.socket()).unwrap();
    assert!(
        run.health
            .check()
            .unwrap_err()
            .ends_with("is not the socket made here")
    );
    let (dir, ended) = run.ended().await;
    assert!(
        matches!(ended, Err(Error::Socket(socket::Error::Served(_)))),
        "{ended:?}"
    );
    assert_eq!(names(dir.path()), [SOCKET]);
}

#[tokio::test]
async fn a_predecessor_may_take_its_time_to_go() {
    let dir = TempDir::new().unwrap();
    let before = BlockingListener::bind(dir.path().join(SOCKET)).unwrap();
    let run = Run::of(Driver::new(State::Ready), dir);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(run.health.verdict(), Verdict::Idle);
    drop(before);
    run.is_good().await;
}
