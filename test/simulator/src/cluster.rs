//! A cluster of one node: the processes as the manifest deploys them, kubelet, and Kubernetes' own
//! controllers.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_controllers::manager::{self, Setup, Telemetry, client_over};
use hostloop_controllers::own_pod::OwnPod;
use hostloop_controllers::tasks::Tasks;
use hostloop_driver::blocking::{Blocking, BlockingWork, Executor};
use hostloop_driver::cli::{Cli, Command};
use hostloop_driver::controller::{self, Controller};
use hostloop_driver::csi::identity::Identity;
use hostloop_driver::csi::validate::CapabilityRules;
use hostloop_driver::grpc::Server;
use hostloop_driver::kernel::FsUsage;
use hostloop_driver::node::{self, Node};
use hostloop_driver::serve::controllers::{ApiAccess, setup_with_driver, setup_without_driver};
use hostloop_driver::serve::upkeep;
use hostloop_driver::storage::{PoolOptions, Pools};
use hostloop_fake_api::FakeApi;
use hostloop_fake_kernel::Model;
use kube::client::ClientBuilder;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dice::Dice;
use crate::door::{Doors, Pace};
use crate::kubelet::Kubelet;
use crate::{model, trace};

pub(crate) const DRIVER: &str = "hostloop.csi.dev";
pub(crate) const NODE: &str = "n1";
pub(crate) const NAMESPACE: &str = "u";
/// What the pool promises at most, in bytes.
const CAPACITY: u64 = 2 << 30;
/// The disk under the pool, in bytes. A thick volume takes as much memory as it has room here.
const DISK: u64 = 768 << 20;
/// Longer than in the manifest: requests for leases would be most of all requests, and no process
/// dies yet.
const LEASES: [&str; 3] = [
    "--leader-election-lease-duration=90s",
    "--leader-election-renew-deadline=60s",
    "--leader-election-retry-period=20s",
];

/// The changes that the API server keeps for watches.
const KEPT_CHANGES: usize = 2000;
const OWN_NAMESPACE: &str = "hostloop";
const TOPOLOGY: &str = "topology.hostloop.csi.dev/node";

/// A running cluster. Dropping it ends everything in it.
pub(crate) struct Cluster {
    pub(crate) api: FakeApi,
    pub(crate) doors: Doors,
    pub(crate) kernel: Arc<Model>,
    pub(crate) pools: Arc<Pools>,
    pub(crate) kubelet: Kubelet,
    tasks: JoinSet<()>,
}

impl Cluster {
    /// Starts a cluster in an empty directory.
    pub(crate) fn start(seed: u64, dir: &Path) -> Cluster {
        let api = FakeApi::cluster();
        api.remember(0);
        api.keep(KEPT_CHANGES);
        objects().for_each(|object| drop(api.put(object)));
        let doors = Doors::of(api.clone(), seed);
        let kernel = Arc::new(Model::new());
        let mut tasks = JoinSet::new();

        for name in ["pool", "state", "kubelet"] {
            std::fs::create_dir(dir.join(name)).expect("a directory");
        }
        let pool = dir.join("pool");
        kernel.set_disk(move |_, _| usage_of(&pool));
        // Half of the pools promise more than their disk has, so that a volume may be too large to
        // be made thick.
        let overcommit = if Dice::of(seed, "overcommit", 0).percent(50) {
            "3"
        } else {
            "1"
        };
        let server = serve(seed, dir, kernel.clone(), overcommit, &mut tasks);
        let pools = server.pools().clone();
        let args = node_args(dir, overcommit);
        let view = Telemetry::new();
        let access = access(&doors, "node", "hostloop-x1", &view);
        let endpoint = PathBuf::from(format!("{}/csi.sock", dir.display()));
        let setup = setup_with_driver(&server, args.controllers, &endpoint, None, access);
        tasks.spawn(process("node", setup, view));

        let view = Telemetry::new();
        let access = self::access(&doors, "leader", "hostloop-controller-x1", &view);
        tasks.spawn(process("leader", leader_setup(access), view));

        let client = doors.client("kubelet");
        let kubelet = Kubelet::new(api.clone(), client, server.routes(), dir);
        tasks.spawn(kubelet.clone().run(doors.writes()));
        model::start(&doors, &mut tasks);
        Cluster {
            api,
            doors,
            kernel,
            pools,
            kubelet,
            tasks,
        }
    }

