//! How fast the controllers of many nodes bind claims on a real API server, and at what cost. Each
//! instance has a driver in memory and a node of its own. See `docs/scale.md`.

mod attachments;
mod floor;
mod report;
pub(crate) mod requests;
mod round;
mod taken;

use std::time::{Duration, Instant};

use hostloop_test::cluster::{Cluster, Options};
use hostloop_test::deployed;
use hostloop_test::fleet::{Binding, FleetSpec};
use hostloop_test::front::process::Pod;
use hostloop_test::machine;
use hostloop_test::scratch::Scratch;

use crate::measure::Figure;
use crate::page::Docs;
use crate::runtime::Runtime;
use floor::Floor;
use report::{Instances, Report};
use requests::Reader;
use round::{Fielded, Rest};

/// The users of the deployed accounts.
const ACCOUNTS: [&str; 2] = [
    "system:serviceaccount:hostloop:hostloop",
    "system:serviceaccount:hostloop:hostloop-controller",
];
/// The time between the starts of two instances.
const APART: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(300);

/// How to measure.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Numbers of instances, one after the other.
    pub(crate) instances: Vec<usize>,
    /// How many claims of each kind are made for each number of instances.
    pub(crate) claims: usize,
    /// How many volumes are attached afterwards: at most as many as there are claims.
    pub(crate) attachments: usize,
    /// Whether the API server places and labels claims.
    pub(crate) policy: bool,
    /// How often the numbers of instances are gone through.
    pub(crate) runs: usize,
    /// How long instances are watched at rest.
    pub(crate) rest: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            instances: vec![1, 10, 30, 100],
            claims: 3_000,
            attachments: 500,
            policy: true,
            runs: 1,
            rest: Duration::from_secs(15),
        }
    }
}

impl Settings {
    /// Enough to see that it works.
    pub(crate) fn quick(self) -> Settings {
        let rest = Duration::from_secs(1);
        Settings {
            instances: vec![1, 3],
            claims: 10,
            attachments: 5,
            rest,
            ..self
        }
    }
}

/// The figures.
pub(crate) fn figures(runtime: &Runtime, settings: &Settings, docs: &Docs) -> Vec<Figure> {
    docs.figures(|| measured(runtime, settings))
}

fn measured(runtime: &Runtime, settings: &Settings) -> Report {
    machine::require();
    let scratch = Scratch::new();
    // The cluster's own limits are raised, so that they are not what is measured.
    let cluster = Cluster::up(&Options::default());
    cluster.create_crds();
    runtime.block_on(measure(&cluster, &scratch, settings))
}

async fn measure(cluster: &Cluster, scratch: &Scratch, settings: &Settings) -> Report {
    let floor = Floor::on(cluster, scratch).await;
    let attach = (settings.attachments > 0).then_some("attach");
    let place = settings.policy.then_some("place-claims");
    let components = ["snapshot-controller"]
        .into_iter()
        .chain(attach)
        .chain(place);
    let manifest = deployed::without_pods(&components.collect::<Vec<_>>());
    let mut report = Report {
        claims: settings.claims,
        numbers: Vec::new(),
    };
    for run in 0..settings.runs {
        for count in &settings.instances {
            let name = match run {
                0 => format!("scale-{count}"),
                _ => format!("scale-{count}-run-{run}"),
            };
            let fleet = FleetSpec::new(&name, *count);
            cluster.apply(&manifest);
            let measured = instances(cluster, settings, &floor, fleet).await;
            report.numbers.push(measured);
            // All that the instances wrote there goes with it. The policies stay.
            cluster.kubectl(&["delete", "namespace", deployed::NAMESPACE]);
        }
    }
    report
}

async fn instances(
    cluster: &Cluster,
    settings: &Settings,
    floor: &Floor<'_>,
    fleet: FleetSpec,
) -> Instances {
    let mut fleet = fleet.attach(settings.attachments > 0).deployed();
    if settings.policy {
        fleet = fleet.args(&[&format!("--placement-table={}", deployed::TABLE)]);
    }
    let fleet = fleet.up(&cluster.kubeconfig()).await;
    let count = fleet.members.len();
    // The nodes are there, with kubelets that renew their leases, but without an instance.
    let floors = floor.measured(settings.claims).await;
    let mut requests = Reader::of(cluster, &ACCOUNTS);
    let began = Instant::now();
    fleet.controller.iter().for_each(Pod::start);
    fleet.start(APART).await;
    fleet.ready(PATIENCE).await;
    let started_after = began.elapsed().as_secs_f64();
    eprintln!("  {count} instances: all at work after {started_after:.1} s");
    let start_requests = requests.settled().await.requests as f64 / count as f64;
    let mut fielded = Fielded::new(cluster, fleet, requests);
    let rest = Rest::of(&mut fielded, settings.rest).await;
    fielded.warm_up().await;
    let mut rounds = Vec::new();
    for binding in Binding::ALL {
        let last = binding == Binding::Immediate;
        let round = fielded.round(binding, settings.claims).await;
        eprintln!(
            "  {count} instances, {}: {}, {} conflicts",
            binding.mode(),
            round.pace,
            round.conflicts
        );
        rounds.push(round);
        if !last {
            fielded.clear().await;
        }
    }
    let attached = match settings.attachments {
        0 => None,
        volumes => Some(attachments::attached(&mut fielded, volumes).await),
    };
    let deleted = fielded.clear().await;
    fielded.down().await;
    Instances {
        count,
        floors,
        started_after,
        start_requests,
        rest,
        rounds,
        attached,
        deleted,
    }
}
