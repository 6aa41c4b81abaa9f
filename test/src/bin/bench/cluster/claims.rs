//! The time from a claim to its volume, against the least that the cluster's controller needs, and
//! the requests per volume.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_test::cluster::{Cluster, Options};
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::front::objects;
use hostloop_test::machine::text;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;

use crate::cluster::floors::{By, provision};
use crate::cluster::ground::{self, Ground, NAMESPACE};
use crate::measure::{Aim, Figure, millis, sorted};
use crate::runtime::Runtime;
use crate::scale::requests::{Asked, Reader};

/// Claims made at once.
const CLAIMS: usize = 300;
/// Of nine rounds, the smallest and the largest are not part of the spread.
const ROUNDS: usize = 9;
/// Claims made one after the other.
const SINGLES: usize = 100;
/// Claims before the measurement. They fill caches and open connections.
const WARM_UP: usize = 20;

/// Volumes per second of each round and milliseconds of each claim: ours and both floors'.
#[derive(Default)]
struct Samples {
    rates: [Vec<f64>; 3],
    latencies: [Vec<f64>; 3],
}

pub(super) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 200 * GIB);
    // With nodes or without, the limits are raised: what is measured is not the cluster's throttle.
    let cluster = Cluster::up(&Options::default());
    let (samples, asked) = runtime.block_on(async {
        let mut ground = Ground::lay(&cluster).await;
        let (user, driver) = provisioner(&cluster, &pool, &scratch).await;
        let (_, kubeconfig) = cluster.account(NAMESPACE, "null", scratch.path());
        let null = tokio::spawn(provision(objects::client(&kubeconfig).await));
        for by in By::ALL {
            round(&mut ground, by, "warm", WARM_UP).await;
        }
        let mut requests = Reader::of(&cluster, &[&user]);
        let samples = measure(&mut ground).await;
        let asked = requests.ended().await;
        null.abort();
        tokio::task::block_in_place(|| driver.stop());
        (samples, asked)
    });
    drop(cluster);
    let mut figures = times(samples);
    figures.extend(requests(&asked));
    figures
}

/// Starts the driver with its provisioner in one process, as in a node's pod. It provisions claims
/// without a node, too: nothing here places them. Returns the provisioner's user, too.
pub(crate) async fn provisioner(
    cluster: &Cluster,
    pool: &PoolFixture,
    scratch: &Scratch,
) -> (String, Driver) {
    cluster.apply(&ground::driver().to_string());
    let (user, kubeconfig) = cluster.account(NAMESPACE, "provisioner", scratch.path());
    let spec = DriverSpec::new(scratch, &[pool])
        .with_controllers(NAMESPACE)
        .args([
            format!("--kubeconfig={}", text(&kubeconfig)).as_str(),
            "--controllers=provisioner",
            "--node-deployment=false",
        ]);
    (user, tokio::task::block_in_place(|| spec.start()))
}

async fn measure(ground: &mut Ground) -> Samples {
    let mut samples = Samples::default();
    for count in 0..ROUNDS {
        for at in in_turn(count) {
            let took = round(ground, By::ALL[at], &format!("r{count}"), CLAIMS).await;
            samples.rates[at].push(CLAIMS as f64 / took.as_secs_f64());
        }
    }
    for count in 0..SINGLES {
        for at in in_turn(count) {
            let by = By::ALL[at];
            let name = [format!("{}-single-{count}", by.class())];
            ground.prepare(by, &name).await;
            samples.latencies[at].push(millis(ground.bind(by, &name).await));
        }
    }
    ground.clear().await;
    samples
}

/// The order of the sources in a round. Each goes first in turn: what one leaves to the cluster,
/// such as objects to collect, would always slow down the same next one.
fn in_turn(round: usize) -> [usize; 3] {
    [0, 1, 2].map(|at| (at + round) % 3)
}

