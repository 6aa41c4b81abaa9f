//! Selects nodes for claims and labels objects by node, where every node has its own
//! controllers.
//!
//! The leader does this, because it sees the whole cluster:
//!
//! - **Assignment.** A claim with immediate binding gets the node with the most room: the room in
//!   the node's capacity object ([`room`]) minus the assignments since ([`reservations`]). A claim
//!   with a source gets the node of the source. This also applies to late binding, before the
//!   scheduler chooses: capacity objects can't say where a snapshot is.
//! - **Labels.** Claims, volumes and attachments get the label `hostloop.csi.dev/node`, contents of
//!   snapshots `managed-by`, so that nodes can watch their own objects. Labels are filters: the
//!   selected node, the affinity and `spec.nodeName` decide. The resync also labels older and
//!   static objects.
//! - **The placement table.** With it, an admission policy can make the API server place claims
//!   with immediate binding ([`table`]).
//!
//! | A claim of this driver, without a volume | then |
//! |---|---|
//! | immediate binding, not yet handed to the driver | nothing |
//! | no source, late binding | nothing; the label, once a node is selected |
//! | no source, immediate binding | the node with the most room; if none: an event, then a retry |
//! | a source on one node | that node, even if another was selected |
//! | a source in reach of several nodes | immediate: one of them; late: the scheduler's choice |
//! | a source not known yet | wait for it |
//! | a source on a node that is gone, not ready or not allowed | an event; a retry on a change |
//! | a selected node that can't be, or that never ran the driver | an event; it is removed |
//! | the selected node was removed | it had no room: select another node, retry that one later |

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::api::capacity::managed_by;
use crate::api::object_name::VolumeNaming;
use crate::api::{node_fitness as fitness, pv, pvc};
use crate::cache::{Change, Index, Store};
use crate::client::{Kube, Resource};
use crate::controller::{Context, ObjectKey};
use crate::csi::driver::ControllerCapability;
use crate::provisioner::source_protection;
use crate::snapshots::{VolumeGroupSnapshotContent, VolumeSnapshotContent};
use labels::Unlocated;

mod apply;
mod capacities;
mod claim_label;
mod decide;
mod event_handlers;
mod follow_source;
mod foreign;
mod gather;
mod group;
mod keep_table;
mod labels;
mod metrics;
mod most_room;
mod reservations;
mod room;
mod source_location;
mod table;
mod unfit;

pub use keep_table::TableName;
pub use metrics::Metrics;

use capacities::Capacities;
use decide::Settings;
use event_handlers::Queues;
use most_room::Candidate;
use reservations::Reservations;

/// Default period between two reconciles of all objects.
const RESYNC: Duration = Duration::from_secs(15 * 60);

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

/// The nodes that claims of a class may go to, cached until something changes.
struct Candidates {
    /// Value of [`Placement::changes`] when the nodes were collected.
    at: u64,
    nodes: Arc<[Candidate]>,
}

