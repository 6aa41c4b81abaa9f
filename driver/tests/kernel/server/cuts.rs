//! Cuts by the program: `hostloop cuts` asks the running driver over its own socket.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use hostloop_driver::kernel::FsType;
use hostloop_proto::csi;
use hostloop_report::cuts::{CutList, CutsLine, DroppedCuts, KeptCut};
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;

use super::program::Program;
use super::rig::mountable;
use crate::testkit::MI;
use crate::tools::{Loop, Mount, arg, command, mkfs, sparse, until};

/// A driver with a pool that clones files. Fields are dropped in order: the driver before its pool.
struct Node {
    program: Program,
    _mount: Mount,
    _device: Loop,
    dir: tempfile::TempDir,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = dir.path().join("image");
        sparse(&image, 2048 * MI);
        let device = Loop::attach(&image);
        mkfs(FsType::Xfs.as_str(), &device.device, &[]);
        let mount = Mount::new("xfs", &device.device, &dir.path().join("pool"), "rw");
        Node {
            program: Program::new(),
            _mount: mount,
            _device: device,
            dir,
        }
    }

    fn start(&mut self, more: &[&str]) {
        let pool = format!("clones={}", arg(&self.pool()));
        let pool = ["--pool", pool.as_str()];
        self.program.start(&[&pool[..], more].concat());
    }

    /// Starts the driver, and waits until its pool is open.
    fn start_with_faults(&mut self) {
        self.start(&["--enable-faults", "--pool-open-timeout", "5m"]);
    }

    fn pool(&self) -> PathBuf {
        self.dir.path().join("pool")
    }

    /// `hostloop cuts` with these words.
    fn cuts(&self, words: &[&str]) -> Command {
        let endpoint = format!("unix://{}", self.program.socket().display());
        let mut command = command(env!("CARGO_BIN_EXE_hostloop"));
        command
            .args(["cuts", "--endpoint", &endpoint])
            .args(words)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    /// What a command prints that succeeds.
    fn answer<T: DeserializeOwned>(&self, words: &[&str]) -> T {
        let output = self.cuts(words).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Creates and stages a volume.
    async fn staged(&self) -> String {
        let request = csi::CreateVolumeRequest {
            name: "pvc-cut".to_owned(),
            volume_capabilities: vec![mountable()],
            parameters: [("pool".to_owned(), "clones".to_owned())].into(),
            ..Default::default()
        };
        let id = self.program.create_volume(request).await;
        let at = self.program.path("stage");
        std::fs::create_dir(&at).unwrap();
        let mut node = csi::node_client::NodeClient::new(self.program.channel().await);
        let staged = node.node_stage_volume(csi::NodeStageVolumeRequest {
            volume_id: id.clone(),
            staging_target_path: arg(&at).to_owned(),
            volume_capability: Some(mountable()),
            ..Default::default()
        });
        staged.await.unwrap();
        id
    }

    async fn unstage(&self, volume: &str) {
        let mut node = csi::node_client::NodeClient::new(self.program.channel().await);
        let unstaged = node.node_unstage_volume(csi::NodeUnstageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: arg(&self.program.path("stage")).to_owned(),
        });
        unstaged.await.unwrap();
    }
}

