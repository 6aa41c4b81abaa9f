//! The resizer: calls ControllerExpandVolume for claims that request a larger size, and
//! ControllerModifyVolume for claims that request another VolumeAttributesClass.
//!
//! Before each call, the resizer writes the operation into the claim's status. So kubelet, and any
//! process after a crash, know what to finish: see [`recover`] and [`modify`].

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::ResourceExt;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::api::pv::{self, AccessModesError};
use crate::api::{duration, pvc};
use crate::cache::{Change, Index, Store};
use crate::client::{ApiError, Kube};
use crate::controller::workers::WORKERS;
use crate::controller::{Context, Controller, EventKey};
use crate::csi::driver::{ControllerCapability, NodeCapability};
use crate::csi::{Failure, Waiters};
use crate::queue::{self, Outcome, Queue};
use crate::secrets::SecretError;

mod claim;
mod expand;
mod modify;
mod pods_by_claim;
mod recover;
#[cfg(test)]
mod testing;

use pods_by_claim::PodsByClaim;

/// Default timeout of a CSI call.
const TIMEOUT: &str = "10s";
/// Default interval of reconciling all claims again.
const RESYNC: Duration = Duration::from_secs(600);
/// Default delay before an infeasible operation is tried again.
const SLOW: Duration = Duration::from_secs(300);

/// Flags of the resizer.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Resizer")]
#[group(skip)]
pub struct Options {
    /// How many claims the resizer works on at once, unless --worker-threads is given
    #[arg(long, value_name = "N", default_value_t = WORKERS)]
    pub workers: usize,
    /// Timeout of a ControllerExpandVolume, unless --timeout is given
    #[arg(long, value_name = "DURATION", default_value = TIMEOUT, value_parser = duration::parse)]
    pub resize_timeout: Duration,
    /// Timeout of a ControllerModifyVolume, unless --timeout is given
    #[arg(long, value_name = "DURATION", default_value = TIMEOUT, value_parser = duration::parse)]
    pub modify_timeout: Duration,
    /// If the driver can't expand a volume in use, wait until no pod uses it
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub handle_volume_inuse_error: bool,
    /// Pass the names of claim and volume to the driver when modifying
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub extra_modify_metadata: bool,
}

/// The resizer never fails: it retries every error.
pub type Error = Infallible;

/// Why a claim could not be reconciled.
#[derive(Debug, thiserror::Error)]
enum ResizeError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    AccessModes(#[from] AccessModesError),
    #[error("{}", pv::rpc_error(&.0.status))]
    Call(#[from] Failure),
    #[error("another process has taken over")]
    NotOurs,
    #[error("stopped")]
    Stopped,
}

/// Namespace and name of a claim.
type ClaimKey = (String, String);

/// A key of the queue for modifications.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ModifyKey {
    Claim(ClaimKey),
    /// All claims that request this class.
    Class(String),
}

impl EventKey for ModifyKey {
    fn text(&self) -> String {
        match self {
            ModifyKey::Claim(claim) => claim.text(),
            ModifyKey::Class(name) => name.clone(),
        }
    }
}

impl queue::QueueKey for ModifyKey {
    fn namespace(&self) -> &str {
        match self {
            ModifyKey::Claim((namespace, _)) => namespace,
            ModifyKey::Class(_) => "",
        }
    }
}

/// State of a claim that is kept between attempts.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// The last expansion failed with a final error.
    final_error: bool,
    /// The last expansion failed because the volume was in use.
    in_use: bool,
    /// An infeasible expansion is not tried again before this time.
    expand_after: Option<Instant>,
    /// It is unknown whether the last modification is still running.
    uncertain: bool,
    /// An infeasible modification is not tried again before this time.
    modify_after: Option<Instant>,
}

