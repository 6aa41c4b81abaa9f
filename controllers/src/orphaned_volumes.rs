//! Finds volumes of this node that no object names.
//!
//! Two events leave such volumes: a process dies between two steps, or a node comes back after it
//! was counted as lost. So each node regularly compares the driver's volumes with the cluster's
//! objects:
//!
//! - A volume that is published to this node, without a VolumeAttachment and without being staged,
//!   is unpublished. So is a shared volume of this node that is published to any node without one: it
//!   is staged for as long as it is published.
//! - A volume without a PersistentVolume is an orphan. It is counted and reported by an event at
//!   the node. It may hold data, so it is kept.
//! - An orphan that was made for a deleted claim and never held data is deleted. A copy holds data
//!   from its creation, so it is kept, and so is a volume that was published or staged once. Only
//!   the driver knows this, so the driver must run in this process.
//!
//! A cache miss only raises a suspicion. Before acting, and after a grace period, the process asks
//! the API server itself.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::api::duration;
use crate::api::object_name::VolumeNaming;
use crate::cache::store::fraction;
use crate::client::{ApiError, Kube};
use crate::controller::grace_period::GracePeriod;
use crate::controller::{Context, about};
use crate::csi::driver::ControllerCapability as Can;
use crate::csi::{Failure, ListError, Published, list};

mod apply;
mod decide;
mod gather;
mod inventory;
mod publications;

pub use inventory::{Inventory, InventoryEntry};

use decide::Publication;

/// Default timeout of a CSI call.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum delay before the first scan, so that nodes do not all start at once.
const FIRST: Duration = Duration::from_secs(10);
/// How long to trust that a volume has an object which the API server has but the cache lacks.
const CONFIRMED: Duration = Duration::from_secs(3600);

/// Orphan flags of the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Orphans")]
pub struct Options {
    /// How long a volume must be without an object before it is reported, unpublished or, if it
    /// never held data, deleted
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    pub orphan_grace: Duration,

    /// How often the volumes on this node are compared with the cluster's objects
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration::parse)]
    pub orphan_interval: Duration,
}

/// Metrics of orphaned volumes.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    orphans: Gauge,
}

impl Metrics {
    /// Registers the gauge.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "hostloop_orphaned_volumes",
            "Volumes of this node that no PersistentVolume names",
            self.orphans.clone(),
        );
    }
}

/// Dependencies and settings of the loop.
#[derive(Clone)]
pub(crate) struct ScanSettings {
    pub(crate) options: Options,
    pub(crate) naming: VolumeNaming,
    /// Maximum entries in one page of ListVolumes; 0 means no limit.
    pub(crate) max_entries: u32,
    pub(crate) inventory: Inventory,
    pub(crate) metrics: Metrics,
}

/// Why a scan failed.
#[derive(Debug, thiserror::Error)]
enum ScanError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    Call(#[from] Failure),
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("cannot read the volumes that the driver has: {0}")]
    Inventory(String),
}

struct Scanner {
    context: Context,
    kube: Kube,
    settings: ScanSettings,
    timeout: Duration,
    without_pv: GracePeriod<String>,
    stale_publications: GracePeriod<Publication>,
    /// Volumes with an object that the cache lacks, and when the API server returned that object.
    confirmed: BTreeMap<String, Instant>,
    /// The orphans in the last report.
    reported: BTreeSet<String>,
}

/// Scans repeatedly until `context.stop`.
pub(crate) async fn run(context: Context, settings: ScanSettings) -> Result<(), Infallible> {
    let mut scanner = Scanner::new(context.clone(), settings);
    let stop = context.stop.clone();
    let interval = scanner.settings.options.orphan_interval;
    let looking = async {
        scanner.synced().await;
        tokio::time::sleep(FIRST.min(interval).mul_f64(fraction())).await;
        loop {
            if let Err(error) = scanner.scan().await {
                tracing::warn!(%error, "the scan for orphaned volumes failed");
            }
            tokio::time::sleep(scanner.wait()).await;
        }
    };
    stop.run_until_cancelled(looking).await;
    Ok(())
}

impl Scanner {
    fn new(context: Context, settings: ScanSettings) -> Self {
        Scanner {
            kube: context.kube.managed_by("hostloop-orphans"),
            timeout: context.common.timeout.unwrap_or(TIMEOUT),
            context,
            settings,
            without_pv: GracePeriod::default(),
            stale_publications: GracePeriod::default(),
            confirmed: BTreeMap::new(),
            reported: BTreeSet::new(),
        }
    }

    /// True if the driver reports which volumes are published to which node.
    fn attaches(&self) -> bool {
        let needed = [
            Can::PublishUnpublishVolume,
            Can::ListVolumes,
            Can::ListVolumesPublishedNodes,
        ];
        needed.into_iter().all(|one| self.context.driver.can(one))
    }

    async fn synced(&self) {
        self.context.caches.volumes().synced().await;
        if self.attaches() {
            self.context.caches.attachments().synced().await;
        }
    }

    /// Time until the next scan: about the interval, or less if a grace period ends before.
    fn wait(&self) -> Duration {
        let Options {
            orphan_grace: grace,
            orphan_interval: interval,
        } = self.settings.options;
        let about = about(interval.max(Duration::from_secs(1)));
        let now = Instant::now();
        let ends = [
            self.without_pv.next(now, grace),
            self.stale_publications.next(now, grace),
        ];
        let next = ends.into_iter().flatten().min();
        next.map_or(about, |next| about.min(next - now))
    }

    /// Scans once.
    async fn scan(&mut self) -> Result<(), ScanError> {
        let csi = &self.context.driver.csi;
        let listed = list::published(csi, self.settings.max_entries, self.timeout).await?;
        let inventory = self.inventory()?;
        if let (Some(inventory), true) = (&inventory, self.attaches()) {
            self.publications(&listed, inventory).await?;
        }
        self.volumes(&listed, inventory.as_ref()).await
    }

    /// Reports volumes without a PersistentVolume, and deletes those that never held data.
    async fn volumes(
        &mut self,
        listed: &Published,
        inventory: Option<&BTreeMap<String, InventoryEntry>>,
    ) -> Result<(), ScanError> {
        let now = Instant::now();
        self.confirmed.retain(|_, since| now - *since < CONFIRMED);
        let suspects = decide::without_object(listed, inventory, |id| {
            self.confirmed.contains_key(id) || !self.with_handle(id).is_empty()
        });
        let due = self
            .without_pv
            .due(suspects, now, self.settings.options.orphan_grace);
        if due.is_empty() {
            self.report(BTreeSet::new());
            return Ok(());
        }
        let has_empty = due.iter().any(|id| {
            let volume = inventory.and_then(|inventory| inventory.get(id));
            volume.is_some_and(|one| decide::claim_of_empty(one, &self.settings.naming).is_some())
        });
        let facts = self.gather(has_empty).await?;
        let mut orphans = BTreeSet::new();
        for id in due {
            if facts.handles.contains(&id) {
                self.confirmed.insert(id.clone(), now);
                self.without_pv.forget(&id);
            } else if !self.deleted(&id, &facts).await? {
                orphans.insert(id);
            }
        }
        self.report(orphans);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