    /// Reports parts of the cluster that have ended. All run until the end.
    pub(crate) fn check_running(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            trace::violation(format!("a part of the cluster ended: {ended:?}"));
        }
    }
}

/// Runs the controllers of a process.
async fn process(name: &'static str, setup: Setup, view: Telemetry) {
    let ended = manager::run(setup, view, CancellationToken::new()).await;
    trace::violation(format!("the controllers of {name} ended: {ended:?}"));
}

fn access(doors: &Doors, actor: &'static str, pod: &str, view: &Telemetry) -> ApiAccess {
    let client = client_over(ClientBuilder::new(doors.service(actor), "default"), view);
    ApiAccess {
        client: async move { Ok(client) }.boxed(),
        pod: OwnPod {
            name: Some(pod.to_owned()),
            namespace: OWN_NAMESPACE.to_owned(),
            capacity_namespace: Some(OWN_NAMESPACE.to_owned()),
            identity: pod.to_owned(),
        },
    }
}

fn parse(args: &[&str]) -> Command {
    let mut all = vec!["hostloop"];
    all.extend(args);
    all.extend(LEASES);
    Cli::try_parse_from(all)
        .unwrap_or_else(|error| panic!("{error}"))
        .command
}

/// The arguments of the manifest, but for registration and liveness, which need sockets.
fn node_args(dir: &Path, overcommit: &str) -> hostloop_driver::cli::RunArgs {
    let dir = dir.display();
    let command = parse(&[
        "run",
        &format!("--drivername={DRIVER}"),
        &format!("--endpoint=unix://{dir}/csi.sock"),
        &format!("--statedir={dir}/state"),
        &format!("--pool=pool={dir}/pool,capacity={CAPACITY}"),
        &format!("--overcommit={overcommit}"),
        "--enable-attach=false",
        "--controllers=*,-registrar,-liveness",
        "--volume-name-prefix=hostloop",
        "--extra-create-metadata",
        "--leader-tasks=elsewhere",
        &format!("--nodeid={NODE}"),
        &format!("--node-name={NODE}"),
        // The owner of capacity objects is the DaemonSet, which no model makes.
        "--capacity-ownerref-level=-1",
    ]);
    match command {
        Command::Run(args) => *args,
        other => panic!("{other:?}"),
    }
}

fn leader_setup(access: ApiAccess) -> Setup {
    let command = parse(&[
        "controllers",
        "--leader-tasks=only",
        &format!("--drivername={DRIVER}"),
        "--controllers=*,-registrar,-liveness,snapshot-controller",
        "--volume-name-prefix=hostloop",
    ]);
    match command {
        Command::Controllers(args) => setup_without_driver(&args, access),
        other => panic!("{other:?}"),
    }
}

/// The usage of the disk under the pool, which has nothing else on it. Unlike the machine's own, it
/// depends on no other program.
fn usage_of(pool: &Path) -> FsUsage {
    let free = DISK.saturating_sub(allocated_in(pool));
    FsUsage {
        total_bytes: DISK,
        free_bytes: free,
        available_bytes: free,
        // As a filesystem that does not count them.
        total_inodes: 0,
        free_inodes: 0,
        read_only: false,
    }
}

/// The space of all files in a folder, in bytes. The model's clones share no blocks.
fn allocated_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let allocated = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => allocated_in(&entry.path()),
        Ok(found) => found.blocks() * 512,
        // It has just been removed.
        Err(_) => 0,
    });
    allocated.sum()
}

