//! The attacher: VolumeAttachments become ControllerPublishVolume and ControllerUnpublishVolume.
//!
//! If the driver's CSIDriver sets `attachRequired`, Kubernetes creates a VolumeAttachment for each
//! volume that a node needs. It deletes the object when the node no longer needs the volume.
//! Without `attachRequired`, the attacher has no work. A finalizer keeps the VolumeAttachment until
//! the volume is detached. Another one keeps the PV until no attachment is left.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::api::scope::{NODE_LABEL, Scope, node_label};
use crate::api::{duration, pv};
use crate::cache::{Change, Index, Store};
use crate::client::Kube;
use crate::controller::workers::WORKERS;
use crate::controller::{Context, Controller, ObjectKey};
use crate::csi::Waiters;
use crate::csi::driver::ControllerCapability;
use crate::queue::Queue;

mod apply;
mod compare;
pub mod decide;
mod finalizers;
mod gather;

pub use apply::PublishError;
use decide::{Settings, is_attached};
pub(crate) use finalizers::finalizer;
pub(crate) use gather::attachment_of;

/// Default timeout of a CSI call.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Flags of the attacher.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Attacher")]
#[group(skip)]
pub struct Options {
    /// How often to reconcile all VolumeAttachments again; 0 is never
    #[arg(
        long,
        id = "attacher-resync",
        value_name = "DURATION",
        default_value = "10m",
        value_parser = duration::parse
    )]
    pub resync: Duration,
    /// How often to compare VolumeAttachments with the attachments that the driver lists
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse)]
    pub reconcile_sync: Duration,
    /// Page size of ListVolumes; 0 means no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_entries: u32,
}

/// The attacher never fails: it retries every error.
pub type Error = Infallible;

struct Attacher {
    context: Context,
    kube: Kube,
    settings: Settings,
    timeout: Duration,
    attachments: Store<VolumeAttachment>,
    volumes: Store<PersistentVolume>,
    csi_nodes: Store<CSINode>,
    /// Attachments by PV name.
    of_volume: Index<VolumeAttachment>,
    /// Attachments with a status that contradicts the driver, or that it must confirm.
    forced: Mutex<BTreeSet<String>>,
    /// Attachments of shared volumes that the driver confirms or has confirmed to this process.
    confirmed: Mutex<BTreeSet<String>>,
    queue: Queue<ObjectKey>,
    volume_queue: Queue<ObjectKey>,
    /// Attachments that wait until another volume of their node is detached.
    for_slot: Waiters<ObjectKey>,
}

/// Runs the attacher until `context.stop`.
pub async fn run(context: Context, options: Options) -> Result<(), Error> {
    let needed = needed(&context);
    if context.stop.run_until_cancelled(needed).await.is_none() {
        return Ok(());
    }
    let attacher = Arc::new(Attacher::new(context.clone()));
    let (queue, volume_queue) = (&attacher.queue, &attacher.volume_queue);
    let workers = context.common.workers(WORKERS);
    let controller = Controller::new(&context, attacher.clone()).after(|this| async move {
        this.attachments.synced().await;
        this.volumes.synced().await;
        this.csi_nodes.synced().await;
    });
    attacher
        .feed(controller)
        .work(
            "csi-attacher-va",
            queue,
            workers,
            |this, key: ObjectKey| async move { this.attachment(key.name()).await },
        )
        .work(
            "csi-attacher-pv",
            volume_queue,
            workers,
            |this, key: ObjectKey| async move { this.volume(key.name()).await },
        )
        .resync(options.resync, queue, |this| {
            let (all, volumes) = (this.attachments.all().into_iter(), this.volumes.clone());
            all.map(move |attachment| ObjectKey::of_attachment(&attachment, &volumes))
        })
        .resync(options.resync, volume_queue, |this| {
            let settings = this.settings.clone();
            let kept = this
                .volumes
                .each()
                .filter(move |volume| settings.keeps(volume));
            kept.map(|volume| ObjectKey::of_volume(&volume))
        })
        .beside(move |this| async move {
            this.reconcile(options.reconcile_sync, options.max_entries)
                .await;
        })
        .run()
        .await;
    Ok(())
}

/// Waits until the driver can have attachments. If a driver can't attach and its CSIDriver says so,
/// it has none. The node then need not watch the attachments of all other drivers on all nodes.
async fn needed(context: &Context) {
    let driver = &context.driver;
    let attaches = driver.can(ControllerCapability::PublishUnpublishVolume);
    if attaches || context.scope == Scope::Cluster {
        return;
    }
    let known = context.caches.csi_drivers();
    let changed = Arc::new(Notify::new());
    let change = changed.clone();
    known.on_change(move |_| change.notify_one());
    known.synced().await;
    while known.get(&driver.name).is_some_and(|known| rests(&known)) {
        changed.notified().await;
    }
}

/// True if the driver's volumes are used without being attached.
fn rests(driver: &CSIDriver) -> bool {
    driver.spec.attach_required == Some(false)
}

