//! A cluster: the processes as the manifest deploys them, kubelets, and Kubernetes' own
//! controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use futures::FutureExt;
use hostloop_controllers::manager::{self, Setup, Telemetry, client_over};
use hostloop_controllers::own_pod::OwnPod;
use hostloop_driver::cli::{Cli, Command};
use hostloop_driver::serve::controllers::{ApiAccess, setup_without_driver};
use hostloop_fake_api::{Backup, Connection, FakeApi};
use kube::client::ClientBuilder;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::door::Doors;
use crate::heartbeats::Heartbeats;
use crate::history::{History, World, trouble};
use crate::machine::{Contents, Machine};
use crate::{effects, model, record, trace};

use troubles::Recovery;

mod troubles;

pub(crate) const DRIVER: &str = "hostloop.csi.dev";
pub(crate) const NODE: &str = "n1";
/// The namespace of users.
pub(crate) const NAMESPACE: &str = hostloop_fidelity::NAMESPACE;
/// The namespace of a user who wants many copies.
pub(crate) const GREEDY: &str = "greedy";
/// Longer than in the manifest: requests for leases would be most of all requests.
const LEASES: [&str; 3] = [
    "--leader-election-lease-duration=90s",
    "--leader-election-renew-deadline=60s",
    "--leader-election-retry-period=20s",
];

/// The changes that the API server keeps for watches.
const KEPT_CHANGES: usize = 2000;
pub(crate) const OWN_NAMESPACE: &str = "hostloop";
pub(crate) const TOPOLOGY: &str = "topology.hostloop.csi.dev/node";

/// The actors and pods of the processes that may lead.
const REPLICAS: [(&str, &str); trouble::REPLICAS] = [
    ("leader", "hostloop-controller-x1"),
    ("leader-2", "hostloop-controller-x2"),
];

/// A running cluster. Dropping it ends everything in it.
pub(crate) struct Cluster {
    pub(crate) api: FakeApi,
    pub(crate) doors: Doors,
    pub(crate) machines: Vec<Machine>,
    replicas: Vec<Replica>,
    /// Kubernetes' own controllers.
    models: JoinSet<()>,
    heartbeats: Heartbeats,
    /// A node has stopped, so the models include the one that watches nodes.
    are_nodes_watched: bool,
    /// The last backup, and the version of the API server then.
    backup: Option<(u64, Backup)>,
    /// What recovers, and when. The number keeps apart what recovers at one time.
    due: BTreeMap<(Instant, u64), Recovery>,
    troubles: u64,
    outages: u64,
}

/// A process of the cluster's controllers, which leads if it has the lease.
struct Replica {
    actor: &'static str,
    pod: &'static str,
    running: Option<(Connection, JoinSet<()>)>,
}

impl Replica {
    /// Starts the process, unless it lives.
    fn begin(&mut self, doors: &Doors) {
        if self.running.is_some() {
            return;
        }
        let connection = doors.connect(self.actor);
        let (access, view) = access(doors, self.actor, self.pod, &connection);
        let mut tasks = JoinSet::new();
        let never_dead = CancellationToken::new();
        tasks.spawn(process(self.actor, leader_setup(access), view, never_dead));
        self.running = Some((connection, tasks));
    }

    /// Kills the process.
    fn kill(&mut self) {
        if let Some((connection, _)) = self.running.take() {
            connection.cut();
        }
    }
}

impl Cluster {
    /// Starts the cluster of a history in an empty directory.
    pub(crate) fn start(history: &History, dir: &Path) -> Cluster {
        let (seed, world) = (history.seed, history.world);
        let (nodes, replicas) = match world {
            World::Calm => (1, 1),
            World::Rough | World::Hard => (trouble::NODES, trouble::REPLICAS),
        };
        let api = FakeApi::cluster();
        api.remember(0);
        api.keep(KEPT_CHANGES);
        record::follow(&api);
        objects(nodes).for_each(|object| drop(api.put(object)));
        let doors = Doors::of(api.clone(), seed);
        let machines =
            (0..nodes).map(|number| Machine::start(number, seed, world, dir, &api, &doors));
        let machines = machines.collect();
        let mut all = Vec::new();
        for (actor, pod) in REPLICAS.into_iter().take(replicas) {
            let mut replica = Replica {
                actor,
                pod,
                running: None,
            };
            replica.begin(&doors);
            all.push(replica);
        }
        let mut models = JoinSet::new();
        model::start(&doors, &mut models);
        Cluster {
            api,
            doors,
            machines,
            replicas: all,
            models,
            heartbeats: Heartbeats::default(),
            are_nodes_watched: false,
            backup: None,
            due: BTreeMap::new(),
            troubles: 0,
            outages: 0,
        }
    }

