//! The cluster's snapshot-controller. It creates contents for snapshots, binds them to each other,
//! copies their status, and deletes them. The snapshotters of the drivers take the snapshots
//! themselves.
//!
//! Another snapshot-controller may run at the same time without an election. So every write carries
//! the resourceVersion that it was decided on, and an object that exists already is used if it
//! fits.
//!
//! Each key is reconciled in steps: [`gather`] reads the caches, [`decide`] chooses the next step,
//! [`apply`] writes it. [`SnapshotKind`] contains the differences between snapshots and group
//! snapshots.

use std::convert::Infallible;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::api::{duration, pvc};
use crate::cache::{Change, Store};
use crate::client::{ApiError, Kube, Resource};
use crate::controller::workers::WORKERS;
use crate::controller::{Context, EventKey, ObjectKey, pause};
use crate::queue::{self, Outcome, Queue, yield_sometimes};
use crate::snapshot_controller::classes::ensure_classes;
use crate::snapshot_controller::crds::ensure_crds;
use crate::snapshots::content::Content;

mod apply;
mod classes;
mod crds;
mod decide;
mod embedded_object;
mod gather;
mod gone_snapshots;
mod group;
mod kind;
mod metrics;
mod names;
mod orphan;
mod report_stuck;
mod snapshot;
mod status;
mod watches;

pub use metrics::Metrics;

use gone_snapshots::GoneSnapshots;
use group::Groups;
use kind::SnapshotKind;
use snapshot::Snapshots;
use watches::Watches;

/// The wait before a failed creation of definitions or classes is repeated.
const DEFINITIONS_RETRY: Duration = Duration::from_secs(30);

/// The snapshot-controller's flags.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Snapshot controller")]
pub struct Options {
    /// Interval between resyncs of all snapshots
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = duration::parse)]
    pub snapshot_controller_resync_period: Duration,

    /// Label snapshot contents with the node of their volume, for drivers that run a snapshotter on
    /// each node
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub enable_distributed_snapshotting: bool,

    /// Create missing CustomResourceDefinitions of the snapshot kinds; existing ones stay unchanged
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub ensure_snapshot_crds: bool,

    /// Create a VolumeSnapshotClass and a VolumeGroupSnapshotClass of this name if they are
    /// missing, as default classes of the driver
    #[arg(long, value_name = "NAME")]
    pub ensure_snapshot_class: Option<String>,
}

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SnapshotKey {
    /// A VolumeSnapshot, by namespace and name.
    Snapshot(String, String),
    /// A VolumeSnapshotContent, by name.
    Content(ObjectKey),
    /// A VolumeGroupSnapshot, by namespace and name.
    Group(String, String),
    /// A VolumeGroupSnapshotContent, by name.
    GroupContent(ObjectKey),
    /// A VolumeSnapshotContent, by name, and the UID of its VolumeSnapshot, which was seen and is gone.
    Orphan(ObjectKey, String),
    /// The same for a VolumeGroupSnapshotContent.
    GroupOrphan(ObjectKey, String),
    /// A claim that is newly bound, so snapshots of it can be taken.
    Claim(String, String),
    /// A claim that may no longer need the source finalizer.
    Release(String, String),
    /// A snapshot from which a restore may have ended.
    Restored(String, String),
    /// The classes: snapshots that wait for a class may find one now.
    Classes,
}

impl EventKey for SnapshotKey {
    fn text(&self) -> String {
        match self {
            SnapshotKey::Content(content)
            | SnapshotKey::GroupContent(content)
            | SnapshotKey::Orphan(content, _)
            | SnapshotKey::GroupOrphan(content, _) => content.text(),
            SnapshotKey::Classes => "classes".to_owned(),
            SnapshotKey::Snapshot(namespace, name)
            | SnapshotKey::Group(namespace, name)
            | SnapshotKey::Claim(namespace, name)
            | SnapshotKey::Release(namespace, name)
            | SnapshotKey::Restored(namespace, name) => format!("{namespace}/{name}"),
        }
    }
}