struct Resizer {
    context: Context,
    kube: Kube,
    options: Options,
    /// True if the driver expands in its controller, not only on the node.
    controller_expands: bool,
    multi_writer: bool,
    slow: Duration,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    memory: Arc<Mutex<BTreeMap<ClaimKey, Memory>>>,
    /// Pods are watched from the first time that a volume can't be expanded in use.
    users: OnceCell<PodsByClaim>,
    queue: Queue<ClaimKey>,
    modify_queue: Queue<ModifyKey>,
    /// Claims with a volume that waits for room in a pool: to be larger, and to be modified.
    for_room: Waiters<ClaimKey>,
    modify_for_room: Waiters<ClaimKey>,
    classes: OnceLock<Classes>,
}

/// The classes, and the claims that request them.
struct Classes {
    watch: Store<VolumeAttributesClass>,
    claims: Index<PersistentVolumeClaim>,
}

/// Expands and modifies volumes until `context.stop`.
pub async fn run(context: Context, options: Options) -> Result<(), Error> {
    let driver = &context.driver;
    let expands = driver.can(ControllerCapability::ExpandVolume)
        || driver.node_can(NodeCapability::ExpandVolume);
    let modifies = driver.can(ControllerCapability::ModifyVolume);
    let resizer = Arc::new(Resizer::new(context.clone(), options));
    let expanding = async {
        if expands {
            resizer.expander().run().await;
        }
    };
    let modifying = async {
        if modifies {
            resizer.modifier().run().await;
        }
    };
    tokio::join!(expanding, modifying, context.stop.cancelled());
    Ok(())
}

impl Resizer {
    fn new(context: Context, options: Options) -> Self {
        let driver = &context.driver;
        let (queue, modify_queue) = (context.queue(), context.queue());
        let memory: Arc<Mutex<BTreeMap<ClaimKey, Memory>>> = Arc::default();
        Resizer {
            kube: context.kube.managed_by("hostloop-resizer"),
            controller_expands: driver.can(ControllerCapability::ExpandVolume),
            multi_writer: driver.can(ControllerCapability::SingleNodeMultiWriter),
            slow: context.common.retry_interval_max.unwrap_or(SLOW),
            claims: context.caches.claims(),
            volumes: context.caches.volumes(),
            users: OnceCell::new(),
            for_room: awake(&context, &memory, &queue, ClaimKey::clone, |memory| {
                memory.expand_after = None;
            }),
            modify_for_room: awake(
                &context,
                &memory,
                &modify_queue,
                |key| ModifyKey::Claim(key.clone()),
                |memory| memory.modify_after = None,
            ),
            memory,
            queue,
            modify_queue,
            classes: OnceLock::new(),
            options,
            context,
        }
    }

    fn expander(self: &Arc<Self>) -> Controller<Self> {
        let memory = self.memory.clone();
        Controller::new(&self.context, self.clone())
            .after(|this| async move { this.synced().await })
            .feed(&self.claims, &self.queue, move |change| match change {
                Change::Applied { old, new } => {
                    let asks = old.as_ref().is_none_or(|old| expand::asks(old, new));
                    asks.then(|| key_of(new))
                }
                Change::Deleted(old) => {
                    memory.lock().remove(&key_of(old));
                    Some(key_of(old))
                }
            })
            .work(
                "resizer",
                &self.queue,
                self.workers(),
                |this, key| async move { this.expand_claim(&key).await },
            )
            .resync(self.resync(), &self.queue, |this| {
                this.claims.each().map(|claim| key_of(&claim))
            })
    }

