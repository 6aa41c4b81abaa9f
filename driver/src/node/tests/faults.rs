//! In these tests, each step of each call fails once. The remaining state is clean, or the next
//! call continues from it.

use super::Rig;
use crate::node::Result;
use crate::storage::{Access, VolumeId};
use crate::testkit::*;

/// A volume's life on one node, as an orchestrator drives it.
#[derive(Clone, Copy, Debug)]
struct Life {
    block: bool,
    readonly: bool,
}

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
const QUESTIONS: [&str; 7] = [
    "loops",
    "loop_info",
    "loop_open",
    "loop_size",
    "mounts",
    "probe",
    "fs_size",
];

/// Runs `test` for each life, each operation, and each call of it (1 is the first) until `test`
/// returns false: the life has fewer such calls, or a failure has no effect. Returns the number of
/// times that `test` returned true.
fn at_each_call(
    ops: &[&'static str],
    mut test: impl FnMut(Life, &'static str, usize) -> bool,
) -> usize {
    let mut noticed = 0;
    for (block, readonly) in [(false, false), (false, true), (true, false), (true, true)] {
        for op in ops {
            let calls = (1..).take_while(|nth| test(Life { block, readonly }, op, *nth));
            noticed += calls.count();
        }
    }
    noticed
}

impl Life {
    fn rig(self) -> (Rig, VolumeId) {
        let rig = Rig::new();
        let id = if self.block {
            rig.volume(Access::Block, 16 * MI)
        } else {
            rig.unformatted(new_volume(ext4(), 16 * MI))
        };
        (rig, id)
    }

    fn step(self, rig: &Rig, id: VolumeId, name: &str) -> Result<()> {
        let cap = if self.block { block() } else { mount("ext4") };
        match name {
            "stage" => rig.stage(id, "a", &cap),
            "publish" => rig.publish(id, "a", "p", &cap, self.readonly),
            "unpublish" => rig.unpublish(id, "p"),
            _ => rig.unstage(id, "a"),
        }
    }

    /// Runs these steps, none of which may fail.
    fn go(self, rig: &Rig, id: VolumeId, steps: &[&str], what: &str) {
        for name in steps {
            let done = self.step(rig, id, name);
            done.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
        }
    }

    /// Runs the whole life and repeats failed calls; returns the number of failures.
    fn repeat(self, rig: &Rig, id: VolumeId, what: &str) -> usize {
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
        rig.assert_clean_after(id, what);
        failed
    }
}

#[test]
fn every_call_can_fail_anywhere_and_be_repeated() {
    let ops = [&EFFECTS[..], &QUESTIONS].concat();
    let injected = at_each_call(&ops, |life, op, nth| {
        let (rig, id) = life.rig();
        rig.kernel.fail(op, nth, libc::EIO);
        life.repeat(&rig, id, &format!("{life:?}, {op} {nth}")) > 0
    });
    assert!(injected > 60, "only {injected} failures were noticed");
}

/// An operation takes effect but reports a failure; then the undo fails as well.
#[test]
fn an_effect_can_fail_after_it_took_place_and_so_can_its_undoing() {
    at_each_call(&EFFECTS, |life, op, nth| {
        for undo in [None, Some("loop.detach"), Some("unmount")] {
            let (rig, id) = life.rig();
            rig.kernel.fail_afterwards(op, nth, libc::EIO);
            if let Some(undo) = undo {
                rig.kernel.fail(undo, 1, libc::EIO);
            }
            life.repeat(&rig, id, &format!("{life:?}, {op} {nth} and {undo:?}"));
        }
        nth < 2
    });
}

/// The orchestrator gives up after a failure and undoes everything.
#[test]
fn every_call_can_fail_anywhere_and_be_given_up() {
    at_each_call(&EFFECTS, |life, op, nth| {
        let what = format!("{life:?}, {op} {nth}");
        let (rig, id) = life.rig();
        rig.kernel.fail(op, nth, libc::EIO);
        let failed = STEPS.iter().any(|name| life.step(&rig, id, name).is_err());
        rig.kernel.behave();
        life.go(&rig, id, &STEPS[2..], &what);
        rig.assert_clean_after(id, &what);
        rig.node.pools.delete_volume(&id).unwrap();
        failed
    });
}