/// Placement during one term as leader: indexes of the caches, what this term has decided and seen,
/// and what wakes it. One type holds them, because a claim's node follows from all of them, and all
/// of them end with the term.
struct Placement {
    context: Context,
    options: Options,
    /// API client with placement's own field manager.
    kube: Kube,
    /// `None` if nodes publish no capacity.
    capacities: Option<Capacities>,
    /// Candidate nodes by class.
    candidates: Mutex<HashMap<String, Candidates>>,
    /// Counts changes that candidates depend on.
    changes: Arc<AtomicU64>,
    /// Nodes by the `managed-by` label of their capacity objects.
    keepers: Index<Node>,
    /// Claims by UID.
    claims: Index<PersistentVolumeClaim>,
    /// Claims without a volume by class.
    by_class: Index<PersistentVolumeClaim>,
    /// Claims by the source they wait for.
    awaited: Index<PersistentVolumeClaim>,
    /// Volumes by the UIDs of their claims.
    volumes: Index<PersistentVolume>,
    /// VolumeSnapshotContents by the handle of their source volume. `None` if the driver has no
    /// snapshots: its RBAC rules may not allow the watch.
    contents: Option<Index<VolumeSnapshotContent>>,
    /// VolumeGroupSnapshotContents by the handles of their source volumes, under the same
    /// condition.
    groups: Option<Index<VolumeGroupSnapshotContent>>,
    reservations: Mutex<Reservations>,
    /// The last event of each claim, by UID, so that it is not repeated.
    last_events: Mutex<HashMap<String, apply::LastEvent>>,
    /// Claims that no node fits at present, by UID.
    unschedulable: Mutex<HashSet<ObjectKey>>,
    /// Classes without capacity objects, with the time when this was first seen.
    unpublished: Mutex<HashMap<String, Instant>>,
    /// Contents on which no node works, by the kind of their users' objects and by name.
    unlocated: Mutex<HashMap<(&'static str, String), Unlocated>>,
    /// When the pools of nodes last changed, by the `managed-by` label of their capacity objects.
    pools_changed: Mutex<HashMap<String, Instant>>,
    /// Notified when the nodes of unlabelled objects may be known.
    unlabelled: Notify,
    /// Notified when waiting claims may fit: more capacity, or another node.
    wake: Notify,
    /// Notified when all objects must be reconciled.
    resync: Notify,
    queues: Queues,
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
    let placement = Arc::new(Placement::new(context, options, capacities));
    let synced = placement.synced();
    if stop.run_until_cancelled(synced).await.is_none() {
        return;
    }
    placement.rebuild().await;
    placement.listen();
    placement.work().await;
}

impl Placement {
    fn new(
        context: Context,
        options: Options,
        capacities: Option<Store<CSIStorageCapacity>>,
    ) -> Self {
        let caches = context.caches.clone();
        let claims = caches.claims();
        let volumes = caches.volumes();
        let changes = changes(&context, capacities.as_ref());
        Placement {
            candidates: Mutex::default(),
            changes,
            kube: context.kube.managed_by("hostloop-placement"),
            capacities: capacities.map(Capacities::new),
            keepers: caches
                .nodes()
                .index(|node| vec![managed_by(Some(&node.name_any()))]),
            claims: claims.index(|claim| claim.uid().into_iter().collect()),
            by_class: claims.index(pvc::pending_class),
            awaited: claims.index(source_protection::awaited),
            volumes: volumes.index(|volume| {
                pv::claim_uid(volume)
                    .map(str::to_owned)
                    .into_iter()
                    .collect()
            }),
            contents: context.driver.takes_snapshots().then(|| {
                caches.contents().index(|content| {
                    let handle = content.spec.source.volume_handle.clone();
                    handle.into_iter().collect()
                })
            }),
            groups: context.driver.takes_groups().then(|| {
                caches.group_contents().index(|content| {
                    let handles = content.spec.source.volume_handles.clone();
                    handles.unwrap_or_default()
                })
            }),
            reservations: Mutex::default(),
            last_events: Mutex::default(),
            unschedulable: Mutex::default(),
            unpublished: Mutex::default(),
            unlocated: Mutex::default(),
            pools_changed: Mutex::default(),
            unlabelled: Notify::new(),
            wake: Notify::new(),
            resync: Notify::new(),
            queues: Queues::new(&context),
            options,
            context,
        }
    }

    /// Waits until all caches that decisions depend on are synced.
    async fn synced(&self) {
        let caches = &self.context.caches;
        caches.claims().synced().await;
        caches.volumes().synced().await;
        caches.classes().synced().await;
        caches.nodes().synced().await;
        caches.csi_nodes().synced().await;
        // Do not wait for snapshots and groups: most claims do not use them, and the API server may
        // not serve them.
        if let Some(capacities) = &self.capacities {
            capacities.store.synced().await;
        }
    }

    /// True if the driver can make volumes from snapshots.
    fn restores(&self) -> bool {
        let driver = &self.context.driver;
        driver.can(ControllerCapability::CreateDeleteSnapshot)
    }

    fn settings(&self) -> Settings<'_> {
        let driver = &self.context.driver;
        Settings {
            driver: &driver.name,
            restores: self.restores(),
            clones: driver.can(ControllerCapability::CloneVolume),
        }
    }
}

/// Counts changes that affect where claims may go: nodes (except heartbeats), CSINodes,
/// StorageClasses and capacity objects.
fn changes(context: &Context, rooms: Option<&Store<CSIStorageCapacity>>) -> Arc<AtomicU64> {
    let changes = Arc::new(AtomicU64::new(0));
    let (counted, caches) = (changes.clone(), &context.caches);
    caches.nodes().on_change(move |change| {
        let beat = matches!(change, Change::Applied { old: Some(old), new }
            if fitness::is_same(old, new));
        if !beat {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    count(&changes, &caches.csi_nodes());
    count(&changes, &caches.classes());
    if let Some(rooms) = rooms {
        count(&changes, rooms);
    }
    changes
}

/// Counts all changes of a kind.
fn count<K: Resource>(changes: &Arc<AtomicU64>, store: &Store<K>) {
    let changes = changes.clone();
    store.on_change(move |_| {
        changes.fetch_add(1, Ordering::SeqCst);
    });
}

#[cfg(test)]
mod tests;