    async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
    }

    fn workers(&self) -> usize {
        self.context.common.workers(self.options.workers)
    }

    fn resync(&self) -> Duration {
        self.context.common.resync_period.unwrap_or(RESYNC)
    }

    /// Returns the PV of a claim, if this process is responsible for it. With `live`, a PV missing
    /// from the cache is read from the API server.
    async fn volume_of(
        &self,
        claim: &PersistentVolumeClaim,
        live: bool,
    ) -> Result<Option<Arc<PersistentVolume>>, ApiError> {
        let Some(name) = pvc::volume_name(claim) else {
            return Ok(None);
        };
        let volume = if live {
            self.kube.find_live(&self.volumes, "", name).await?
        } else {
            self.volumes.get(name)
        };
        Ok(volume.filter(|volume| self.is_mine(claim, volume)))
    }

    fn is_mine(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
        pv::handle(volume, &self.context.driver.name).is_some()
            && claim::is_bound_to(claim, volume)
            && self.context.may_have(volume)
    }

    /// Applies a patch to a claim's status; does nothing without a patch.
    async fn write(
        &self,
        claim: Arc<PersistentVolumeClaim>,
        patch: Option<Value>,
    ) -> Result<Arc<PersistentVolumeClaim>, ResizeError> {
        let Some(patch) = patch else {
            return Ok(claim);
        };
        self.ours()?;
        let written = self.kube.strategic_status(claim.as_ref(), patch).await?;
        self.claims.apply_write(written.clone());
        Ok(Arc::new(written))
    }

    /// Applies a patch to a PV.
    async fn write_volume(
        &self,
        volume: &PersistentVolume,
        patch: Value,
    ) -> Result<(), ResizeError> {
        self.ours()?;
        let written = self.kube.merge(volume, patch).await?;
        self.volumes.apply_write(written);
        Ok(())
    }

    /// Call this before each write and CSI call.
    fn ours(&self) -> Result<(), ResizeError> {
        if self.context.acts() {
            Ok(())
        } else {
            Err(ResizeError::NotOurs)
        }
    }

    fn recall(&self, key: &ClaimKey) -> Memory {
        self.memory.lock().get(key).copied().unwrap_or_default()
    }

    fn remember(&self, key: &ClaimKey, change: impl FnOnce(&mut Memory)) {
        change(self.memory.lock().entry(key.clone()).or_default());
    }

    /// Returns a callback that queues released claims, if their expansion failed because a pod used
    /// them.
    fn awaited(&self) -> impl Fn(BTreeSet<ClaimKey>) + Send + Sync + 'static {
        let (queue, memory) = (self.queue.clone(), self.memory.clone());
        move |left| {
            let memory = memory.lock();
            queue.add_all(
                left.into_iter()
                    .filter(|key| memory.get(key).is_some_and(|memory| memory.in_use)),
            );
        }
    }
}

/// Claims that are tried again, without the wait after an infeasible attempt, when there is room.
/// They keep their failures, as in [`Waiters::queued`].
fn awake<K: queue::QueueKey + Send + 'static>(
    context: &Context,
    memory: &Arc<Mutex<BTreeMap<ClaimKey, Memory>>>,
    queue: &Queue<K>,
    of: fn(&ClaimKey) -> K,
    forget: fn(&mut Memory),
) -> Waiters<ClaimKey> {
    let (memory, queue) = (memory.clone(), queue.clone());
    Waiters::new(&context.freed, move |key: &ClaimKey| {
        if let Some(memory) = memory.lock().get_mut(key) {
            forget(memory);
        }
        queue.add(of(key));
    })
}

/// True if the attempt was refused for lack of room.
fn lacks_room(result: &Result<impl Sized, ResizeError>) -> bool {
    matches!(result, Err(ResizeError::Call(failure)) if failure.lacks_room())
}

fn key_of(claim: &PersistentVolumeClaim) -> ClaimKey {
    (claim.namespace().unwrap_or_default(), claim.name_any())
}

/// The time left until `not_before`; `None` if it has passed.
fn too_early(not_before: Option<Instant>) -> Option<Duration> {
    let left = not_before?.saturating_duration_since(Instant::now());
    Some(left).filter(|left| !left.is_zero())
}

/// The outcome of a failed attempt.
fn outcome_of(error: &ResizeError, key: &ClaimKey) -> Outcome {
    match error {
        ResizeError::NotOurs | ResizeError::Stopped => Outcome::Done,
        error => {
            tracing::warn!(namespace = key.0, claim = key.1, %error, "resizing a claim failed, and is tried again");
            Outcome::Failed
        }
    }
}