/// A burst under way in a process of its own.
struct Burst {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Burst {
    /// Begins a burst, and returns its exploration.
    fn begin(node: &Node, volume: &str, cuts: &str) -> (Burst, String) {
        let mut command = node.cuts(&["take", "--volume", volume, "--cuts", cuts]);
        command.args(["--every", "10ms"]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut burst = Burst { child, lines };
        match burst.next() {
            Some(CutsLine::Begun(begun)) => (burst, begun.exploration),
            other => panic!("{other:?}"),
        }
    }

    fn next(&mut self) -> Option<CutsLine> {
        let line = self.lines.next()?.unwrap();
        Some(serde_json::from_str(&line).unwrap())
    }

    /// The snapshots of the next cuts, up to this many.
    fn cuts(&mut self, most: usize) -> Vec<String> {
        let lines = std::iter::from_fn(|| match self.next()? {
            CutsLine::Cut(cut) => Some(cut.snapshot),
            _ => None,
        });
        lines.take(most).collect()
    }

    /// Reads to the end.
    fn output(mut self) -> Output {
        while self.next().is_some() {}
        self.child.wait_with_output().unwrap()
    }
}

fn listed(node: &Node, exploration: &str) -> Vec<String> {
    let list: CutList = node.answer(&["list", "--json", "--exploration", exploration]);
    list.cuts.into_iter().map(|cut| cut.snapshot).collect()
}

/// What was printed is on disk, and no more than the cut that was being taken.
#[tokio::test(flavor = "multi_thread")]
async fn cuts_outlive_a_driver_that_dies_among_them_until_they_expire() {
    let mut node = Node::new();
    node.start_with_faults();
    let volume = node.staged().await;
    let (mut burst, exploration) = Burst::begin(&node, &volume, "1000");
    let mut printed = burst.cuts(4);
    assert_eq!(printed.len(), 4);
    node.program.signal(Signal::SIGKILL);
    node.program.ended();
    printed.extend(burst.cuts(1000));
    let output = burst.output();
    assert_eq!(output.status.code(), Some(1), "{output:?}");

    // The first one has expired when the driver starts again.
    let record = node
        .pool()
        .join(format!("snapshots/{}/snapshot.json", printed[0]));
    let mut json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    json["cut"]["expires_ns"] = serde_json::json!(1);
    std::fs::write(&record, json.to_string()).unwrap();
    node.start_with_faults();
    until("the expired cut is deleted", || {
        !listed(&node, &exploration).contains(&printed[0])
    });
    let left = listed(&node, &exploration);
    assert_eq!(left[..printed.len() - 1], printed[1..]);
    assert!(left.len() <= printed.len(), "{left:?}");

    let kept: KeptCut = node.answer(&["keep", &left[0]]);
    assert_eq!(kept.snapshot, left[0]);
    let dropped: DroppedCuts = node.answer(&["drop", &exploration]);
    assert_eq!(dropped.dropped as usize, left.len() - 1);
    assert!(listed(&node, &exploration).is_empty());
    let entries = std::fs::read_dir(node.pool().join("snapshots")).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, [left[0].as_str()]);
    node.unstage(&volume).await;
    node.program.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_ends_with_its_client_and_with_the_driver() {
    let mut node = Node::new();
    node.start_with_faults();
    let socket = node.program.path("csi.cuts.sock");
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let volume = node.staged().await;

    let (mut burst, _) = Burst::begin(&node, &volume, "1000");
    let second = node.cuts(&["take", "--volume", &volume, "--cuts", "1", "--every", "1s"]);
    assert_refused(second, "another exploration");
    assert!(!burst.cuts(1).is_empty());
    burst.child.kill().unwrap();
    burst.child.wait().unwrap();
    until("another burst can begin", || {
        let words = [
            "take",
            "--volume",
            volume.as_str(),
            "--cuts",
            "1",
            "--every",
            "10ms",
        ];
        node.cuts(&words).output().unwrap().status.success()
    });

    let (mut burst, _) = Burst::begin(&node, &volume, "1000");
    assert!(!burst.cuts(1).is_empty());
    node.unstage(&volume).await;
    let output = burst.output();
    assert_eq!(output.status.code(), Some(2), "{output:?}");

    node.program.stop();
    assert!(!socket.exists());
    // Without the flag, it is refused by name.
    node.start(&[]);
    assert!(!socket.exists());
    assert_refused(node.cuts(&["list"]), "--enable-faults");
    node.program.stop();
}

fn assert_refused(mut command: Command, why: &str) {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(why), "{stderr}");
}
