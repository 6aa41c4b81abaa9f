//! A node: its kernel and its disk, kubelet, and the driver's process, which may die.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostloop_controllers::manager::Telemetry;
use hostloop_controllers::tasks::Tasks;
use hostloop_driver::blocking::Blocking;
use hostloop_driver::cli::{Command, RunArgs};
use hostloop_driver::controller::{self, Controller};
use hostloop_driver::csi::capability::CapabilityRules;
use hostloop_driver::csi::identity::Identity;
use hostloop_driver::grpc::Server;
use hostloop_driver::grpc::operation_locks::OperationLocks;
use hostloop_driver::inspect::inventory::Survey;
use hostloop_driver::inspect::status::{Report, report_of};
use hostloop_driver::node::{self, Node};
use hostloop_driver::serve::controllers::setup_with_driver;
use hostloop_driver::serve::upkeep;
use hostloop_driver::storage::scan;
use hostloop_driver::storage::{PoolOptions, Pools};
use hostloop_fake_api::{Connection, FakeApi};
use hostloop_fake_kernel::Model;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cluster::{DRIVER, TOPOLOGY, access, parse, process};
use crate::dice::Dice;
use crate::door::{Doors, Pace};
use crate::effects::{self, Acting};
use crate::history::{ClusterOption, History, World};
use crate::kubelet::Kubelet;
use crate::kubelet::line::Line;
use crate::{disk, recording, stamps, trace};

mod absence;
mod contents;
mod damaged;
mod damaged_files;
pub(crate) mod disk_usage;
mod inline;
pub(crate) mod limits;
mod mutable_parameters;
mod names;
mod power;

use absence::Absence;
pub(crate) use contents::Contents;
use disk_usage::DiskUsage;
use inline::{Copies, Inline};
use limits::{INLINE, POOL, snapshots_of_namespace};
use mutable_parameters::{ACCEPTED, MUTABLE};
use names::{Names, names_of};
pub(crate) use names::{node_name, node_of};

/// What the pool promises at most, in bytes.
pub(crate) const CAPACITY: u64 = 2 << 30;
/// What mkfs writes to an image beside its mark, where blocks can be shared, in bytes. Pods write to
/// the first block alone, so this is what a volume and its snapshots keep in common.
const TABLES: u64 = 1 << 20;
/// The virtual time in which all that a dead process had must be gone.
const GONE_WITHIN: u32 = 100;

/// What all processes of a node have in common.
#[derive(Clone)]
struct Site {
    seed: u64,
    world: World,
    prompt: bool,
    names: Names,
    dir: PathBuf,
    overcommit: u64,
    /// What is on its disk beside the pool, in bytes.
    others: u64,
    /// Volumes are attached before they are mounted.
    attach: bool,
    /// The driver accepts some mutable parameters alone.
    is_selective: bool,
    /// Files of the pool can share blocks.
    shares_blocks: bool,
    /// How often its controllers look for room that others took or freed, and at its storage.
    poll: &'static str,
    /// Copies take as long as other work.
    are_copies_fast: Arc<AtomicBool>,
    kernel: Arc<Model>,
    pace: Arc<Mutex<Pace>>,
}

/// A node.
pub(crate) struct Machine {
    site: Site,
    line: Line,
    pub(crate) kubelet: Kubelet,
    kubelet_task: JoinSet<()>,
    process: Option<Process>,
    /// What the pools had at the last death of the process.
    left: Contents,
    /// The handles of the volumes that were there at a death of the process.
    survivors: BTreeSet<String>,
    /// How long a process that dies at an effect stays dead, in seconds.
    rest: u64,
    /// The power of the node fails when its process dies at an effect.
    loses_power: bool,
    /// The whole node stands still.
    is_off: bool,
    absence: Absence,
    /// An administrator has marked it so.
    pub(crate) is_out_of_service: bool,
    /// How often the node has stopped.
    stops: u64,
    /// How often its power has failed.
    power_cuts: u64,
    /// The records that were damaged, by handle.
    damaged: BTreeMap<String, PathBuf>,
    /// The note of the pool's node is damaged.
    pub(crate) is_owner_damaged: bool,
}

/// The driver's process.
struct Process {
    pools: Arc<Pools>,
    locks: OperationLocks,
    connection: Connection,
    telemetry: Telemetry,
    dead: CancellationToken,
    tasks: JoinSet<()>,
}

