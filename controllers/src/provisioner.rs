//! The provisioner: creates volumes for PersistentVolumeClaims, and deletes the volumes of deleted
//! claims.
//!
//! For each claim, [`gather`] collects what a decision needs, [`decide`] decides without any call,
//! and [`apply`] carries it out. A claim takes one CreateVolume call and one write, the complete
//! PersistentVolume. [`in_flight`] remembers the state between the two. It repeats a call without a
//! final answer, and repeats the write until the API server accepts it. After a restart or a move,
//! several processes may work on one claim. The name of the PersistentVolume decides which volume
//! the claim gets; the others are deleted.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;

use crate::api::object_name::VolumeNaming;
use crate::api::pvc::DataSource;
use crate::api::scope::Scope;
use crate::api::{duration, pvc};
use crate::cache::{Change, Index};
use crate::client::Kube;
use crate::controller::{Context, Controller, ObjectKey, pause, workers};
use crate::csi::Waiters;
use crate::csi::driver::ControllerCapability;
use crate::queue::{Queue, yield_sometimes};
use crate::snapshots::VolumeSnapshotContent;
use crate::snapshots::content::Content;

mod access;
mod apply;
mod capabilities;
mod create_pv;
mod decide;
mod deletion;
mod error;
mod gather;
mod in_flight;
mod metrics;
mod one_node;
mod own_node;
mod pv_object;
mod reschedule;
mod secrets;
pub(crate) mod source;
pub(crate) mod source_protection;

pub use metrics::Metrics;

use capabilities::Capabilities;
use decide::Flags;
use in_flight::InFlight;
use own_node::OwnNode;
use source_protection::Protection;

/// Default deadline of a CSI call.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Default interval between resyncs.
const RESYNC: Duration = Duration::from_secs(15 * 60);

/// The wait before a snapshot with a ready content is looked up: its status follows its content's.
const COPIED: Duration = Duration::from_millis(300);

/// The provisioner's flags.
#[derive(Clone, Debug, Args)]
#[group(skip)]
#[command(next_help_heading = "Provisioner")]
pub struct Options {
    #[command(flatten)]
    pub naming: VolumeNaming,

    /// Workers that remove the finalizers of claims that are no longer being cloned
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub cloning_protection_threads: usize,

    /// How often to check for snapshots with leftover finalizers
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration::parse)]
    pub snapshot_orphan_sweep_interval: Duration,

    /// Send only the topology of the selected node in CreateVolume, not those of other nodes as
    /// well
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub strict_topology: bool,

    /// Send all known topologies to the driver if a volume may be anywhere
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub immediate_topology: bool,

    /// Mark volumes as read-only if ReadOnlyMany is their only access mode
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub controller_publish_readonly: bool,

    /// Reject a restore with another volume mode than the snapshot's source, unless the content
    /// allows it
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub prevent_volume_mode_conversion: bool,
}

/// Why the provisioner can't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An empty prefix could leave volumes without names.
    #[error("--volume-name-prefix is empty: names of volumes must begin with something")]
    NoPrefix,
}

/// A namespace and a name.
type Named = (String, String);

/// The running provisioner.
struct Provisioner {
    context: Context,
    metrics: Metrics,
    flags: Flags,
    capabilities: Capabilities,
    /// The API client. Its writes have the provisioner's own field manager.
    kube: Kube,
    timeout: Duration,
    /// The wait before a failed write of a PersistentVolume is repeated.
    retry: Duration,
    /// Held while all annotations of a claim are read, which may be large.
    one_large_read: tokio::sync::Mutex<()>,
    identity: String,
    in_flight: InFlight,
    own_node: OwnNode,
    /// Removes source finalizers. `None` if every node runs a provisioner: then the leader does it
    /// in [`run_for_all`].
    protection: Option<Arc<Protection>>,
    /// Claims by UID.
    claims: Index<PersistentVolumeClaim>,
    /// Claims without a volume: by StorageClass, VolumeAttributesClass and source.
    by_class: Index<PersistentVolumeClaim>,
    by_attributes: Index<PersistentVolumeClaim>,
    by_source: Index<PersistentVolumeClaim>,
    /// VolumeAttachments by volume; `None` if the driver does not attach.
    attachments: Option<Index<VolumeAttachment>>,
    /// UIDs of claims.
    claim_queue: Queue<ObjectKey>,
    /// Names of PersistentVolumes.
    volume_queue: Queue<ObjectKey>,
    /// Names of volumes that still need a PersistentVolume.
    pending_pvs: Queue<ObjectKey>,
    /// Claims that wait for room in a pool.
    for_room: Waiters<ObjectKey>,
    /// PersistentVolumes that wait until their volume is not used any more.
    for_volume: Waiters<ObjectKey>,
}

