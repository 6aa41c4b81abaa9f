//! The cluster: a node for users, a tainted node with the control plane's role, and the driver.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hostloop_api_objects::lease_name::leader_lease;
use hostloop_report::pool_files::{self, IMAGE, SNAPSHOT_RECORD};
use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, wait_for};
use hostloop_test::deployed::{self, DRIVER, NAMESPACE};
use hostloop_test::front::fields::{list, text};
use hostloop_test::front::objects::{self, Objects, Place};
use hostloop_test::machine::{self, text as path_text};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::processes::states;

/// A class that binds at once. The shipped ones wait for a pod.
pub(crate) const NOW: &str = "adversary-now";
/// A class that waits for a pod.
pub(crate) const LATER: &str = "hostloop-ext4";
/// A class for the tainted node, which waits for a pod.
pub(crate) const CHOSEN: &str = "adversary-chosen";
/// The driver's port for metrics.
const METRICS: u16 = 9809;
/// The label and the taint of the control plane's node.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// The driver's ports.
const PORTS: [u16; 2] = [9808, METRICS];
/// The descriptors that a service gets from systemd, if it asks for none.
const DESCRIPTORS: &str = "--nofile=1024:";
/// The ClusterRole of a namespace's user for snapshots.
pub(crate) const SNAPSHOTS: &str = "adversary-snapshots";
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    /// The administrator's.
    pub(crate) objects: Objects,
    /// The pool's directory, on each node.
    pool_dir: TempDir,
    /// A directory for kubeconfigs.
    pub(crate) dir: TempDir,
}

impl Site {
    pub(crate) async fn up() -> Site {
        let cluster = Cluster::up(&Options::two_nodes().apart("adversary"));
        let objects = Objects::connect(&cluster.kubeconfig()).await;
        let pool_dir = tempfile::Builder::new()
            .prefix("hostloop-adversary-")
            .tempdir_in("/var/tmp");
        let pool_dir = pool_dir.expect("a directory can be made in /var/tmp");
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let site = Site {
            cluster,
            objects,
            pool_dir,
            dir,
        };
        for count in 1..=2 {
            // The containers inherit it.
            let process = site
                .cluster
                .process(&format!("containerd-{count}"))
                .to_string();
            machine::run("prlimit", &["--pid", &process, DESCRIPTORS]);
        }
        site.deploy().await;
        site
    }

    /// The node for users' pods.
    pub(crate) fn users_node(&self) -> String {
        self.cluster.node(1)
    }

    /// The tainted node.
    pub(crate) fn control_plane(&self) -> String {
        self.cluster.node(2)
    }

    pub(crate) async fn cordon(&self) -> Result<(), String> {
        self.set_unschedulable(json!(true)).await
    }

    pub(crate) async fn uncordon(&self) -> Result<(), String> {
        self.set_unschedulable(Value::Null).await
    }

    async fn set_unschedulable(&self, value: Value) -> Result<(), String> {
        let at = Place::of("Node", "", &self.control_plane());
        let change = json!({"spec": {"unschedulable": value}});
        let changed = self.objects.try_merge(&at, change).await;
        changed.map(drop).map_err(|why| format!("{at}: {why}"))
    }

