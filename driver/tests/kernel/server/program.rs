//! The program itself: its start and stop, its errors, its socket, its log and its HTTP endpoint.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::transport::Channel;

use super::rig::{connect, mountable};
use crate::testkit::{PATIENCE, pairs};
use crate::tools::{command, own_address, until};

/// A driver with a pool in a temporary directory. Dropping it kills the driver.
pub(crate) struct Program {
    dir: tempfile::TempDir,
    child: Option<Child>,
}

impl Program {
    pub(crate) fn new() -> Program {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test starts the driver, which needs root and loop devices"
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pool")).unwrap();
        Program { dir, child: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("csi.sock")
    }

    pub(crate) fn command(&self, log: &str, more: &[&str]) -> Command {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut command = command(env!("CARGO_BIN_EXE_hostloop"));
        command
            .args(["serve", "--nodeid", "n1"])
            .args(["--endpoint", &format!("unix://{}", text(&self.socket()))])
            .args(["--statedir", &text(&self.path("state"))])
            .args(["--pool", &format!("default={}", text(&self.path("pool")))])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.path(log)).unwrap());
        command
    }

    /// Starts it and waits until it serves.
    pub(crate) fn start(&mut self, more: &[&str]) {
        self.start_with(more, |_| {});
    }

    pub(crate) fn start_with(&mut self, more: &[&str], change: impl FnOnce(&mut Command)) {
        let mut command = self.command("log", more);
        change(&mut command);
        self.child = Some(command.spawn().unwrap());
        let begun = Instant::now();
        while UnixStream::connect(self.socket()).is_err() {
            assert!(begun.elapsed() < PATIENCE, "{}", self.log("log"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        self.child.take().unwrap().wait().unwrap()
    }

    /// Sends SIGTERM. The program must end with success.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.ended().success());
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// What `hostloop events` prints.
    pub(crate) fn events(&self, more: &[&str]) -> String {
        let endpoint = format!("unix://{}", self.socket().display());
        let mut command = command(env!("CARGO_BIN_EXE_hostloop"));
        command.args(["events", "--endpoint", &endpoint]).args(more);
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.socket()).await
    }

    /// Creates a volume, and returns its ID.
    pub(crate) async fn create_volume(&self, request: csi::CreateVolumeRequest) -> String {
        let channel = self.channel().await;
        let mut controller = csi::controller_client::ControllerClient::new(channel);
        let created = controller.create_volume(request).await.unwrap();
        created.into_inner().volume.unwrap().volume_id
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_signal_ends_the_program_and_removes_its_socket() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut program = Program::new();
        program.start(&[]);
        program.signal(signal);
        let status = program.ended();
        assert!(status.success(), "{status}: {}", program.log("log"));
        assert!(!program.socket().exists());
        let log = program.log("log");
        assert!(log.lines().last().unwrap().contains("stopped"), "{log}");
    }
}

/// A pool that hangs until the test releases it: reading its identity blocks.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_pool_does_not_delay_the_start() {
    let mut program = Program::new();
    let identity = program.path("hung/pool.json");
    std::fs::create_dir(program.path("hung")).unwrap();
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &identity, fifo, mode, 0).unwrap();
    let hung = format!("hung={}", program.path("hung").to_str().unwrap());
    program.start(&["--pool", &hung, "--pool-open-timeout", "1s"]);

    let channel = program.channel().await;
    let mut identities = csi::identity_client::IdentityClient::new(channel.clone());
    let ready = identities.probe(csi::ProbeRequest {}).await.unwrap();
    assert_eq!(ready.into_inner().ready, Some(true));
    let mut controller = csi::controller_client::ControllerClient::new(channel);
    let request = |pool: &str| csi::CreateVolumeRequest {
        name: format!("pvc-{pool}"),
        volume_capabilities: vec![mountable()],
        parameters: pairs(&format!("pool={pool}")),
        ..Default::default()
    };
    // On a busy machine, it opens later than within that second, too.
    until_created(&mut controller, request("default"), &program).await;
    let refused = controller.create_volume(request("hung")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused:?}");
    assert!(refused.message().contains("being opened"), "{refused:?}");

    // The pool answers again, and opens without a restart.
    let fifo = std::fs::OpenOptions::new()
        .write(true)
        .open(&identity)
        .unwrap();
    std::fs::remove_file(&identity).unwrap();
    drop(fifo);
    until_created(&mut controller, request("hung"), &program).await;
    program.stop();
}

