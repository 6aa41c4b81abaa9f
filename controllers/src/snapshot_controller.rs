//! The cluster's snapshot-controller: it makes contents for snapshots, binds them to each other,
//! tells users how far they are, and takes them down again. The snapshots themselves are taken
//! by the loops of the drivers.
//!
//! There may be another one at work, and not even elected: so every write carries what it was
//! decided by, what exists already is compared and not fought over, and what another has done is
//! as good as done here.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use crate::runtime::queue::{Outcome, Queue};
use crate::runtime::{
    ApiError, Change, Context, Kube, Leadership, Resource, Watch, boolean, duration,
};
use crate::snapshots::crds::ensure_crds;
use crate::snapshots::{VolumeGroupSnapshot, VolumeSnapshot};

mod apply;
mod apply_group;
mod classes;
mod gather;
mod group;
mod metrics;
mod names;
mod snapshot;
mod status;

pub use metrics::Metrics;

use gather::Seen;
use metrics::Of;

/// The wait before the definitions are tried again.
const DEFINITIONS_RETRY: Duration = Duration::from_secs(30);

/// What the snapshot-controller takes from the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Snapshot controller")]
pub struct Options {
    /// How often the snapshot-controller looks at all snapshots again
    #[arg(
        long,
        env = "HOSTLOOP_SNAPSHOT_CONTROLLER_RESYNC_PERIOD",
        value_name = "DURATION",
        default_value = "15m",
        value_parser = duration::parse
    )]
    pub snapshot_controller_resync_period: Duration,

    /// Label snapshots' contents with the node their volume is on, for drivers whose loops run on
    /// each node
    #[arg(
        long,
        env = "HOSTLOOP_ENABLE_DISTRIBUTED_SNAPSHOTTING",
        value_name = "BOOL",
        value_parser = boolean::parse,
        num_args = 0..=1,
        default_value = "true",
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub enable_distributed_snapshotting: bool,

    /// Make the snapshot kinds' definitions if the cluster has none; there is never one changed
    #[arg(
        long,
        env = "HOSTLOOP_ENSURE_SNAPSHOT_CRDS",
        value_name = "BOOL",
        value_parser = boolean::parse,
        num_args = 0..=1,
        default_value = "true",
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub ensure_snapshot_crds: bool,
}

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A snapshot, by namespace and name.
    Snapshot(String, String),
    /// A content.
    Content(String),
    /// A group.
    Group(String, String),
    /// A group's content.
    GroupContent(String),
    /// A claim that may have become one that can be snapshotted.
    Claim(String, String),
    /// A claim that may be held no longer.
    Release(String, String),
    /// A snapshot that may be restored from no longer.
    Restored(String, String),
    /// Classes: there may be one now for those who wait for it.
    Classes,
}

/// Why work ended early.
#[derive(Debug, thiserror::Error)]
enum Stop {
    /// Another does it now.
    #[error("another leads")]
    NotLeading,
    /// A call failed.
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
    Dropped {
        /// The kind of the object.
        kind: String,
        /// The name of the object.
        name: String,
    },
}

/// What came of a step.
enum Next {
    /// Look again at once.
    Look,
    /// That was it.
    End(Outcome),
}

/// What all workers share.
#[derive(Clone)]
struct Controller {
    context: Context,
    kube: Kube,
    leader: Leadership,
    seen: Seen,
    metrics: Metrics,
    queue: Queue<Key>,
}

/// Where what the watches tell goes, until this run of the controller ends: they outlive it.
#[derive(Clone)]
struct Inbox {
    queue: Queue<Key>,
    stop: CancellationToken,
}

impl Inbox {
    fn add(&self, key: Key) {
        if !self.stop.is_cancelled() {
            self.queue.add(key);
        }
    }
}

