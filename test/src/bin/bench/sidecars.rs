//! Hostloop's controllers against upstream's sidecars, before the same driver: the Go host-path driver.
//!
//! In a round, the driver and one side start, claims are created and deleted, and both end. The sides
//! take turns on one control plane. What is measured is in front of the driver: neither its memory nor
//! that of the cluster counts.

mod side;

use std::time::{Duration, Instant};

use hostloop_test::cluster::{Cluster, Options, wait_at};
use hostloop_test::driver::NODE;
use hostloop_test::fleet::storm::Wish;
use hostloop_test::front::fields::{name, text};
use hostloop_test::front::objects::{self, Objects, Place};
use hostloop_test::host_path::{DRIVER, HostPath, LEASES, TOPOLOGY_KEY};
use hostloop_test::machine;
use hostloop_test::process::Process;
use hostloop_test::scratch::Scratch;
use serde_json::{Value, json};

use crate::cluster::ground::Ground;
use crate::measure::{Aim, Figure};
use crate::process;
use crate::runtime::Runtime;
use side::Side;

/// The class of the claims.
const CLASS: &str = "host-path";

/// The lease of the snapshot controller, which serves all drivers.
const SNAPSHOT_CONTROLLER_LEASE: &str = "snapshot-controller-leader";

/// Claims of a round that is not measured. It fills the caches of the cluster.
const WARM_UP: usize = 20;

/// The programs get no new objects for this time before their memory is measured.
const SETTLE: Duration = Duration::from_secs(5);

/// How often the leases are read, and for how long.
const PACE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(180);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Claims created at once.
    pub(crate) claims: usize,
    /// Rounds of each side.
    pub(crate) rounds: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            claims: 300,
            rounds: 3,
        }
    }
}

impl Settings {
    /// The least that shows that it works.
    pub(crate) fn quick() -> Settings {
        Settings {
            claims: WARM_UP,
            rounds: 1,
        }
    }
}

/// What one side did in one round.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// Seconds from the start until each controller leads and the first claim is bound.
    ready: f64,
    /// Resident memory of all processes in MiB, with one claim.
    at_rest: f64,
    /// The same with all claims.
    loaded: f64,
    /// Claims bound per second.
    rate: f64,
}

/// The figures. They need no node, and limits are raised.
pub(crate) fn figures(runtime: &Runtime, settings: &Settings) -> Vec<Figure> {
    machine::require();
    let scratch = Scratch::new();
    let cluster = Cluster::up(&Options::default());
    cluster.create_crds();
    cluster.apply(&surroundings().to_string());
    let (ours, theirs) = runtime.block_on(async {
        let mut bench = Bench {
            ground: Ground::lay(&cluster).await,
            objects: Objects::connect(&cluster.kubeconfig()).await,
            cluster: &cluster,
            scratch: &scratch,
        };
        bench.rounds(settings).await
    });
    of_rounds(settings.claims, &ours, &theirs)
}

/// The control plane on which the sides take turns.
struct Bench<'a> {
    ground: Ground,
    objects: Objects,
    cluster: &'a Cluster,
    scratch: &'a Scratch,
}

impl Bench<'_> {
    /// The rounds of both sides.
    async fn rounds(&mut self, settings: &Settings) -> (Vec<Round>, Vec<Round>) {
        for side in Side::BOTH {
            self.round(side, "warm", WARM_UP).await;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for count in 0..settings.rounds {
            for side in in_turn(count) {
                let name = format!("r{count}");
                let round = self.round(side, &name, settings.claims).await;
                match side {
                    Side::Ours => ours.push(round),
                    Side::Theirs => theirs.push(round),
                }
            }
        }
        (ours, theirs)
    }

    /// Starts the driver with one side in front of it, creates and deletes claims, and ends both.
    async fn round(&mut self, side: Side, name: &str, claims: usize) -> Round {
        let name = format!("{name}-{}", side.name());
        let dir = self.scratch.dir(&name);
        let driver = HostPath::start(&dir, &dir.join("csi.sock"), NODE).await;
        self.delete_leases().await;

        let began = Instant::now();
        let programs = side.start(&dir, &driver.endpoint(), &self.cluster.kubeconfig());
        self.ground
            .bind_wishes(&wishes(&format!("{name}-first"), 1))
            .await;
        self.until_all_lead().await;
        let ready = began.elapsed().as_secs_f64();

        tokio::time::sleep(SETTLE).await;
        let at_rest = resident(&programs);
        let took = self.ground.bind_wishes(&wishes(&name, claims)).await;
        tokio::time::sleep(SETTLE).await;
        let loaded = resident(&programs);
        self.ground.clear().await;
        tokio::task::block_in_place(|| programs.into_iter().for_each(Process::stop));
        assert_eq!(driver.left(), Vec::<String>::new());
        Round {
            ready,
            at_rest,
            loaded,
            rate: claims as f64 / took.as_secs_f64(),
        }
    }

    /// Deletes the leases of the last round, which its processes may have left held.
    async fn delete_leases(&self) {
        for lease in self.objects.list("Lease", "").await {
            if leases().any(|one| one == name(&lease)) {
                let namespace = text(&lease["metadata"]["namespace"]);
                let place = Place::of("Lease", namespace, name(&lease));
                self.objects.delete(&place).await;
            }
        }
    }

    async fn until_all_lead(&self) {
        wait_at(PACE, "the leaders", PATIENCE, async || {
            let found = self.objects.list("Lease", "").await;
            match leases().find(|lease| !is_held(&found, lease)) {
                None => Ok(()),
                Some(lease) => Err(format!("no one holds {lease}")),
            }
        })
        .await;
    }
}

