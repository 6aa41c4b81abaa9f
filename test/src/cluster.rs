//! A real Kubernetes for a test, which `scripts/cluster` starts and stops.
//!
//! [`Cluster::up`] starts a cluster for one test. It stops when it is dropped or when the test's
//! process ends in any way, so tests of one program may share one in a `static`. When a test fails,
//! the logs of its cluster are kept in `target/cluster-logs`. [`Stock`] lists what a test left
//! behind, [`Audit`] lists the requests to the API server, and [`wait_for`] waits and reports what
//! it saw last.
//!
//! - `HOSTLOOP_CLUSTER=NAME` makes every test use a running cluster and leave it running.
//! - `HOSTLOOP_CLUSTER_KEEP=1` leaves the tests' clusters running, for inspection.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kube::Client;

use crate::PATIENCE;
use crate::child;
use crate::front::objects;
use crate::machine::{root, text};

pub mod account;
mod audit;
mod node;
mod pod;
mod stock;
mod wait;

pub use audit::{Audit, Request};
pub use node::Node;
pub use pod::pod;
pub use stock::Stock;
pub use wait::{check, wait_at, wait_for};

/// The image of the tests' pods: a shell and the usual tools. The first process of such a pod
/// ignores SIGTERM, so give the pod a short `terminationGracePeriodSeconds`.
pub const BUSYBOX: &str = "busybox:1";

/// The parts of a cluster. The default is the smallest: a control plane without nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The number of nodes. A cluster without nodes has no scheduler by default.
    pub nodes: u32,
    /// Starts a scheduler even without nodes.
    pub scheduler: bool,
    /// Kubelet's root on each node. The default is `/var/lib/kubelet`, where the manifest expects
    /// it. Two clusters with nodes can't share a root at the same time.
    pub kubelet_dir: Option<PathBuf>,
    /// Uses the default pace of Kubernetes: kubelet reports its status every ten seconds instead of
    /// every second. The cluster's own controllers are limited to 20 requests a second instead of
    /// 500.
    pub slow: bool,
    /// A kind that the API server does not serve, such as
    /// `storage.k8s.io/v1/volumeattributesclasses`, as if it were older.
    pub without: Option<&'static str>,
    /// Feature gates of API server and kubelet, such as `CSIVolumeHealth=true`.
    pub feature_gates: Option<&'static str>,
    /// Another version than that of the tests, such as `1.33`, which is built first.
    pub version: Option<&'static str>,
    /// Makes the nodes like those of a distribution, such as `talos`. Then the first node is in a
    /// mount namespace, too.
    pub layout: Option<&'static str>,
}

impl Options {
    /// One node, with everything that is needed to run pods.
    pub fn one_node() -> Options {
        Options {
            nodes: 1,
            ..Options::default()
        }
    }

    /// Two nodes. The second is like a node of kind: see `scripts/cluster`.
    pub fn two_nodes() -> Options {
        Options {
            nodes: 2,
            ..Options::default()
        }
    }

    /// The same with kubelet's root at an unusual place, so that nothing relies on the usual one.
    #[must_use]
    pub fn apart(self, name: &str) -> Options {
        let dir = format!("/var/lib/hostloop-{name}-{}", std::process::id());
        Options {
            kubelet_dir: Some(dir.into()),
            ..self
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
        let words = [
            ("--kubernetes-version", self.version),
            ("--without", self.without),
            ("--feature-gates", self.feature_gates),
            ("--layout", self.layout),
        ];
        for (flag, word) in words {
            arguments.extend(
                word.into_iter()
                    .flat_map(|word| [flag.to_owned(), word.to_owned()]),
            );
        }
        if let Some(dir) = &self.kubelet_dir {
            arguments.extend(["--kubelet-dir".to_owned(), text(dir).to_owned()]);
        }
        arguments
    }
}

/// A running cluster.
pub struct Cluster {
    name: String,
    dir: PathBuf,
    node_name: String,
    kubelet_dir: PathBuf,
    nodes: u32,
    /// True if the first node is in a mount namespace, as each other one is.
    first_is_apart: bool,
    /// A process that stops the cluster when its standard input closes. None if the cluster stays.
    keeper: Option<Child>,
}

impl Cluster {
    /// Starts a cluster; panics with the script's output on failure.
    pub fn up(options: &Options) -> Cluster {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if let Ok(name) = std::env::var("HOSTLOOP_CLUSTER") {
            return Cluster::named(&name, None);
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // scripts/sweep takes what is named as a test and a process that has ended.
        let kind = if keeps() { "kept" } else { "test" };
        let name = format!("{kind}-{}-{count}", std::process::id());
        let keeper = bring_up(&name, options).unwrap_or_else(|why| panic!("{why}"));
        Cluster::named(&name, keeper)
    }

    /// Reads a running cluster from its folder.
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
            first_is_apart: setting("LAYOUT") != "''",
            dir,
            keeper,
        }
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The name of a node, counted from 1.
    pub fn node(&self, count: u32) -> String {
        format!("{}-{count}", self.node_name)
    }