impl Machine {
    /// Starts a node, by its number, in an empty directory.
    pub(crate) fn start(
        number: usize,
        history: &History,
        dir: &Path,
        api: &FakeApi,
        doors: &Doors,
    ) -> Machine {
        let (names, seed, world) = (names_of(number, history), history.seed, history.world);
        let dir = dir.join(names.node);
        for name in ["pool", "state", "kubelet"] {
            std::fs::create_dir_all(dir.join(name)).expect("a directory");
        }
        let kernel = Arc::new(Model::new());
        stamps::begin(seed, names.node, kernel.clone());
        let shares_blocks = history.options.contains(&ClusterOption::Reflinks);
        if shares_blocks {
            kernel.set_reflinks(true);
            kernel.set_tables(TABLES);
        }
        let others = disk_usage::others(history, number);
        let shared = kernel.shared_blocks();
        let disk = DiskUsage::of(names.node, dir.join("pool"), others, shared);
        kernel.set_disk(move |_, _| disk.usage());
        // Half of the pools promise more than their disk has, so that a volume may be too large to
        // be made thick.
        let is_overcommitted = Dice::of(seed, "overcommit", number as u64).percent(50);
        let site = Site {
            seed,
            world,
            prompt: history.prompt,
            names,
            dir,
            overcommit: if is_overcommitted { 3 } else { 1 },
            others,
            attach: history.attach,
            is_selective: history.options.contains(&ClusterOption::AcceptedParameters),
            shares_blocks,
            poll: poll(history),
            are_copies_fast: Arc::default(),
            kernel,
            pace: Arc::default(),
        };
        if world == World::Hard {
            disk::insert(names.node, &site.pool(), &site.dir.join("names")).expect("a disk");
        }
        let surveyed = site.clone();
        recording::node(names.node, move || surveyed.report());
        let line = Line::new(seed, names.node);
        let client = doors.client(names.kubelet);
        let kubelet = Kubelet::new(api.clone(), client, names.node, line.clone(), &site.dir);
        let mut machine = Machine {
            site,
            line,
            kubelet,
            kubelet_task: JoinSet::new(),
            process: None,
            left: Contents::default(),
            survivors: BTreeSet::new(),
            rest: 0,
            loses_power: false,
            is_off: false,
            absence: Absence::default(),
            is_out_of_service: false,
            stops: 0,
            power_cuts: 0,
            damaged: BTreeMap::new(),
            is_owner_damaged: false,
        };
        machine.begin(doors);
        machine
            .kubelet_task
            .spawn(machine.kubelet.clone().run(doors.writes()));
        machine
    }