/// The order of the sides in a round. Each goes first in turn: what one leaves to the cluster would
/// always slow down the other.
fn in_turn(round: usize) -> [Side; 2] {
    let [first, second] = Side::BOTH;
    if round.is_multiple_of(2) {
        [first, second]
    } else {
        [second, first]
    }
}

/// The leases of the controllers. They have the same names on both sides.
fn leases() -> impl Iterator<Item = &'static str> {
    LEASES.into_iter().chain([SNAPSHOT_CONTROLLER_LEASE])
}

/// True if a process holds this lease.
fn is_held(leases: &[Value], wanted: &str) -> bool {
    leases
        .iter()
        .any(|lease| name(lease) == wanted && !text(&lease["spec"]["holderIdentity"]).is_empty())
}

/// Claims with names that begin like this.
fn wishes(name: &str, count: usize) -> Vec<Wish> {
    (0..count)
        .map(|number| Wish {
            name: format!("{name}-{number}"),
            class: CLASS.to_owned(),
            node: None,
        })
        .collect()
}

/// Resident memory of all of these processes in MiB. Pages of a program's file count, too.
fn resident(programs: &[Process]) -> f64 {
    programs
        .iter()
        .map(|program| process::mib(program.pid(), "status", "VmRSS:"))
        .sum()
}

/// A figure: what, the value of a round, its unit, and the aim.
type Row = (String, fn(&Round) -> f64, &'static str, Aim);

fn of_rounds(claims: usize, ours: &[Round], theirs: &[Round]) -> Vec<Figure> {
    // A sixth.
    let small = Aim::RatioAtMost(0.166);
    let rows: [Row; 4] = [
        (
            "memory at rest, against five sidecars".to_owned(),
            |round| round.at_rest,
            "MiB",
            small,
        ),
        (
            format!("memory with {claims} claims"),
            |round| round.loaded,
            "MiB",
            small,
        ),
        (
            format!("{claims} claims bound"),
            |round| round.rate,
            "claims/s",
            Aim::RatioAtLeast(0.95),
        ),
        (
            "from the start until all lead and a claim is bound".to_owned(),
            |round| round.ready,
            "s",
            Aim::RatioAtMost(0.5),
        ),
    ];
    rows.into_iter()
        .map(|(what, value, unit, aim)| {
            let [ours, theirs] = [ours, theirs].map(|all| all.iter().map(value).collect());
            Figure::beside(what, ours, theirs, unit, aim)
        })
        .collect()
}

/// The objects of an administrator and of kubelet: the class, and a node with the driver but without a
/// kubelet.
fn surroundings() -> Value {
    let labels = json!({"metadata": {"labels": {TOPOLOGY_KEY: NODE}}});
    let driver = json!({"name": DRIVER, "nodeID": NODE, "topologyKeys": [TOPOLOGY_KEY]});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        objects::csi_driver(DRIVER, json!({"attachRequired": true})),
        objects::with(objects::named("Node", NODE), labels),
        {
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": NODE},
            "spec": {"drivers": [driver]},
        },
        objects::class(CLASS, DRIVER, json!({})),
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Verdict::{self, Met, Missed};

    #[test]
    fn the_sides_begin_in_turn() {
        assert_eq!(in_turn(0), [Side::Ours, Side::Theirs]);
        assert_eq!(in_turn(1), [Side::Theirs, Side::Ours]);
    }

    #[test]
    fn aims_are_decided_by_the_ratios() {
        let theirs = [Round {
            ready: 2.0,
            at_rest: 120.0,
            loaded: 180.0,
            rate: 100.0,
        }; 3];
        let good = Round {
            ready: 0.9,
            at_rest: 19.0,
            loaded: 29.0,
            rate: 96.0,
        };
        let bad = Round {
            ready: 1.1,
            at_rest: 21.0,
            loaded: 31.0,
            rate: 94.0,
        };
        for (ours, verdict) in [(good, Met), (bad, Missed)] {
            let figures = of_rounds(300, &[ours; 3], &theirs);
            let decided: Vec<Verdict> = figures.iter().map(Figure::verdict).collect();
            assert_eq!(decided, [verdict; 4], "{figures:?}");
        }
    }

    #[test]
    fn a_lease_without_a_holder_is_not_held() {
        let lease = |name: &str, holder: Value| {
            let metadata = json!({"name": name});
            json!({"metadata": metadata, "spec": {"holderIdentity": holder}})
        };
        let leases = [
            lease("a", json!("a-process")),
            lease("given-up", json!("")),
            lease("new", Value::Null),
        ];
        let held = ["a", "given-up", "new", "missing"].map(|name| is_held(&leases, name));
        assert_eq!(held, [true, false, false, false]);
    }
}
