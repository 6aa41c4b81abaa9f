//! A cluster with one node, a driver of another author on it, and hostloop's controllers beside it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use hostloop_test::PATIENCE;
use hostloop_test::cluster::{Cluster, Options, Stock, check, wait_for};
use hostloop_test::front::fields::{has_condition, list, name};
use hostloop_test::front::objects::{self, Objects, Place};
use hostloop_test::front::process::http;
use hostloop_test::machine::{self, own_address, root, text};
use hostloop_test::process::Process;
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};

use crate::driver::{Driver, Kind};

/// The name of the classes.
pub(crate) const CLASS: &str = "foreign";

/// The namespace and the account of the driver in the example.
const NAMESPACE: &str = "other-driver";
const ACCOUNT: &str = "other-driver-controller";

/// The namespace of the claims and pods.
const USERS: &str = "default";

/// Calls of a volume's life. The registrar and kubelet make others.
const CALLS: [&str; 7] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "CreateSnapshot",
    "DeleteSnapshot",
    "ControllerExpandVolume",
];

/// The running programs. The fields are dropped in order: each needs later ones.
pub(crate) struct Site {
    pub(crate) kind: Kind,
    controllers: Process,
    driver: Driver,
    /// The address of the metrics.
    metrics: SocketAddr,
    /// The port of the liveness endpoint.
    health: u16,
    stock: Stock,
    /// The objects of the cluster.
    pub(crate) objects: Objects,
    pub(crate) cluster: Cluster,
    _scratch: Scratch,
}

impl Site {
    /// Starts all of it, and waits until kubelet has registered the driver.
    pub(crate) async fn up(kind: Kind) -> Site {
        machine::require();
        let scratch = Scratch::new();
        let cluster = Cluster::up(&Options::one_node().apart(&format!("{kind:?}")));
        cluster.create_crds();
        let stock = Stock::take(&cluster, &[]);
        cluster.apply(&rights());
        cluster.apply(&surroundings(kind).to_string());
        let kubeconfig = cluster.kubeconfig_of(NAMESPACE, ACCOUNT, scratch.path());
        until_granted(&cluster).await;

        let sockets = cluster.kubelet_dir().join("plugins").join(kind.driver());
        std::fs::create_dir_all(&sockets).expect("kubelet's directory can be written");
        let socket = sockets.join("csi.sock");
        let driver = Driver::start(kind, scratch.path(), &socket, &cluster.node(1)).await;
        let (metrics, health) = (own_address(), free_port());
        let mut args = one_sidecar(kind, &driver, &kubeconfig, &registry(&cluster));
        args.push(format!("--http-endpoint={metrics}"));
        args.push(format!("--health-port={health}"));
        let site = Site {
            kind,
            controllers: Process::one_sidecar(scratch.path(), NAMESPACE, &args),
            driver,
            metrics,
            health,
            stock,
            objects: Objects::connect(&cluster.kubeconfig()).await,
            cluster,
            _scratch: scratch,
        };
        let node = Place::of("CSINode", "", &site.cluster.node(1));
        site.until(&node, "registered", |node| {
            list(&node["spec"]["drivers"]).any(|driver| driver["name"] == kind.driver())
        })
        .await;
        site
    }

    /// Applies a claim and a pod of this name, and waits until the pod is ready.
    pub(crate) async fn runs(&self, name: &str, manifest: &str) {
        self.cluster.apply(manifest);
        let is_ready = |pod: &Value| has_condition(pod, "Ready");
        self.until(&at("Pod", name), "ready", is_ready).await;
    }

    /// Writes this word as the pod's file.
    pub(crate) fn write(&self, pod: &str, word: &str) {
        let command = format!("echo {word} >/data/file && sync /data/file");
        self.cluster.exec(USERS, pod, &["sh", "-c", &command]);
    }

    /// Checks that the pod's file has this word, if the driver keeps what pods write.
    #[track_caller]
    pub(crate) fn has(&self, pod: &str, word: &str) {
        if self.kind.keeps_data() {
            let content = self.cluster.exec(USERS, pod, &["cat", "/data/file"]);
            assert_eq!(content.trim_end(), word);
        }
    }

    /// Waits until an object satisfies `is`, and returns it. On a timeout the test fails with the
    /// object, its events and the ends of the logs.
    pub(crate) async fn until(&self, at: &Place, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        match self.objects.until(at, PATIENCE, is).await {
            Some(object) => object,
            None => {
                let object = self.objects.describe(at).await;
                let (ours, theirs) = (self.controllers.tail(), self.driver.tail());
                panic!("{at} is not {what} after {PATIENCE:?}:\n{object}\n{ours}\n{theirs}");
            }
        }
    }

    /// Stops everything. The test has deleted its objects: nothing may be left of them in the cluster,
    /// in the driver and on the node.
    pub(crate) async fn down(self) {
        self.stock.assert_nothing_left(&self.cluster).await;
        wait_for("an empty driver", PATIENCE, async || {
            let left = self.driver.left().await;
            check(left.is_empty(), || left.join("\n"))
        })
        .await;
        self.assert_served().await;
        self.cluster.delete(&surroundings(self.kind).to_string());
        wait_for("no capacity without its class", PATIENCE, async || {
            let left = self.objects.list("CSIStorageCapacity", NAMESPACE).await;
            check(left.is_empty(), || format!("{left:?}"))
        })
        .await;
        self.controllers.stop();
        let socket = format!("{}-reg.sock", self.kind.driver());
        let socket = registry(&self.cluster).join(socket);
        assert!(!socket.exists(), "kubelet still sees {}", socket.display());
    }

