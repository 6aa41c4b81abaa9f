//! Pods with new claims on a node, and the deployed container's memory and CPU.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hostloop_test::cluster::{BUSYBOX, Cluster, Options, wait_for};
use hostloop_test::deployed;
use hostloop_test::front::objects;
use hostloop_test::machine::text;
use hostloop_test::scratch::Scratch;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

use super::DRIVER;
use crate::measure::{Aim, Figure};
use crate::process;
use crate::runtime::Runtime;

/// New pods of the driver, and for each of them pods of each kind.
const RUNS: usize = 3;
const ROUNDS: usize = 2;
/// Rounds with attachment. Each takes ten seconds more.
const ROUNDS_ATTACHED: usize = 3;
const PATIENCE: Duration = Duration::from_secs(180);
/// The container gets no requests for this time before the measurement at rest, nor during it.
const SETTLE: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(10);
/// The overlay in deploy/ that gives the container the most to do.
const OVERLAY: &str = "snapshot-controller";
const NAMESPACE: &str = "hostloop";

/// A node with the driver's image.
struct Node {
    cluster: Cluster,
    pods: Api<Pod>,
    pool_dir: PathBuf,
}

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
    cluster.create_crds();
    let mut figures = runtime.block_on(async {
        let node = Node {
            pods: Api::default_namespaced(cluster.client().await),
            pool_dir: scratch.dir("pool"),
            cluster,
        };
        node.deploy(&[]).await;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let (mut memory, mut cpu) = (Vec::new(), Vec::new());
        for run in 0..RUNS {
            if run > 0 {
                node.restart().await;
            }
            node.pods_start(ROUNDS, &mut with, &mut without).await;
            let (resident, busy) = node.at_rest().await;
            memory.push(resident);
            cpu.push(busy);
        }
        node.cluster.kubectl(&["delete", "csidriver", DRIVER]);
        node.deploy(&["--component", "attach"]).await;
        let mut attached = Vec::new();
        let not_counted = &mut Vec::new();
        node.pods_start(ROUNDS_ATTACHED, &mut attached, not_counted)
            .await;
        // It is deleted last, and takes its pool's mount with it.
        let manifest = node.manifest(&[]);
        tokio::task::block_in_place(|| node.cluster.delete(&manifest));
        let (a_claim, attach) = (
            "pod with a new claim, against one without",
            "… attached first, against not attached",
        );
        let (resident, busy) = (
            "resident memory of the whole container",
            "CPU of the whole container at rest",
        );
        vec![
            Figure::beside(a_claim, with.clone(), without, "s", Aim::None),
            Figure::beside(
                attach,
                attached,
                with[..ROUNDS_ATTACHED].to_vec(),
                "s",
                Aim::None,
            ),
            Figure::alone(resident, memory, "MiB", Aim::LessThan(30.0)),
            Figure::alone(busy, cpu, "% of one", Aim::None),
        ]
    });
    let small = Aim::SizeLessThan(40.0);
    figures.push(Figure::alone(
        "image, compressed",
        vec![megabytes],
        "MB",
        small,
    ));
    figures
}

/// The image with the measured program, and its compressed size in megabytes.
fn image(scratch: &Scratch) -> (PathBuf, f64) {
    let image = scratch.path().join("hostloop.tar");
    deployed::image(&image);
    let compressed = format!("{}.gz", text(&image));
    let size = std::fs::metadata(&compressed).unwrap_or_else(|e| panic!("{compressed}: {e}"));
    (image, size.len() as f64 / 1e6)
}

impl Node {
    fn manifest(&self, further: &[&str]) -> String {
        let overlay = ["--overlay", OVERLAY];
        let kubelet_dir = ["--kubelet-dir", text(self.cluster.kubelet_dir())];
        let pool_dir = ["--pool-dir", text(&self.pool_dir)];
        deployed::render(&[&overlay[..], &kubelet_dir, &pool_dir, further].concat())
    }

    /// Deploys the driver and waits until kubelet has registered it.
    async fn deploy(&self, further: &[&str]) {
        self.cluster.apply(&self.manifest(further));
        self.rolled_out().await;
    }

    /// Replaces the driver's pod by a new one.
    async fn restart(&self) {
        let restart = ["rollout", "restart", "-n", NAMESPACE, "daemonset/hostloop"];
        self.cluster.kubectl(&restart);
        self.rolled_out().await;
    }

    async fn rolled_out(&self) {
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
            if found.contains(DRIVER) {
                Ok(())
            } else {
                Err(format!("it has: {found}"))
            }
        })
        .await;
    }

    /// Adds the seconds until a pod is ready: with a new claim, and without one, by turns.
    async fn pods_start(&self, rounds: usize, with: &mut Vec<f64>, without: &mut Vec<f64>) {
        self.pod_starts(true).await;
        for _ in 0..rounds {
            without.push(self.pod_starts(false).await);
            with.push(self.pod_starts(true).await);
        }
    }

    /// Creates a pod, with a new claim or without one, and deletes it with its volume. Returns
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

    /// The container's memory in MiB at rest, and its use of a CPU in percent.
    async fn at_rest(&self) -> (f64, f64) {
        let chosen = ["-l", "app.kubernetes.io/name=hostloop", "-o"];
        let id = "jsonpath={.items[0].status.containerStatuses[0].containerID}";
        let get = [&["get", "pods", "-n", NAMESPACE][..], &chosen, &[id]].concat();
        let id = self.cluster.kubectl(&get);
        let id = id.rsplit('/').next().unwrap_or_default();
        tokio::time::sleep(SETTLE).await;
        let pids = process::of_container(id);
        let busy = || {
            pids.iter()
                .map(|pid| process::cpu_seconds(*pid))
                .sum::<f64>()
        };
        let before = busy();
        tokio::time::sleep(REST).await;
        let resident = pids
            .iter()
            .map(|pid| process::mib(*pid, "status", "VmRSS:"));
        let percent = (busy() - before) / REST.as_secs_f64() * 100.0;
        (resident.sum(), percent)
    }
}

fn is_ready(pod: Option<&Pod>) -> bool {
    let status = pod.and_then(|pod| pod.status.as_ref());
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

fn pod(with_claim: bool) -> Value {
    let claim = objects::claim("default", "measured", "hostloop-ext4", "1Gi", json!({}));
    let volume = if with_claim {
        json!({"name": "data", "persistentVolumeClaim": {"claimName": "measured"}})
    } else {
        json!({"name": "data", "emptyDir": {}})
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
