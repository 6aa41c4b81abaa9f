//! Where work that blocks runs: on the runtime's threads for it, unless a caller chooses another
//! place.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

/// Work that blocks.
pub type BlockingWork = Box<dyn FnOnce() + Send>;

/// A place where work that blocks runs.
pub trait Executor: Send + Sync + 'static {
    /// Runs the work, also if the returned future is dropped. The future resolves when the work has
    /// ended, or was dropped because the runtime shuts down. `kind` says what the work is for, in
    /// words such as `copies`.
    fn run(&self, kind: &'static str, work: BlockingWork) -> BoxFuture<'static, ()>;
}

/// The runtime's threads for blocking work.
struct RuntimeThreads;

impl Executor for RuntimeThreads {
    fn run(&self, _: &'static str, work: BlockingWork) -> BoxFuture<'static, ()> {
        tokio::task::spawn_blocking(work).map(drop).boxed()
    }
}

/// Runs work that blocks. Clones share the place where it runs. By default, that is a thread of the
/// runtime.
#[derive(Clone)]
pub struct Blocking(Arc<dyn Executor>);

impl Default for Blocking {
    fn default() -> Self {
        Blocking::on(RuntimeThreads)
    }
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Blocking")
    }
}

impl Blocking {
    /// Runs work on this executor.
    pub fn on(executor: impl Executor) -> Self {
        Blocking(Arc::new(executor))
    }

    /// Begins work of this kind (see [`Executor::run`]). `None` if it panics, or is dropped because
    /// the runtime shuts down.
    pub fn run<T, W>(
        &self,
        kind: &'static str,
        work: W,
    ) -> impl Future<Output = Option<T>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let ended = self
            .0
            .run(kind, Box::new(move || drop(answer.send(work()))));
        async move {
            ended.await;
            answered.await.ok()
        }
    }
}