impl queue::QueueKey for SnapshotKey {
    fn namespace(&self) -> &str {
        match self {
            SnapshotKey::Content(content)
            | SnapshotKey::GroupContent(content)
            | SnapshotKey::Orphan(content, _)
            | SnapshotKey::GroupOrphan(content, _) => queue::QueueKey::namespace(content),
            SnapshotKey::Classes => "",
            SnapshotKey::Snapshot(namespace, _)
            | SnapshotKey::Group(namespace, _)
            | SnapshotKey::Claim(namespace, _)
            | SnapshotKey::Release(namespace, _)
            | SnapshotKey::Restored(namespace, _) => namespace,
        }
    }
}

/// The reason why a reconcile ended early.
#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    #[error("another process leads")]
    NotLeading,
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The write removed the last finalizer of an object that is being deleted.
    #[error("the object is deleted")]
    Deleted,
    /// The API server accepted a write but changed nothing.
    #[error(
        "the API server dropped what was written to {kind} {name}: the cluster's definition of \
         this kind lacks a field; update the CustomResourceDefinition"
    )]
    Dropped { kind: String, name: String },
}

/// What follows a step.
enum AfterStep {
    /// Gather the facts again at once.
    Look,
    /// The key is done for now.
    End(Outcome),
}

/// Repeats what fails until it succeeds or the API server rejects it.
async fn persist<F: Future<Output = Result<(), ApiError>>>(what: &str, ensure: impl Fn() -> F) {
    while let Err(error) = ensure().await {
        tracing::warn!(%error, what, "missing objects could not be created");
        if matches!(error, ApiError::Rejected { .. }) {
            return;
        }
        tokio::time::sleep(DEFINITIONS_RETRY).await;
    }
}

/// State that all reconciles share.
#[derive(Clone)]
struct SnapshotController {
    context: Context,
    kube: Kube,
    watches: Watches,
    metrics: Metrics,
    /// Snapshots and groups that are gone. Their contents may still come.
    gone: GoneSnapshots,
    queue: Queue<SnapshotKey>,
}

/// Runs the controller until the process stops; it reconciles only while it leads.
pub async fn run(context: Context, options: Options, metrics: Metrics) -> Result<(), Infallible> {
    let watches = Watches::new(
        context.caches.clone(),
        options.enable_distributed_snapshotting,
    );
    let controller = SnapshotController {
        kube: context.kube.managed_by("hostloop-snapshot-controller"),
        queue: context.queue(),
        context,
        watches,
        metrics,
        gone: GoneSnapshots::default(),
    };
    let (context, queue) = (controller.context.clone(), controller.queue.clone());
    let workers = context.common.workers(WORKERS);
    crate::controller::Controller::new(&context, Arc::new(controller))
        .after(|this| async move {
            this.watches.synced().await;
            this.listen();
        })
        .work(
            "snapshot-controller",
            &queue,
            workers,
            |this, key| async move { this.work(key).await },
        )
        .beside(|this| async move { this.lead(&options).await })
        .run()
        .await;
    Ok(())
}

impl SnapshotController {
    /// Queues keys when something they depend on changes. The handlers outlive this run of the
    /// controller, but a closed queue takes no keys.
    fn listen(&self) {
        self.listen_to::<Snapshots>();
        self.listen_to::<Groups>();
        let queue = self.queue.clone();
        self.watches.snapshots.on_change(move |change| {
            let snapshot = change.object();
            if let Some(claim) = &snapshot.spec.source.persistent_volume_claim_name {
                let namespace = snapshot.namespace().unwrap_or_default();
                queue.add(SnapshotKey::Release(namespace, claim.clone()));
            }
        });
        let queue = self.queue.clone();
        self.watches.claims.on_change(move |change| {
            let claim = change.object();
            for (namespace, snapshot) in watches::sources(claim) {
                queue.add(SnapshotKey::Restored(namespace, snapshot));
            }
            if claim.is_deleting() && claim.has_finalizer(names::CLAIM_AS_SOURCE) {
                let namespace = claim.namespace().unwrap_or_default();
                queue.add(SnapshotKey::Release(namespace, claim.name_any()));
            }
            if is_newly_bound(change) {
                let namespace = claim.namespace().unwrap_or_default();
                queue.add(SnapshotKey::Claim(namespace, claim.name_any()));
            }
        });
    }

