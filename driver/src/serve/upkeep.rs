//! What the driver does without a call.

use std::sync::Arc;
use std::time::Duration;

use hostloop_controllers::tasks::Tasks;
use tokio_util::sync::CancellationToken;

use crate::blocking::Blocking;
use crate::node::{Node, ReadOnlyCaches};
use crate::storage::Pools;

/// How often the driver looks for missing pools.
const SEARCH: Duration = Duration::from_secs(5);
/// How often the driver looks for writes below read-only targets of block volumes.
const REFRESH: Duration = Duration::from_secs(1);

/// The reason of a task's end if its work panicked.
const PANICKED: &str = "its thread panicked: the log has the panic before this line";

/// Starts the tasks that look after pools and read-only targets until `stop`.
pub fn start(
    pools: &Arc<Pools>,
    node: Arc<Node>,
    blocking: &Blocking,
    stop: &CancellationToken,
    tasks: &mut Tasks,
) {
    let refresh = refresh_read_only(node, blocking.clone(), stop.clone());
    tasks.start("refreshing read-only targets", refresh);
    for slot in 0..pools.count() {
        let tend = tend(pools.clone(), slot, blocking.clone(), stop.clone());
        tasks.start("looking after a pool", tend);
    }
}

/// Opens a missing pool once it appears, and repeats releases that failed before. Each pool has
/// its own task, so a hanging pool delays no other.
async fn tend(
    pools: Arc<Pools>,
    slot: usize,
    blocking: Blocking,
    stop: CancellationToken,
) -> Result<(), String> {
    while stop
        .run_until_cancelled(tokio::time::sleep(SEARCH))
        .await
        .is_some()
    {
        let pools = pools.clone();
        let tended = blocking.run("looking after a pool", move || pools.tend(slot));
        if let Some(None) = stop.run_until_cancelled(tended).await {
            return Err(PANICKED.to_owned());
        }
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
    while stop
        .run_until_cancelled(tokio::time::sleep(REFRESH))
        .await
        .is_some()
    {
        let node = node.clone();
        let look = blocking.run("refreshing read-only targets", move || {
            node.drop_stale_caches(&mut caches);
            caches
        });
        match stop.run_until_cancelled(look).await {
            Some(Some(looked)) => caches = looked,
            Some(None) => return Err(PANICKED.to_owned()),
            None => break,
        }
    }
    Ok(())
}
