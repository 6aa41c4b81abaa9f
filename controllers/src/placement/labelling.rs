//! Labels objects with their node: volumes and attachments get the label `hostloop.csi.dev/node`,
//! contents of snapshots `managed-by`, so that nodes can watch their own objects. Labels are filters:
//! the affinity and `spec.nodeName` decide. An attachment of a volume that several nodes can use has the
//! label of the node that has the volume. That volume's label names the node that made it, so one that
//! contradicts the handle is not corrected. The resync also labels older and static objects.
//!
//! The label of a claim is written with its node ([`choosing`](super::choosing)).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::placement_context::{PACE, PlacementContext, moves_objects, says_nothing_new};
use crate::api::capacity::keeper_of;
use crate::api::pv;
use crate::api::scope::{MANAGED_BY, NODE_LABEL};
use crate::cache::{Change, Index};
use crate::controller::workers::PLACEMENT_WORKERS;
use crate::controller::{Context, Controller, ObjectKey};
use crate::csi::pools;
use crate::queue::{Outcome, Queue, QueueKey};
use crate::snapshots::{VolumeGroupSnapshotContent, VolumeSnapshotContent};
use labels::{Unlocated, may_lack_label};

mod foreign;
mod group;
mod labels;

/// Minimum time between two changes of a node's pools after which objects are looked at. A stolen
/// node may change its pools all the time.
const POOLS_PACE: Duration = Duration::from_secs(60);

/// The labels of objects during one term as leader.
pub(super) struct Labelling {
    shared: Arc<PlacementContext>,
    /// VolumeSnapshotContents by the handle of their source volume. `None` if the driver has no
    /// snapshots: its RBAC rules may not allow the watch.
    contents: Option<Index<VolumeSnapshotContent>>,
    /// VolumeGroupSnapshotContents by the handles of their source volumes, under the same
    /// condition.
    groups: Option<Index<VolumeGroupSnapshotContent>>,
    /// PersistentVolumes that all nodes of a kernel can use, by name.
    shared_volumes: Index<PersistentVolume>,
    /// VolumeAttachments by the name of their PersistentVolume, if nodes attach volumes.
    attachments: Option<Index<VolumeAttachment>>,
    /// Contents on which no node works, by the kind of their users' objects and by name.
    unlocated: Mutex<HashMap<(&'static str, String), Unlocated>>,
    /// When the pools of nodes last changed, by the `managed-by` label of their capacity objects.
    pools_changed: Mutex<HashMap<String, Instant>>,
    /// Notified when the nodes of unlabelled objects may be known.
    unlabelled: Notify,
    /// Notified when all objects must be reconciled.
    resync: Notify,
    queues: LabelQueues,
}

/// Work queues, by key.
#[derive(Clone)]
struct LabelQueues {
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

impl Labelling {
    pub(super) fn new(shared: Arc<PlacementContext>) -> Self {
        let context = &shared.context;
        let (driver, caches) = (&context.driver, &context.caches);
        Labelling {
            contents: driver.takes_snapshots().then(|| {
                caches.contents().index(|content| {
                    let handle = content.spec.source.volume_handle.clone();
                    handle.into_iter().collect()
                })
            }),
            groups: driver.takes_groups().then(|| {
                caches.group_contents().index(|content| {
                    let handles = content.spec.source.volume_handles.clone();
                    handles.unwrap_or_default()
                })
            }),
            shared_volumes: caches.volumes().index(|volume| {
                let name = pv::is_shared(volume).then(|| volume.name_any());
                name.into_iter().collect()
            }),
            attachments: shared.options.attachments.then(|| {
                caches.attachments().index(|attachment| {
                    let volume = &attachment.spec.source.persistent_volume_name;
                    volume.iter().cloned().collect()
                })
            }),
            unlocated: Mutex::default(),
            pools_changed: Mutex::default(),
            unlabelled: Notify::new(),
            resync: Notify::new(),
            queues: LabelQueues::new(context),
            shared,
        }
    }

