//! Gives volumes the faults that their claims ask for by the annotation `hostloop.csi.dev/fault`, or
//! their classes by a parameter, and says so by events, metrics and log lines.
//!
//! Only a process with the driver in it can do that, for the volumes of its node. It writes nothing
//! to the claim: users who may change the claim decide about the fault. Without `--enable-faults`,
//! each fault is refused by an event, and one that an earlier process has left is ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::sleep;
use tonic::Code;

use crate::api::pvc;
use crate::cache::{Change, Store};
use crate::controller::workers::WORKERS;
use crate::controller::{Context, Controller};
use crate::queue::{Outcome, Queue};

mod apply;
mod class_presets;
mod decide;
mod gather;
mod metrics;
#[cfg(test)]
mod tests;
mod volume_faults;

use apply::ClaimFaultsError;
use class_presets::ClassPresets;
use decide::{KnownFault, VolumeKey};
pub use metrics::Metrics;
pub use volume_faults::{FaultReport, FaultRequest, FaultState, VolumeFaults};

/// How often all volumes with a fault are looked at again.
const RESYNC: Duration = Duration::from_secs(600);
/// The wait after a look that failed.
const LOOK_RETRY: Duration = Duration::from_secs(15);
/// The wait while another call uses the volume.
const BUSY: Duration = Duration::from_secs(1);

/// The controller. Its keys name PersistentVolumes: a fault may have to end after its claim is gone.
struct ClaimFaults {
    context: Context,
    driver_faults: VolumeFaults,
    metrics: Metrics,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    presets: ClassPresets,
    queue: Queue<VolumeKey>,
    known: Mutex<BTreeMap<String, KnownFault>>,
}

/// Watches the claims of this node until `context.stop`.
pub(crate) async fn run(context: Context, driver_faults: VolumeFaults, metrics: Metrics) {
    let faults = Arc::new(ClaimFaults::new(context.clone(), driver_faults, metrics));
    let (queue, presets) = (faults.queue.clone(), faults.presets.clone());
    let workers = context.common.workers(WORKERS);
    Controller::new(&context, faults.clone())
        .after(|this| async move { this.synced().await })
        .feed(&faults.claims, &queue, move |change| {
            changed_volume(change, &presets)
        })
        .work("claim-faults", &queue, workers, |this, key| async move {
            this.reconcile(&key).await
        })
        .beside(|this| async move { this.keep_looking().await })
        .run()
        .await;
}

/// The volume of a claim that asks for a fault, by itself or by its class, or has just asked for one.
/// A claim that is not bound may name any volume, so it counts once it is bound, and while it ceases to
/// be.
fn changed_volume(
    change: &Change<PersistentVolumeClaim>,
    presets: &ClassPresets,
) -> Option<VolumeKey> {
    let (claim, is_changed) = match change {
        Change::Applied { old, new } => {
            let (before, now) = (
                old.as_ref().and_then(|old| pvc::fault(old)),
                pvc::fault(new),
            );
            let (was, is) = (
                old.as_ref().is_some_and(|old| pvc::is_bound(old)),
                pvc::is_bound(new),
            );
            let is_other = before != now || was != is;
            let asks = is_other && (was || is) && before.or(now).is_some();
            // The fault of a class begins and ends with the volume of the claim.
            (new, asks || (was != is && presets.of(new).is_some()))
        }
        Change::Deleted(old) => {
            let asks =
                pvc::is_bound(old) && (pvc::fault(old).is_some() || presets.of(old).is_some());
            (old, asks)
        }
    };
    let name = pvc::volume_name(claim).filter(|_| is_changed)?;
    Some((claim.namespace().unwrap_or_default(), name.to_owned()))
}

impl ClaimFaults {
    fn new(context: Context, driver_faults: VolumeFaults, metrics: Metrics) -> Self {
        ClaimFaults {
            claims: context.caches.claims(),
            volumes: context.caches.volumes(),
            presets: ClassPresets::new(context.caches.classes(), &context.driver.name),
            queue: context.queue(),
            known: Mutex::default(),
            driver_faults,
            metrics,
            context,
        }
    }

    async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
        self.presets.synced().await;
    }

    async fn keep_looking(&self) {
        loop {
            sleep(self.look_again().await).await;
        }
    }

    /// Looks at all volumes with a recorded fault. While no process ran, a claim may have lost the
    /// annotation, or a volume its PersistentVolume. Returns the pause before the next look.
    async fn look_again(&self) -> Duration {
        let (keys, unnamed) = self.faulty_volumes();
        self.queue.add_each(keys).await;
        if unnamed.is_empty() {
            return RESYNC;
        }
        match self.end_unnamed(unnamed).await {
            Ok(()) => RESYNC,
            Err(error) => {
                tracing::warn!(%error, "a fault without a PersistentVolume has not ended, and is tried again");
                LOOK_RETRY
            }
        }
    }

    async fn reconcile(&self, key: &VolumeKey) -> Outcome {
        match self.reconciled(key).await {
            Ok(again) => again.map_or(Outcome::Done, Outcome::RequeueAfter),
            Err(ClaimFaultsError::Driver(status)) if status.code() == Code::Aborted => {
                Outcome::RequeueAfter(BUSY)
            }
            Err(error) => {
                let (_, name) = key;
                tracing::warn!(volume = name, %error, "a fault is not as its claim asks for, and is tried again");
                Outcome::Failed
            }
        }
    }

    /// Brings a volume to what its claim asks for. Returns when to look again.
    async fn reconciled(&self, key: &VolumeKey) -> Result<Option<Duration>, ClaimFaultsError> {
        let facts = self.gather(key).await?;
        let driver = &self.context.driver.name;
        let step = decide::decide(&facts, key, driver, self.driver_faults.is_enabled());
        self.apply(key, facts.claim.as_deref(), step).await
    }
}
