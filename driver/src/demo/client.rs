//! An orchestrator's side of the connection, for code that blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::error::{Error, Result};
use super::tree::Tree;

/// A call's limit: kubelet's.
const CALL_LIMIT: Duration = Duration::from_secs(120);
/// How long a call that meets a lock or a starting driver is repeated while cleaning up.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// A connection, and the runtime it lives on.
pub(super) struct Client {
    runtime: Runtime,
    channel: Channel,
    stop: Arc<Stop>,
}

/// Whether a signal has come.
#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    told: Notify,
}

/// A call that was made, whatever came of it.
pub(super) struct Made<T> {
    /// The answer.
    pub(super) answer: std::result::Result<T, Status>,
    /// How long it took.
    pub(super) time: Duration,
}

impl Client {
    /// Connects to a tree's socket with the first call, and listens for SIGINT and SIGTERM.
    pub(super) fn new(tree: &Tree) -> Result<Client> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(Error::io("start", "the runtime"))?;
        let stop = Arc::new(Stop::default());
        let channel = {
            let _in_runtime = runtime.enter();
            for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
                let mut signals = signal(kind).map_err(Error::io("listen for", "signals"))?;
                let stop = stop.clone();
                runtime.spawn(async move {
                    while signals.recv().await.is_some() {
                        stop.asked.store(true, Ordering::SeqCst);
                        stop.told.notify_waiters();
                    }
                });
            }
            connect(tree)?
        };
        Ok(Client {
            runtime,
            channel,
            stop,
        })
    }

    /// Connects anew, after a restart of the driver.
    pub(super) fn reconnect(&mut self, tree: &Tree) -> Result<()> {
        let _in_runtime = self.runtime.enter();
        self.channel = connect(tree)?;
        Ok(())
    }

    /// [`Error::Interrupted`] once a signal has come.
    pub(super) fn go_on(&self) -> Result<()> {
        match self.stop.asked.load(Ordering::SeqCst) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// Makes a call; a signal ends the wait for its answer.
    pub(super) fn call<T>(
        &self,
        call: impl AsyncFnOnce(Channel) -> std::result::Result<T, Status>,
    ) -> Result<Made<T>> {
        // Before the flag is looked at: a signal in between must not be slept through.
        let told = self.stop.told.notified();
        self.go_on()?;
        let began = Instant::now();
        let channel = self.channel.clone();
        let answer = self.runtime.block_on(async {
            tokio::select! {
                answer = in_time(call(channel)) => Ok(answer),
                () = told => Err(Error::Interrupted),
            }
        })?;
        let time = began.elapsed();
        Ok(Made { answer, time })
    }

    /// Makes a call while cleaning up: signals don't end it, and what is only busy is repeated.
    pub(super) fn insist<T>(
        &self,
        call: impl AsyncFn(Channel) -> std::result::Result<T, Status>,
    ) -> Made<T> {
        let began = Instant::now();
        let answer = self.runtime.block_on(async {
            loop {
                let answer = in_time(call(self.channel.clone())).await;
                let busy = answer.as_ref().err().is_some_and(|status| {
                    matches!(
                        status.code(),
                        tonic::Code::Aborted | tonic::Code::Unavailable
                    )
                });
                if !busy || began.elapsed() > PATIENCE {
                    return answer;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
        Made {
            answer,
            time: began.elapsed(),
        }
    }
}

async fn in_time<T>(
    call: impl Future<Output = std::result::Result<T, Status>>,
) -> std::result::Result<T, Status> {
    let late = |_| Status::deadline_exceeded(format!("no answer within {CALL_LIMIT:?}"));
    tokio::time::timeout(CALL_LIMIT, call)
        .await
        .unwrap_or_else(|elapsed| Err(late(elapsed)))
}

fn connect(tree: &Tree) -> Result<Channel> {
    let socket = format!("unix://{}", tree.socket().display());
    let endpoint = Endpoint::from_shared(socket).map_err(|e| Error::Root {
        path: tree.root().to_path_buf(),
        why: format!("its socket can't be reached: {e}"),
    })?;
    Ok(endpoint.connect_lazy())
}