    /// Kubelet's root, as the processes of each node see it.
    pub fn kubelet_dir(&self) -> &Path {
        &self.kubelet_dir
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// The log of one part, such as `apiserver` or `kubelet-1`.
    pub fn log(&self, part: &str) -> String {
        let log = std::fs::read(self.dir.join("log").join(part)).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// A client for the administrator.
    pub async fn client(&self) -> Client {
        objects::client(&self.kubeconfig()).await
    }

    /// The requests that the API server has received so far.
    pub fn audit(&self) -> Audit {
        Audit::read(&self.audit_log())
    }

    /// The file of the API server's audit log: one line of JSON per request.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("log/audit.log")
    }

    /// Runs kubectl as the administrator and returns its output, or its error.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.run("kubectl", arguments, "")
    }

    /// [`Cluster::try_kubectl`], but an error fails the test.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments)
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// Waits until no pod of any namespace has this label.
    pub async fn until_no_pods(&self, label: &str) {
        wait_for("the end of the pods", PATIENCE, async || {
            let pods = ["get", "pods", "--all-namespaces", "-l", label, "-o", "name"];
            let left = self.try_kubectl(&pods)?;
            if left.is_empty() { Ok(()) } else { Err(left) }
        })
        .await;
    }

    /// Applies a manifest and returns the error if the API server rejects it.
    pub fn try_apply(&self, yaml: &str) -> Result<String, String> {
        self.run("kubectl", &["apply", "-f", "-"], yaml)
    }

