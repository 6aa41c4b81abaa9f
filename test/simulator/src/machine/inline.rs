//! Blocking work of a driver, on the simulator's only thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_driver::blocking::{BlockingWork, Executor};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::dice::Dice;
use crate::door::Pace;
use crate::effects::{self, Acting};
use crate::history::World;
use crate::{recording, trace};

/// How long copies take.
#[derive(Clone, Copy)]
pub(super) enum Copies {
    /// As long as other work.
    Short,
    /// Mostly seconds, and sometimes minutes.
    Mixed,
    /// Mostly tens of minutes, as those of large volumes.
    Long,
}

impl Copies {
    pub(super) fn of(seed: u64, world: World) -> Copies {
        match world {
            World::Calm => Copies::Short,
            World::Rough if Dice::of(seed, "copies", 0).percent(40) => Copies::Long,
            World::Rough | World::Hard => Copies::Mixed,
        }
    }
}

/// Runs work on the runtime's only thread, after a virtual time that the work takes. It holds its
/// thread and its locks meanwhile.
pub(super) struct Inline {
    pub(super) seed: u64,
    pub(super) node: &'static str,
    pub(super) copies: Copies,
    /// No work but copies takes as long as callers wait.
    pub(super) prompt: bool,
    pub(super) pace: Arc<Mutex<Pace>>,
    /// Work that has not been done at the death of its process is never done.
    pub(super) dead: CancellationToken,
    /// True if the last copy was refused: it copied no bytes.
    pub(super) refused: Arc<AtomicBool>,
    /// True once copies take as long as other work.
    pub(super) are_copies_fast: Arc<AtomicBool>,
}

/// The kind of work that copies bytes.
const COPIES: &str = "copies";
/// The kind of work that pods wait for.
const CHANGES: &str = "changes";

impl Inline {
    /// How long work takes. A driver refuses a copy without a look at its bytes, for lack of room for
    /// example, but here that shows only at the end of its time. So the copy after a refused one, which
    /// is mostly its repetition, takes as long as other work. Otherwise the answer to each repetition
    /// would be late, and the caller would never learn of the refusal.
    fn time(&self, kind: &str, dice: &mut Dice) -> Duration {
        let are_short =
            self.refused.load(Ordering::Relaxed) || self.are_copies_fast.load(Ordering::Relaxed);
        let copies = if are_short {
            Copies::Short
        } else {
            self.copies
        };
        match (copies, kind, dice.below(100)) {
            (Copies::Mixed, COPIES, 0..80) => dice.millis(100, 20_000),
            (Copies::Mixed, COPIES, 80..96) => dice.millis(20_000, 300_000),
            (Copies::Mixed, COPIES, _) => dice.millis(300_000, 1_500_000),
            (Copies::Long, COPIES, 0..30) => dice.millis(10_000, 60_000),
            (Copies::Long, COPIES, _) => dice.millis(900_000, 1_500_000),
            (_, _, 0..90) => dice.millis(1, 30),
            (_, _, 90..99) => dice.millis(30, 2000),
            _ if self.prompt => dice.millis(2000, 8000),
            _ => dice.millis(2000, 15_000),
        }
    }
}

/// True if work has copied no bytes, by the number of copies before and after it. A refused copy may
/// have other effects: its driver may see only at the empty new image that it has to copy bytes, and
/// removes the image again. Builds that announce no effects don't know.
fn copies_nothing(before: Option<u64>, after: Option<u64>) -> bool {
    before.is_some() && before == after
}

/// True if work of a kind for which pods wait allocates a whole volume, by the number of allocations
/// before and after it. That may take minutes, and the threads for such work are few.
fn holds_up_pods(kind: &str, before: Option<u64>, after: Option<u64>) -> bool {
    kind == CHANGES && before != after
}

impl Executor for Inline {
    fn run(&self, kind: &'static str, work: BlockingWork) -> BoxFuture<'static, ()> {
        let number = {
            let mut pace = self.pace.lock();
            pace.count(kind);
            pace.total
        };
        let actor = format!("{} {kind}", self.node);
        let time = self.time(kind, &mut Dice::of(self.seed, &actor, number));
        let (dead, node) = (self.dead.clone(), self.node);
        let refused = self.refused.clone();
        let ran = tokio::spawn(async move {
            tokio::select! {
                biased;
                () = dead.cancelled() => {}
                () = tokio::time::sleep(time) => {
                    let copied_before = effects::copies();
                    let allocated_before = effects::allocations();
                    let has_changed = {
                        let _acting = Acting::of(node);
                        work();
                        effects::unchanged().is_none()
                    };
                    if holds_up_pods(kind, allocated_before, effects::allocations()) {
                        trace::violation(format!(
                            "holds up pods: {node} allocates a whole volume on a thread for {kind}"
                        ));
                    }
                    if kind == COPIES {
                        let is_refused = copies_nothing(copied_before, effects::copies());
                        refused.store(is_refused, Ordering::Relaxed);
                    }
                    recording::worked(node, has_changed);
                }
            }
        });
        ran.map(drop).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_long_copies() -> Inline {
        Inline {
            seed: 0,
            node: "n",
            copies: Copies::Long,
            prompt: false,
            pace: Arc::default(),
            dead: CancellationToken::new(),
            refused: Arc::default(),
            are_copies_fast: Arc::default(),
        }
    }

    #[test]
    fn a_copy_takes_as_long_as_other_work_after_a_refused_one_and_in_the_end() {
        for (refused, fast) in [(false, false), (true, false), (false, true)] {
            let inline = with_long_copies();
            inline.refused.store(refused, Ordering::Relaxed);
            inline.are_copies_fast.store(fast, Ordering::Relaxed);
            let times = (0..100).map(|number| {
                let mut dice = Dice::of(inline.seed, "copies", number);
                inline.time(COPIES, &mut dice)
            });
            let longest = times.max().expect("a time");
            let is_short = longest <= Duration::from_secs(15);
            assert_eq!(is_short, refused || fast, "{longest:?}");
        }
    }

    #[test]
    fn a_clone_takes_as_long_as_other_work() {
        let inline = with_long_copies();
        for number in 0..100 {
            let mut dice = Dice::of(inline.seed, "clones", number);
            let time = inline.time("snapshots and clones", &mut dice);
            assert!(time <= Duration::from_secs(15), "{time:?}");
        }
    }

    #[test]
    fn only_an_allocation_on_a_thread_for_changes_holds_up_pods() {
        for (kind, after, expected) in [
            (CHANGES, 8, true),
            (CHANGES, 7, false),
            ("allocations of thick volumes", 8, false),
            (COPIES, 8, false),
        ] {
            let found = holds_up_pods(kind, Some(7), Some(after));
            assert_eq!(found, expected, "{kind} {after}");
        }
    }

    #[test]
    fn work_that_copies_no_bytes_is_a_refused_copy() {
        for (before, after, expected) in [
            (Some(0), Some(0), true),
            (Some(7), Some(7), true),
            (Some(7), Some(8), false),
            (None, None, false),
        ] {
            let found = copies_nothing(before, after);
            assert_eq!(found, expected, "{before:?} {after:?}");
        }
    }
}
