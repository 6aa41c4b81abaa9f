//! Does on a real cluster what the users of a simulated one did, and compares what comes of it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hostloop_fidelity::{
    Call, ClusterState, Difference, Export, Names, QUIET, RecordDirectory, ReplayedStep, known,
};
use tokio::time::sleep;

use crate::site::Site;

/// The time between two looks at the cluster.
const PACE: Duration = Duration::from_millis(300);
/// How long the cluster must be as expected before the next step. What the simulator does not know
/// of may come a moment later.
const HOLD: Duration = Duration::from_secs(2);
/// How long the cluster may take to be as expected: twice as long as the simulated one had, because
/// a machine can stand still.
const LIMIT: Duration = QUIET.saturating_mul(2);

/// What came of a history.
#[derive(Default)]
pub(crate) struct Replayed {
    /// Sentences about differences.
    pub(crate) wrong: Vec<String>,
    /// The kinds of differences that are known.
    pub(crate) known: Vec<&'static str>,
}

/// Repeats a history. A difference that stays is reported at its first step only.
pub(crate) async fn replay(site: &Site, export: &Export) -> Replayed {
    let pool = RecordDirectory::at(&site.pool());
    let (mut replayed, mut before) = (Replayed::default(), BTreeSet::new());
    for (number, step) in export.steps.iter().enumerate() {
        let number = number + 1;
        println!("  {number}. {}", step.sentence);
        let started = Instant::now();
        let mut differences = answers(site, &pool, step).await;
        let (now, real) = settled(site, &pool, &step.state, &before).await;
        println!("     {:.1} s", started.elapsed().as_secs_f64());
        differences.extend(now.difference(&before).cloned());
        before = now;
        let mut wrong = BTreeSet::new();
        for difference in differences {
            match known(&difference) {
                Some(known) => replayed.known.push(known.what),
                None => {
                    wrong.insert(difference);
                }
            }
        }
        if wrong.is_empty() {
            continue;
        }
        for difference in &wrong {
            println!("     ✗ {difference}");
            let at = format!("seed {}, step {number} ({})", export.seed, step.sentence);
            replayed.wrong.push(format!("{at}: {difference}"));
        }
        print_details(site, &wrong, &step.state, &real).await;
    }
    replayed
}

/// Sends the writes of a step. Returns which of them were answered in another way.
async fn answers(site: &Site, pool: &RecordDirectory, step: &ReplayedStep) -> BTreeSet<Difference> {
    let names = Names::of(&site.found(pool).await);
    let mut differences = BTreeSet::new();
    for call in &step.calls {
        let (real, message) = site.send(call, &names).await;
        if real == call.code || (is_success(real) && is_success(call.code)) {
            continue;
        }
        differences.insert(Difference::Answer {
            request: request(call),
            simulated: call.code,
            real,
            message,
        });
    }
    differences
}

fn is_success(code: u16) -> bool {
    (200..300).contains(&code)
}

/// A write, for people.
fn request(call: &Call) -> String {
    let name = call.body["metadata"]["name"].as_str().unwrap_or_default();
    format!("{} {} {name}", call.method, call.path)
        .trim_end()
        .to_owned()
}

/// Waits until the cluster is as expected and stays so for a moment, or until the time is up.
/// Returns all differences, and the cluster's state. Those from before need not go.
async fn settled(
    site: &Site,
    pool: &RecordDirectory,
    expected: &ClusterState,
    before: &BTreeSet<Difference>,
) -> (BTreeSet<Difference>, ClusterState) {
    let started = Instant::now();
    let mut agreed = None;
    loop {
        let real = ClusterState::of(&site.found(pool).await);
        let differences = expected.differences(&real);
        let mut new = differences.difference(before);
        if new.all(|difference| known(difference).is_some()) {
            let since: Instant = *agreed.get_or_insert_with(Instant::now);
            if since.elapsed() >= HOLD {
                return (differences, real);
            }
        } else {
            agreed = None;
            if started.elapsed() > LIMIT {
                return (differences, real);
            }
        }
        sleep(PACE).await;
    }
}

/// Prints the objects that differ, as both sides have them, and the cluster's events.
async fn print_details(
    site: &Site,
    differences: &BTreeSet<Difference>,
    simulated: &ClusterState,
    real: &ClusterState,
) {
    let objects: BTreeSet<&str> = differences.iter().filter_map(Difference::object).collect();
    for object in objects {
        println!("       {object}");
        println!("         in the simulator: {}", simulated.line(object));
        println!("         on the cluster:   {}", real.line(object));
    }
    println!("       The events of the cluster:");
    for line in site.events().await {
        println!("         {line}");
    }
}
