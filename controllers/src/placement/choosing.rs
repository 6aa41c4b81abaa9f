//! Chooses nodes for claims: a claim with immediate binding gets the node with the most room. That is
//! the room in the node's capacity object minus the assignments since ([`reservations`]). A claim with
//! a source gets the node of the source. This also applies to late binding, before the scheduler
//! chooses: capacity objects can't say where a snapshot is.
//!
//! With the placement table, an admission policy can make the API server place claims with immediate
//! binding ([`table`]).
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

use super::placement_context::{PACE, PlacementContext, moves_objects, says_nothing_new};
use super::room;
use crate::api::capacity::keeper_of;
use crate::api::pvc::{self, DataSource};
use crate::api::{node_fitness, pv};
use crate::cache::{Change, Index, Store};
use crate::client::Resource;
use crate::controller::workers::PLACEMENT_WORKERS;
use crate::controller::{Context, Controller, ObjectKey};
use crate::csi::driver::ControllerCapability;
use crate::provisioner::source_protection;
use crate::queue::{Outcome, Queue, QueueKey};
use decide::Settings;
use most_room::Candidate;
use reservations::Reservations;

mod apply;
mod claim_label;
mod decide;
mod follow_source;
mod gather;
pub(super) mod keep_table;
mod most_room;
mod reservations;
mod table;
mod unfit;

/// The time between two of the waiting claims.
const EACH: Duration = Duration::from_millis(5);

/// The nodes that claims of a class may go to, cached until something changes.
struct Candidates {
    /// Value of [`Choosing::changes`] when the nodes were collected.
    at: u64,
    nodes: Arc<[Candidate]>,
}

/// The choice of nodes during one term as leader: indexes of the caches, what this term has decided,
/// and what wakes claims.
pub(super) struct Choosing {
    shared: Arc<PlacementContext>,
    /// Candidate nodes by class.
    candidates: Mutex<HashMap<String, Candidates>>,
    /// Counts changes that candidates depend on.
    pub(super) changes: Arc<AtomicU64>,
    /// Claims by UID.
    claims: Index<PersistentVolumeClaim>,
    /// Claims without a volume by class.
    by_class: Index<PersistentVolumeClaim>,
    /// Claims by the source they wait for.
    awaited: Index<PersistentVolumeClaim>,
    /// Volumes by the UIDs of their claims.
    volumes: Index<PersistentVolume>,
    pub(super) reservations: Mutex<Reservations>,
    /// The last event of each claim, by UID, so that it is not repeated soon.
    last_events: Mutex<HashMap<String, apply::LastEvent>>,
    /// Claims that no node fits at present, by UID.
    pub(super) unschedulable: Mutex<HashSet<ObjectKey>>,
    /// Classes without capacity objects, with the time when this was first seen.
    unpublished: Mutex<HashMap<String, Instant>>,
    /// Notified when waiting claims may fit: more capacity, or another node.
    wake: Notify,
    /// Notified when all claims must be reconciled.
    resync: Notify,
    queues: ClaimQueues,
}

/// Work queues, by key.
#[derive(Clone)]
struct ClaimQueues {
    /// Claims, by UID.
    claims: Queue<ObjectKey>,
    /// Claims that no node fitted, by UID: there may be more room.
    unschedulable: Queue<ObjectKey>,
    /// Sources that claims wait for, by key.
    sources: Queue<ObjectKey>,
    /// Changed StorageClasses, by name.
    classes: Queue<ObjectKey>,
}

impl Choosing {
    pub(super) fn new(shared: Arc<PlacementContext>) -> Self {
        let caches = &shared.context.caches;
        let claims = caches.claims();
        Choosing {
            candidates: Mutex::default(),
            changes: changes(&shared),
            claims: claims.index(|claim| claim.uid().into_iter().collect()),
            by_class: claims.index(pvc::pending_class),
            awaited: claims.index(source_protection::awaited),
            volumes: caches.volumes().index(|volume| {
                pv::claim_uid(volume)
                    .map(str::to_owned)
                    .into_iter()
                    .collect()
            }),
            reservations: Mutex::default(),
            last_events: Mutex::default(),
            unschedulable: Mutex::default(),
            unpublished: Mutex::default(),
            wake: Notify::new(),
            resync: Notify::new(),
            queues: ClaimQueues::new(&shared.context),
            shared,
        }
    }