    /// The node that all pods go to, if there is only one.
    pub(crate) fn only_node(&self) -> Option<&'static str> {
        (self.machines.len() == 1).then_some(NODE)
    }

    /// The content of all pools.
    pub(crate) fn contents(&self) -> Contents {
        let mut all = Contents::default();
        for machine in &self.machines {
            let Contents { volumes, snapshots } = machine.contents();
            all.volumes.extend(volumes);
            all.snapshots.extend(snapshots);
        }
        all
    }

    /// The handles of the volumes and snapshots of all pools, also of those with an unreadable
    /// record.
    pub(crate) fn handles(&self) -> BTreeSet<String> {
        let Contents { volumes, snapshots } = self.contents();
        let volumes = volumes.iter().map(|volume| volume.id.to_string());
        let snapshots = snapshots.iter().map(|snapshot| snapshot.id.to_string());
        volumes.chain(snapshots).chain(self.unreadable()).collect()
    }

    /// The handles of the volumes and snapshots with an unreadable record.
    pub(crate) fn unreadable(&self) -> BTreeSet<String> {
        let all = self.machines.iter().flat_map(Machine::unreadable);
        all.map(str::to_owned).collect()
    }

    /// The node that has the volume with this handle.
    pub(crate) fn machine_of(&self, handle: &str) -> Option<&Machine> {
        self.machines.iter().find(|machine| {
            let volumes = machine.contents().volumes;
            volumes
                .iter()
                .any(|volume| volume.id.to_string() == *handle)
        })
    }

    /// True if a kubelet uses the volume with this handle.
    pub(crate) fn uses(&self, handle: &str) -> bool {
        self.machines
            .iter()
            .any(|machine| machine.kubelet.uses(handle))
    }

    /// True if a driver works on a call, which may last long.
    pub(crate) fn is_busy(&self) -> bool {
        self.machines.iter().any(Machine::is_busy)
    }

    /// Lets time pass. What is due meanwhile recovers, and who dies meanwhile is buried.
    pub(crate) async fn pass(&mut self, time: Duration) {
        let end = Instant::now() + time;
        loop {
            self.bury().await;
            let next = self.due.keys().next().copied();
            let next = next.filter(|(at, _)| *at <= end);
            tokio::select! {
                biased;
                () = effects::death() => continue,
                () = tokio::time::sleep_until(next.map_or(end, |(at, _)| at)) => {}
            }
            let Some(due) = next else {
                record::look();
                return;
            };
            if let Some(recovery) = self.due.remove(&due) {
                self.recover(recovery);
            }
        }
    }

    /// Reports parts of the cluster that have ended by themselves. All run until the end.
    pub(crate) fn check_running(&mut self) {
        self.machines.iter_mut().for_each(Machine::check_running);
        let running = self
            .replicas
            .iter_mut()
            .filter_map(|replica| replica.running.as_mut());
        for tasks in running.map(|(_, tasks)| tasks).chain([&mut self.models]) {
            while let Some(ended) = tasks.try_join_next() {
                trace::violation(format!("a part of the cluster ended: {ended:?}"));
            }
        }
    }
}

/// Runs the controllers of a process, which may end once it is dead.
pub(crate) async fn process(
    name: &'static str,
    setup: Setup,
    view: Telemetry,
    dead: CancellationToken,
) {
    let ended = manager::run(setup, view, CancellationToken::new()).await;
    if !dead.is_cancelled() {
        trace::violation(format!("the controllers of {name} ended: {ended:?}"));
    }
}

/// How the process of a pod reaches the API server, over this connection.
pub(crate) fn access(
    doors: &Doors,
    actor: &'static str,
    pod: &str,
    connection: &Connection,
) -> (ApiAccess, Telemetry) {
    let view = Telemetry::new();
    let service = doors.over(actor, connection);
    let client = client_over(ClientBuilder::new(service, "default"), &view);
    let access = ApiAccess {
        client: async move { Ok(client) }.boxed(),
        pod: OwnPod {
            name: Some(pod.to_owned()),
            namespace: OWN_NAMESPACE.to_owned(),
            capacity_namespace: Some(OWN_NAMESPACE.to_owned()),
            identity: pod.to_owned(),
        },
    };
    (access, view)
}

pub(crate) fn parse(args: &[&str]) -> Command {
    let mut all = vec!["hostloop"];
    all.extend(args);
    all.extend(LEASES);
    Cli::try_parse_from(all)
        .unwrap_or_else(|error| panic!("{error}"))
        .command
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

/// What kubelet makes of a node.
fn node(number: usize) -> [Value; 2] {
    let name = format!("n{}", number + 1);
    [
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name,
                "labels": {"kubernetes.io/hostname": name, TOPOLOGY: name}}, "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0"}}}),
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": name},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": [TOPOLOGY]}]}}),
    ]
}

/// The class of volumes with this name, as the administrator has made it.
pub(crate) fn storage_class(name: &str) -> Option<Value> {
    classes().find(|class| class["kind"] == "StorageClass" && class["metadata"]["name"] == *name)
}

/// The classes that an administrator has made.
pub(crate) fn classes() -> impl Iterator<Item = Value> {
    let kinds = [
        "StorageClass",
        "VolumeAttributesClass",
        "VolumeSnapshotClass",
    ];
    objects(0).filter(move |object| kinds.iter().any(|kind| object["kind"] == **kind))
}

/// What an administrator and kubelets have made in a cluster with so many nodes.
fn objects(nodes: usize) -> impl Iterator<Item = Value> {
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
    let namespaces = [OWN_NAMESPACE, NAMESPACE, GREEDY].map(|name| {
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
    });
    let rest = [
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false, "podInfoOnMount": true, "storageCapacity": true,
                "volumeLifecycleModes": ["Persistent", "Ephemeral"], "fsGroupPolicy": "File"}}),
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
    namespaces
        .into_iter()
        .chain(rest)
        .chain((0..nodes).flat_map(node))
}
