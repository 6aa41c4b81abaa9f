//! Pods with new claims on a node, and what the deployed container takes of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hostloop_test::cluster::{BUSYBOX, Cluster, Options, wait_for};
use hostloop_test::driver::binary;
use hostloop_test::machine::text;
use hostloop_test::scratch::Scratch;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::DRIVER;
use crate::cluster::container::Container;
use crate::measure::{Aim, Figure, median};

/// Pods of each kind.
const ROUNDS: usize = 5;
/// With attachment each takes ten seconds more.
const ROUNDS_ATTACHED: usize = 3;
const PATIENCE: Duration = Duration::from_secs(180);
/// How long nothing is asked of the container before and while it is watched at rest.
const SETTLE: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(20);
/// What is used of deploy/: the most a container can have to do.
const OVERLAY: &str = "snapshot-controller";
const NAMESPACE: &str = "hostloop";

/// A node with the driver's image.
struct Node {
    cluster: Cluster,
    pods: Api<Pod>,
    pool_dir: PathBuf,
}

/// The figures.
pub(super) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let (image, megabytes) = image(&scratch);
    let kubelet_dir = format!("/var/tmp/hostloop-bench-kubelet-{}", std::process::id());
    // At the pace of a cluster out of the box: attaching is slow for kubelet's pace alone.
    let cluster = Cluster::up(&Options {
        kubelet_dir: Some(kubelet_dir.into()),
        slow: true,
        ..Options::one_node()
    });
    cluster.load(&image);
    cluster.kubectl(&["create", "-k", text(&root().join("deploy/crds"))]);
    let mut figures = runtime.block_on(async {
        let node = Node {
            pods: Api::default_namespaced(cluster.client().await),
            pool_dir: scratch.dir("pool"),
            cluster,
        };
        node.deploy(&[]).await;
        let (with, without) = node.pods_start(ROUNDS).await;
        let mut figures = vec![seconds(
            "pod with a new claim, against one without",
            with,
            without,
        )];
        figures.extend(node.at_rest().await);
        node.cluster.kubectl(&["delete", "csidriver", DRIVER]);
        node.deploy(&["--component", "attach"]).await;
        let (attached, _) = node.pods_start(ROUNDS_ATTACHED).await;
        figures.insert(
            1,
            seconds("… attached first, against not attached", attached, with),
        );
        // Whose volumes are gone goes last, and takes its pool's mount with it.
        let manifest = node.manifest(&[]);
        tokio::task::block_in_place(|| node.cluster.delete(&manifest));
        figures
    });
    figures.push(Figure {
        what: "image, compressed".into(),
        ours: megabytes,
        floor: None,
        unit: "MB",
        aim: Aim::LessThan(40.0),
    });
    figures
}

fn seconds(what: &str, ours: f64, floor: f64) -> Figure {
    Figure {
        what: what.to_owned(),
        ours,
        floor: Some(floor),
        unit: "s",
        aim: Aim::None,
    }
}

/// The image of the program that is measured, and the size of a download in megabytes.
fn image(scratch: &Scratch) -> (PathBuf, f64) {
    let image = scratch.path().join("hostloop.tar");
    let mut make = Command::new(root().join("scripts/image"));
    make.args(["--binary", text(&binary())]);
    make.args(["--output", text(&image)]);
    run(make);
    let compressed = format!("{}.gz", text(&image));
    let size = std::fs::metadata(&compressed).unwrap_or_else(|e| panic!("{compressed}: {e}"));
    (image, size.len() as f64 / 1e6)
}