/// Runs it until it is told to stop; it works only while it leads.
pub async fn run(context: Context, options: Options, metrics: Metrics) -> Result<(), Infallible> {
    let seen = Seen::new(
        context.caches.clone(),
        options.enable_distributed_snapshotting,
    );
    let controller = Controller {
        kube: context.kube.managed_by("hostloop-snapshot-controller"),
        leader: context.leader.clone(),
        queue: Queue::new(context.common.backoff()),
        context,
        seen,
        metrics,
    };
    let (context, queue) = (controller.context.clone(), controller.queue.clone());
    let workers = context.common.worker_threads.unwrap_or(10);
    controller.listen();
    crate::controller::Controller::new(&context, Arc::new(controller))
        .after(|this| async move { this.seen.synced().await })
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

impl Controller {
    fn inbox(&self) -> Inbox {
        Inbox {
            queue: self.queue.clone(),
            stop: self.context.stop.clone(),
        }
    }

    /// Has keys worked on whenever something they depend on changes.
    fn listen(&self) {
        let inbox = self.inbox();
        let metrics = self.metrics.clone();
        self.seen.snapshots.on_change(move |change| {
            let snapshot = change.object();
            let namespace = snapshot.namespace().unwrap_or_default();
            if let Some(claim) = &snapshot.spec.source.persistent_volume_claim_name {
                inbox.add(Key::Release(namespace.clone(), claim.clone()));
            }
            if let Change::Deleted(gone) = change {
                metrics.gone(Of::Snapshot, &gone.uid().unwrap_or_default());
            }
            inbox.add(Key::Snapshot(namespace, snapshot.name_any()));
        });
        let inbox = self.inbox();
        self.seen.contents.on_change(move |change| {
            let content = change.object();
            inbox.add(Key::Content(content.name_any()));
            if let Some((namespace, name)) = told(&content.spec.volume_snapshot_ref) {
                inbox.add(Key::Snapshot(namespace, name));
            }
        });
        let inbox = self.inbox();
        let metrics = self.metrics.clone();
        self.seen.groups.on_change(move |change| {
            let group = change.object();
            if let Change::Deleted(gone) = change {
                metrics.gone(Of::Group, &gone.uid().unwrap_or_default());
            }
            let namespace = group.namespace().unwrap_or_default();
            inbox.add(Key::Group(namespace, group.name_any()));
        });
        let inbox = self.inbox();
        self.seen.group_contents.on_change(move |change| {
            let content = change.object();
            inbox.add(Key::GroupContent(content.name_any()));
            if let Some((namespace, name)) = told(&content.spec.volume_group_snapshot_ref) {
                inbox.add(Key::Group(namespace, name));
            }
        });
        let inbox = self.inbox();
        self.seen.claims.on_change(move |change| {
            let claim = change.object();
            for (namespace, snapshot) in gather::sources(claim) {
                inbox.add(Key::Restored(namespace, snapshot));
            }
            if is_newly_bound(change) {
                let namespace = claim.namespace().unwrap_or_default();
                inbox.add(Key::Claim(namespace, claim.name_any()));
            }
        });
        let inbox = self.inbox();
        let on_class = move || inbox.add(Key::Classes);
        let on_group_class = on_class.clone();
        self.seen.classes.on_change(move |_| on_class());
        self.seen.group_classes.on_change(move |_| on_group_class());
    }

    /// Takes care that everything is looked at when this process begins to lead, and every now
    /// and then.
    async fn lead(&self, options: &Options) {
        let mut leader = self.leader.clone();
        loop {
            leader.gained().await;
            let leads = async {
                if options.ensure_snapshot_crds {
                    tokio::join!(self.define(), self.resync(options));
                } else {
                    self.resync(options).await;
                }
            };
            let mut leader = leader.clone();
            tokio::select! {
                () = leads => {}
                () = leader.lost() => {}
            }
            self.metrics.forget();
        }
    }

    async fn define(&self) {
        while let Err(error) = ensure_crds(&self.kube).await {
            tracing::warn!(%error, "the snapshot kinds' definitions could not be made sure of");
            if matches!(error, ApiError::Refused { .. }) {
                return;
            }
            tokio::time::sleep(DEFINITIONS_RETRY).await;
        }
    }

    async fn resync(&self, options: &Options) {
        let period = options.snapshot_controller_resync_period;
        loop {
            for group in self.seen.groups.all() {
                self.queue.add(group_key(&group));
            }
            for content in self.seen.group_contents.all() {
                self.queue.add(Key::GroupContent(content.name_any()));
            }
            for snapshot in self.seen.snapshots.all() {
                self.queue.add(snapshot_key(&snapshot));
            }
            for content in self.seen.contents.all() {
                self.queue.add(Key::Content(content.name_any()));
            }
            // Include claims with deleted snapshots.
            for claim in self.seen.protected() {
                let namespace = claim.namespace().unwrap_or_default();
                self.queue.add(Key::Release(namespace, claim.name_any()));
            }
            match period.is_zero() {
                true => std::future::pending().await,
                false => tokio::time::sleep(period).await,
            }
        }
    }

    async fn work(&self, key: Key) -> Outcome {
        if !self.leader.leads() {
            return Outcome::Done;
        }
        if self.concerns_group(&key) && !self.seen.has_groups() {
            return Outcome::Again(UNTOLD);
        }
        let worked = match &key {
            Key::Snapshot(namespace, name) => self.snapshot(namespace, name).await,
            Key::Content(name) => self.content(name).await,
            Key::Group(namespace, name) => self.group(namespace, name).await,
            Key::GroupContent(name) => self.group_content(name).await,
            Key::Release(namespace, claim) => self.release(namespace, claim).await,
            Key::Claim(namespace, claim) => Ok(self.claim(namespace, claim)),
            Key::Restored(namespace, snapshot) => Ok(self.restored(namespace, snapshot)),
            Key::Classes => Ok(self.classes()),
        };
        match worked {
            Ok(outcome) => outcome,
            Err(Stop::NotLeading) => Outcome::Done,
            // Decide on the rest once the watch reports the deletion.
            Err(Stop::Deleted) => Outcome::Again(CONFLICT),
            // The watch is about to report the current object.
            Err(Stop::Api(error)) if error.is_conflict() => Outcome::Again(CONFLICT),
            Err(error) => {
                tracing::warn!(?key, %error, "will be tried again");
                Outcome::Failed
            }
        }
    }

    /// True if the key needs the group kinds to be listed first.
    fn concerns_group(&self, key: &Key) -> bool {
        match key {
            Key::Group(..) | Key::GroupContent(_) => true,
            Key::Snapshot(namespace, name) => {
                let snapshot = self.seen.snapshots.get_in(namespace, name);
                snapshot.is_some_and(|one| !gather::groups_of(&one).is_empty())
            }
            _ => false,
        }
    }

    /// Those that waited for a claim to be bound.
    fn claim(&self, namespace: &str, claim: &str) -> Outcome {
        let waiting = self.seen.of_claim.get(&format!("{namespace}/{claim}"));
        for snapshot in waiting.iter().filter(|one| !snapshot::is_ready(one)) {
            self.queue.add(snapshot_key(snapshot));
        }
        for group in self.seen.groups.all() {
            let here = group.namespace().as_deref() == Some(namespace);
            if here && !group::is_ready(&group) {
                self.queue.add(group_key(&group));
            }
        }
        Outcome::Done
    }

    /// Those that could not be deleted while claims were restored from a snapshot.
    fn restored(&self, namespace: &str, name: &str) -> Outcome {
        let Some(snapshot) = self.seen.snapshots.get_in(namespace, name) else {
            return Outcome::Done;
        };
        if names::is_deleting(&*snapshot) {
            self.queue.add(snapshot_key(&snapshot));
        }
        for group in gather::groups_of(&snapshot) {
            if let Some((namespace, name)) = group.split_once('/')
                && let Some(group) = self.seen.groups.get_in(namespace, name)
                && names::is_deleting(&*group)
            {
                self.queue.add(group_key(&group));
            }
        }
        Outcome::Done
    }

    /// Those that waited for a class.
    fn classes(&self) -> Outcome {
        let snapshots = self.seen.snapshots.all();
        for snapshot in snapshots.iter().filter(|one| !snapshot::is_ready(one)) {
            self.queue.add(snapshot_key(snapshot));
        }
        for group in self
            .seen
            .groups
            .all()
            .iter()
            .filter(|one| !group::is_ready(one))
        {
            self.queue.add(group_key(group));
        }
        Outcome::Done
    }

    /// Fails unless this process leads: to be asked right before each write.
    fn may_write(&self) -> Result<(), Stop> {
        match self.leader.leads() {
            true => Ok(()),
            false => Err(Stop::NotLeading),
        }
    }

    /// A merge patch of an object that must be as it was read.
    async fn merge<K: Resource>(
        &self,
        watch: &Watch<K>,
        object: &K,
        mut patch: serde_json::Value,
    ) -> Result<(), Stop> {
        patch["metadata"]["resourceVersion"] = serde_json::json!(object.meta().resource_version);
        self.may_write()?;
        let written = self.kube.merge(object, patch).await?;
        note(watch, object, written)
    }

    /// Likewise of its status.
    async fn merge_status<K: Resource>(
        &self,
        watch: &Watch<K>,
        object: &K,
        status: serde_json::Value,
    ) -> Result<(), Stop> {
        let version = &object.meta().resource_version;
        let patch = serde_json::json!({
            "metadata": {"resourceVersion": version},
            "status": status,
        });
        self.may_write()?;
        let written = self.kube.merge_status(object, patch).await?;
        note(watch, object, written)
    }

    /// Makes an object. If there is one of its name already, that is taken note of: whether it
    /// will do is decided at the next look.
    async fn create<K: Resource>(&self, watch: &Watch<K>, object: &K) -> Result<bool, Stop> {
        self.may_write()?;
        match self.kube.create(object).await {
            Ok(made) => {
                watch.wrote(made);
                Ok(true)
            }
            Err(ApiError::AlreadyExists { .. }) => {
                let namespace = object.namespace().unwrap_or_default();
                if let Some(found) = self.kube.get(&namespace, &object.name_any()).await? {
                    watch.wrote(found);
                }
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Stores a written object, which must differ from the old one. Otherwise the next reconcile would
/// repeat the same write forever.
fn note<K: Resource>(watch: &Watch<K>, old: &K, written: K) -> Result<(), Stop> {
    if written.resource_version() == old.resource_version() {
        // Removing the last finalizer deletes the object and does not change its resourceVersion.
        if written.meta().deletion_timestamp.is_some() && written.finalizers().is_empty() {
            return Err(Stop::Deleted);
        }
        return Err(Stop::Dropped {
            kind: K::kind(&()).into_owned(),
            name: names::path(&written),
        });
    }
    watch.wrote(written);
    Ok(())
}

/// The wait after a write that came too late.
const CONFLICT: Duration = Duration::from_millis(200);
/// The wait for what the watches tell anyway.
const UNTOLD: Duration = Duration::from_secs(10);
/// Steps for one object before others have their turn.
const STEPS: usize = 100;

fn snapshot_key(snapshot: &Arc<VolumeSnapshot>) -> Key {
    Key::Snapshot(
        snapshot.namespace().unwrap_or_default(),
        snapshot.name_any(),
    )
}

fn group_key(group: &Arc<VolumeGroupSnapshot>) -> Key {
    Key::Group(group.namespace().unwrap_or_default(), group.name_any())
}

/// The object a reference is to.
fn told(reference: &ObjectReference) -> Option<(String, String)> {
    Some((reference.namespace.clone()?, reference.name.clone()?))
}

/// Whether a claim is bound that was not, as far as was known.
fn is_newly_bound(change: &Change<PersistentVolumeClaim>) -> bool {
    let bound = |claim: &PersistentVolumeClaim| {
        let status = claim.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some("Bound")
    };
    match change {
        Change::Applied { old, new } => bound(new) && !old.as_deref().is_some_and(bound),
        Change::Deleted(_) => false,
    }
}

#[cfg(test)]
mod tests;
