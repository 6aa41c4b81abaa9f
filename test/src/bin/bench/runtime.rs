//! The runtime of the measurements. A signal ends it.

use std::cell::RefCell;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A runtime that panics after SIGINT or SIGTERM. The panic drops what the part uses, which stops
/// the driver and removes its mounts, loop devices and files.
pub(crate) struct Runtime {
    runtime: tokio::runtime::Runtime,
    signals: RefCell<[Signal; 2]>,
}

impl Runtime {
    pub(crate) fn new() -> Runtime {
        Runtime::of(&mut tokio::runtime::Builder::new_multi_thread())
    }

    /// A runtime for one client. The threads of a larger one wake each other several times in each
    /// call, which would count as the driver's time.
    pub(crate) fn of_one_thread() -> Runtime {
        Runtime::of(&mut tokio::runtime::Builder::new_current_thread())
    }

    fn of(builder: &mut tokio::runtime::Builder) -> Runtime {
        let runtime = builder.enable_all().build().expect("a runtime can be made");
        let inside = runtime.enter();
        let signals = [SignalKind::interrupt(), SignalKind::terminate()];
        let signals = signals.map(|kind| signal(kind).expect("signals can be received"));
        drop(inside);
        Runtime {
            runtime,
            signals: RefCell::new(signals),
        }
    }

    /// Runs the future to its end.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let [interrupt, terminate] = &mut *self.signals.borrow_mut();
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _ = interrupt.recv() => panic!("interrupted by SIGINT"),
                _ = terminate.recv() => panic!("interrupted by SIGTERM"),
                done = work => done,
            }
        })
    }
}