/// Runs a script, and returns what it printed.
fn run(mut command: Command) -> String {
    let output = command.output().expect("scripts can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8(output.stdout).expect("scripts print text")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

impl Node {
    fn manifest(&self, further: &[&str]) -> String {
        let mut render = Command::new(root().join("scripts/render"));
        render.args(["--overlay", OVERLAY, "--output", "-"]);
        render.args(["--kubelet-dir", text(self.cluster.kubelet_dir())]);
        render.args(["--pool-dir", text(&self.pool_dir)]);
        render.args(further);
        run(render)
    }

    /// Deploys the driver and waits until kubelet has it.
    async fn deploy(&self, further: &[&str]) {
        self.cluster.apply(&self.manifest(further));
        let patience = format!("--timeout={}s", PATIENCE.as_secs());
        for workload in ["daemonset/hostloop", "deployment/hostloop-controller"] {
            let set = ["rollout", "status", "-n", NAMESPACE, workload, &patience];
            self.cluster.kubectl(&set);
        }
        wait_for("the driver at kubelet", PATIENCE, async || {
            let node = self.cluster.node(1);
            let drivers = "jsonpath={.spec.drivers[*].name}";
            let found = self
                .cluster
                .try_kubectl(&["get", "csinode", &node, "-o", drivers])?;
            match found.contains(DRIVER) {
                true => Ok(()),
                false => Err(format!("it has: {found}")),
            }
        })
        .await;
    }

    /// Seconds until a pod is ready: with a new claim, and without one. In the middle.
    async fn pods_start(&self, rounds: usize) -> (f64, f64) {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        self.pod_starts(true).await;
        for _ in 0..rounds {
            without.push(self.pod_starts(false).await);
            with.push(self.pod_starts(true).await);
        }
        (median(with), median(without))
    }

    /// Makes a pod, with a new claim or without one, and takes it away again, with its volume;
    /// the seconds until it was ready.
    async fn pod_starts(&self, with_claim: bool) -> f64 {
        let manifest = pod(with_claim).to_string();
        let began = Instant::now();
        self.cluster.apply(&manifest);
        let ready = await_condition(self.pods.clone(), "measured", is_ready);
        let ready = tokio::time::timeout(PATIENCE, ready).await;
        let took = began.elapsed();
        if !matches!(ready, Ok(Ok(_))) {
            let described = self.cluster.kubectl(&["describe", "pods"]);
            panic!("the pod is not ready: {ready:?}\n{described}");
        }
        self.cluster.delete(&manifest);
        wait_for("no volume", PATIENCE, async || {
            match &*self.cluster.try_kubectl(&["get", "pv", "-o", "name"])? {
                "" => Ok(()),
                left => Err(left.to_owned()),
            }
        })
        .await;
        took.as_secs_f64()
    }

    /// What the container takes while nothing is asked of it.
    async fn at_rest(&self) -> Vec<Figure> {
        let chosen = ["-l", "app.kubernetes.io/name=hostloop", "-o"];
        let id = "jsonpath={.items[0].status.containerStatuses[0].containerID}";
        let get = [&["get", "pods", "-n", NAMESPACE][..], &chosen, &[id]].concat();
        let id = self.cluster.kubectl(&get);
        let id = id.rsplit('/').next().unwrap_or_default();
        tokio::time::sleep(SETTLE).await;
        let container = Container::find(id);
        let before = container.busy_seconds();
        tokio::time::sleep(REST).await;
        let busy = container.busy_seconds() - before;
        vec![
            Figure {
                what: "resident memory of the whole container".into(),
                ours: container.resident_mib(),
                floor: None,
                unit: "MiB",
                aim: Aim::LessThan(30.0),
            },
            Figure {
                what: "CPU of the whole container at rest".into(),
                ours: busy / REST.as_secs_f64() * 100.0,
                floor: None,
                unit: "% of one",
                aim: Aim::None,
            },
        ]
    }
}

fn is_ready(pod: Option<&Pod>) -> bool {
    let status = pod.and_then(|pod| pod.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

fn pod(with_claim: bool) -> Value {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "measured"},
        "spec": {
            "storageClassName": "hostloop-ext4", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let volume = match with_claim {
        true => json!({"name": "data", "persistentVolumeClaim": {"claimName": "measured"}}),
        false => json!({"name": "data", "emptyDir": {}}),
    };
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "measured"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "shell", "image": BUSYBOX, "command": ["sleep", "1d"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [volume],
        },
    });
    let items = if with_claim {
        vec![claim, pod]
    } else {
        vec![pod]
    };
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}
