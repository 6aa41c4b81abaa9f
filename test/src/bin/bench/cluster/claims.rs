//! From a claim to its volume, against what the cluster's own controller needs at least, and the
//! requests a volume costs.

use std::time::Duration;

use hostloop_test::cluster::{Audit, Cluster, Options, wait_for};
use hostloop_test::driver::DriverSpec;
use hostloop_test::front::objects;
use hostloop_test::front::process::Controllers;
use hostloop_test::machine::text;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind};
use hostloop_test::scratch::Scratch;
use tokio::runtime::Runtime;

use crate::cluster::floors::{By, provision};
use crate::cluster::ground::{Ground, NAMESPACE};
use crate::measure::{Aim, Figure, median, millis};

/// Claims made at once.
const CLAIMS: usize = 300;
const ROUNDS: usize = 3;
/// Claims made one after the other.
const SINGLES: usize = 100;
/// Claims nobody counts, until all caches and connections are there.
const WARM_UP: usize = 20;

/// Seconds and milliseconds of each round and claim, ours and both floors'.
#[derive(Default)]
struct Samples {
    rates: [Vec<f64>; 3],
    latencies: [Vec<f64>; 3],
}

/// The figures.
pub(super) fn figures(runtime: &Runtime) -> Vec<Figure> {
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 200 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    // With nodes or without, the limits are raised: what is measured is not the cluster's throttle.
    let cluster = Cluster::up(&Options::default());
    let (samples, asked) = runtime.block_on(async {
        let mut ground = Ground::lay(&cluster).await;
        let (user, kubeconfig) = cluster.account(NAMESPACE, "provisioner", scratch.path());
        let controllers = Controllers::start(
            scratch.path(),
            NAMESPACE,
            &[
                format!("--csi-address={}", driver.endpoint()),
                format!("--kubeconfig={}", text(&kubeconfig)),
                "--controllers=provisioner".to_owned(),
                "--node-deployment=false".to_owned(),
            ],
        );
        let (_, kubeconfig) = cluster.account(NAMESPACE, "null", scratch.path());
        let null = tokio::spawn(provision(objects::client(&kubeconfig).await));
        for by in By::ALL {
            round(&mut ground, by, "warm", WARM_UP).await;
        }
        let before = cluster.audit();
        let samples = measure(&mut ground).await;
        let asked = settled(&cluster, &before, &user).await;
        null.abort();
        tokio::task::block_in_place(|| controllers.stop());
        (samples, asked)
    });
    drop(cluster);
    driver.stop();
    let mut figures = times(samples);
    figures.extend(requests(&asked));
    figures
}

async fn measure(ground: &mut Ground) -> Samples {
    let mut samples = Samples::default();
    for count in 0..ROUNDS {
        for (by, rates) in By::ALL.into_iter().zip(&mut samples.rates) {
            let took = round(ground, by, &format!("r{count}"), CLAIMS).await;
            rates.push(CLAIMS as f64 / took.as_secs_f64());
        }
    }
    for count in 0..SINGLES {
        for (by, latencies) in By::ALL.into_iter().zip(&mut samples.latencies) {
            let name = [format!("{}-single-{count}", by.class())];
            ground.prepare(by, &name).await;
            latencies.push(millis(ground.bind(by, &name).await));
        }
    }
    ground.clear().await;
    samples
}

/// So many claims from nothing to bound, and away again.
async fn round(ground: &mut Ground, by: By, name: &str, count: usize) -> Duration {
    let name = |i| format!("{}-{name}-{i}", by.class());
    let names: Vec<_> = (0..count).map(name).collect();
    ground.prepare(by, &names).await;
    let took = ground.bind(by, &names).await;
    ground.clear().await;
    took
}

/// What a user has asked of the API server by each verb, for each volume of the measurement.
async fn settled(cluster: &Cluster, before: &Audit, user: &str) -> Vec<(String, f64)> {
    // The API server writes its log a little after its answer, and events come at their leisure.
    let mut last = 0;
    let patience = Duration::from_secs(300);
    let asked = wait_for("the end of the requests", patience, async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let asked = cluster.audit().since(before);
        match std::mem::replace(&mut last, asked.of(user).len()) {
            earlier if earlier == last => Ok(asked),
            _ => Err(format!("{last} requests until now")),
        }
    })
    .await;
    let mut verbs = std::collections::BTreeMap::<String, usize>::new();
    for ((verb, resource), count) in asked.counts(user) {
        let sort = match resource {
            "events" => "of events",
            _ => verb,
        };
        *verbs.entry(sort.to_owned()).or_default() += count;
    }
    let volumes = (CLAIMS * ROUNDS + SINGLES) as f64;
    let each = verbs
        .into_iter()
        .map(|(verb, n)| (verb, n as f64 / volumes));
    each.collect()
}

fn times(samples: Samples) -> Vec<Figure> {
    let [ours, null, hand] = samples.rates.map(median);
    let against = |what: &str, floor, aim| Figure {
        what: format!("{CLAIMS} claims bound, against {what}"),
        ours,
        floor: Some(floor),
        unit: "volumes/s",
        aim,
    };
    let mut figures = vec![
        against("volumes made by hand", hand, Aim::None),
        against("a null provisioner", null, Aim::RatioAtLeast(0.95)),
    ];
    let [ours, null, hand] = samples.latencies;
    for (name, percent) in [("p50", 50), ("p99", 99)] {
        for (floor, of) in [("made by hand", &hand), ("null provisioner", &null)] {
            figures.push(Figure {
                what: format!("one claim bound, {name}, against {floor}"),
                ours: percentile(&ours, percent),
                floor: Some(percentile(of, percent)),
                unit: "ms",
                aim: Aim::None,
            });
        }
    }
    figures
}

fn requests(asked: &[(String, f64)]) -> Vec<Figure> {
    // A watch that begins anew belongs to no volume.
    let known = asked.iter().filter(|(_, each)| *each >= 0.005);
    let figure = |(verb, each): &(String, f64)| Figure {
        what: format!("API requests in a volume's life: {verb}"),
        ours: *each,
        floor: None,
        unit: "a volume",
        aim: Aim::None,
    };
    known.map(figure).collect()
}

/// The smallest sample that so many percent of all are not above.
fn percentile(samples: &[f64], percent: usize) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}
