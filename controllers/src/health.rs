//! Reports the health of volumes: to users as events on their claims, and to operators as metrics.
//!
//! The watcher asks the driver at intervals. If the driver supports ControllerListVolumeHealth, one
//! list returns all unhealthy volumes. Otherwise the watcher asks for each bound volume. It also
//! asks for the storage below a node's volumes, and reports problems there on the Node. A condition
//! produces an event when it begins, when it changes, periodically while it lasts, and when it
//! ends.
//!
//! Only the process remembers which events it sent. After a restart it reports a lasting condition
//! again, and does not report the end of a condition that ended meanwhile.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures::StreamExt;
use hostloop_proto::csi;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::Code;

use crate::api::duration;
use crate::api::node::node_reference;
use crate::api::scope::Scope;
use crate::client::EventKind;
use crate::controller::Context;
use crate::csi::driver::{ControllerCapability, NodeCapability};
use crate::csi::{Csi, ListError, list};

mod decide;
mod metrics;
mod nodes;

use decide::{Change, Finding, Volume};
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

/// Default of `--worker-threads`: the number of volumes checked at once.
const WORKERS: usize = 10;

/// Page size of ControllerListVolumeHealth.
const PAGE: i32 = 500;

/// The words of the events about one kind of condition.
struct Words {
    noun: &'static str,
    /// The reason of the event that something is wrong.
    abnormal: &'static str,
    /// The reason of the event that nothing is wrong any more.
    normal: &'static str,
}

const VOLUME: Words = Words {
    noun: "volume",
    abnormal: "VolumeConditionAbnormal",
    normal: "VolumeConditionNormal",
};

const STORAGE: Words = Words {
    noun: "storage",
    abnormal: "StorageConditionAbnormal",
    normal: "StorageConditionNormal",
};

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

/// Asks the driver for health, and emits events.
struct Watcher {
    context: Context,
    conditions: Conditions,
    lists: bool,
}

impl Watcher {
    async fn volumes(&self, interval: Duration) {
        self.context.caches.volumes().synced().await;
        let mut tick = ticks(interval);
        loop {
            tick.tick().await;
            if self.context.acts() {
                self.volumes_once().await;
            } else {
                // The process that leads emits the events.
                self.conditions.forget_volumes();
            }
        }
    }

    async fn volumes_once(&self) {
        let volumes = served(&self.context);
        let found = if self.lists {
            match self.list(&volumes).await {
                Ok(found) => found,
                // The list fails if one of several pools is missing. ControllerGetVolumeHealth may
                // still answer for each volume.
                Err(failure) => {
                    tracing::warn!(%failure, "the health list failed: asking for each volume");
                    self.get(&volumes).await
                }
            }
        } else {
            self.get(&volumes).await
        };
        let changes = self
            .conditions
            .volumes(|known| decide::volume_changes(known, &volumes, &found, Instant::now()));
        for (claim, change) in changes {
            // The leadership may have been lost during the calls to the driver.
            if self.context.acts() {
                self.emit(claim, &VOLUME, change);
            }
        }
    }

    /// The findings of all volumes, from ControllerListVolumeHealth.
    async fn list(&self, volumes: &[Volume]) -> Result<HashMap<String, Vec<Finding>>, ListError> {
        // Volumes that the driver does not list are healthy.
        let mut found: HashMap<String, Vec<Finding>> = volumes
            .iter()
            .map(|volume| (volume.handle.clone(), Vec::new()))
            .collect();
        let (csi, timeout) = (&self.context.driver.csi, self.timeout());
        let entries = list::all(
            "ControllerListVolumeHealth",
            timeout,
            |starting_token| async move {
                let request = csi::ControllerListVolumeHealthRequest {
                    max_entries: PAGE,
                    starting_token,
                    ..csi::ControllerListVolumeHealthRequest::default()
                };
                let page = csi.controller_list_volume_health(request, timeout).await?;
                Ok((page.entries, page.next_token))
            },
        );
        for entry in entries.await? {
            if let Some(findings) = found.get_mut(&entry.volume_id) {
                findings.extend(entry.health_statuses.into_iter().map(Finding::from));
            }
        }
        Ok(found)
    }

    /// The findings of each volume for which ControllerGetVolumeHealth succeeded.
    async fn get(&self, volumes: &[Volume]) -> HashMap<String, Vec<Finding>> {
        let handles: BTreeSet<String> =
            volumes.iter().map(|volume| volume.handle.clone()).collect();
        let workers = self.context.common.worker_threads.unwrap_or(WORKERS).max(1);
        let (csi, timeout) = (self.context.driver.csi.clone(), self.timeout());
        futures::stream::iter(handles)
            .map(move |handle| get_one(csi.clone(), timeout, handle))
            .buffer_unordered(workers)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    async fn storage(&self, interval: Duration) {
        let mut tick = ticks(interval);
        loop {
            tick.tick().await;
            self.storage_once().await;
        }
    }

    async fn storage_once(&self) {
        let request = csi::NodeGetStorageHealthRequest::default();
        let csi = &self.context.driver.csi;
        let found = match csi.node_get_storage_health(request, self.timeout()).await {
            Ok(answer) => answer
                .backend_health
                .into_iter()
                .map(Finding::from)
                .collect::<Vec<_>>(),
            Err(failure) => {
                tracing::warn!(%failure, "cannot read the storage's health");
                return;
            }
        };
        let change = self
            .conditions
            .storage(|known| decide::condition_change(known, &found, Instant::now()));
        let Some(change) = change else { return };
        match &change {
            Change::Abnormal(what) => tracing::warn!(what, "the storage has a problem"),
            Change::Normal => tracing::info!("the storage has no problem any more"),
        }
        // Only a process that serves one node knows which node the storage belongs to.
        if let Some(node) = self.context.scope.node() {
            self.emit(node_reference(node), &STORAGE, change);
        }
    }

    fn emit(&self, about: ObjectReference, words: &Words, change: Change) {
        let events = &self.context.events;
        match change {
            Change::Abnormal(message) => {
                events.emit(about, EventKind::Warning, words.abnormal, message);
            }
            Change::Normal => {
                let message = format!("The {} is well again", words.noun);
                events.emit(about, EventKind::Normal, words.normal, message);
            }
        }
    }

    fn timeout(&self) -> Duration {
        self.context.common.timeout.unwrap_or(TIMEOUT)
    }
}

/// The findings of one volume; `None` if the call failed.
async fn get_one(csi: Csi, timeout: Duration, handle: String) -> Option<(String, Vec<Finding>)> {
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: handle.clone(),
        ..csi::ControllerGetVolumeHealthRequest::default()
    };
    match csi.controller_get_volume_health(request, timeout).await {
        Ok(answer) => {
            let statuses = answer.volume_health.unwrap_or_default().health_statuses;
            Some((handle, statuses.into_iter().map(Finding::from).collect()))
        }
        Err(failure) if failure.code() == Code::NotFound => {
            Some((handle, vec![Finding::volume_not_found()]))
        }
        Err(failure) => {
            tracing::warn!(volume = handle, %failure, "cannot read a volume's health");
            None
        }
    }
}

/// The driver's volumes that are bound and within the scope.
fn served(context: &Context) -> Vec<Volume> {
    let (volumes, driver) = (context.caches.volumes().each(), &context.driver.name);
    volumes
        .filter_map(|volume| Volume::bound(&volume, driver).filter(|_| context.may_have(&volume)))
        .collect()
}

fn ticks(interval: Duration) -> tokio::time::Interval {
    // `tokio::time::interval` panics on a period of zero.
    let mut ticks = tokio::time::interval(interval.max(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests;