    /// The name of the node.
    pub(crate) fn name(&self) -> &'static str {
        self.site.names.node
    }

    pub(crate) fn kernel(&self) -> &Arc<Model> {
        &self.site.kernel
    }

    /// The directory of the pool.
    pub(crate) fn pool(&self) -> PathBuf {
        self.site.pool()
    }

    /// The directory of the driver's state.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.site.dir.join("state")
    }

    /// The mutable parameters that the driver takes, of all that users of the simulator write.
    pub(crate) fn mutable_parameters(&self) -> &'static [&'static str] {
        match self.site.accepted() {
            [] => &MUTABLE,
            accepted => accepted,
        }
    }

    /// True if files of the pool can share blocks.
    pub(crate) fn shares_blocks(&self) -> bool {
        self.site.shares_blocks
    }

    /// How many times its room the pool promises.
    pub(crate) fn overcommit(&self) -> u64 {
        self.site.overcommit
    }

    /// What the snapshots of one namespace may promise, in bytes.
    pub(crate) fn snapshots_of_namespace(&self) -> u64 {
        snapshots_of_namespace(self.site.world)
    }

    /// What is on its disk beside the pool, in bytes.
    pub(crate) fn others(&self) -> u64 {
        self.site.others
    }

    /// The pools, if the driver's process lives.
    pub(crate) fn pools(&self) -> Option<&Arc<Pools>> {
        self.process.as_ref().map(|process| &process.pools)
    }

    /// The content of the pools. It does not change while the process is dead.
    pub(crate) fn contents(&self) -> Contents {
        let Some(pools) = self.pools() else {
            return self.left.clone();
        };
        if why_missing(pools).is_some() {
            return self.site.contents();
        }
        Contents::of(pools)
    }

    /// The handles of its volumes, snapshots and groups, also of those with an unreadable record.
    pub(crate) fn handles(&self) -> BTreeSet<String> {
        let unreadable = self.unreadable().map(str::to_owned);
        self.contents().handles().chain(unreadable).collect()
    }

    /// The same, by what the pool has on its disk.
    pub(crate) fn handles_on_disk(&self) -> BTreeSet<String> {
        let unreadable = self.unreadable().map(str::to_owned);
        let contents = self.site.contents();
        contents.handles().chain(unreadable).collect()
    }

    /// True if the volume with this handle was there when the driver's process died.
    pub(crate) fn has_outlived_driver(&self, handle: &str) -> bool {
        self.survivors.contains(handle)
    }

    /// Why the driver does not have its pool open, if it runs without it.
    pub(crate) fn why_pool_is_missing(&self) -> Option<String> {
        self.pools().and_then(|pools| why_missing(pools))
    }

    /// The metrics of the driver's process, if it lives.
    pub(crate) fn telemetry(&self) -> Option<&Telemetry> {
        self.process.as_ref().map(|process| &process.telemetry)
    }

    /// True if the driver works on a call.
    pub(crate) fn is_busy(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.locks.in_flight() > 0)
    }

    /// From now on, copies that begin take as long as other work.
    pub(crate) fn hasten_copies(&self) {
        self.site.are_copies_fast.store(true, Ordering::Relaxed);
    }

    /// Loses so many of a hundred answers of the driver to kubelet, for some time.
    pub(crate) fn lose_answers(&self, percent: u64, time: Duration) {
        self.line.lose_answers(percent, time);
    }

    /// Starts the driver's process, unless it lives, or its node stands still.
    pub(crate) fn begin(&mut self, doors: &Doors) {
        if self.process.is_some() || self.is_off {
            return;
        }
        // While no process ran, the world may have changed its files.
        effects::changed();
        let (site, names) = (&self.site, self.site.names);
        let (dead, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let connection = doors.connect(names.driver);
        effects::start(names.node, connection.clone(), dead.clone());
        let server = site.serve(&dead, &mut tasks);
        let (access, telemetry) = access(doors, names.driver, names.pod, &connection);
        let endpoint = PathBuf::from(format!("{}/csi.sock", site.dir.display()));
        let args = site.args();
        let setup = setup_with_driver(&server, args.controllers, &endpoint, None, access);
        tasks.spawn(process(
            names.driver,
            setup,
            telemetry.clone(),
            dead.clone(),
        ));
        self.line.open(server.routes(), dead.clone());
        self.process = Some(Process {
            pools: server.pools().clone(),
            locks: server.locks().clone(),
            connection,
            telemetry,
            dead,
            tasks,
        });
    }

    /// Kills the driver's process between two effects: nothing of it answers, and nothing changes
    /// any more. Waits until nothing is left of it.
    pub(crate) async fn kill(&mut self) {
        self.left = if self.has_died() {
            // In its memory, it may have gone on.
            self.site.contents()
        } else {
            self.contents()
        };
        let Some(process) = self.process.take() else {
            return;
        };
        let survivors = self.left.volumes.iter();
        self.survivors
            .extend(survivors.map(|volume| volume.id.to_string()));
        recording::silent(self.site.names.node);
        process.connection.cut();
        process.dead.cancel();
        self.line.close();
        let pools = Arc::downgrade(&process.pools);
        drop(process);
        for _ in 0..GONE_WITHIN {
            if pools.strong_count() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        trace::violation(format!(
            "a dead process of {} still has its pools",
            self.site.names.node
        ));
    }

    /// Lets the driver's process die after so many effects, and stay dead for these seconds.
    pub(crate) fn die_after(&mut self, effects: u64, rest: u64) {
        (self.rest, self.loses_power) = (rest, false);
        effects::die_after(self.site.names.node, effects);
    }

    /// True if the driver's process has died at an effect, and something of it is still there.
    fn has_died(&self) -> bool {
        self.process.is_some() && effects::has_died(self.site.names.node)
    }

    /// Removes what is left of a process that has died at an effect, and stops the node if its
    /// power has failed. Returns how long it stays dead, in seconds; `None` if there is none.
    pub(crate) async fn bury(&mut self) -> Option<u64> {
        if !self.has_died() {
            return None;
        }
        if self.loses_power {
            self.lose_power().await;
        } else {
            self.kill().await;
        }
        Some(self.rest)
    }

    /// Kills kubelet, and starts it again.
    pub(crate) fn restart_kubelet(&mut self, doors: &Doors) {
        if self.is_off {
            return;
        }
        // The old tasks end without another effect on the new state.
        self.kubelet_task = JoinSet::new();
        self.kubelet = self.kubelet.successor();
        self.kubelet_task
            .spawn(self.kubelet.clone().run(doors.writes()));
    }

    /// Reports parts of the node that have ended by themselves.
    pub(crate) fn check_running(&mut self) {
        // What has died may end before it is buried.
        let living = !self.has_died();
        let process = self.process.as_mut().filter(|_| living);
        let process = process.map(|process| &mut process.tasks);
        for tasks in process.into_iter().chain([&mut self.kubelet_task]) {
            while let Some(ended) = tasks.try_join_next() {
                trace::violation(format!("a part of the cluster ended: {ended:?}"));
            }
        }
    }
}

/// How often the controllers of nodes look for room that others took or freed, and at their storage. If
/// they do it seldom, that is half of the time for which they may publish too much.
fn poll(history: &History) -> &'static str {
    if history.options.contains(&ClusterOption::RarePolls) {
        "150s"
    } else {
        "60s"
    }
}

