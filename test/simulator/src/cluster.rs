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
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::door::Doors;
use crate::heartbeats::Heartbeats;
use crate::history::{ClusterOption, History, World, trouble};
use crate::machine::{Contents, Machine, node_name};
use crate::{effects, model, oracle, recording, trace};

pub(crate) use bars::Bars;
use prepared::objects;
pub(crate) use prepared::{classes, node_objects, storage_class};
use troubles::Recovery;

mod bars;
mod nodes;
mod prepared;
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
/// The finalizer of a PersistentVolume with a volume that a provisioner is to delete.
pub(crate) const PROVISIONER_FINALIZER: &str =
    "external-provisioner.volume.kubernetes.io/finalizer";

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
    pub(crate) bars: Bars,
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
    /// It reports nodes that are down.
    watches_nodes: bool,
    running: Option<Running>,
}

/// A running process of a replica.
struct Running {
    connection: Connection,
    tasks: JoinSet<()>,
    telemetry: Telemetry,
}

impl Replica {
    /// Starts the process, unless it lives.
    fn begin(&mut self, doors: &Doors) {
        if self.running.is_some() {
            return;
        }
        let connection = doors.connect(self.actor);
        let (access, telemetry) = access(doors, self.actor, self.pod, &connection);
        let mut tasks = JoinSet::new();
        let never_dead = CancellationToken::new();
        tasks.spawn(process(
            self.actor,
            leader_setup(access, self.watches_nodes),
            telemetry.clone(),
            never_dead,
        ));
        self.running = Some(Running {
            connection,
            tasks,
            telemetry,
        });
    }

    /// Kills the process.
    fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.connection.cut();
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
        if history.options.contains(&ClusterOption::VolumeHealth) {
            api.store_volume_health();
        }
        recording::follow(&api);
        oracle::guard_secrets(&api);
        let names: Vec<&str> = (0..nodes).map(|node| node_name(node, history)).collect();
        objects(&names, history.attach).for_each(|object| drop(api.put(object)));
        let doors = Doors::of(api.clone(), seed);
        let machines = (0..nodes).map(|number| Machine::start(number, history, dir, &api, &doors));
        let machines = machines.collect();
        let mut all = Vec::new();
        for (actor, pod) in REPLICAS.into_iter().take(replicas) {
            let mut replica = Replica {
                actor,
                pod,
                watches_nodes: history.options.contains(&ClusterOption::NodeWatcher),
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
            bars: Bars::default(),
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

    /// True if there is only one node, and nothing has failed that recovers.
    pub(crate) fn has_no_troubles(&self) -> bool {
        self.only_node().is_some() && self.troubles == 0
    }

    /// The content of all pools, but for those of nodes that have left for good.
    pub(crate) fn contents(&self) -> Contents {
        let mut all = Contents::default();
        for machine in self.machines.iter().filter(|one| !one.is_gone()) {
            let contents = machine.contents();
            all.volumes.extend(contents.volumes);
            all.snapshots.extend(contents.snapshots);
            all.groups.extend(contents.groups);
        }
        all
    }

    /// The handles of the volumes, snapshots and groups of all pools, also of those with an
    /// unreadable record.
    pub(crate) fn handles(&self) -> BTreeSet<String> {
        self.machines.iter().flat_map(Machine::handles).collect()
    }

    /// The handles of the volumes, snapshots and groups with an unreadable record, but for those of
    /// nodes that have left for good.
    pub(crate) fn unreadable(&self) -> BTreeSet<String> {
        let present = self.machines.iter().filter(|one| !one.is_gone());
        let all = present.flat_map(Machine::unreadable);
        all.map(str::to_owned).collect()
    }

    /// True if the data with this handle is on a node that has left for good.
    pub(crate) fn has_lost(&self, handle: &str) -> bool {
        let mut gone = self.machines.iter().filter(|one| one.is_gone());
        gone.any(|machine| machine.handles().contains(handle))
    }

    /// True if the volume with this handle was there when the driver of its node died.
    pub(crate) fn has_outlived_driver(&self, handle: &str) -> bool {
        let mut machines = self.machines.iter();
        machines.any(|machine| machine.has_outlived_driver(handle))
    }

    /// The node with this name.
    pub(crate) fn machine_named(&self, node: &str) -> Option<&Machine> {
        let mut machines = self.machines.iter();
        machines.find(|machine| machine.name() == node)
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

    /// True if the volume with this handle was ever staged for certain. No pod writes to a volume
    /// before that.
    pub(crate) fn has_staged(&self, handle: &str) -> bool {
        let mut machines = self.machines.iter();
        machines.any(|machine| machine.kubelet.has_staged(handle))
    }

    /// What the events of a pod say about its volumes that are not mounted, on all nodes.
    pub(crate) fn complaints(&self, pod: &str) -> Vec<String> {
        let machines = self.machines.iter();
        let complaints = machines.flat_map(|machine| machine.kubelet.complaints(pod));
        complaints.collect()
    }

    /// The metrics of all processes that live, each with its actor, and true if it serves one node.
    pub(crate) fn telemetries(&self) -> Vec<(&'static str, bool, &Telemetry)> {
        let leaders = self.replicas.iter().filter_map(|replica| {
            let running = replica.running.as_ref()?;
            Some((replica.actor, false, &running.telemetry))
        });
        let nodes = self
            .machines
            .iter()
            .filter_map(|machine| Some((machine.name(), true, machine.telemetry()?)));
        leaders.chain(nodes).collect()
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
                recording::look();
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
        let tasks = running.map(|running| &mut running.tasks);
        for tasks in tasks.chain([&mut self.models]) {
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
    telemetry: Telemetry,
    dead: CancellationToken,
) {
    let ended = manager::run(setup, telemetry, CancellationToken::new()).await;
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
    let telemetry = Telemetry::new();
    let service = doors.over(actor, connection);
    let client = client_over(ClientBuilder::new(service, "default"), &telemetry);
    let access = ApiAccess {
        client: async move { Ok(client) }.boxed(),
        pod: OwnPod {
            name: Some(pod.to_owned()),
            namespace: OWN_NAMESPACE.to_owned(),
            capacity_namespace: Some(OWN_NAMESPACE.to_owned()),
            identity: pod.to_owned(),
        },
    };
    (access, telemetry)
}

pub(crate) fn parse(args: &[&str]) -> Command {
    let mut all = vec!["hostloop"];
    all.extend(args);
    all.extend(LEASES);
    Cli::try_parse_from(all)
        .unwrap_or_else(|error| panic!("{error}"))
        .command
}

fn leader_setup(access: ApiAccess, watches_nodes: bool) -> Setup {
    let command = parse(&[
        "controllers",
        "--leader-tasks=only",
        &format!("--drivername={DRIVER}"),
        "--controllers=*,-registrar,-liveness,snapshot-controller",
        "--volume-name-prefix=hostloop",
        &format!("--enable-node-watcher={watches_nodes}"),
    ]);
    match command {
        Command::Controllers(args) => setup_without_driver(&args, access),
        other => panic!("{other:?}"),
    }
}
