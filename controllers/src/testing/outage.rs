//! Claims and snapshots after an outage of the API server.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Fault;
use super::neighbours::{ALL, Cluster};

/// The longest time after an outage, however long that was, until what waited is done.
const BOUND: Duration = Duration::from_secs(31);

/// What was under way when the API server went away, and what the watches have missed, is done soon
/// after it is back.
#[tokio::test(start_paused = true)]
async fn work_goes_on_soon_after_an_outage() {
    for made in ALL {
        for seconds in [1, 20, 100, 600, 3600] {
            let cluster = Cluster::begin();
            cluster.one(made, "first").await;
            cluster.make(made, "b", "before");
            sleep(Duration::from_millis(1)).await;
            cluster.api.heal();
            cluster.api.end_watches();
            cluster.api.fault(&[], "", None, Fault::Refuse(503));
            cluster.make(made, "b", "missed");
            sleep(Duration::from_secs(seconds)).await;
            cluster.api.heal();
            let back = Instant::now();
            for name in ["before", "missed"] {
                cluster.done.has(&format!("b/{name}")).await;
            }
            let took = back.elapsed();
            assert!(took <= BOUND, "{made:?} after {seconds} s: {took:?}");
        }
    }
}
