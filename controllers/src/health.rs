//! Reports the health of volumes: to users as events on their claims, to software in the status of
//! claims, and to operators as metrics.
//!
//! The watcher asks the driver at intervals. If the driver supports ControllerListVolumeHealth, one
//! list returns all unhealthy volumes. Otherwise the watcher asks for each bound volume. It also
//! asks for the storage below a node's volumes, and reports problems there on the Node. A condition
//! produces an event when it begins, when it changes, periodically while it lasts, and when it
//! ends.
//!
//! Only the process remembers which events it sent. After a restart it reports a lasting condition
//! again, and does not report the end of a condition that ended meanwhile. The status of claims ends
//! with the condition all the same (`claim_status`).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use crate::api::duration;
use crate::api::node::node_reference;
use crate::api::scope::Scope;
use crate::controller::Context;
use crate::csi::driver::{ControllerCapability, NodeCapability};

mod apply;
mod claim_status;
mod decide;
mod gather;
mod metrics;
mod nodes;

use apply::{STORAGE, VOLUME};
use claim_status::ClaimStatuses;
use decide::HealthChange;
use gather::BoundVolumes;
pub use metrics::Conditions;

/// Flags of the health watcher.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Health")]
pub struct Options {
    /// How often to list all unhealthy volumes, if the driver can list them
    #[arg(
        long = "list-volumes-interval",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = duration::parse
    )]
    pub list_interval: Duration,

    /// How often to check the storage of this node, and each volume if the driver can't list them
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse)]
    pub monitor_interval: Duration,

    /// Emit events on claims if their pods run on a node that is down
    #[arg(
        long = "enable-node-watcher",
        value_name = "BOOL",
        default_value = "false"
    )]
    pub node_watcher: bool,
}

/// Default of `--timeout`.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The shortest time between two looks at all volumes, however often their health changes.
const PACE: Duration = Duration::from_secs(10);

/// Runs the health watcher until `context.stop`.
pub async fn run(context: Context, options: Options, conditions: Conditions) {
    let driver = &context.driver;
    let lists = driver.can(ControllerCapability::ListVolumeHealth);
    let volumes = lists || driver.can(ControllerCapability::GetVolumeHealth);
    let storage = driver.node_can(NodeCapability::GetStorageHealth);
    if !volumes && !storage {
        tracing::info!(driver = driver.name, "the driver reports no health");
    }
    let interval = if lists {
        options.list_interval
    } else {
        options.monitor_interval
    };
    let watcher = Watcher {
        context: context.clone(),
        conditions,
        lists,
    };
    let of_volumes = async {
        if volumes {
            watcher.volumes(interval).await;
        }
    };
    let of_storage = async {
        if storage {
            watcher.storage(options.monitor_interval).await;
        }
    };
    let of_nodes = async {
        // The node watcher needs all nodes. With a process on every node, the leader runs it.
        if options.node_watcher && context.scope == Scope::Cluster {
            nodes::run(&context).await;
        }
    };
    let all = async { tokio::join!(of_volumes, of_storage, of_nodes) };
    context.stop.run_until_cancelled(all).await;
    // Without anything to check, the controller still runs until the stop.
    context.stop.cancelled().await;
}

/// Runs the node watcher, if it is enabled. With a process on every node, the leader calls this
/// with cluster-wide caches.
pub(crate) async fn run_for_all(context: Context, options: Options) {
    if options.node_watcher {
        context.stop.run_until_cancelled(nodes::run(&context)).await;
    }
}

/// Asks the driver for health, emits events, and writes the status of claims.
struct Watcher {
    context: Context,
    conditions: Conditions,
    lists: bool,
}

impl Watcher {
    async fn volumes(&self, interval: Duration) {
        self.context.caches.volumes().synced().await;
        let mut tick = ticks(interval);
        let mut statuses = ClaimStatuses::default();
        let mut next = Instant::now();
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.context.health_changed.notified() => {
                    tokio::time::sleep_until(next).await;
                }
            }
            next = Instant::now() + PACE;
            if self.context.acts() {
                self.volumes_once(&mut statuses).await;
            } else {
                // The process that leads emits the events.
                self.conditions.forget_volumes();
                statuses.forget();
            }
        }
    }

    async fn volumes_once(&self, statuses: &mut ClaimStatuses) {
        let BoundVolumes { all, own } = BoundVolumes::of(&self.context);
        statuses.read(&self.context, &all, &own).await;
        let mut abnormal: BTreeSet<String> = self
            .conditions
            .volumes(|known| known.keys().cloned().collect());
        abnormal.extend(statuses.abnormal().cloned());
        let facts = self.gather(all, &abnormal).await;
        let changes = self
            .conditions
            .volumes(|known| decide::volume_changes(known, &facts, Instant::now()));
        for (claim, change) in changes {
            // The leadership may have been lost during the calls to the driver.
            if self.context.acts() {
                self.emit(claim, &VOLUME, change);
            }
        }
        statuses.write(&self.context, &facts, &own).await;
    }

    async fn storage(&self, interval: Duration) {
        let mut tick = ticks(interval);
        loop {
            tick.tick().await;
            self.storage_once().await;
        }
    }

    async fn storage_once(&self) {
        let Some(found) = self.gather_storage().await else {
            return;
        };
        let change = self
            .conditions
            .storage(|known| decide::condition_change(known, &found, Instant::now()));
        let Some(change) = change else { return };
        match &change {
            HealthChange::Abnormal(what) => tracing::warn!(what, "the storage has a problem"),
            HealthChange::Normal => tracing::info!("the storage has no problem any more"),
        }
        // Only a process that serves one node knows which node the storage belongs to.
        if let Some(node) = self.context.scope.node() {
            self.emit(node_reference(node), &STORAGE, change);
        }
    }

    fn timeout(&self) -> Duration {
        self.context.common.timeout.unwrap_or(TIMEOUT)
    }
}

fn ticks(interval: Duration) -> tokio::time::Interval {
    // `tokio::time::interval` panics on a period of zero.
    let mut ticks = tokio::time::interval(interval.max(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests;