impl Attacher {
    fn new(context: Context) -> Self {
        let driver = &context.driver;
        let settings = Settings {
            driver: driver.name.clone(),
            finalizer: finalizer(&driver.name),
            attaches: driver.can(ControllerCapability::PublishUnpublishVolume),
            read_only: driver.can(ControllerCapability::PublishReadonly),
            multi_writer: driver.can(ControllerCapability::SingleNodeMultiWriter),
            default_fstype: context.common.default_fstype.clone(),
        };
        let attachments = context.caches.attachments();
        let queue: Queue<ObjectKey> = context.queue();
        let of_volume = attachments.index(|attachment| {
            let volume = &attachment.spec.source.persistent_volume_name;
            volume.iter().cloned().collect()
        });
        Attacher {
            kube: context.kube.managed_by("hostloop-attacher"),
            timeout: context.common.timeout.unwrap_or(TIMEOUT),
            volumes: context.caches.volumes(),
            csi_nodes: context.caches.csi_nodes(),
            for_slot: Waiters::queued(&context.freed, &queue),
            queue,
            volume_queue: context.queue(),
            forced: Mutex::default(),
            confirmed: Mutex::default(),
            attachments,
            of_volume,
            settings,
            context,
        }
    }

    /// Fills the queues from what the caches report.
    fn feed(&self, controller: Controller<Attacher>) -> Controller<Attacher> {
        let (queue, volume_queue) = (&self.queue, &self.volume_queue);
        let of_attachments = self.settings.clone();
        let of_volumes = self.settings.clone();
        let of_nodes = self.settings.clone();
        let (volumes, detached) = (self.volumes.clone(), self.volumes.clone());
        controller
            .feed(&self.attachments, queue, move |change| match change {
                Change::Applied { old, new } => {
                    let asks = old.as_ref().is_none_or(|old| of_attachments.asks(old, new));
                    asks.then(|| ObjectKey::of_attachment(new, &volumes))
                }
                Change::Deleted(_) => None,
            })
            .feed(
                &self.attachments,
                volume_queue,
                move |change| match change {
                    Change::Deleted(old) => ObjectKey::of_attached_volume(old, &detached),
                    Change::Applied { .. } => None,
                },
            )
            .feed(&self.volumes, volume_queue, move |change| match change {
                Change::Applied { new, .. } if of_volumes.keeps(new) => {
                    Some(ObjectKey::of_volume(new))
                }
                _ => None,
            })
            .wake(
                "csi-attacher-of-volumes",
                &self.volumes,
                Duration::ZERO,
                |change| match change {
                    Change::Applied { old: None, new } => Some(new.name_any()),
                    _ => None,
                },
                queue,
                |this, volume| this.waiting(this.of_volume.get(volume)),
            )
            .wake(
                "csi-attacher-of-nodes",
                &self.csi_nodes,
                Duration::ZERO,
                move |change| of_nodes.newly_registered(change),
                queue,
                |this, node| {
                    let all = this.attachments.all().into_iter();
                    this.waiting(all.filter(|one| one.spec.node_name == node).collect())
                },
            )
    }

    /// The keys of the attachments that are not attached yet.
    fn waiting(
        &self,
        attachments: Vec<Arc<VolumeAttachment>>,
    ) -> impl Iterator<Item = ObjectKey> + use<> {
        let volumes = self.volumes.clone();
        let waiting = attachments.into_iter().filter(|one| !is_attached(one));
        waiting.map(move |one| ObjectKey::of_attachment(&one, &volumes))
    }

    /// True if this process is responsible for an attachment of this volume. A shared volume is
    /// attached and detached by the node that has it, whichever node the attachment is to.
    ///
    /// Without its volume, an attachment shows only by its label that it is of a shared one: the leader
    /// labels it with the node that has the volume. A driver detaches what it does not have with
    /// success, and the node that has the volume would never know.
    fn serves(&self, attachment: &VolumeAttachment, volume: Option<&PersistentVolume>) -> bool {
        let scope = &self.context.scope;
        let owner = match volume {
            Some(volume) if pv::is_shared(volume) => Some(self.context.owner(volume)),
            _ => None,
        };
        let is_unknown = volume.is_none() && attachment.spec.source.inline_volume_spec.is_none();
        let label = attachment.labels().get(NODE_LABEL);
        let is_labelled = label
            .zip(scope.node())
            .map(|(label, node)| *label == node_label(node));
        attachment.spec.attacher == self.settings.driver
            && decide::serves(
                owner,
                is_labelled.filter(|_| is_unknown),
                scope.has_node(&attachment.spec.node_name),
            )
    }

    /// True if this process may be responsible for an attachment, as far as the caches show: a node's
    /// may lack the volume.
    fn may_serve(&self, attachment: &VolumeAttachment) -> bool {
        let name = attachment.spec.source.persistent_volume_name.as_deref();
        let volume = name.and_then(|name| self.volumes.get(name));
        if volume.is_some() {
            return self.serves(attachment, volume.as_deref());
        }
        let is_to_it = self.context.scope.has_node(&attachment.spec.node_name);
        let is_ours = attachment.spec.attacher == self.settings.driver;
        is_ours && (is_to_it || self.serves(attachment, None))
    }
}
