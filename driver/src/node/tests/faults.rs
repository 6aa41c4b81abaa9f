//! In these tests, each step of each call fails once, or is the last one before the driver dies.
//! The remaining state is clean, or the next call continues from it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeMultiWriter;

use super::Rig;
use crate::node::Result;
use crate::storage::{Access, VolumeId};
use crate::testkit::*;

/// A volume's life on one node, as an orchestrator drives it.
#[derive(Clone, Copy, Debug)]
struct Way {
    block: bool,
    readonly: bool,
}

const WAYS: [Way; 4] = [
    Way {
        block: false,
        readonly: false,
    },
    Way {
        block: false,
        readonly: true,
    },
    Way {
        block: true,
        readonly: false,
    },
    Way {
        block: true,
        readonly: true,
    },
];

const STEPS: [&str; 4] = ["stage", "publish", "unpublish", "unstage"];

/// All kernel operations of the service in these lives that change something.
const EFFECTS: [&str; 10] = [
    "loop.attach",
    "loop.detach",
    "loop.read-ahead",
    "loop.flush",
    "mount",
    "bind",
    "unmount",
    "mkfs",
    "check",
    "grow",
];

/// All kernel operations of the service that only read.
const QUESTIONS: [&str; 6] = [
    "loops",
    "loop_info",
    "loop_open",
    "mounts",
    "probe",
    "fs_size",
];

impl Way {
    fn rig(self) -> (Rig, VolumeId) {
        let rig = Rig::new();
        let id = rig.volume(if self.block { Access::Block } else { ext4() }, 16 * MI);
        (rig, id)
    }

    fn cap(self) -> csi::VolumeCapability {
        match self.block {
            true => block_as(SingleNodeMultiWriter),
            false => mount_as("ext4", SingleNodeMultiWriter),
        }
    }

    fn step(self, rig: &Rig, id: VolumeId, name: &str) -> Result<()> {
        match name {
            "stage" => rig.stage(id, "a", &self.cap()),
            "publish" => rig.publish(id, "a", "p", &self.cap(), self.readonly),
            "unpublish" => rig.unpublish(id, "p"),
            _ => rig.unstage(id, "a"),
        }
    }

    /// Runs the whole life and repeats failed calls; returns the number of failures.
    fn go(self, rig: &Rig, id: VolumeId, what: &str) -> usize {
        let mut failed = 0;
        for name in STEPS {
            let mut tries = 0;
            while let Err(error) = self.step(rig, id, name) {
                tries += 1;
                assert!(tries <= 3, "{what}: {name} never succeeds: {error}");
            }
            failed += tries;
        }
        rig.kernel.behave();
        rig.assert_all_clean(id, what);
        failed
    }
}

#[test]
fn every_call_can_fail_anywhere_and_be_repeated() {
    let mut injected = 0;
    for way in WAYS {
        for op in EFFECTS.into_iter().chain(QUESTIONS) {
            for nth in 1.. {
                let (rig, id) = way.rig();
                rig.kernel.fail(op, nth, libc::EIO);
                if way.go(&rig, id, &format!("{way:?}, {op} {nth}")) == 0 {
                    // The life has fewer such operations, or the failed one is not essential.
                    break;
                }
                injected += 1;
            }
        }
    }
    assert!(injected > 60, "only {injected} failures were noticed");
}

/// An operation takes effect but reports a failure; then the undo fails as well.
#[test]
fn an_effect_can_fail_after_it_took_place_and_so_can_its_undoing() {
    for way in WAYS {
        for op in EFFECTS {
            for undo in [None, Some("loop.detach"), Some("unmount")] {
                for nth in 1..=2 {
                    let (rig, id) = way.rig();
                    rig.kernel.fail_afterwards(op, nth, libc::EIO);
                    if let Some(undo) = undo {
                        rig.kernel.fail(undo, 1, libc::EIO);
                    }
                    way.go(&rig, id, &format!("{way:?}, {op} {nth} and {undo:?}"));
                }
            }
        }
    }
}

/// The orchestrator gives up after a failure and undoes everything.
#[test]
fn every_call_can_fail_anywhere_and_be_given_up() {
    for way in WAYS {
        for op in EFFECTS {
            for nth in 1.. {
                let what = format!("{way:?}, {op} {nth}");
                let (rig, id) = way.rig();
                rig.kernel.fail(op, nth, libc::EIO);
                let failed = STEPS.iter().any(|name| way.step(&rig, id, name).is_err());
                rig.kernel.behave();
                for name in ["unpublish", "unstage"] {
                    way.step(&rig, id, name)
                        .unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
                }
                rig.assert_all_clean(id, &what);
                rig.node.pools.delete_volume(&id).unwrap();
                if !failed {
                    break;
                }
            }
        }
    }
}

/// The driver dies just before a change, restarts and recovers its pool, and the orchestrator
/// repeats its call.
#[test]
fn the_driver_can_die_anywhere_and_come_back() {
    let mut deaths = 0;
    for way in WAYS {
        for op in EFFECTS {
            for nth in 1.. {
                let (mut rig, id) = way.rig();
                let mut calls = 0;
                rig.kernel.hook(op, move |_| {
                    calls += 1;
                    assert!(calls != nth, "the driver dies here");
                    Ok(())
                });
                let what = format!("{way:?}, before {op} {nth}");
                let died = STEPS.iter().position(|name| {
                    let step = AssertUnwindSafe(|| way.step(&rig, id, name));
                    match catch_unwind(step) {
                        Err(_) => true,
                        Ok(done) => {
                            done.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
                            false
                        }
                    }
                });
                rig.kernel.behave();
                let Some(died) = died else {
                    rig.assert_all_clean(id, &what);
                    break;
                };
                rig.restart();
                for name in &STEPS[died..] {
                    way.step(&rig, id, name)
                        .unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
                }
                rig.assert_all_clean(id, &what);
                deaths += 1;
            }
        }
    }
    assert!(deaths > 25, "the driver died only {deaths} times");
}