    async fn deploy(&self) {
        let label = format!("{CONTROL_PLANE}=");
        self.cluster
            .kubectl(&["label", "node", &self.control_plane(), &label]);
        let taint = format!("{CONTROL_PLANE}=:NoSchedule");
        self.cluster
            .kubectl(&["taint", "node", &self.control_plane(), &taint]);
        let image = deployed::tested_image(self.dir.path().join("hostloop.tar"));
        self.cluster.load(&image);
        self.cluster.create_crds();
        self.cluster.apply(&self.manifest());
        self.objects
            .create(objects::class(NOW, DRIVER, json!({})))
            .await;
        let node =
            json!({"key": format!("topology.{DRIVER}/node"), "values": [self.control_plane()]});
        let chosen = json!({
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [node]}]});
        self.objects
            .create(objects::class(CHOSEN, DRIVER, chosen))
            .await;
        let rules = ["snapshot.storage.k8s.io", "groupsnapshot.storage.k8s.io"];
        let resources = ["volumesnapshots", "volumegroupsnapshots"];
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": SNAPSHOTS},
            "rules": [{"apiGroups": rules, "resources": resources, "verbs": ["*"]}]});
        self.cluster.apply(&role.to_string());
        let lease = leader_lease(DRIVER);
        let lease = Place::of("Lease", NAMESPACE, &lease);
        wait_for(
            "the driver on both nodes and its controller",
            PATIENCE,
            async || {
                let pods = self.objects.list("Pod", NAMESPACE).await;
                let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
                let leads = self.objects.get(&lease).await.is_some();
                let mut registered = true;
                for node in [self.users_node(), self.control_plane()] {
                    let node = self.objects.get(&Place::of("CSINode", "", &node)).await;
                    let node = node.unwrap_or_default();
                    registered &= list(&node["spec"]["drivers"]).any(|d| d["name"] == DRIVER);
                }
                let done = pods.len() == 3 && pods.iter().all(ready) && leads && registered;
                if done { Ok(()) } else { Err(states(&pods)) }
            },
        )
        .await;
    }

    fn manifest(&self) -> String {
        let [pool, kubelet] = [self.pool_dir.path(), self.cluster.kubelet_dir()].map(path_text);
        let dirs = ["--pool-dir", pool, "--kubelet-dir", kubelet];
        deployed::render(&[&["--overlay", "snapshot-controller"], &dirs[..]].concat())
    }

    /// The roots of both nodes' pools, as this machine sees them.
    fn pools(&self) -> Vec<PathBuf> {
        let nodes = self.cluster.all_nodes();
        nodes
            .iter()
            .map(|node| node.path(self.pool_dir.path()))
            .collect()
    }

    /// What a snapshot promises by its record, and what its image takes, in bytes.
    pub(crate) fn promised(&self, snapshot: &str) -> Result<(u64, u64), String> {
        let mut dirs = self
            .pools()
            .into_iter()
            .map(|pool| pool.join(pool_files::SNAPSHOTS).join(snapshot));
        let dir = dirs
            .find(|dir| dir.is_dir())
            .ok_or_else(|| format!("no pool has the snapshot {snapshot}"))?;
        let record = std::fs::read(dir.join(SNAPSHOT_RECORD)).map_err(|why| why.to_string())?;
        let record: Value = serde_json::from_slice(&record).map_err(|why| why.to_string())?;
        let image = std::fs::metadata(dir.join(IMAGE)).map_err(|why| why.to_string())?;
        let promised = record["allocated_bytes"].as_u64();
        let promised = promised.ok_or_else(|| format!("{snapshot} promises nothing: {record}"))?;
        Ok((promised, image.blocks() * 512))
    }

    /// What is there now: objects, files, devices and mounts.
    pub(crate) fn stock(&self) -> Stock {
        let pools = self.pools();
        Stock::take(
            &self.cluster,
            &pools.iter().map(PathBuf::as_path).collect::<Vec<&Path>>(),
        )
    }

    /// The addresses of the driver's ports, of all its pods.
    pub(crate) async fn addresses(&self) -> Vec<SocketAddr> {
        let pods = self.objects.list("Pod", NAMESPACE).await;
        let address = |pod: &Value| {
            text(&pod["status"]["podIP"])
                .parse()
                .expect("pods have IPs")
        };
        let ports = |pod: &Value| PORTS.map(|port| SocketAddr::new(address(pod), port));
        pods.iter().flat_map(ports).collect()
    }

    /// What the pool of the users' node can promise to new volumes, by its metrics.
    pub(crate) async fn available_bytes(&self) -> Result<u64, String> {
        let node = self.users_node();
        let mut pods = self.objects.list("Pod", NAMESPACE).await;
        pods.retain(|pod| pod["spec"]["nodeName"] == *node);
        for pod in &pods {
            let ip = text(&pod["status"]["podIP"])
                .parse()
                .expect("pods have IPs");
            // The controller's pod has no pool.
            let served = metrics(SocketAddr::new(ip, METRICS))
                .await
                .unwrap_or_default();
            let value = served
                .lines()
                .find_map(|line| line.strip_prefix("hostloop_pool_available_bytes{"))
                .and_then(|rest| rest.rsplit(' ').next()?.parse().ok());
            if let Some(bytes) = value {
                return Ok(bytes);
            }
        }
        Err("no pod says how much room its pool has".to_owned())
    }

    /// The log of all pods of the driver.
    pub(crate) fn log(&self) -> String {
        let both = "-l=app.kubernetes.io/name in (hostloop, hostloop-controller)";
        self.cluster.logs(NAMESPACE, both)
    }

    /// Removes the driver, which must leave nothing, and the cluster.
    pub(crate) fn down(self) {
        let manifest = self.manifest();
        deployed::remove(self.cluster, &manifest, self.pool_dir.path());
    }
}

/// The metrics that are served at an address.
async fn metrics(address: SocketAddr) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    Ok(answer)
}