/// Why a driver does not have its only pool open.
fn why_missing(pools: &Pools) -> Option<String> {
    pools.slots().into_iter().find_map(|slot| slot.state.err())
}

impl Site {
    /// The arguments of the manifest, but for registration and liveness, which need sockets.
    fn args(&self) -> RunArgs {
        let (dir, node) = (self.dir.display(), self.names.node);
        let command = parse(&[
            "run",
            &format!("--drivername={DRIVER}"),
            &format!("--endpoint=unix://{dir}/csi.sock"),
            &format!("--statedir={dir}/state"),
            &format!("--pool={POOL}={dir}/pool,capacity={CAPACITY}"),
            &format!("--overcommit={}", self.overcommit),
            &format!(
                "--max-snapshot-bytes-per-namespace={}",
                snapshots_of_namespace(self.world)
            ),
            &format!("--enable-attach={}", self.attach),
            "--controllers=*,-registrar,-liveness",
            "--volume-name-prefix=hostloop",
            "--extra-create-metadata",
            "--leader-tasks=elsewhere",
            &format!("--nodeid={node}"),
            &format!("--node-name={node}"),
            // The owner of capacity objects is the DaemonSet, which no model makes.
            "--capacity-ownerref-level=-1",
            &format!("--capacity-poll-interval={}", self.poll),
            &format!("--monitor-interval={}", self.poll),
        ]);
        match command {
            Command::Run(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    /// The driver of the node, as the program makes it of its arguments.
    fn serve(&self, dead: &CancellationToken, tasks: &mut JoinSet<()>) -> Server {
        let (args, name) = (self.args().serve, self.names.node);
        let specs = args.pools.specs().expect("pools");
        let options = PoolOptions {
            node_id: Some(name.to_owned()),
            ..args.pools.options()
        };
        let pools = {
            let _acting = Acting::of(name);
            Pools::open(&specs, options, self.kernel.clone()).expect("pools that open")
        };
        let topology = [(TOPOLOGY.to_owned(), name.to_owned())];
        let capabilities = CapabilityRules {
            mount_group: args.switches.volume_mount_group,
            ..CapabilityRules::default()
        };
        let controller = controller::Config {
            topology: topology.clone().into(),
            attach: self.attach,
            snapshot_metadata: args.switches.enable_snapshot_metadata,
            modify: args.switches.enable_controller_modify_volume,
            mutable_parameters: self
                .accepted()
                .iter()
                .map(|&name| name.to_owned())
                .collect(),
            capabilities: capabilities.clone(),
            ..controller::Config::new(name)
        };
        let node_config = node::Config {
            topology: topology.into(),
            capabilities,
            inline: INLINE,
            ..node::Config::new(name)
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
            seed: self.seed,
            node: name,
            copies: Copies::of(self.seed, self.world),
            prompt: self.prompt,
            pace: self.pace.clone(),
            dead: dead.clone(),
            refused: Arc::default(),
            are_copies_fast: self.are_copies_fast.clone(),
        });
        let server = Server::running_on(blocking.clone(), identity, controller, node.clone());
        let mut upkeep = Tasks::default();
        let stop = CancellationToken::new();
        upkeep::start(&pools, node, &blocking, &stop, &mut upkeep);
        let dead = dead.clone();
        tasks.spawn(async move {
            let ended = upkeep.next().await;
            if !dead.is_cancelled() {
                trace::violation(format!("the driver's upkeep ended: {ended:?}"));
            }
        });
        server
    }

    /// The names of the only mutable parameters that the driver accepts; empty if it accepts all that it
    /// knows.
    fn accepted(&self) -> &'static [&'static str] {
        if self.is_selective { &ACCEPTED } else { &[] }
    }

    /// What `hostloop status` reports on the node, while the driver runs.
    fn report(&self) -> Option<Report> {
        let pools = self.args().serve.pools;
        let specs = pools.specs().ok()?;
        let survey = Survey::take(&specs, &pools.state_dir(), &*self.kernel).ok()?;
        let mut report = report_of(&survey);
        // The machine's table of locks has the device of the real disk.
        for pool in report
            .pools
            .iter_mut()
            .filter(|pool| pool.state == "closed")
        {
            pool.state = "open".into();
        }
        Some(report)
    }

    /// The directory of the pool.
    fn pool(&self) -> PathBuf {
        self.dir.join("pool")
    }

    /// What the pool has on its disk.
    fn contents(&self) -> Contents {
        // A process may die before it has made its pool.
        let found = scan::Contents::read(&*self.kernel, &self.pool());
        found.map(Contents::on_disk).unwrap_or_default()
    }
}