/// Runs the leader's part, which needs caches of the whole cluster, if every node runs a
/// provisioner.
pub(crate) async fn run_for_all(context: Context, options: Options) {
    Arc::new(Protection::new(context, options)).run().await;
}

/// Runs the provisioner until `context.stop`.
pub async fn run(context: Context, options: Options, metrics: Metrics) -> Result<(), Error> {
    if options.naming.prefix.is_empty() {
        return Err(Error::NoPrefix);
    }
    let provisioner = Arc::new(Provisioner::new(context, options, metrics));
    provisioner.run().await;
    Ok(())
}

impl Provisioner {
    fn new(context: Context, options: Options, metrics: Metrics) -> Self {
        let common = &context.common;
        let flags = Flags {
            options: options.clone(),
            fs_type: common.default_fstype.clone(),
            extra_metadata: common.extra_create_metadata,
            has_topology: context.driver.has_topology(),
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = now.unwrap_or_default().as_millis();
        let random = RandomState::new().hash_one(millis);
        let driver = &context.driver;
        let attaches = driver.can(ControllerCapability::PublishUnpublishVolume);
        let claims = context.caches.claims();
        let central = context.scope == Scope::Cluster;
        let protection = central.then(|| Protection::new(context.clone(), options));
        let (claim_queue, volume_queue) = (context.queue(), context.queue());
        Provisioner {
            timeout: common.timeout.unwrap_or(TIMEOUT),
            retry: common.backoff().start,
            one_large_read: tokio::sync::Mutex::default(),
            identity: pv_object::identity(&driver.name, context.scope.node(), millis, random),
            kube: context.kube.managed_by("hostloop-provisioner"),
            in_flight: InFlight::default(),
            own_node: OwnNode::default(),
            protection: protection.map(Arc::new),
            claims: claims.index(|claim| claim.uid().into_iter().collect()),
            by_class: claims.index(pvc::pending_class),
            by_attributes: claims.index(pvc::pending_attributes_class),
            by_source: claims.index(source_protection::awaited),
            attachments: attaches.then(|| {
                context
                    .caches
                    .attachments()
                    .index(|one: &VolumeAttachment| {
                        let name = one.spec.source.persistent_volume_name.clone();
                        name.into_iter().collect()
                    })
            }),
            for_room: Waiters::queued(&context.freed, &claim_queue),
            for_volume: Waiters::of(&context.freed, &volume_queue),
            claim_queue,
            volume_queue,
            pending_pvs: context.queue(),
            capabilities: Capabilities::of(&context.driver),
            flags,
            metrics,
            context,
        }
    }

    /// Waits until the caches that decisions depend on have synced.
    async fn synced(&self) {
        let caches = &self.context.caches;
        caches.claims().synced().await;
        caches.volumes().synced().await;
        caches.classes().synced().await;
        if self.attachments.is_some() {
            caches.attachments().synced().await;
        }
        if self.context.scope == Scope::Cluster && self.context.driver.has_topology() {
            caches.nodes().synced().await;
            caches.csi_nodes().synced().await;
        }
    }

    /// Marks all current claims for a live check: an earlier process may have created volumes for
    /// them.
    async fn require_live_checks(&self) {
        let driver = &self.context.driver.name;
        for (number, claim) in self.context.caches.claims().each().enumerate() {
            let ours = to_provision(&claim, driver);
            self.in_flight
                .require_live_check(ours.map(|key| key.name().to_owned()));
            yield_sometimes(number).await;
        }
    }

    /// Works on the queues until `context.stop`.
    async fn run(self: Arc<Self>) {
        let workers = workers::provisioner_workers(&self.context.scope);
        let workers = self.context.common.workers(workers);
        let (caches, driver) = (&self.context.caches, &self.context.driver.name);
        let (for_claims, for_volumes) = (driver.clone(), driver.clone());
        let mut controller = Controller::new(&self.context, self.clone())
            .after(|this| async move {
                this.synced().await;
                this.require_live_checks().await;
            })
            .feed(
                &caches.claims(),
                &self.claim_queue,
                move |change| match change {
                    Change::Applied { new, .. } => to_provision(new, &for_claims),
                    Change::Deleted(old) => ObjectKey::of_claim(old),
                },
            )
            .feed(
                &caches.volumes(),
                &self.volume_queue,
                move |change| match change {
                    Change::Applied { new, .. } => deletion::needs_work(new, &for_volumes),
                    Change::Deleted(_) => None,
                },
            )
            .work(
                "claims",
                &self.claim_queue,
                workers,
                |this, key: ObjectKey| async move { this.claim(key.name()).await },
            )
            .work(
                "volumes",
                &self.volume_queue,
                workers,
                |this, key: ObjectKey| async move { this.volume(key.name()).await },
            )
            .work(
                "unsaved",
                &self.pending_pvs,
                workers,
                |this, key: ObjectKey| async move { this.pending_pv(key.name()).await },
            )
            .beside(|this| async move { this.refill().await });
        controller = self.wake_claims(controller);
        controller = self.follow_attachments(controller);
        if let Some(protection) = self.protection.clone() {
            controller = controller.beside(|_| protection.run());
        }
        controller.run().await;
    }

    /// Queues a volume when its attachment is gone.
    fn follow_attachments(&self, controller: Controller<Self>) -> Controller<Self> {
        if self.attachments.is_none() {
            return controller;
        }
        let caches = &self.context.caches;
        let (attachments, volumes) = (caches.attachments(), caches.volumes());
        controller.feed(
            &attachments,
            &self.volume_queue,
            move |change| match change {
                Change::Deleted(old) => ObjectKey::of_attached_volume(old, &volumes),
                Change::Applied { .. } => None,
            },
        )
    }

    /// Wakes claims when something that they name appears or changes: a class, or a source.
    fn wake_claims(&self, controller: Controller<Self>) -> Controller<Self> {
        let (caches, driver, queue) = (
            &self.context.caches,
            &self.context.driver,
            &self.claim_queue,
        );
        let now = Duration::ZERO;
        let mut controller = controller
            .wake(
                "claims-of-classes",
                &caches.classes(),
                now,
                Change::name_applied,
                queue,
                |this, name| keys(this.by_class.each(name)),
            )
            .wake(
                "claims-of-sources",
                &caches.claims(),
                now,
                newly_bound,
                queue,
                |this, source| keys(this.by_source.each(source)),
            );
        if driver.can(ControllerCapability::ModifyVolume) {
            let watch = caches.attributes_classes();
            let label = "claims-of-attributes-classes";
            controller = controller.wake(
                label,
                &watch,
                now,
                Change::name_applied,
                queue,
                |this, name| keys(this.by_attributes.each(name)),
            );
        }
        if driver.can(ControllerCapability::CreateDeleteSnapshot) {
            let (label, watch) = ("claims-of-snapshots", caches.contents());
            controller =
                controller.wake(label, &watch, COPIED, newly_ready, queue, |this, source| {
                    keys(this.by_source.each(source))
                });
        }
        controller
    }

    /// Queues everything at each resync and when this process becomes leader.
    async fn refill(&self) {
        let mut leader = self.context.leader.clone();
        let every = self.context.common.resync_period.unwrap_or(RESYNC);
        loop {
            let led = leader.leads();
            let turned = async {
                if led {
                    leader.lost().await;
                } else {
                    leader.gained().await;
                    if !leader.leads() {
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                () = turned => {}
                () = pause(every) => {}
            }
            if !led && leader.leads() {
                // The previous leader may have created volumes for these claims.
                self.require_live_checks().await;
            }
            self.add_all().await;
        }
    }

    async fn add_all(&self) {
        let caches = &self.context.caches;
        let driver = &self.context.driver.name;
        let claims = caches.claims().each();
        let pending = claims.filter_map(|claim| to_provision(&claim, driver));
        self.claim_queue.add_each(pending).await;
        let volumes = caches.volumes().each();
        let due = volumes.filter_map(|volume| deletion::needs_work(&volume, driver));
        self.volume_queue.add_each(due).await;
    }
}

/// The key of a claim that this driver must provision.
fn to_provision(claim: &PersistentVolumeClaim, driver: &str) -> Option<ObjectKey> {
    ObjectKey::of_claim(claim).filter(|_| pvc::is_for(claim, driver))
}

fn keys(
    claims: impl Iterator<Item = Arc<PersistentVolumeClaim>>,
) -> impl Iterator<Item = ObjectKey> {
    claims.filter_map(|claim| ObjectKey::of_claim(&claim))
}

/// The key of a claim that may be a source now: it was bound.
fn newly_bound(change: &Change<PersistentVolumeClaim>) -> Option<String> {
    let (old, new) = change.both()?;
    if !pvc::is_bound(new) || pvc::is_bound(old) {
        return None;
    }
    let source = DataSource::Claim(new.name_any());
    source_protection::key(&new.namespace().unwrap_or_default(), &source)
}

/// The key of a content's snapshot that may be a source now: its content became ready.
fn newly_ready(change: &Change<VolumeSnapshotContent>) -> Option<String> {
    let (old, new) = change.both()?;
    if !new.view().is_ready() || old.view().is_ready() {
        return None;
    }
    let user = &new.spec.volume_snapshot_ref;
    let source = DataSource::Snapshot(user.name.clone()?);
    source_protection::key(user.namespace.as_deref()?, &source)
}

#[cfg(test)]
mod tests;