    /// [`Cluster::try_apply`], but an error fails the test.
    pub fn apply(&self, yaml: &str) {
        self.try_apply(yaml).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Deletes the objects of a manifest and waits until they are gone. A missing object is not an
    /// error.
    pub fn delete(&self, yaml: &str) {
        let arguments = ["delete", "--ignore-not-found", "--timeout=300s", "-f", "-"];
        self.run("kubectl", &arguments, yaml)
            .unwrap_or_else(|why| panic!("{why}"));
    }

    /// Creates the snapshot kinds, if they are missing, and waits until they are served.
    pub fn create_crds(&self) {
        let crds = root().join("deploy/crds");
        // An existing object stays as it is, and kubectl reports it.
        let _ = self.try_kubectl(&["create", "-k", text(&crds)]);
        let wait = [
            "wait",
            "--for=condition=Established",
            "--timeout=300s",
            "crd",
            "--all",
        ];
        self.kubectl(&wait);
    }

    /// Waits until a pod is ready; panics with its description on a timeout.
    pub fn pod_ready(&self, namespace: &str, pod: &str) {
        let named = format!("pod/{pod}");
        let wait = ["wait", "-n", namespace, "--for=condition=Ready", &named];
        let waited = self.try_kubectl(&[&wait[..], &["--timeout=300s"]].concat());
        if let Err(why) = waited {
            let seen = self.try_kubectl(&["describe", "-n", namespace, &named]);
            panic!(
                "{why}\nseen last:\n{}",
                seen.unwrap_or_else(|unseen| unseen)
            );
        }
    }

    /// Runs a command in a pod's first container and returns its output, or its error.
    pub fn try_exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<String, String> {
        self.try_kubectl(&[&["exec", "-n", namespace, pod, "--"], command].concat())
    }

    /// [`Cluster::try_exec`], but an error fails the test.
    pub fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> String {
        self.try_exec(namespace, pod, command)
            .unwrap_or_else(|why| panic!("{why}"))
    }

    /// The output of a pod's containers; `pod` may also be a selector, `-l=app=x`.
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

    /// The handle of the volume that a claim is bound to.
    pub fn handle(&self, namespace: &str, claim: &str) -> String {
        let (claims, volumes) = (["get", "pvc", "-n", namespace], ["get", "pv"]);
        let name = [claim, "-o", "jsonpath={.spec.volumeName}"];
        let volume = self.kubectl(&[&claims[..], &name].concat());
        let handle = [&*volume, "-o", "jsonpath={.spec.csi.volumeHandle}"];
        self.kubectl(&[&volumes[..], &handle].concat())
    }

    /// The cluster's running processes and their locations, from `scripts/cluster`.
    pub fn status(&self) -> String {
        let status = self.run("status", &[], "");
        status.unwrap_or_else(|why| panic!("{why}"))
    }

    /// The process of one part, such as `containerd-1`.
    pub fn process(&self, part: &str) -> u32 {
        let file = self.dir.join("pid").join(part);
        let read = std::fs::read_to_string(&file).unwrap_or_default();
        let process = read.split(' ').next().unwrap_or_default().parse();
        process.unwrap_or_else(|_| panic!("{}: {read:?}", file.display()))
    }

    /// Imports an image archive into each node.
    pub fn load(&self, archive: &Path) {
        self.part("load", text(archive));
    }

    /// Stops a part gracefully and waits for its end: `kubelet`, `apiserver`, `controller-manager`,
    /// `scheduler`, `etcd`, `kubelet-2`.
    pub fn stop(&self, part: &str) {
        self.part("stop", part);
    }

    pub fn kill(&self, part: &str) {
        self.part("kill", part);
    }

    /// Starts a part that was stopped or killed.
    pub fn start(&self, part: &str) {
        self.part("start", part);
    }

    /// Saves the logs of a failed test.
    fn save_logs(&self) {
        let target = root().join("target/cluster-logs").join(&self.name);
        // Errors are ignored: the test has already failed and reports its own reason.
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
        // After `--` the script parses no options.
        run.arg("--").args(arguments);
        run.stdin(Stdio::piped());
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = run.spawn().expect("scripts/cluster can be run");
        let mut stdin = child.stdin.take().expect("its input is a pipe");
        // The script may end before it reads all input. Its exit status reports the reason.
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

/// True if the tests' clusters are left running.
fn keeps() -> bool {
    std::env::var_os("HOSTLOOP_CLUSTER_KEEP").is_some()
}

/// Runs the script until the cluster is up. The script reports in a file, not through a pipe: even
/// if this process ends, the script must still take the cluster down.
fn bring_up(name: &str, options: &Options) -> Result<Option<Child>, String> {
    let said = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let mut up = script("up", name);
    up.args(options.arguments()).stdin(Stdio::piped());
    up.stdout(append(said.path())).stderr(append(said.path()));
    if !keeps() {
        up.arg("--hold");
    }
    let mut up = up.spawn().expect("scripts/cluster can be run");
    loop {
        let ended = up.try_wait().expect("it is this process's child");
        let said = std::fs::read_to_string(said.path()).unwrap_or_default();
        match ended {
            Some(status) if status.success() => return Ok(None),
            Some(_) => return Err(format!("no cluster came up:\n{said}")),
            None if !keeps() && said.ends_with("/kubeconfig\n") => return Ok(Some(up)),
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn append(file: &Path) -> File {
    let opened = File::options().append(true).open(file);
    opened.expect("the new file can be opened")
}

fn script(command: &str, name: &str) -> Command {
    let mut script = child::command(root().join("scripts/cluster"));
    script.args([command, "--name", name]);
    script
}
