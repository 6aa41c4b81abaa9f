//! Walks through the effects of scenarios. Each walk disturbs one effect after the other.

use std::collections::BTreeMap;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::iter;
use hostloop_test::arena::caught;
use hostloop_test::driver::Dead;
use tonic::{Code, Status};

/// No scenario has this many effects: a walk that goes on is not making progress.
pub(crate) const TOO_MANY: usize = 400;

/// What one walk did.
#[derive(Default)]
pub(crate) struct Walk {
    /// The effect that was disturbed → how often.
    effects: BTreeMap<String, usize>,
}

impl Walk {
    /// Counts the effect that the log of the driver ends with.
    pub(crate) fn disturbed(&mut self, log: &str) {
        let at = log.lines().rev().find_map(|line| {
            let rest = line.split_once("fail point at ")?.1;
            Some(rest.split(':').next()?.to_owned())
        });
        let at = at.unwrap_or_else(|| "(a moment)".to_owned());
        *self.effects.entry(at).or_default() += 1;
    }

    /// Counts the effect of a start at which the driver was killed.
    pub(crate) fn killed(&mut self, dead: &Dead) {
        let Dead { status, log } = dead;
        assert!(dead.killed(), "the driver ended by itself: {status}\n{log}");
        self.disturbed(log);
    }

    pub(crate) fn count(&self) -> usize {
        self.effects.values().sum()
    }
}

/// Walks that run at a time: a walk often waits for a process, a disk or an effect that comes late.
const AT_ONCE: usize = 3;

/// Runs each named walk and returns what all of them did. Each must disturb about this number of
/// effects. A walk that ends early disturbs fewer.
pub(crate) async fn walk_all<F: Future<Output = Walk> + Send + 'static>(
    walks: impl IntoIterator<Item = (String, usize, F)>,
) -> Walk {
    let walks = walks.into_iter().map(async |(name, effects, walk)| {
        let begin = Instant::now();
        let result = tokio::spawn(caught(walk)).await;
        let result = result.expect("panics are caught");
        let seconds = begin.elapsed().as_secs_f32();
        match &result {
            Ok(walk) => println!("{:4} effects  {seconds:5.1} s  {name}", walk.count()),
            Err(_) => println!("FAILED        {seconds:5.1} s  {name}"),
        }
        (name, effects, result)
    });
    let mut walks = iter(walks).buffer_unordered(AT_ONCE);
    let (mut all, mut failures) = (Walk::default(), Vec::new());
    while let Some((name, effects, result)) = walks.next().await {
        match result {
            Ok(walk) if walk.count() * 10 < effects * 9 => {
                failures.push(format!(
                    "{name}: only {} of {effects} effects",
                    walk.count()
                ));
            }
            Ok(walk) => {
                for (at, number) in walk.effects {
                    *all.effects.entry(at).or_default() += number;
                }
            }
            Err(why) => failures.push(format!("{name}: {why}")),
        }
    }
    println!("disturbed before each effect:");
    for (at, number) in &all.effects {
        println!("{number:6}  {at}");
    }
    let failed = failures.len();
    assert!(failed == 0, "{failed} failed:\n{}", failures.join("\n\n"));
    all
}

/// How often a walk repeats an effect because a call failed by itself.
pub(crate) const REPEATS: usize = 3;

/// True for an error that another program of the machine can cause: it has a device or mount open for
/// longer than a call waits. An orchestrator calls again.
pub(crate) fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::FailedPrecondition | Code::Unavailable | Code::Aborted
    )
}

/// Names the disturbed effect if what follows it fails.
pub(crate) async fn after(place: &str, rest: impl Future<Output = ()>) {
    let done = caught(rest).await;
    done.unwrap_or_else(|why| panic!("{place}: {why}"));
}
