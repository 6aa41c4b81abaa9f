//! The resizer: claims that ask for more than they have become ControllerExpandVolume, and claims
//! that ask for another VolumeAttributesClass become ControllerModifyVolume.
//!
//! What is under way is written in the claim's status before each call, so that whoever comes
//! after a crash, and kubelet, know what to finish: see [`recover`] and [`modify`].

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::api::pv::{self, AccessModesError};
use crate::controller::queue::{Outcome, Queue};
use crate::controller::{Context, Controller};
use crate::runtime::csi::Failure;
use crate::runtime::driver::{ControllerCapability, NodeCapability};
use crate::runtime::{ApiError, Change, Index, Kube, Store, boolean, duration};
use crate::secrets::SecretError;

pub mod claim;
mod expand;
pub mod modify;
mod pods_by_claim;
pub mod recover;

use claim::{Claim, volume_name};
use pods_by_claim::Users;

/// How long a call may take unless told otherwise.
const TIMEOUT: &str = "10s";
/// How often all claims are looked at again unless told otherwise.
const RESYNC: Duration = Duration::from_secs(600);
/// What is infeasible is tried again this late, unless told otherwise.
const SLOW: Duration = Duration::from_secs(300);

/// What it is told on the command line.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Options {
    /// How many claims the resizer works on at once, unless --worker-threads says so
    #[arg(
        long = "workers",
        env = "HOSTLOOP_WORKERS",
        value_name = "N",
        default_value_t = 10
    )]
    pub workers: usize,
    /// How long a ControllerExpandVolume may take, unless --timeout says so
    #[arg(
        long = "resize-timeout", env = "HOSTLOOP_RESIZE_TIMEOUT",
        value_name = "DURATION", default_value = TIMEOUT, value_parser = duration::parse
    )]
    pub resize_timeout: Duration,
    /// How long a ControllerModifyVolume may take, unless --timeout says so
    #[arg(
        long = "modify-timeout", env = "HOSTLOOP_MODIFY_TIMEOUT",
        value_name = "DURATION", default_value = TIMEOUT, value_parser = duration::parse
    )]
    pub modify_timeout: Duration,
    /// Wait with expanding a volume that can't be expanded in use until no pod uses it
    #[arg(
        long = "handle-volume-inuse-error", env = "HOSTLOOP_HANDLE_VOLUME_INUSE_ERROR",
        value_name = "BOOL", value_parser = boolean::parse,
        default_value = "true", default_missing_value = "true",
        num_args = 0..=1
    )]
    pub handle_volume_inuse_error: bool,
    /// Tell the driver the names of claim and volume when modifying
    #[arg(
        long = "extra-modify-metadata", env = "HOSTLOOP_EXTRA_MODIFY_METADATA",
        value_name = "BOOL", value_parser = boolean::parse,
        default_value = "false", default_missing_value = "true",
        num_args = 0..=1
    )]
    pub extra_modify_metadata: bool,
}

/// It does not fail: what goes wrong is tried again.
pub type Error = Infallible;

/// Why a claim is not as it should be.
#[derive(Debug, thiserror::Error)]
enum ResizeError {
    /// The API server did not take it.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The secrets can't be had.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The volume's access modes fit no call.
    #[error(transparent)]
    AccessModes(#[from] AccessModesError),
    /// The driver did not do it.
    #[error("{}", pv::rpc_error(.0))]
    Call(#[from] Failure),
    /// This is now somebody else's work.
    #[error("another process has taken over")]
    NotOurs,
    /// This process ends.
    #[error("stopped")]
    Stopped,
}

/// Namespace and name of a claim.
type Key = (String, String);

/// What is to be worked on for modifying.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ModifyKey {
    /// A claim.
    Claim(Key),
    /// The claims that ask for a class.
    Class(String),
}

/// What is remembered of a claim from one try to the next.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    /// The last expansion failed for good.
    final_error: bool,
    /// The last expansion failed because the volume was in use.
    in_use: bool,
    /// What is infeasible is not tried again before.
    expand_after: Option<Instant>,
    /// Nobody knows whether the last modification goes on.
    uncertain: bool,
    /// As for expanding.
    modify_after: Option<Instant>,
}

