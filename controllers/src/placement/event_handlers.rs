//! Watch events that queue claims, volumes, attachments and contents for a reconcile.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;
use tokio::time::Instant;

use super::labels::of_attachment;
use super::{Placement, RESYNC, room};
use crate::api::capacity::keeper_of;
use crate::api::pvc::{self, DataSource};
use crate::api::scope::{MANAGED_BY, NODE_LABEL};
use crate::api::{node_fitness, pv};
use crate::cache::Change;
use crate::client::Resource;
use crate::controller::workers::PLACEMENT_WORKERS;
use crate::controller::{Context, Controller, ObjectKey, pause};
use crate::csi::pools;
use crate::provisioner::source_protection;
use crate::queue::{Outcome, Queue, QueueKey};

/// Minimum time between two reconciles of a waiting claim, or of all objects: changes are
/// frequent.
const PACE: Duration = Duration::from_secs(1);

/// Minimum time between two changes of a node's pools after which objects are looked at. A stolen
/// node may change its pools all the time.
const POOLS_PACE: Duration = Duration::from_secs(60);

/// The time between two of the waiting claims.
const EACH: Duration = Duration::from_millis(5);

/// Work queues, by key.
#[derive(Clone)]
pub(super) struct Queues {
    /// Claims, by UID.
    claims: Queue<ObjectKey>,
    /// Claims that no node fitted, by UID: there may be more room.
    unschedulable: Queue<ObjectKey>,
    /// Sources that claims wait for, by key.
    sources: Queue<ObjectKey>,
    /// Changed StorageClasses, by name.
    classes: Queue<ObjectKey>,
    /// Nodes with changed pools, by the label of their capacity objects.
    pools: Queue<ObjectKey>,
    /// Changed PersistentVolumes, by name: their namespaces are not known yet.
    changed_volumes: Queue<ObjectKey>,
    /// PersistentVolumes, by name.
    volumes: Queue<ObjectKey>,
    /// VolumeAttachments without the right label, by name.
    attachments: Queue<ObjectKey>,
    /// Handles of PersistentVolumes that are new.
    handles: Queue<ObjectKey>,
    /// VolumeSnapshotContents, by name.
    contents: Queue<ObjectKey>,
    /// VolumeGroupSnapshotContents, by name.
    groups: Queue<ObjectKey>,
}

impl Placement {
    /// Registers watch handlers. They only queue keys or notify a waiting task.
    pub(super) fn listen(self: &Arc<Self>) {
        let (caches, queues) = (&self.context.caches, &self.queues);
        let to = queues.clone();
        caches.claims().on_change(move |change| to.claim(change));
        let (to, driver) = (queues.clone(), self.context.driver.name.clone());
        caches
            .volumes()
            .on_change(move |change| to.volume(change, &driver));
        if self.options.attachments {
            let (to, driver) = (queues.attachments.clone(), self.context.driver.name.clone());
            let volumes = caches.volumes();
            caches.attachments().on_change(move |change| {
                if of_attachment(change.object(), &driver).is_some() {
                    to.add(ObjectKey::of_attachment(change.object(), &volumes));
                }
            });
        }
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
        if self.contents.is_some() {
            let (contents, sources) = (queues.contents.clone(), queues.sources.clone());
            caches.contents().on_change(move |change| {
                let content = change.object();
                contents.add(ObjectKey::of_content(&**content));
                let of = &content.spec.volume_snapshot_ref;
                if let Some(name) = of.name.clone() {
                    add_source(&sources, of.namespace.clone(), &DataSource::Snapshot(name));
                }
            });
        }
        if self.groups.is_some() {
            let groups = queues.groups.clone();
            caches
                .group_contents()
                .on_change(move |change| groups.add(ObjectKey::of_content(&**change.object())));
        }
        self.listen_to_nodes();
    }