/// Creates claims until all are bound, and deletes them.
async fn round(ground: &mut Ground, by: By, name: &str, count: usize) -> Duration {
    let name = |i| format!("{}-{name}-{i}", by.class());
    let names: Vec<_> = (0..count).map(name).collect();
    ground.prepare(by, &names).await;
    let took = ground.bind(by, &names).await;
    ground.clear().await;
    took
}

fn times(samples: Samples) -> Vec<Figure> {
    let [ours, null, hand] = samples.rates;
    let what = |floor| format!("{CLAIMS} claims bound, against {floor}");
    let (by_hand, by_null) = (what("volumes made by hand"), what("a null provisioner"));
    let near = Aim::RatioAtLeast(0.95);
    let mut figures = vec![
        Figure::beside(by_hand, ours.clone(), hand, "volumes/s", Aim::None),
        Figure::beside(by_null, ours, null, "volumes/s", near),
    ];
    let [ours, null, hand] = samples.latencies;
    let close = Aim::RatioAtMost(1.15);
    for (name, floor, aim) in [
        ("made by hand", hand, Aim::None),
        ("null provisioner", null, close),
    ] {
        let what = |percent| format!("one claim bound, {percent}, against {name}");
        // The median of all claims. Each alternated with a claim of the floor.
        figures.push(Figure::beside(
            what("p50"),
            ours.clone(),
            floor.clone(),
            "ms",
            aim,
        ));
        let (slow, slow_floor) = (vec![percentile(&ours, 99)], vec![percentile(&floor, 99)]);
        figures.push(Figure::beside(
            what("p99"),
            slow,
            slow_floor,
            "ms",
            Aim::None,
        ));
    }
    figures
}

/// API requests per volume, by verb.
fn requests(asked: &Asked) -> Vec<Figure> {
    let mut verbs = BTreeMap::from([("of events until then", asked.events)]);
    for (kind, count) in &asked.by_kind {
        let verb = kind.split(' ').next().unwrap_or_default();
        *verbs.entry(verb).or_default() += count;
    }
    let volumes = (CLAIMS * ROUNDS + SINGLES) as f64;
    let each = verbs
        .into_iter()
        .map(|(verb, n)| (verb, n as f64 / volumes));
    // The list after a watch restarts belongs to no volume.
    let known = each.filter(|(_, each)| *each >= 0.005);
    let figure = |(verb, each)| {
        let what = format!("API requests in a volume's life: {verb}");
        Figure::alone(what, vec![each], "a volume", Aim::None)
    };
    known.map(figure).collect()
}

/// The smallest sample that is at least as large as this percentage of all samples.
fn percentile(samples: &[f64], percent: usize) -> f64 {
    sorted(samples)[(samples.len() * percent).div_ceil(100).max(1) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Verdict;

    #[test]
    fn floors_decide_by_the_median_of_rounds_and_of_single_claims() {
        let samples = |rate: f64, latency: f64| {
            // The machine becomes slower for all.
            let slower = |n: usize, by: f64| (0..n).map(move |at| by * (1.0 + at as f64 / 50.0));
            let latencies = [latency, 10.0, 5.0].map(|by| slower(SINGLES, by).collect());
            Samples {
                rates: [rate, 100.0, 200.0].map(|by| vec![by; ROUNDS]),
                latencies,
            }
        };
        for (rate, latency, rates, latencies) in [
            (96.0, 11.0, Verdict::Met, Verdict::Met),
            (94.0, 12.0, Verdict::Missed, Verdict::Missed),
        ] {
            let figures = times(samples(rate, latency));
            let decided = figures
                .iter()
                .filter(|figure| !matches!(figure.aim, Aim::None));
            let decided: Vec<_> = decided.map(|f| (&*f.what, f.verdict())).collect();
            let expected = [
                ("300 claims bound, against a null provisioner", rates),
                ("one claim bound, p50, against null provisioner", latencies),
            ];
            assert_eq!(decided, expected);
        }
    }
}
