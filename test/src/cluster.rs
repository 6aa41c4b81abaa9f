//! A real Kubernetes for a test, brought up and taken down by `scripts/cluster`.
//!
//! [`Cluster::up`] is a cluster of a test's own; dropping it takes it down, and so does the end of
//! the test's process, however it ends: tests of one program may share one in a `static`. When a
//! test fails, the logs of its cluster are kept in `target/cluster-logs`. [`Stock`] says what a test left behind, [`Audit`] what
//! was asked of the API server, [`wait_for`] waits and tells what it saw last.
//!
//! - `HOSTLOOP_CLUSTER=NAME` has every test use a cluster that is up already, and leave it up.
//! - `HOSTLOOP_CLUSTER_KEEP=1` leaves the tests' clusters up, to be looked at.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kube::Client;

use crate::front::objects;
use crate::machine::text;

mod account;
mod audit;
mod node;
mod stock;
mod wait;

pub use audit::{Audit, Request};
pub use node::Node;
pub use stock::Stock;
pub use wait::wait_for;

/// The image the tests' pods run: a shell and the usual tools. What such a pod runs first ignores
/// the signal to end, so give it a short `terminationGracePeriodSeconds`.
pub const BUSYBOX: &str = "busybox:1";

/// What a cluster is made of. The default is the smallest: a control plane without nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// How many nodes. Without any there is no scheduler either.
    pub nodes: u32,
    /// A scheduler also when there is no node.
    pub scheduler: bool,
    /// Kubelet's root on each node; `/var/lib/kubelet`, where the manifest expects it, if none is
    /// named. Two clusters with nodes can't share it at one time.
    pub kubelet_dir: Option<PathBuf>,
    /// The pace of a cluster as it comes out of the box: kubelet reports its status every ten
    /// seconds, not every one, and the cluster's own controllers are limited to 20 requests a
    /// second, not 500.
    pub slow: bool,
}

impl Options {
    /// One node, and all it needs to run pods.
    pub fn one_node() -> Options {
        Options {
            nodes: 1,
            ..Options::default()
        }
    }

    /// Two, of which the second is one like kind's: see `scripts/cluster`.
    pub fn two_nodes() -> Options {
        Options {
            nodes: 2,
            ..Options::default()
        }
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["--nodes".to_owned(), self.nodes.to_string()];
        if self.scheduler {
            arguments.push("--scheduler".to_owned());
        }
        if !self.slow {
            arguments.push("--fast".to_owned());
        }
        if let Some(dir) = &self.kubelet_dir {
            arguments.extend(["--kubelet-dir".to_owned(), text(dir).to_owned()]);
        }
        arguments
    }
}

/// A cluster that is up.
pub struct Cluster {
    name: String,
    dir: PathBuf,
    node_name: String,
    kubelet_dir: PathBuf,
    nodes: u32,
    /// Takes the cluster down when its standard input ends. None where the cluster is to stay.
    keeper: Option<Child>,
}

impl Cluster {
    /// Brings one up; fails the test with what the script said if it doesn't come.
    pub fn up(options: &Options) -> Cluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if let Ok(name) = std::env::var("HOSTLOOP_CLUSTER") {
            return Cluster::named(&name, None);
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{count}", std::process::id());
        let keeper = bring_up(&name, options).unwrap_or_else(|why| panic!("{why}"));
        Cluster::named(&name, keeper)
    }