    /// Registers watch handlers. They only queue keys or notify a waiting task.
    pub(super) fn listen(self: &Arc<Self>) {
        let context = &self.shared.context;
        let (caches, queues) = (&context.caches, &self.queues);
        let (to, driver) = (queues.clone(), context.driver.name.clone());
        caches
            .volumes()
            .on_change(move |change| to.volume(change, &driver));
        if self.shared.options.attachments {
            let (to, driver) = (queues.attachments.clone(), context.driver.name.clone());
            let volumes = caches.volumes();
            let this = self.clone();
            caches.attachments().on_change(move |change| {
                let attachment = change.object();
                if may_lack_label(attachment, &driver)
                    || this.shared_volume_of(attachment).is_some()
                {
                    to.add(ObjectKey::of_attachment(attachment, &volumes));
                }
            });
        }
        if self.contents.is_some() {
            let contents = queues.contents.clone();
            caches
                .contents()
                .on_change(move |change| contents.add(ObjectKey::of_content(&**change.object())));
        }
        if self.groups.is_some() {
            let groups = queues.groups.clone();
            caches
                .group_contents()
                .on_change(move |change| groups.add(ObjectKey::of_content(&**change.object())));
        }
        let this = self.clone();
        caches.nodes().on_change(move |change| {
            if moves_objects(change) {
                this.resync.notify_one();
            }
        });
        if let Some(capacities) = &self.shared.capacities {
            let to = queues.pools.clone();
            capacities.store.on_change(move |change| {
                let Change::Applied { old, new } = change else {
                    return;
                };
                let before = old.as_deref().map(pools::named_by).unwrap_or_default();
                if pools::named_by(new) != before {
                    to.add(ObjectKey::new(None, keeper_of(new).unwrap_or_default()));
                }
            });
        }
    }

    /// Runs the workers until `context.stop`.
    pub(super) async fn work(self: Arc<Self>) {
        let context = &self.shared.context;
        let workers = context.common.workers(PLACEMENT_WORKERS);
        let queues = &self.queues;
        Controller::new(context, self.clone())
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
                |this, key: ObjectKey| async move { this.on_volume(key.name()).await },
            )
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
            .beside(|this| async move { this.refresh().await })
            .beside(|this| async move { this.label_after_pools().await })
            .run()
            .await;
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

    async fn on_volume(&self, name: &str) -> Outcome {
        let volumes = self.shared.context.caches.volumes();
        let Some(volume) = volumes.get(name) else {
            return Outcome::Done;
        };
        self.queues.volumes.add(self.volume_key(&volume));
        // An attachment may have come before its volume.
        if pv::is_shared(&volume)
            && let Some(attachments) = &self.attachments
        {
            let its = attachments.get(name).into_iter();
            let keys = its.map(|one| ObjectKey::of_attachment(&one, &volumes));
            self.queues.attachments.add_each(keys).await;
        }
        Outcome::Done
    }

    /// The key of a volume. A stolen node can name claims of any namespaces, and each namespace has
    /// its turn. So volumes for claims that do not exist are of no namespace.
    pub(super) fn volume_key(&self, volume: &PersistentVolume) -> ObjectKey {
        let (key, uid) = (ObjectKey::of_volume(volume), pv::claim_uid(volume));
        let named = pv::claim(volume).and_then(|claim| claim.name.as_deref());
        let claims = self.shared.context.caches.claims();
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
        loop {
            self.shared.resync_due(&self.resync).await;
            if self.shared.options.attachments {
                self.add_attachments().await;
            }
            self.add_located(true).await;
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

    async fn add_attachments(&self) {
        let context = &self.shared.context;
        let (driver, volumes) = (&context.driver.name, context.caches.volumes());
        let unlabelled = context.caches.attachments().each().filter_map(|one| {
            let is_due = may_lack_label(&one, driver) || self.shared_volume_of(&one).is_some();
            is_due.then(|| ObjectKey::of_attachment(&one, &volumes))
        });
        self.queues.attachments.add_each(unlabelled).await;
    }

    /// Queues volumes and contents, because their nodes may depend on pools. If `all` is not set,
    /// only those without a label.
    async fn add_located(&self, all: bool) {
        let (caches, queues) = (&self.shared.context.caches, &self.queues);
        let driver = &self.shared.context.driver.name;
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
}

impl LabelQueues {
    fn new(context: &Context) -> Self {
        LabelQueues {
            pools: context.queue(),
            changed_volumes: context.queue(),
            volumes: context.queue(),
            attachments: context.queue(),
            handles: context.queue(),
            contents: context.queue(),
            groups: context.queue(),
        }
    }

    fn volume(&self, change: &Change<PersistentVolume>, driver: &str) {
        let Change::Applied { old, new } = change else {
            return;
        };
        let Some(handle) = pv::handle(new, driver) else {
            return;
        };
        if says_nothing_new(change, |volume| &volume.spec) {
            return;
        }
        let key = ObjectKey::of_volume(new);
        if old.is_none() {
            let namespace = Some(key.namespace());
            self.handles.add(ObjectKey::new(namespace, handle));
        }
        self.changed_volumes.add(ObjectKey::new(None, key.name()));
    }
}