    /// Checks what the controllers did, and that they did it in the order that the driver asks for.
    async fn assert_served(&self) {
        let leases = self.objects.list("Lease", NAMESPACE).await;
        let held: Vec<_> = leases.iter().map(name).collect();
        for lease in self.kind.leases() {
            assert!(held.contains(&&*lease), "{lease} is not among {held:?}");
        }
        let metrics = http(&self.metrics.to_string(), "/metrics");
        for call in CALLS {
            let method = format!("method_name=\"/csi.v1.Controller/{call}\"");
            let counted = metrics.lines().any(|line| {
                line.starts_with("csi_sidecar_operations_seconds_count{")
                    && line.contains(&method)
                    && line.contains(&format!("driver_name=\"{}\"", self.kind.driver()))
                    && line.contains("grpc_status_code=\"OK\"")
            });
            assert!(counted, "{call} is not in the metrics:\n{metrics}");
        }
        // It asks a driver that may be slow at this moment.
        wait_for("a healthy driver", PATIENCE, async || {
            let healthy = http(&format!("127.0.0.1:{}", self.health), "/healthz");
            check(healthy.starts_with("HTTP/1.1 200"), || healthy)
        })
        .await;

        let log = self.controllers.log();
        assert!(log.contains("ignored: --feature-gates"), "{log}");
        // The driver has the health of volumes as in CSI 1.12.
        let without = "the driver does not support this controller controller=health";
        assert!(
            self.kind != Kind::HostPath || log.contains(without),
            "{log}"
        );
        let log = self.driver.log();
        let early = "is still used (attached: true";
        assert!(
            !log.contains(early),
            "an attached volume was deleted:\n{log}"
        );
    }
}

/// The reference of an object of the users.
pub(crate) fn at(kind: &str, name: &str) -> Place {
    Place::of(kind, USERS, name)
}

/// The command line, as KEP-4958 has it: no subcommand, dashes as Go takes them, prefixed flags, the
/// sidecars' names. The capacity objects have no owner, because there is no pod.
fn one_sidecar(kind: Kind, driver: &Driver, kubeconfig: &Path, registry: &Path) -> Vec<String> {
    let health = match kind {
        Kind::HostPath => "health-monitor,",
        // It says that it has the health of volumes, and has no call for that.
        Kind::Mock => "",
    };
    let fixed = [
        "-v=5",
        "--feature-gates=Topology=true",
        "--leader-election",
        "-leader-election-namespace=other-driver",
        "--timeout=30s",
        "--attacher-timeout=30s",
        "--attacher-worker-thread=100",
        "--provisioner-timeout=30s",
        "--snapshotter-timeout=5m",
        "--enable-capacity",
        "--capacity-ownerref-level=-1",
    ];
    let mut args: Vec<_> = fixed.map(str::to_owned).into();
    args.extend([
        format!(
            "--controllers=attacher,provisioner,resizer,snapshotter,{health}\
             node-driver-registrar,livenessprobe,csi-snapshot-controller"
        ),
        format!("-csi-address={}", driver.endpoint()),
        format!("--kubeconfig={}", text(kubeconfig)),
        format!("--kubelet-registration-path={}", text(driver.socket())),
        format!("--plugin-registration-path={}", text(registry)),
    ]);
    args
}

/// Waits until the API server applies the roles of the account, of each file of them.
async fn until_granted(cluster: &Cluster) {
    let user = format!("system:serviceaccount:{NAMESPACE}:{ACCOUNT}");
    for (verb, resource) in [
        ("list", "persistentvolumes"),
        ("create", "leases.coordination.k8s.io"),
        ("create", "volumesnapshots.snapshot.storage.k8s.io"),
    ] {
        let can = ["auth", "can-i", verb, resource, "-n", NAMESPACE];
        let as_account = [&can[..], &["--as", &*user]].concat();
        wait_for(
            &format!("the right to {verb} {resource}"),
            PATIENCE,
            async || cluster.try_kubectl(&as_account).map(drop),
        )
        .await;
    }
}

/// The directory in which kubelet looks for plugins.
fn registry(cluster: &Cluster) -> PathBuf {
    cluster.kubelet_dir().join("plugins_registry")
}

/// A port on which no program listens. Kubelet reaches a liveness endpoint at the pod's address, so it
/// listens on all of them. The kernel gives none of these ports to a connection, which could have it
/// before the controllers do.
fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + u16::try_from(std::process::id() % 4_000).expect("a small number");
    loop {
        let port = first + TRIED.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}

/// The rights of the example, and those of the cluster's snapshot controller for the same account.
fn rights() -> String {
    let example = read("examples/other-driver.yaml");
    let has_pods = |object: &str| {
        ["DaemonSet", "Deployment"]
            .iter()
            .any(|kind| object.contains(&format!("\nkind: {kind}\n")))
    };
    let mut objects: Vec<_> = example.split("\n---\n").map(str::to_owned).collect();
    objects.retain(|object| !has_pods(object));
    let snapshots = read("components/snapshot-controller/rbac.yaml");
    let (deployed, ours) = (
        "name: hostloop-controller\n    namespace: hostloop\n",
        format!("name: {ACCOUNT}\n    namespace: {NAMESPACE}\n"),
    );
    assert!(snapshots.contains(deployed), "{snapshots}");
    objects.push(snapshots.replace(deployed, &ours));
    objects.join("\n---\n")
}

fn read(file: &str) -> String {
    let path = root().join("deploy").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The objects of an administrator. The scheduler waits for capacity, and the driver for its attacher.
fn surroundings(kind: Kind) -> Value {
    let name = kind.driver();
    let driver = json!({
        "attachRequired": true,
        "podInfoOnMount": true,
        "storageCapacity": true,
        "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent"],
    });
    let late = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        objects::csi_driver(name, driver),
        objects::class(CLASS, name, late),
        objects::snapshot_class("VolumeSnapshotClass", CLASS, name, json!({})),
    ]})
}