    fn listen_to<K: SnapshotKind>(&self) {
        let (snapshots, contents, classes) = K::watches(&self.watches);
        let (queue, metrics) = (self.queue.clone(), self.metrics.clone());
        let gone = self.gone.clone();
        snapshots.on_change(move |change| {
            if let Change::Deleted(deleted) = change {
                let uid = deleted.uid().unwrap_or_default();
                metrics.gone(K::NAMES.of, &uid);
                gone.note(&uid);
                queue.add_all(orphan::keys::<K>(kube::Resource::meta(&**deleted)));
            }
            queue.add(key_of::<K>(change.object()));
        });
        let queue = self.queue.clone();
        contents.on_change(move |change| {
            let content = change.object();
            queue.add(K::content_key(ObjectKey::of_content(&**content)));
            let reference = content.view().user;
            if let (Some(namespace), Some(name)) = (&reference.namespace, &reference.name) {
                queue.add(K::key(namespace.clone(), name.clone()));
            }
        });
        let queue = self.queue.clone();
        classes.on_change(move |_| queue.add(SnapshotKey::Classes));
    }

    /// Queues everything when this process begins to lead, and periodically after that.
    async fn lead(&self, options: &Options) {
        let mut leader = self.context.leader.clone();
        loop {
            leader.gained().await;
            let leads = async { tokio::join!(self.define(options), self.resync(options)) };
            let mut leader = leader.clone();
            tokio::select! {
                _ = leads => {}
                () = leader.lost() => {}
            }
            self.metrics.forget();
        }
    }

    /// Creates what the options require and the cluster lacks.
    async fn define(&self, options: &Options) {
        if options.ensure_snapshot_crds {
            persist("snapshot definitions", || ensure_crds(&self.kube)).await;
        }
        if let Some(name) = &options.ensure_snapshot_class {
            let driver = &self.context.driver.name;
            persist("snapshot classes", || {
                ensure_classes(&self.kube, name, driver)
            })
            .await;
        }
        self.context.caches.served().ask_again();
    }

    async fn resync(&self, options: &Options) {
        let period = options.snapshot_controller_resync_period;
        loop {
            self.queue_all::<Groups>().await;
            self.queue_all::<Snapshots>().await;
            // Include claims with deleted snapshots.
            let claims = self.watches.protected();
            let keys = claims.map(|claim| {
                SnapshotKey::Release(claim.namespace().unwrap_or_default(), claim.name_any())
            });
            self.queue.add_each(keys).await;
            let large = self.watches.claims.left_out().into_iter();
            let keys = large.map(|(namespace, claim)| SnapshotKey::Release(namespace, claim));
            self.queue.add_each(keys).await;
            pause(period).await;
        }
    }

    async fn queue_all<K: SnapshotKind>(&self) {
        let (snapshots, contents, _) = K::watches(&self.watches);
        let known = snapshots.all().into_iter();
        self.queue
            .add_each(known.map(|snapshot| key_of::<K>(&snapshot)))
            .await;
        let large = snapshots.left_out().into_iter();
        self.queue
            .add_each(large.map(|(namespace, name)| K::key(namespace, name)))
            .await;
        let contents = contents.all();
        let keys = contents
            .into_iter()
            .map(|content| ObjectKey::of_content(&*content));
        self.queue.add_each(keys.map(K::content_key)).await;
    }