    /// True if the driver can make volumes from snapshots.
    fn restores(&self) -> bool {
        let driver = &self.shared.context.driver;
        driver.can(ControllerCapability::CreateDeleteSnapshot)
    }

    fn settings(&self) -> Settings<'_> {
        let driver = &self.shared.context.driver;
        Settings {
            driver: &driver.name,
            restores: self.restores(),
            clones: driver.can(ControllerCapability::CloneVolume),
        }
    }

    /// Registers watch handlers. They only queue keys or notify a waiting task.
    pub(super) fn listen(self: &Arc<Self>) {
        let context = &self.shared.context;
        let (caches, queues) = (&context.caches, &self.queues);
        let to = queues.clone();
        caches.claims().on_change(move |change| to.claim(change));
        let (to, driver) = (queues.clone(), context.driver.name.clone());
        caches
            .volumes()
            .on_change(move |change| to.volume(change, &driver));
        let classes = queues.classes.clone();
        caches.classes().on_change(move |change| {
            classes.add(ObjectKey::new(None, &change.object().name_any()))
        });
        if self.restores() {
            let sources = queues.sources.clone();
            caches.snapshots().on_change(move |change| {
                let snapshot = change.object();
                let requested = DataSource::Snapshot(snapshot.name_any());
                add_source(&sources, snapshot.namespace(), &requested);
            });
        }
        if context.driver.takes_snapshots() {
            let sources = queues.sources.clone();
            caches.contents().on_change(move |change| {
                let of = &change.object().spec.volume_snapshot_ref;
                if let Some(name) = of.name.clone() {
                    add_source(&sources, of.namespace.clone(), &DataSource::Snapshot(name));
                }
            });
        }
        self.listen_to_nodes();
    }

    /// Registers handlers for nodes, CSINodes and capacity objects: changes there affect all
    /// waiting claims.
    fn listen_to_nodes(self: &Arc<Self>) {
        let caches = &self.shared.context.caches;
        let this = self.clone();
        caches.nodes().on_change(move |change| this.node(change));
        let this = self.clone();
        caches
            .csi_nodes()
            .on_change(move |_| this.wake.notify_one());
        if let Some(capacities) = &self.shared.capacities {
            // This owns the store, and the store its handlers: a strong reference would be a circle.
            let this = Arc::downgrade(self);
            capacities.store.on_change(move |change| {
                if let Some(this) = this.upgrade() {
                    this.capacity(change);
                }
            });
        }
    }

    fn node(&self, change: &Change<Node>) {
        if !is_heartbeat(change) {
            self.wake.notify_one();
        }
        if moves_objects(change) {
            self.resync.notify_one();
        }
    }

    fn capacity(&self, change: &Change<CSIStorageCapacity>) {
        let Change::Applied { old, new } = change else {
            return;
        };
        let more = room::is_more(old.as_deref(), new);
        let reserved = keeper_of(new).is_some_and(|keeper| self.has_reservations(keeper));
        if more || reserved {
            self.wake.notify_one();
        }
    }

    /// True if a node has reservations: its new capacity object may settle some of them.
    fn has_reservations(&self, keeper: &str) -> bool {
        let node = self.shared.keepers.get(keeper).pop();
        node.is_some_and(|node| self.reservations.lock().has_reservations(&node.name_any()))
    }

    /// Runs the workers until `context.stop`.
    pub(super) async fn work(self: Arc<Self>) {
        let context = &self.shared.context;
        let workers = context.common.workers(PLACEMENT_WORKERS);
        let queues = &self.queues;
        Controller::new(context, self.clone())
            .work(
                "placement-claims",
                &queues.claims,
                workers,
                |this, key: ObjectKey| async move { this.claim(key.name()).await },
            )
            .work(
                "placement-unschedulable",
                &queues.unschedulable,
                1,
                |this, key| async move { this.retry(key).await },
            )
            .work(
                "placement-sources",
                &queues.sources,
                1,
                |this, key: ObjectKey| async move { this.on_source(key.name()).await },
            )
            .work(
                "placement-classes",
                &queues.classes,
                1,
                |this, key: ObjectKey| async move { this.on_class(key.name()).await },
            )
            .beside(|this| async move { this.refresh().await })
            .beside(|this| async move { this.wake_waiting().await })
            .beside(|this| async move { this.keep_table().await })
            .run()
            .await;
    }

    /// Queues the claims that wait for a changed source.
    async fn on_source(&self, key: &str) -> Outcome {
        self.queues.add_claims(self.awaited.each(key)).await;
        Outcome::Done
    }

    async fn on_class(&self, name: &str) -> Outcome {
        self.queues.add_claims(self.by_class.each(name)).await;
        Outcome::Done
    }

    /// Queues all claims every resync period, and after changes of nodes.
    async fn refresh(&self) {
        loop {
            self.shared.resync_due(&self.resync).await;
            self.reservations.lock().settle(Instant::now());
            let claims = self.shared.context.caches.claims();
            self.queues.add_claims(claims.each()).await;
            tokio::time::sleep(PACE).await;
        }
    }

    /// Queues the waiting claims when there may be more room.
    async fn wake_waiting(&self) {
        loop {
            self.wake.notified().await;
            self.reservations.lock().settle(Instant::now());
            let unschedulable = self.unschedulable.lock().clone();
            self.queues.unschedulable.add_each(unschedulable).await;
            tokio::time::sleep(PACE).await;
        }
    }

    /// Queues a claim that waits for room. Many of them must not keep the process busy.
    async fn retry(&self, claim: ObjectKey) -> Outcome {
        self.queues.claims.add(claim);
        tokio::time::sleep(EACH).await;
        Outcome::Done
    }
}

