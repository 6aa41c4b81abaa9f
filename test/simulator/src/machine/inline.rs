//! Blocking work of a driver, on the simulator's only thread.

use std::sync::Arc;
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
use crate::recording;

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
    pub(super) pace: Arc<Mutex<Pace>>,
    /// Work that has not been done at the death of its process is never done.
    pub(super) dead: CancellationToken,
}

impl Inline {
    fn time(&self, kind: &str, dice: &mut Dice) -> Duration {
        match (self.copies, kind, dice.below(100)) {
            (Copies::Mixed, "copies", 0..80) => dice.millis(100, 20_000),
            (Copies::Mixed, "copies", 80..96) => dice.millis(20_000, 300_000),
            (Copies::Mixed, "copies", _) => dice.millis(300_000, 1_500_000),
            (Copies::Long, "copies", 0..30) => dice.millis(10_000, 60_000),
            (Copies::Long, "copies", _) => dice.millis(900_000, 1_500_000),
            (_, _, 0..90) => dice.millis(1, 30),
            (_, _, 90..99) => dice.millis(30, 2000),
            _ => dice.millis(2000, 15_000),
        }
    }
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
        let ran = tokio::spawn(async move {
            tokio::select! {
                biased;
                () = dead.cancelled() => {}
                () = tokio::time::sleep(time) => {
                    let has_changed = {
                        let _acting = Acting::of(node);
                        work();
                        effects::unchanged().is_none()
                    };
                    recording::worked(node, has_changed);
                }
            }
        });
        ran.map(drop).boxed()
    }
}
