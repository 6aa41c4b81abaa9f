//! Walks through the effects of scenarios. Each walk disturbs one effect after the other.
//!
//! A sample of the scenarios has each effect of each call. `HOSTLOOP_WALK_ALL=1` walks through all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::StreamExt;
use futures::stream::iter;
use hostloop_test::arena::caught;
use hostloop_test::driver::Dead;
use tonic::{Code, Status};

/// No scenario has this many effects: a walk that goes on is not making progress.
pub(crate) const TOO_MANY: usize = 400;

/// Walks outside the sample, each with one of the sample that disturbs the same calls. Their pool or
/// volume is of another kind, which changes their effects little or not at all. The simulator lets
/// drivers die and disks fill up before such effects at random, and `pool_effects` before each effect
/// of opening a directory.
const LIKE: [(&str, &str); 20] = [
    ("open ext4", "open btrfs"),
    ("open xfs", "open btrfs"),
    ("adopt ext4", "adopt device"),
    ("create xfs on xfs", "create ext4 on ext4"),
    ("create btrfs on btrfs", "create ext4 on ext4"),
    ("create thick on ext4", "create thick on xfs"),
    ("restore on xfs", "restore thick on xfs"),
    ("clone in use on ext4", "clone in use on xfs"),
    ("stage btrfs on btrfs", "stage ext4 on ext4"),
    (
        "publish inline on ext4",
        "publish inline, mounts stay on device",
    ),
    ("expand ext4 on ext4", "expand ext4, mounts stay on image"),
    ("expand btrfs on btrfs", "expand xfs on xfs"),
    ("snapshot on ext4", "snapshot, mounts stay on ext4"),
    ("snapshot on btrfs", "snapshot on xfs"),
    ("snapshot of xfs on xfs", "snapshot on xfs"),
    ("snapshot, mounts stay on xfs", "snapshot on xfs"),
    ("group, mounts stay on btrfs", "group on xfs"),
    ("a life on image", "a life, mounts stay on device"),
    ("a life on ext4", "a life, mounts stay on device"),
    ("a life on xfs", "a life, mounts stay on device"),
];

/// Leaves the walks that are in the sample, or that have no like among these.
pub(crate) fn sample<F>(mut walks: Vec<(String, usize, F)>) -> Vec<(String, usize, F)> {
    if std::env::var_os("HOSTLOOP_WALK_ALL").is_some() {
        return walks;
    }
    let names: BTreeSet<String> = walks.iter().map(|(name, ..)| name.clone()).collect();
    walks.retain(|(name, ..)| {
        let mut like = LIKE.iter().filter(|(other, _)| other == name);
        !like.any(|(_, walked)| names.contains(*walked))
    });
    walks
}

/// Fails unless each walk of [`LIKE`] is one of these.
pub(crate) fn assert_known<F>(walks: &[(String, usize, F)]) {
    for name in LIKE
        .iter()
        .flat_map(|(left_out, walked)| [left_out, walked])
    {
        let is_known = walks.iter().any(|(other, ..)| other == name);
        assert!(is_known, "there is no walk {name:?}");
    }
}

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

    /// True if this effect was disturbed.
    pub(crate) fn has_met(&self, effect: &str) -> bool {
        self.effects.contains_key(effect)
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