impl ClaimQueues {
    fn new(context: &Context) -> Self {
        ClaimQueues {
            claims: context.queue(),
            unschedulable: context.queue(),
            sources: context.queue(),
            classes: context.queue(),
        }
    }

    fn claim(&self, change: &Change<PersistentVolumeClaim>) {
        if says_nothing_new(change, |claim| &claim.spec) {
            return;
        }
        let claim = change.object();
        self.claims.add_all(ObjectKey::of_claim(claim));
        // Other claims wait for a source claim until it is bound.
        let bound = pvc::volume_name(claim).is_some();
        let was = match change {
            Change::Applied { old, .. } => old.as_deref().and_then(pvc::volume_name).is_some(),
            Change::Deleted(_) => false,
        };
        if bound != was {
            let requested = DataSource::Claim(claim.name_any());
            add_source(&self.sources, claim.namespace(), &requested);
        }
    }

    fn volume(&self, change: &Change<PersistentVolume>, driver: &str) {
        if says_nothing_new(change, |volume| &volume.spec) {
            return;
        }
        let volume = change.object();
        if let Some(uid) = pv::claim_uid(volume) {
            let key = ObjectKey::of_volume(volume);
            self.claims.add(ObjectKey::new(Some(key.namespace()), uid));
        }
        let is_update = matches!(change, Change::Applied { old: Some(_), .. });
        if is_update || pv::handle(volume, driver).is_none() {
            return;
        }
        if let Some(claim) = pv::claim(volume).cloned() {
            let requested = DataSource::Claim(claim.name.unwrap_or_default());
            add_source(&self.sources, claim.namespace, &requested);
        }
    }

    async fn add_claims(&self, claims: impl Iterator<Item = Arc<PersistentVolumeClaim>>) {
        let keys = claims.filter_map(|claim| ObjectKey::of_claim(&claim));
        self.claims.add_each(keys).await;
    }
}

/// Counts changes that affect where claims may go: nodes (except heartbeats), CSINodes,
/// StorageClasses and capacity objects.
fn changes(shared: &PlacementContext) -> Arc<AtomicU64> {
    let changes = Arc::new(AtomicU64::new(0));
    let (counted, caches) = (changes.clone(), &shared.context.caches);
    caches.nodes().on_change(move |change| {
        if !is_heartbeat(change) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    count(&changes, &caches.csi_nodes());
    count(&changes, &caches.classes());
    if let Some(capacities) = &shared.capacities {
        count(&changes, &capacities.store);
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

/// True if a change of a node concerns nothing that claims depend on.
fn is_heartbeat(change: &Change<Node>) -> bool {
    matches!(change, Change::Applied { old: Some(old), new } if node_fitness::is_same(old, new))
}

fn add_source(sources: &Queue<ObjectKey>, namespace: Option<String>, requested: &DataSource) {
    let namespace = namespace.unwrap_or_default();
    if let Some(key) = source_protection::key(&namespace, requested) {
        sources.add(ObjectKey::new(Some(&namespace), &key));
    }
}