    /// Registers handlers for nodes, CSINodes and capacity objects: changes there affect all
    /// waiting claims.
    fn listen_to_nodes(self: &Arc<Self>) {
        let caches = &self.context.caches;
        let this = self.clone();
        caches.nodes().on_change(move |change| this.node(change));
        let this = self.clone();
        caches
            .csi_nodes()
            .on_change(move |_| this.wake.notify_one());
        if let Some(capacities) = &self.capacities {
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
        match change {
            Change::Applied {
                old: Some(old),
                new,
            } => {
                if !node_fitness::is_same(old, new) {
                    self.wake.notify_one();
                }
                if old.labels() != new.labels() {
                    self.resync.notify_one();
                }
            }
            Change::Applied { old: None, .. } | Change::Deleted(_) => {
                self.wake.notify_one();
                self.resync.notify_one();
            }
        }
    }

    fn capacity(&self, change: &Change<CSIStorageCapacity>) {
        let Change::Applied { old, new } = change else {
            return;
        };
        let named = pools::named_by(new);
        let before = old.as_deref().map(pools::named_by).unwrap_or_default();
        let keeper = keeper_of(new);
        if named != before {
            let keeper = keeper.unwrap_or_default();
            self.queues.pools.add(ObjectKey::new(None, keeper));
        }
        let more = room::is_more(old.as_deref(), new);
        let reserved = keeper.is_some_and(|keeper| self.has_reservations(keeper));
        if more || reserved {
            self.wake.notify_one();
        }
    }

    /// True if a node has reservations: its new capacity object may settle some of them.
    fn has_reservations(&self, keeper: &str) -> bool {
        let node = self.keepers.get(keeper).pop();
        node.is_some_and(|node| self.reservations.lock().has_reservations(&node.name_any()))
    }

    /// Runs the workers until `context.stop`.
    pub(super) async fn work(self: Arc<Self>) {
        let controller = Controller::new(&self.context, self.clone());
        let controller = self.work_on_claims(controller);
        self.work_on_labels(controller)
            .beside(|this| async move { this.refresh().await })
            .beside(|this| async move { this.label_after_pools().await })
            .beside(|this| async move { this.wake_waiting().await })
            .beside(|this| async move { this.keep_table().await })
            .run()
            .await;
    }

    /// Works on claims, and on what decides where they go.
    fn work_on_claims(&self, controller: Controller<Self>) -> Controller<Self> {
        let workers = self.context.common.workers(PLACEMENT_WORKERS);
        let queues = &self.queues;
        controller
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
            .work(
                "placement-pools",
                &queues.pools,
                1,
                |this, key: ObjectKey| async move { this.on_pools(key.name()) },
            )
            .work(
                "placement-changed-volumes",
                &queues.changed_volumes,
                1,
                |this, key: ObjectKey| async move { this.on_volume(key.name()) },
            )
    }

    /// Works on the labels of other objects.
    fn work_on_labels(&self, controller: Controller<Self>) -> Controller<Self> {
        let workers = self.context.common.workers(PLACEMENT_WORKERS);
        let queues = &self.queues;
        controller
            .work(
                "placement-volumes",
                &queues.volumes,
                workers,
                |this, key: ObjectKey| async move { this.volume_label(key.name()).await },
            )
            .work(
                "placement-attachments",
                &queues.attachments,
                workers,
                |this, key: ObjectKey| async move { this.attachment_label(key.name()).await },
            )
            .work(
                "placement-handles",
                &queues.handles,
                1,
                |this, key: ObjectKey| async move { this.on_handle(key.name()).await },
            )
            .work(
                "placement-contents",
                &queues.contents,
                workers,
                |this, key: ObjectKey| async move { this.content_label(key.name()).await },
            )
            .work(
                "placement-groupcontents",
                &queues.groups,
                workers,
                |this, key: ObjectKey| async move { this.group_label(key.name()).await },
            )
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

    /// Notes that the pools of a node have changed, unless they did so a moment ago.
    fn on_pools(&self, keeper: &str) -> Outcome {
        let now = Instant::now();
        let mut changed = self.pools_changed.lock();
        changed.retain(|_, at| now.saturating_duration_since(*at) < POOLS_PACE);
        if let Some(at) = changed.get(keeper) {
            return Outcome::RequeueAfter((*at + POOLS_PACE).saturating_duration_since(now));
        }
        changed.insert(keeper.to_owned(), now);
        self.unlabelled.notify_one();
        Outcome::Done
    }

    fn on_volume(&self, name: &str) -> Outcome {
        if let Some(volume) = self.context.caches.volumes().get(name) {
            self.queues.volumes.add(self.volume_key(&volume));
        }
        Outcome::Done
    }

    /// The key of a volume. A stolen node can name claims of any namespaces, and each namespace has
    /// its turn. So volumes for claims that do not exist are of no namespace.
    pub(super) fn volume_key(&self, volume: &PersistentVolume) -> ObjectKey {
        let (key, uid) = (ObjectKey::of_volume(volume), pv::claim_uid(volume));
        let named = pv::claim(volume).and_then(|claim| claim.name.as_deref());
        let claims = self.context.caches.claims();
        let claim = named.and_then(|named| claims.get_in(key.namespace(), named));
        let is_there =
            claim.is_some_and(|claim| uid.is_none() || claim.metadata.uid.as_deref() == uid);
        if is_there {
            key
        } else {
            ObjectKey::new(None, key.name())
        }
    }

    /// Queues the contents made from a new volume: its node may be their label.
    async fn on_handle(&self, handle: &str) -> Outcome {
        if let Some(contents) = &self.contents {
            let made = contents.get(handle).into_iter();
            self.queues
                .contents
                .add_each(made.map(|made| ObjectKey::of_content(&*made)))
                .await;
        }
        if let Some(groups) = &self.groups {
            let made = groups.get(handle).into_iter();
            self.queues
                .groups
                .add_each(made.map(|made| ObjectKey::of_content(&*made)))
                .await;
        }
        Outcome::Done
    }

    /// Queues all objects every resync period, and after changes of nodes.
    async fn refresh(&self) {
        let period = self.context.common.resync_period.unwrap_or(RESYNC);
        loop {
            tokio::select! {
                () = self.resync.notified() => {}
                () = pause(period) => {}
            }
            self.add_all().await;
            tokio::time::sleep(PACE).await;
        }
    }

    /// Queues what has no label yet, after changes of pools: its node may be known now.
    async fn label_after_pools(&self) {
        loop {
            self.unlabelled.notified().await;
            self.add_located(false).await;
            tokio::time::sleep(PACE).await;
        }
    }

    async fn add_all(&self) {
        self.reservations.lock().settle(Instant::now());
        let (caches, queues) = (&self.context.caches, &self.queues);
        let claims = caches.claims().each();
        queues
            .claims
            .add_each(claims.filter_map(|claim| ObjectKey::of_claim(&claim)))
            .await;
        if self.options.attachments {
            let (driver, volumes) = (&self.context.driver.name, caches.volumes());
            let unlabelled = caches.attachments().each().filter_map(|one| {
                of_attachment(&one, driver)
                    .is_some()
                    .then(|| ObjectKey::of_attachment(&one, &volumes))
            });
            queues.attachments.add_each(unlabelled).await;
        }
        self.add_located(true).await;
    }

    /// Queues volumes and contents, because their nodes may depend on pools. If `all` is not set,
    /// only those without a label.
    async fn add_located(&self, all: bool) {
        let (caches, queues) = (&self.context.caches, &self.queues);
        let driver = &self.context.driver.name;
        let volumes = caches.volumes().each().filter_map(|volume| {
            let is_due = all || !volume.labels().contains_key(NODE_LABEL);
            let is_ours = is_due && pv::handle(&volume, driver).is_some();
            is_ours.then(|| self.volume_key(&volume))
        });
        queues.volumes.add_each(volumes).await;
        if self.contents.is_some() {
            let keys = caches.contents().each().filter_map(|content| {
                let is_due = all || !content.labels().contains_key(MANAGED_BY);
                is_due.then(|| ObjectKey::of_content(&*content))
            });
            queues.contents.add_each(keys).await;
        }
        if self.groups.is_some() {
            let keys = caches.group_contents().each().filter_map(|content| {
                let is_due = all || !content.labels().contains_key(MANAGED_BY);
                is_due.then(|| ObjectKey::of_content(&*content))
            });
            queues.groups.add_each(keys).await;
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

impl Queues {
    pub(super) fn new(context: &Context) -> Self {
        Queues {
            claims: context.queue(),
            unschedulable: context.queue(),
            sources: context.queue(),
            classes: context.queue(),
            pools: context.queue(),
            changed_volumes: context.queue(),
            volumes: context.queue(),
            attachments: context.queue(),
            handles: context.queue(),
            contents: context.queue(),
            groups: context.queue(),
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
        let key = ObjectKey::of_volume(volume);
        let namespace = Some(key.namespace());
        if let Some(uid) = pv::claim_uid(volume) {
            self.claims.add(ObjectKey::new(namespace, uid));
        }
        let Some(handle) = pv::handle(volume, driver) else {
            return;
        };
        if let Change::Applied { old, .. } = change {
            if old.is_none() {
                self.handles.add(ObjectKey::new(namespace, handle));
            }
            self.changed_volumes.add(ObjectKey::new(None, key.name()));
        }
        let claim = pv::claim(volume).cloned();
        if let Some(claim) =
            claim.filter(|_| !matches!(change, Change::Applied { old: Some(_), .. }))
        {
            let requested = DataSource::Claim(claim.name.unwrap_or_default());
            add_source(&self.sources, claim.namespace, &requested);
        }
    }

    async fn add_claims(&self, claims: impl Iterator<Item = Arc<PersistentVolumeClaim>>) {
        let keys = claims.filter_map(|claim| ObjectKey::of_claim(&claim));
        self.claims.add_each(keys).await;
    }
}

/// True if a change concerns nothing that placement reads. The status is not read, and the cluster
/// writes one or two for each object that is bound.
fn says_nothing_new<K: Resource, S: PartialEq>(change: &Change<K>, spec: fn(&K) -> &S) -> bool {
    let Change::Applied {
        old: Some(old),
        new,
    } = change
    else {
        return false;
    };
    spec(old) == spec(new)
        && old.labels() == new.labels()
        && old.annotations() == new.annotations()
        && old.meta().deletion_timestamp == new.meta().deletion_timestamp
}

fn add_source(sources: &Queue<ObjectKey>, namespace: Option<String>, requested: &DataSource) {
    let namespace = namespace.unwrap_or_default();
    if let Some(key) = source_protection::key(&namespace, requested) {
        sources.add(ObjectKey::new(Some(&namespace), &key));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{read, with};

    #[test]
    fn what_is_looked_at() {
        let was = json!({
            "metadata": {"name": "c", "resourceVersion": "1", "annotations": {"a": "1"}},
            "spec": {"storageClassName": "now"}, "status": {"phase": "Pending"},
        });
        let claim = |change: Value| -> Arc<PersistentVolumeClaim> {
            Arc::new(read(with(was.clone(), change)))
        };
        let status = json!({"metadata": {"resourceVersion": "2"}, "status": {"phase": "Bound"}});
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (what, change, nothing) in [
            ("its status", status, true),
            ("its volume", json!({"spec": {"volumeName": "v"}}), false),
            (
                "a label",
                json!({"metadata": {"labels": {"l": "1"}}}),
                false,
            ),
            (
                "an annotation",
                json!({"metadata": {"annotations": {"a": null}}}),
                false,
            ),
            ("its end", deleted, false),
        ] {
            let change = Change::Applied {
                old: Some(claim(json!({}))),
                new: claim(change),
            };
            assert_eq!(says_nothing_new(&change, |c| &c.spec), nothing, "{what}");
        }
        let (old, new) = (None, claim(json!({})));
        for change in [
            Change::Applied {
                old,
                new: new.clone(),
            },
            Change::Deleted(new),
        ] {
            assert!(!says_nothing_new(&change, |c| &c.spec), "{change:?}");
        }
    }
}
