//! What the driver does without a call.

use std::sync::Arc;
use std::time::Duration;

use hostloop_controllers::tasks::Tasks;
use tokio_util::sync::CancellationToken;

use crate::blocking::Blocking;
use crate::grpc::Server;
use crate::node::{Node, ReadOnlyCaches};
use crate::pool_faults::PoolFaults;
use crate::storage::Pools;

/// How often the driver looks for missing pools.
const SEARCH: Duration = Duration::from_secs(5);
/// How often the driver looks for faults that are asked of pools.
const FAULTS: Duration = Duration::from_secs(1);
/// How often the driver looks for writes below read-only targets of block volumes.
const REFRESH: Duration = Duration::from_secs(1);
/// How often a node that shares its kernel looks for its marker.
const MARKER: Duration = Duration::from_secs(5);
/// How often the driver looks for cuts that have expired.
const EXPIRY: Duration = Duration::from_secs(30);

/// The reason of a task's end if its work panicked.
const PANICKED: &str = "its thread panicked: the log has the panic before this line";

/// Starts the tasks that look after pools, groups and read-only targets until `stop`.
pub fn start(
    pools: &Arc<Pools>,
    node: Arc<Node>,
    blocking: &Blocking,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) {
    keep_marker(node.clone(), blocking, stop, tasks);
    let refresh = refresh_read_only(node, blocking.clone(), stop.clone());
    tasks.start("refreshing read-only targets", refresh);
    for slot in 0..pools.count() {
        // Opens a missing pool once it appears, and repeats releases that failed before.
        let pools = pools.clone();
        keep_doing(
            "looking after a pool",
            move || pools.tend(slot),
            SEARCH,
            blocking,
            stop,
            tasks,
        );
    }
    let settle = settle_groups(pools.clone(), blocking.clone(), stop.clone());
    tasks.start("settling groups", settle);
}

/// Starts to keep the marker of a node that may share its kernel, at once and every now and then until
/// `stop`.
fn keep_marker(node: Arc<Node>, blocking: &Blocking, stop: &CancellationToken, tasks: &mut Tasks) {
    const NAME: &str = "keeping the node's marker";
    if !node.config.kernels.is_on() {
        return;
    }
    let (blocking, stop) = (blocking.clone(), stop.clone());
    tasks.start(NAME, async move {
        let mut logged: Option<String> = None;
        loop {
            let node = node.clone();
            let error = work(
                NAME,
                move || node.keep_marker().err().map(|error| error.to_string()),
                &blocking,
                &stop,
            );
            let error = error.await?.flatten();
            if error != logged
                && let Some(error) = &error
            {
                tracing::error!(
                    error,
                    "this node can't use shared volumes: it has no marker"
                );
            }
            logged = error;
            if !has_waited(MARKER, &stop).await {
                return Ok(());
            }
        }
    });
}

/// Starts to delete cuts that have expired, at once and every now and then until `stop`. It needs no
/// flag: an earlier process may have taken them.
pub fn start_expiry(server: &Server, stop: &CancellationToken, tasks: &mut Tasks) {
    for slot in 0..server.pools().count() {
        let expire = expire_cuts(server.clone(), slot, stop.clone());
        tasks.keep("deleting expired cuts", expire);
    }
}

/// Deletes the expired cuts of one pool. Each has its own task, so a hanging one delays no other.
async fn expire_cuts(server: Server, slot: usize, stop: CancellationToken) {
    loop {
        let expired = server.drop_expired_cuts(slot);
        stop.run_until_cancelled(expired).await;
        if !has_waited(EXPIRY, &stop).await {
            return;
        }
    }
}

/// Starts the tasks that give pools the faults that are asked for, until `stop`. Without
/// `--enable-faults` there are none.
pub(super) fn tend_faults(
    faults: &Arc<PoolFaults>,
    blocking: &Blocking,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) {
    for slot in faults.slots() {
        let faults = faults.clone();
        keep_doing(
            "giving a pool its faults",
            move || faults.tend(slot),
            FAULTS,
            blocking,
            stop,
            tasks,
        );
    }
}

/// Starts a task that does its work on a thread again and again, after a pause each time, until
/// `stop`. Each pool has its own, so a hanging pool delays no other.
fn keep_doing(
    name: &'static str,
    task: impl Fn() + Clone + Send + 'static,
    pause: Duration,
    blocking: &Blocking,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) {
    let (blocking, stop) = (blocking.clone(), stop.clone());
    tasks.start(name, async move {
        while has_waited(pause, &stop).await {
            let again = task.clone();
            work(name, again, &blocking, &stop).await?;
        }
        Ok(())
    });
}

/// Frees what is left of groups that were not deleted as a whole. A group may have members in any
/// pool, so this task alone waits for one that hangs.
async fn settle_groups(
    pools: Arc<Pools>,
    blocking: Blocking,
    stop: CancellationToken,
) -> Result<(), String> {
    while has_waited(SEARCH, &stop).await {
        if !pools.has_unsettled_groups() {
            continue;
        }
        let pools = pools.clone();
        work(
            "settling groups",
            move || pools.settle_groups(),
            &blocking,
            &stop,
        )
        .await?;
    }
    Ok(())
}

/// Keeps read-only targets of block volumes from repeating what they read before a write.
async fn refresh_read_only(
    node: Arc<Node>,
    blocking: Blocking,
    stop: CancellationToken,
) -> Result<(), String> {
    let mut caches = ReadOnlyCaches::default();
    while has_waited(REFRESH, &stop).await {
        let node = node.clone();
        let refreshed = work(
            "refreshing read-only targets",
            move || {
                node.drop_stale_caches(&mut caches);
                caches
            },
            &blocking,
            &stop,
        );
        match refreshed.await? {
            Some(refreshed) => caches = refreshed,
            None => break,
        }
    }
    Ok(())
}

/// Waits this long. False if `stop` came first.
async fn has_waited(time: Duration, stop: &CancellationToken) -> bool {
    let waited = stop.run_until_cancelled(tokio::time::sleep(time));
    waited.await.is_some()
}

/// Does a task's work on a thread. `None` if `stop` came first; an error if the work panicked.
async fn work<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
    blocking: &Blocking,
    stop: &CancellationToken,
) -> Result<Option<T>, String> {
    match stop.run_until_cancelled(blocking.run(name, work)).await {
        Some(None) => Err(PANICKED.to_owned()),
        Some(done) => Ok(done),
        None => Ok(None),
    }
}