struct Resizer {
    context: Context,
    kube: Kube,
    options: Options,
    /// The driver's controller expands, not its node alone.
    controller_expands: bool,
    multi_writer: bool,
    slow: Duration,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    memory: Arc<Mutex<BTreeMap<Key, Memory>>>,
    /// Watched from the first time a volume can't be expanded in use.
    users: OnceCell<Users>,
    queue: Queue<Key>,
    modify_queue: Queue<ModifyKey>,
    classes: OnceLock<Classes>,
}

/// The classes, and the claims that ask for them.
struct Classes {
    watch: Store<VolumeAttributesClass>,
    claims: Index<PersistentVolumeClaim>,
}

/// Expands and modifies until `context.stop`.
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
        let can = |capability| context.driver.can(capability);
        Resizer {
            kube: context.kube.managed_by("hostloop-resizer"),
            controller_expands: can(ControllerCapability::ExpandVolume),
            multi_writer: can(ControllerCapability::SingleNodeMultiWriter),
            slow: context.common.retry_interval_max.unwrap_or(SLOW),
            claims: context.caches.claims(),
            volumes: context.caches.volumes(),
            memory: Arc::default(),
            users: OnceCell::new(),
            queue: context.queue(),
            modify_queue: context.queue(),
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
                    lock(&memory).remove(&key_of(old));
                    None
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
        let workers = self.context.common.worker_threads;
        workers.unwrap_or(self.options.workers)
    }

    fn resync(&self) -> Duration {
        self.context.common.resync_period.unwrap_or(RESYNC)
    }

    /// The volume of a claim, if it is ours to work on. `live` has it asked for where the watch
    /// has not seen it yet.
    async fn volume_of(
        &self,
        claim: &PersistentVolumeClaim,
        live: bool,
    ) -> Result<Option<Arc<PersistentVolume>>, ApiError> {
        let Some(name) = volume_name(claim) else {
            return Ok(None);
        };
        let volume = match self.volumes.get(name) {
            None if live => self.kube.get("", name).await?.map(Arc::new),
            known => known,
        };
        Ok(volume.filter(|volume| self.is_mine(claim, volume)))
    }

    fn is_mine(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
        let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        csi.is_some_and(|csi| csi.driver == self.context.driver.name)
            && claim.is_bound_to(volume)
            && self.context.may_have(volume)
    }

    /// Writes a claim's status, if there is something to write.
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

    /// Writes a volume.
    async fn write_volume(
        &self,
        volume: &PersistentVolume,
        patch: Value,
    ) -> Result<PersistentVolume, ResizeError> {
        self.ours()?;
        let written = self.kube.merge(volume, patch).await?;
        self.volumes.apply_write(written.clone());
        Ok(written)
    }

    /// To be asked before each write and call.
    fn ours(&self) -> Result<(), ResizeError> {
        match self.context.acts() {
            true => Ok(()),
            false => Err(ResizeError::NotOurs),
        }
    }

    fn recall(&self, key: &Key) -> Memory {
        lock(&self.memory).get(key).copied().unwrap_or_default()
    }

    fn remember(&self, key: &Key, change: impl FnOnce(&mut Memory)) {
        change(lock(&self.memory).entry(key.clone()).or_default());
    }

    /// Has the claims looked at that could not be expanded because a pod used them.
    fn awaited(&self) -> impl Fn(BTreeSet<Key>) + Send + Sync + 'static {
        let (queue, memory) = (self.queue.clone(), self.memory.clone());
        move |left| {
            let memory = lock(&memory);
            for key in left {
                if memory.get(&key).is_some_and(|memory| memory.in_use) {
                    queue.add(key);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key_of(claim: &PersistentVolumeClaim) -> Key {
    (claim.namespace().unwrap_or_default(), claim.name_any())
}

/// How long it is still too early, if it is.
fn too_early(not_before: Option<Instant>) -> Option<Duration> {
    let left = not_before?.saturating_duration_since(Instant::now());
    Some(left).filter(|left| !left.is_zero())
}

/// Of a try that failed.
fn outcome_of(error: &ResizeError, key: &Key) -> Outcome {
    match error {
        ResizeError::NotOurs | ResizeError::Stopped => Outcome::Done,
        error => {
            tracing::warn!(namespace = key.0, claim = key.1, %error, "not in line yet");
            Outcome::Failed
        }
    }
}

fn now() -> Timestamp {
    Timestamp::now()
}
