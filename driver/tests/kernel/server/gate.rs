//! A gate before operations of the kernel. A test can then inspect the server while a call is under
//! way.

use std::path::Path;
use std::sync::Arc;

use hostloop_fake_kernel::Model;
use parking_lot::{Condvar, Mutex};

use crate::testkit::PATIENCE;

#[derive(Debug, Default)]
struct Passage {
    /// The gate is closed for paths that contain this text.
    closed: Option<String>,
    /// Calls that came to the gate.
    came: usize,
}

#[derive(Default)]
pub(crate) struct Gate {
    passage: Mutex<Passage>,
    changed: Condvar,
}

impl Gate {
    /// An open gate before these operations of this kernel.
    pub(crate) fn before(kernel: &Model, ops: &[&'static str]) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        for op in ops.iter().copied() {
            let gate = gate.clone();
            kernel.shared_hook(op, move |path| {
                gate.pass(path);
                Ok(())
            });
        }
        gate
    }

    /// From now on, all calls wait at the gate.
    pub(crate) fn close(&self) {
        self.close_for("");
    }

    /// From now on, calls with this text in their path wait at the gate.
    pub(crate) fn close_for(&self, word: &str) {
        self.passage.lock().closed = Some(word.to_owned());
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        self.passage.lock().closed = None;
        self.changed.notify_all();
    }

    /// Number of calls that have reached the gate so far.
    pub(crate) fn tried(&self) -> usize {
        self.passage.lock().came
    }

    /// Waits until this many calls have reached the gate.
    pub(crate) fn wait_for(&self, tried: usize) {
        let mut passage = self.passage.lock();
        let few = |p: &mut Passage| p.came < tried;
        let waited = self.changed.wait_while_for(&mut passage, few, PATIENCE);
        assert!(!waited.timed_out(), "{} tried, not {tried}", passage.came);
    }

    fn pass(&self, path: &Path) {
        let path = path.to_str().unwrap();
        let mut passage = self.passage.lock();
        passage.came += 1;
        self.changed.notify_all();
        let shut = |p: &mut Passage| p.closed.as_ref().is_some_and(|word| path.contains(word));
        self.changed.wait_while(&mut passage, shut);
    }
}