/// Creates a volume once its pool is open.
async fn until_created(
    controller: &mut csi::controller_client::ControllerClient<Channel>,
    request: csi::CreateVolumeRequest,
    program: &Program,
) {
    let begun = Instant::now();
    while let Err(status) = controller.create_volume(request.clone()).await {
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
        assert!(begun.elapsed() < PATIENCE, "{}", program.log("log"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn contradicting_flags_are_refused() {
    let program = Program::new();
    for (more, says) in [
        (["--capacity", "other=1Gi"], "no pool is named \"other\""),
        (["--log-level", "hostloop=loud"], "--log-level"),
        (
            ["--http-endpoint", "192.0.2.1:1"],
            "--http-endpoint 192.0.2.1:1",
        ),
        (
            ["--otlp-endpoint", "http://collector:4318/v1/traces"],
            "'--otlp-endpoint",
        ),
    ] {
        let ended = program.command("log", &more).status().unwrap();
        assert!(!ended.success());
        let log = program.log("log");
        assert!(log.contains(says), "{more:?}: {log}");
        assert!(!program.socket().exists());
    }
}

/// The log has no secrets and no mount flags of calls, valid or invalid, at any level.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_and_mount_flags_stay_out_of_the_log() {
    const SECRET: &str = "hunter2-must-not-be-seen";
    let mut program = Program::new();
    program.start(&["--log-level", "trace", "--log-format", "json"]);
    let channel = program.channel().await;
    let secrets = pairs(&format!("password={SECRET}"));
    let mut capability = mountable();
    if let Some(csi::volume_capability::AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = vec![format!("context={SECRET}")];
    }
    let mut controller = csi::controller_client::ControllerClient::new(channel.clone());
    let mut node = csi::node_client::NodeClient::new(channel);

    for name in ["pvc-1", ""] {
        let request = csi::CreateVolumeRequest {
            name: name.into(),
            volume_capabilities: vec![capability.clone()],
            secrets: secrets.clone(),
            ..Default::default()
        };
        let _ = controller.create_volume(request).await;
    }
    for volume_id in ["no\nsuch", ""] {
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume_id.into(),
            staging_target_path: "/nowhere".into(),
            volume_capability: Some(capability.clone()),
            secrets: secrets.clone(),
            volume_context: secrets.clone(),
            publish_context: secrets.clone(),
        };
        node.node_stage_volume(request).await.unwrap_err();
    }
    let events = program.events(&["--json"]);
    assert!(
        events.contains("CreateVolume") && events.contains("no\\\\nsuch"),
        "{events}"
    );
    assert!(!events.contains(SECRET), "{events}");
    program.stop();

    let log = program.log("log");
    assert!(!log.contains(SECRET), "{log}");
    let mut calls = 0;
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["message"] == "call" {
            calls += 1;
            assert!(line["ms"].is_number() && line["code"].is_string(), "{line}");
        }
    }
    assert_eq!(calls, 4, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_endpoint_shows_metrics_and_health() {
    let mut program = Program::new();
    let address = own_address().to_string();
    program.start(&["--http-endpoint", &address]);
    let mut identity = csi::identity_client::IdentityClient::new(program.channel().await);
    identity.probe(csi::ProbeRequest {}).await.unwrap();

    let get = |path: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let healthy = get("/healthz");
    assert!(
        healthy.starts_with("HTTP/1.1 200 OK") && healthy.ends_with("ok"),
        "{healthy}"
    );
    for line in [
        "content-type: application/openmetrics-text",
        "hostloop_pool_up{pool=\"default\"} 1",
        "csi_plugin_operations_seconds_count{driver_name=\"hostloop.csi.dev\",\
         method_name=\"/csi.v1.Identity/Probe\",grpc_status_code=\"OK\"} 1",
    ] {
        // On a busy machine, a pool may not answer in time.
        until(line, || get("/metrics").contains(line));
    }
    std::fs::rename(program.path("pool/pool.json"), program.path("pool/moved")).unwrap();
    let alive = get("/healthz");
    assert!(alive.starts_with("HTTP/1.1 200 OK"), "{alive}");
    let metrics = get("/metrics");
    let down = "hostloop_pool_up{pool=\"default\"} 0";
    assert!(metrics.contains(down), "no {down} in {metrics}");
    std::fs::rename(program.path("pool/moved"), program.path("pool/pool.json")).unwrap();
}