    async fn work(&self, key: SnapshotKey) -> Outcome {
        if !self.context.leader.leads() {
            return Outcome::Done;
        }
        if self.concerns_group(&key) && !self.watches.has_groups() {
            return Outcome::RequeueAfter(RECHECK);
        }
        let worked = match &key {
            SnapshotKey::Snapshot(namespace, name) => {
                self.reconcile::<Snapshots>(namespace, name).await
            }
            SnapshotKey::Content(key) => self.reconcile_content::<Snapshots>(key.name()).await,
            SnapshotKey::Group(namespace, name) => self.reconcile::<Groups>(namespace, name).await,
            SnapshotKey::GroupContent(key) => self.reconcile_content::<Groups>(key.name()).await,
            SnapshotKey::Orphan(key, uid) => self.orphan::<Snapshots>(key.name(), uid).await,
            SnapshotKey::GroupOrphan(key, uid) => self.orphan::<Groups>(key.name(), uid).await,
            SnapshotKey::Release(namespace, claim) => self.release(namespace, claim).await,
            SnapshotKey::Claim(namespace, claim) => Ok(self.claim(namespace, claim).await),
            SnapshotKey::Restored(namespace, snapshot) => Ok(self.restored(namespace, snapshot)),
            SnapshotKey::Classes => Ok(self.classes().await),
        };
        match worked {
            Ok(outcome) => outcome,
            Err(ReconcileError::NotLeading) => Outcome::Done,
            // The other conditions are checked when the watch reports the deletion.
            Err(ReconcileError::Deleted) => Outcome::RequeueAfter(CONFLICT),
            // The watch will soon report the current object.
            Err(ReconcileError::Api(error)) if error.is_conflict() => {
                Outcome::RequeueAfter(CONFLICT)
            }
            Err(error) => {
                tracing::warn!(?key, %error, "working on a snapshot object failed, and is tried again");
                Outcome::Failed
            }
        }
    }

    /// True if the group kinds must be listed before the key can be reconciled.
    fn concerns_group(&self, key: &SnapshotKey) -> bool {
        match key {
            SnapshotKey::Group(..)
            | SnapshotKey::GroupContent(_)
            | SnapshotKey::GroupOrphan(..) => true,
            SnapshotKey::Snapshot(namespace, name) => {
                let snapshot = self.watches.snapshots.get_in(namespace, name);
                snapshot.is_some_and(|one| !watches::groups_of(&one).is_empty())
            }
            _ => false,
        }
    }

    /// Queues the snapshots and groups that waited for a claim to be bound.
    async fn claim(&self, namespace: &str, name: &str) -> Outcome {
        let snapshots = self
            .watches
            .unready_of_claim
            .get(&watches::at(namespace, name));
        self.queue_unready::<Snapshots>(snapshots).await;
        let Some(claim) = self.watches.claims.get_in(namespace, name) else {
            return Outcome::Done;
        };
        let labels = claim
            .labels()
            .iter()
            .map(|(key, value)| group::label(namespace, key, value));
        let keys = iter::once(group::any_label(namespace)).chain(labels);
        let groups = keys.flat_map(|key| self.watches.unready_of_label.each(&key));
        for (number, group) in groups.enumerate() {
            if group::selects(&group, &claim) {
                self.queue.add(key_of::<Groups>(&group));
            }
            yield_sometimes(number).await;
        }
        Outcome::Done
    }

    /// Queues the snapshots and groups with a deletion that waited for restores from a snapshot.
    fn restored(&self, namespace: &str, name: &str) -> Outcome {
        let Some(snapshot) = self.watches.snapshots.get_in(namespace, name) else {
            return Outcome::Done;
        };
        if snapshot.is_deleting() {
            self.queue.add(key_of::<Snapshots>(&snapshot));
        }
        for group in watches::groups_of(&snapshot) {
            if let Some((namespace, name)) = group.split_once('/')
                && let Some(group) = self.watches.groups.get_in(namespace, name)
                && group.is_deleting()
            {
                self.queue.add(key_of::<Groups>(&group));
            }
        }
        Outcome::Done
    }

