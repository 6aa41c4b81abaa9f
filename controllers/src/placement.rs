//! Selects nodes for claims and labels objects by node, where every node has its own
//! controllers.
//!
//! The leader does this, because it sees the whole cluster. [`choosing`] has the claims, and
//! [`labelling`] the other objects. Both ask where data is ([`locate`], [`source_location`]).

use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;

use crate::api::object_name::VolumeNaming;
use crate::cache::Store;
use crate::controller::Context;
use crate::csi::driver::ControllerCapability;
use choosing::Choosing;
use labelling::Labelling;
use placement_context::PlacementContext;

mod capacities;
mod choosing;
mod labelling;
mod locate;
mod metrics;
mod placement_context;
mod room;
mod source_location;

pub use choosing::keep_table::TableName;
pub use metrics::Metrics;

/// Placement flags of the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Placement")]
pub struct PlacementArgs {
    /// ConfigMap in the pod's namespace in which the leader keeps the nodes for claims with
    /// immediate binding, so that the API server can place them by the policy of
    /// deploy/components/place-claims [default: none; the leader places each claim]
    #[arg(long, value_name = "NAME")]
    pub placement_table: Option<String>,
}

/// Placement configuration, from the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// True if nodes publish capacity objects.
    pub capacity: bool,
    /// True if nodes attach volumes: their attachments get labels.
    pub attachments: bool,
    pub(crate) naming: VolumeNaming,
    /// The ConfigMap with the placement table for the API server, if one is kept.
    pub table: Option<TableName>,
    /// Counters of assignments and labels.
    pub metrics: Metrics,
}

impl Options {
    /// Reads the options from the command line. The table is in `namespace`, the pod's.
    pub(crate) fn new(
        flags: &PlacementArgs,
        capacity: bool,
        attachments: bool,
        naming: VolumeNaming,
        namespace: Option<String>,
        metrics: Metrics,
    ) -> Self {
        let table = flags.placement_table.clone();
        let table = table.filter(|name| !name.is_empty()).and_then(|name| {
            if namespace.is_none() {
                tracing::warn!(
                    "--placement-table has no effect, because the pod's namespace is unknown: set \
                     POD_NAMESPACE"
                );
            }
            Some(TableName {
                namespace: namespace?,
                name,
            })
        });
        Options {
            capacity,
            attachments,
            naming,
            table,
            metrics,
        }
    }
}

/// Runs until `context.stop`. `capacities` are the capacity objects of all nodes, if they are
/// known.
pub(crate) async fn run(
    context: Context,
    options: Options,
    capacities: Option<Store<CSIStorageCapacity>>,
) {
    let stop = context.stop.clone();
    // The driver must publish capacity for placement to use it.
    let is_published = options.capacity && context.driver.can(ControllerCapability::GetCapacity);
    let capacities = capacities.filter(|_| is_published);
    let shared = Arc::new(PlacementContext::new(context, options, capacities));
    let choosing = Arc::new(Choosing::new(shared.clone()));
    let labelling = Arc::new(Labelling::new(shared.clone()));
    if stop.run_until_cancelled(shared.synced()).await.is_none() {
        return;
    }
    choosing.rebuild().await;
    choosing.listen();
    labelling.listen();
    tokio::join!(choosing.work(), labelling.work());
}

#[cfg(test)]
mod tests;