/// The driver of the node, as the program makes it of its arguments.
fn serve(
    seed: u64,
    dir: &Path,
    kernel: Arc<Model>,
    overcommit: &str,
    tasks: &mut JoinSet<()>,
) -> Server {
    let args = node_args(dir, overcommit).serve;
    let specs = args.pools.specs().expect("pools");
    let options = PoolOptions {
        node_id: Some(NODE.to_owned()),
        ..args.pools.options()
    };
    let pools = Pools::open(&specs, options, kernel).expect("pools that open");
    let topology = [(TOPOLOGY.to_owned(), NODE.to_owned())];
    let capabilities = CapabilityRules {
        mount_group: args.switches.volume_mount_group,
        ..CapabilityRules::default()
    };
    let controller = controller::Config {
        topology: topology.clone().into(),
        attach: false,
        snapshot_metadata: args.switches.enable_snapshot_metadata,
        modify: args.switches.enable_controller_modify_volume,
        capabilities: capabilities.clone(),
        ..controller::Config::new(NODE)
    };
    let node_config = node::Config {
        topology: topology.into(),
        capabilities,
        ..node::Config::new(NODE)
    };
    let identity = Identity {
        name: DRIVER.to_owned(),
        vendor_version: args.vendor_version,
        topology: true,
        expansion: true,
        snapshot_metadata: args.switches.enable_snapshot_metadata,
    };
    let controller = Arc::new(Controller::new(pools.clone(), controller));
    let node = Arc::new(Node::new(pools.clone(), node_config));
    let blocking = Blocking::on(Inline {
        seed,
        pace: Arc::default(),
    });
    let server = Server::running_on(blocking.clone(), identity, controller, node.clone());
    let mut upkeep = Tasks::default();
    upkeep::start(
        &pools,
        node,
        &blocking,
        &CancellationToken::new(),
        &mut upkeep,
    );
    tasks.spawn(async move {
        let ended = upkeep.next().await;
        trace::violation(format!("the driver's upkeep ended: {ended:?}"));
    });
    server
}

/// Runs work on the runtime's only thread, after a virtual time that the work takes.
struct Inline {
    seed: u64,
    pace: Arc<Mutex<Pace>>,
}

impl Executor for Inline {
    fn run(&self, kind: &'static str, work: BlockingWork) -> BoxFuture<'static, ()> {
        let number = {
            let mut pace = self.pace.lock();
            pace.count(kind);
            pace.total
        };
        let mut dice = Dice::of(self.seed, kind, number);
        let time = match dice.below(100) {
            0..90 => dice.millis(1, 30),
            90..99 => dice.millis(30, 2000),
            _ => dice.millis(2000, 15_000),
        };
        let ran = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            work();
        });
        ran.map(drop).boxed()
    }
}

fn class(name: &str, parameters: Value, immediate: bool, policy: &str) -> Value {
    let mode = if immediate {
        "Immediate"
    } else {
        "WaitForFirstConsumer"
    };
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": mode,
        "reclaimPolicy": policy, "allowVolumeExpansion": true, "parameters": parameters})
}

/// What an administrator and kubelet have made.
fn objects() -> impl Iterator<Item = Value> {
    let fs = |fs: &str| json!({"csi.storage.k8s.io/fstype": fs});
    let thick = json!({"csi.storage.k8s.io/fstype": "ext4", "provisioning": "thick"});
    let attributes = |name: &str, parameters: Value| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": {"name": name}, "driverName": DRIVER, "parameters": parameters})
    };
    let snapshots = |name: &str, policy: &str| {
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
            "metadata": {"name": name}, "driver": DRIVER, "deletionPolicy": policy})
    };
    let namespaces = [OWN_NAMESPACE, NAMESPACE].map(|name| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
    });
    let rest = [
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false, "podInfoOnMount": true, "storageCapacity": true,
                "volumeLifecycleModes": ["Persistent", "Ephemeral"], "fsGroupPolicy": "File"}}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE,
                "labels": {"kubernetes.io/hostname": NODE, TOPOLOGY: NODE}}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0"}}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": NODE, "topologyKeys": [TOPOLOGY]}]}}),
        class("ext4", fs("ext4"), false, "Delete"),
        class("ext4-now", fs("ext4"), true, "Delete"),
        class("xfs", fs("xfs"), false, "Delete"),
        class("btrfs-now", fs("btrfs"), true, "Delete"),
        class("thick-now", thick, true, "Delete"),
        class("kept-now", fs("ext4"), true, "Retain"),
        class("kept", fs("ext4"), false, "Retain"),
        class("wrong-now", json!({"unknown": "parameter"}), true, "Delete"),
        attributes("direct", json!({"directIO": "true", "readAheadKiB": "128"})),
        attributes(
            "buffered",
            json!({"directIO": "false", "readAheadKiB": "128"}),
        ),
        attributes(
            "streaming",
            json!({"directIO": "true", "readAheadKiB": "4096"}),
        ),
        attributes("thick", json!({"provisioning": "thick"})),
        attributes("wrong", json!({"unknown": "parameter"})),
        snapshots("deleted", "Delete"),
        snapshots("kept", "Retain"),
    ];
    namespaces.into_iter().chain(rest)
}