    /// Queues the snapshots and groups that waited for a class.
    async fn classes(&self) -> Outcome {
        self.queue_unready::<Snapshots>(self.watches.snapshots.all())
            .await;
        self.queue_unready::<Groups>(self.watches.groups.all())
            .await;
        Outcome::Done
    }

    async fn queue_unready<K: SnapshotKind>(&self, snapshots: Vec<Arc<K::Snapshot>>) {
        let unready = snapshots.into_iter().filter_map(|one| {
            let is_ready = K::view(&one).is_ready();
            (!is_ready).then(|| key_of::<K>(&one))
        });
        self.queue.add_each(unready).await;
    }

    /// Fails unless this process leads. Called right before each write.
    fn may_write(&self) -> Result<(), ReconcileError> {
        if self.context.leader.leads() {
            Ok(())
        } else {
            Err(ReconcileError::NotLeading)
        }
    }

    /// Writes a merge patch, unless the object has changed since it was read.
    async fn merge<K: Resource>(
        &self,
        watch: &Store<K>,
        object: &K,
        mut patch: serde_json::Value,
    ) -> Result<(), ReconcileError> {
        patch["metadata"]["resourceVersion"] = serde_json::json!(object.meta().resource_version);
        self.may_write()?;
        let written = self.kube.merge(object, patch).await?;
        note(watch, object, written)
    }

    /// Writes a merge patch of the status, unless the object has changed since it was read.
    async fn merge_status<K: Resource>(
        &self,
        watch: &Store<K>,
        object: &K,
        status: serde_json::Value,
    ) -> Result<(), ReconcileError> {
        self.may_write()?;
        let written = self.kube.merge_status_unchanged(object, status).await?;
        note(watch, object, written)
    }

    /// Creates an object. If the name is taken, it stores the existing object in the cache, and the
    /// next step decides whether that object fits.
    async fn create<K: Resource>(
        &self,
        watch: &Store<K>,
        object: &K,
    ) -> Result<bool, ReconcileError> {
        self.may_write()?;
        match self.kube.create(object).await {
            Ok(made) => {
                watch.apply_write(made);
                Ok(true)
            }
            Err(ApiError::AlreadyExists { .. }) => {
                let namespace = object.namespace().unwrap_or_default();
                if let Some(found) = self.kube.get(&namespace, &object.name_any()).await? {
                    watch.apply_write(found);
                }
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Stores a written object, which must differ from the old one. Otherwise the next reconcile would
/// repeat the same write forever.
fn note<K: Resource>(watch: &Store<K>, old: &K, written: K) -> Result<(), ReconcileError> {
    if written.resource_version() == old.resource_version() {
        // Removing the last finalizer deletes the object and does not change its resourceVersion.
        if written.is_deleting() && written.finalizers().is_empty() {
            return Err(ReconcileError::Deleted);
        }
        return Err(ReconcileError::Dropped {
            kind: K::kind(&()).into_owned(),
            name: names::path(&written),
        });
    }
    watch.apply_write(written);
    Ok(())
}

/// The wait after a write conflict.
const CONFLICT: Duration = Duration::from_millis(200);
/// The wait for changes that the watches report anyway.
const RECHECK: Duration = Duration::from_secs(10);
/// Maximum number of steps for one object before other objects have their turn.
const STEPS: usize = 100;

fn key_of<K: SnapshotKind>(snapshot: &K::Snapshot) -> SnapshotKey {
    K::key(
        snapshot.namespace().unwrap_or_default(),
        snapshot.name_any(),
    )
}

/// True if a claim is bound and was not bound before, according to the cache.
fn is_newly_bound(change: &Change<PersistentVolumeClaim>) -> bool {
    match change {
        Change::Applied { old, new } => {
            pvc::is_bound(new) && !old.as_deref().is_some_and(pvc::is_bound)
        }
        Change::Deleted(_) => false,
    }
}

#[cfg(test)]
mod tests;