    /// One that is up, as its own folder tells it.
    fn named(name: &str, keeper: Option<Child>) -> Cluster {
        let dir = Path::new("/var/tmp/hostloop-cluster").join(name);
        let settings = std::fs::read_to_string(dir.join("settings"));
        let settings = settings.unwrap_or_else(|_| panic!("there is no cluster {name}"));
        let setting = |key: &str| {
            let mut pairs = settings.lines().filter_map(|line| line.split_once('='));
            let found = pairs.find_map(|(k, value)| (k == key).then_some(value));
            found.unwrap_or_else(|| panic!("{name}'s settings have {key}"))
        };
        Cluster {
            name: name.to_owned(),
            node_name: setting("NODE_NAME").to_owned(),
            kubelet_dir: setting("KUBELET_DIR").into(),
            nodes: setting("NODES").parse().expect("NODES is a number"),
            dir,
            keeper,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many nodes it has.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The name of a node, counted from 1.
    pub fn node(&self, count: u32) -> String {
        format!("{}-{count}", self.node_name)
    }

    /// Kubelet's root, as each node's processes name it.
    pub fn kubelet_dir(&self) -> &Path {
        &self.kubelet_dir
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The log of one of its parts: `apiserver`, `kubelet-1`.
    pub fn log(&self, part: &str) -> String {
        let log = std::fs::read(self.dir.join("log").join(part)).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// A client for the administrator.
    pub async fn client(&self) -> Client {
        objects::client(&self.kubeconfig()).await
    }

    /// What was asked of the API server so far.
    pub fn audit(&self) -> Audit {
        Audit::read(&self.audit_log())
    }

    /// Where that is written, a line of JSON for each.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("log/audit.log")
    }

    /// Runs kubectl as the administrator; what it printed, or how it failed.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.run("kubectl", arguments, "")
    }

    /// [`Cluster::try_kubectl`], where failing fails the test.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments)
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// Applies a manifest, or says what refused it.
    pub fn try_apply(&self, yaml: &str) -> Result<String, String> {
        self.run("kubectl", &["apply", "-f", "-"], yaml)
    }

    /// [`Cluster::try_apply`], where failing fails the test.
    pub fn apply(&self, yaml: &str) {
        self.try_apply(yaml).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Deletes what is in a manifest and waits until it is gone; what isn't there is no error.
    pub fn delete(&self, yaml: &str) {
        let arguments = ["delete", "--ignore-not-found", "--timeout=120s", "-f", "-"];
        self.run("kubectl", &arguments, yaml)
            .unwrap_or_else(|why| panic!("{why}"));
    }

    /// Waits for a pod to be ready; fails with its description if it doesn't get there.
    pub fn pod_ready(&self, namespace: &str, pod: &str) {
        let named = format!("pod/{pod}");
        let wait = ["wait", "-n", namespace, "--for=condition=Ready", &named];
        let waited = self.try_kubectl(&[&wait[..], &["--timeout=120s"]].concat());
        if let Err(why) = waited {
            let seen = self.try_kubectl(&["describe", "-n", namespace, &named]);
            panic!(
                "{why}\nseen last:\n{}",
                seen.unwrap_or_else(|unseen| unseen)
            );
        }
    }

    /// Runs a command in a pod's first container; what it printed, or how it failed.
    pub fn try_exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<String, String> {
        self.try_kubectl(&[&["exec", "-n", namespace, pod, "--"], command].concat())
    }

    /// [`Cluster::try_exec`], where failing fails the test.
    pub fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> String {
        self.try_exec(namespace, pod, command)
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// What a pod's containers have printed; `pod` may also be a selector, `-l=app=x`.
    pub fn logs(&self, namespace: &str, pod: &str) -> String {
        self.kubectl(&[
            "logs",
            "-n",
            namespace,
            pod,
            "--all-containers",
            "--tail=-1",
        ])
    }

    /// What runs of it, and where.
    pub fn status(&self) -> String {
        let status = self.run("status", &[], "");
        status.unwrap_or_else(|why| panic!("{why}"))
    }

    /// Imports an image archive into each node.
    pub fn load(&self, archive: &Path) {
        self.part("load", text(archive));
    }

    /// Ends a part in order and waits for its end: `kubelet`, `apiserver`, `controller-manager`,
    /// `scheduler`, `etcd`, `kubelet-2`.
    pub fn stop(&self, part: &str) {
        self.part("stop", part);
    }

    /// Kills a part.
    pub fn kill(&self, part: &str) {
        self.part("kill", part);
    }

    /// Starts a part that was stopped or killed.
    pub fn start(&self, part: &str) {
        self.part("start", part);
    }

    /// What a test that fails leaves to be read.
    fn save_logs(&self) {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/cluster-logs");
        let target = target.join(&self.name);
        // This is best-effort: the test has failed already, and says why.
        let _ = std::fs::create_dir_all(&target);
        let logs = std::fs::read_dir(self.dir.join("log"));
        for log in logs.into_iter().flatten().flatten() {
            let _ = std::fs::copy(log.path(), target.join(log.file_name()));
        }
        eprintln!("the cluster's logs are in {}", target.display());
    }

    fn part(&self, command: &str, argument: &str) {
        self.run(command, &[argument], "")
            .unwrap_or_else(|why| panic!("{why}"));
    }

    fn run(&self, command: &str, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut run = script(command, &self.name);
        // Behind the dashes nothing is an option of the script's.
        run.arg("--").args(arguments);
        run.stdin(Stdio::piped());
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = run.spawn().expect("scripts/cluster can be run");
        let mut stdin = child.stdin.take().expect("its input is a pipe");
        // It may end without having read all: its status says why.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child
            .wait_with_output()
            .expect("scripts/cluster can be run");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(printed);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "{command} {}: {printed}{said}",
            arguments.join(" ")
        ))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(mut keeper) = self.keeper.take() else {
            return;
        };
        if std::thread::panicking() {
            self.save_logs();
        }
        drop(keeper.stdin.take());
        let down = keeper.wait().is_ok_and(|status| status.success());
        if !down && !std::thread::panicking() {
            panic!("the cluster {} did not come down whole", self.name);
        }
    }
}

/// Runs the script until the cluster is up. It says so in a file, not through a pipe: if this
/// process ends, nothing may stop it from taking the cluster down.
fn bring_up(name: &str, options: &Options) -> Result<Option<Child>, String> {
    let keep = std::env::var_os("HOSTLOOP_CLUSTER_KEEP").is_some();
    let said = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let mut up = script("up", name);
    up.args(options.arguments()).stdin(Stdio::piped());
    up.stdout(append(said.path())).stderr(append(said.path()));
    if !keep {
        up.arg("--hold");
    }
    let mut up = up.spawn().expect("scripts/cluster can be run");
    loop {
        let ended = up.try_wait().expect("it is this process's child");
        let said = std::fs::read_to_string(said.path()).unwrap_or_default();
        match ended {
            Some(status) if status.success() => return Ok(None),
            Some(_) => return Err(format!("no cluster came up:\n{said}")),
            None if !keep && said.ends_with("/kubeconfig\n") => return Ok(Some(up)),
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn append(file: &Path) -> File {
    let opened = File::options().append(true).open(file);
    opened.expect("the new file can be opened")
}

fn script(command: &str, name: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut script = Command::new(root.join("scripts/cluster"));
    script.args([command, "--name", name]);
    script
}
