//! Gives volumes the faults that their claims ask for by the annotation `hostloop.csi.dev/fault`,
//! and says so by events, metrics and log lines.
//!
//! Only a process with the driver in it can do that, for the volumes of its node. It writes nothing
//! to the claim: users who may change the claim decide about the fault. Without `--enable-faults`,
//! each fault is refused by an event, and one that an earlier process has left is ended.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use parking_lot::Mutex;
use tonic::{Code, Status};

use crate::api::{pv, pvc};
use crate::cache::{Change, Store};
use crate::client::ApiError;
use crate::controller::workers::WORKERS;
use crate::controller::{Context, Controller};
use crate::queue::{Outcome, Queue};

mod decide;
mod metrics;
#[cfg(test)]
mod tests;
mod volume_faults;

use decide::RequestedFault;
pub use metrics::Metrics;
pub use volume_faults::{FaultReport, FaultRequest, FaultState, VolumeFaults};

/// How often all volumes with a fault are looked at again.
const RESYNC: Duration = Duration::from_secs(600);
/// The wait while another call uses the volume.
const BUSY: Duration = Duration::from_secs(1);

/// Why the fault of a volume is not known.
#[derive(Debug, thiserror::Error)]
enum ClaimFaultsError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{}", pv::rpc_error(.0))]
    Driver(Status),
}

/// The namespace of a claim and the name of its PersistentVolume. Namespaces take turns, so a fault
/// ends in time also while the claims of another namespace change all the time.
type VolumeKey = (String, String);

/// What was last found of a volume.
#[derive(Clone, Debug, PartialEq)]
struct KnownFault {
    /// The volume ID in CSI.
    handle: String,
    /// The word of the fault; empty if the annotation has none.
    name: &'static str,
    report: FaultReport,
}

/// The controller. Its keys name PersistentVolumes: a fault may have to end after its claim is gone.
struct ClaimFaults {
    context: Context,
    driver_faults: VolumeFaults,
    metrics: Metrics,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    queue: Queue<VolumeKey>,
    known: Mutex<BTreeMap<String, KnownFault>>,
}

/// Watches the claims of this node until `context.stop`.
pub(crate) async fn run(context: Context, driver_faults: VolumeFaults, metrics: Metrics) {
    let faults = Arc::new(ClaimFaults::new(context.clone(), driver_faults, metrics));
    let queue = faults.queue.clone();
    let workers = context.common.workers(WORKERS);
    Controller::new(&context, faults.clone())
        .after(|this| async move { this.synced().await })
        .feed(&faults.claims, &queue, changed_volume)
        .work("claim-faults", &queue, workers, |this, key| async move {
            this.reconcile(&key).await
        })
        // The claim may have lost its annotation while no process ran.
        .beside(|this| async move {
            this.queue.add_each(this.faulty_volumes()).await;
        })
        .resync(RESYNC, &queue, |this| this.faulty_volumes())
        .run()
        .await;
}

/// The volume of a claim that asks for a fault, or has just asked for one. A claim that is not bound
/// may name any volume, so its annotation counts once it is bound, and while it ceases to be.
fn changed_volume(change: &Change<PersistentVolumeClaim>) -> Option<VolumeKey> {
    let (claim, asks) = match change {
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
            (new, is_other && (was || is) && before.or(now).is_some())
        }
        Change::Deleted(old) => (old, pvc::is_bound(old) && pvc::fault(old).is_some()),
    };
    let name = pvc::volume_name(claim).filter(|_| asks)?;
    Some((claim.namespace().unwrap_or_default(), name.to_owned()))
}

impl ClaimFaults {
    fn new(context: Context, driver_faults: VolumeFaults, metrics: Metrics) -> Self {
        ClaimFaults {
            claims: context.caches.claims(),
            volumes: context.caches.volumes(),
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
    }

    /// The PersistentVolumes of the volumes with a recorded fault.
    fn faulty_volumes(&self) -> Vec<VolumeKey> {
        let faulty: HashSet<String> = self.driver_faults.faulty().into_iter().collect();
        if faulty.is_empty() {
            return Vec::new();
        }
        let volumes = self.volumes.each();
        volumes
            .filter(|volume| {
                let handle = pv::handle(volume, &self.context.driver.name);
                handle.is_some_and(|handle| faulty.contains(handle))
            })
            .map(|volume| volume_key(&volume))
            .collect()
    }

    async fn reconcile(&self, key: &VolumeKey) -> Outcome {
        let (namespace, name) = key;
        match self.reconciled(namespace, name).await {
            Ok(again) => again.map_or(Outcome::Done, Outcome::RequeueAfter),
            Err(ClaimFaultsError::Driver(status)) if status.code() == Code::Aborted => {
                Outcome::RequeueAfter(BUSY)
            }
            Err(error) => {
                tracing::warn!(volume = name, %error, "a fault is not as its claim asks for, and is tried again");
                Outcome::Failed
            }
        }
    }

    /// Brings a volume to what its claim asks for. Returns when to look again.
    async fn reconciled(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Duration>, ClaimFaultsError> {
        let kube = &self.context.kube;
        let Some(volume) = kube.find_live(&self.volumes, "", name).await? else {
            return self.end_without_volume(name).await;
        };
        if pv::claim(&volume).is_some() && claim_namespace(&volume) != namespace {
            // A fault from before the volume got a claim of another namespace is that one's to end.
            if self.known.lock().contains_key(name) {
                self.queue.add(volume_key(&volume));
            }
            return Ok(None);
        }
        let Some(handle) = pv::handle(&volume, &self.context.driver.name) else {
            return Ok(None);
        };
        if !self.context.may_have(&volume) {
            self.forget(name);
            return Ok(None);
        }
        let claim = self.claim_of(&volume).await?;
        let annotation = claim.as_deref().and_then(pvc::fault);
        let requested = decide::requested(annotation, self.driver_faults.is_enabled());
        if requested == RequestedFault::Nothing && self.is_of_another(name, handle) {
            return Ok(None);
        }
        let fault = match &requested {
            RequestedFault::Fault(fault) => Some(*fault),
            RequestedFault::Nothing | RequestedFault::Refused(_) => None,
        };
        let request = FaultRequest {
            volume: handle.to_owned(),
            namespace: namespace.to_owned(),
            fault,
        };
        let found = self.driver_faults.apply(request).await;
        let report = match found {
            Ok(found) => decide::report(&requested, found),
            Err(status) => {
                self.failed(claim.as_deref(), &status);
                return Err(ClaimFaultsError::Driver(status));
            }
        };
        let again = report.again;
        let known = KnownFault {
            handle: handle.to_owned(),
            name: requested.name(),
            report,
        };
        self.found(name, claim.as_deref(), known);
        Ok(again)
    }

    /// True if another PersistentVolume of the same handle has the fault, and this one has none: then
    /// its claim, which asks for nothing, does not end the fault.
    fn is_of_another(&self, name: &str, handle: &str) -> bool {
        let all = self.known.lock();
        let mut others = all.values();
        !all.contains_key(name)
            && others.any(|known| known.handle == handle && !known.name.is_empty())
    }

    /// Ends the fault of a volume that has lost its PersistentVolume, and with it any claim.
    async fn end_without_volume(&self, name: &str) -> Result<Option<Duration>, ClaimFaultsError> {
        let known = self.known.lock().get(name).cloned();
        let Some(known) = known else {
            return Ok(None);
        };
        let request = FaultRequest {
            volume: known.handle.clone(),
            namespace: String::new(),
            fault: None,
        };
        let ended = self.driver_faults.apply(request).await;
        let report = ended.map_err(ClaimFaultsError::Driver)?;
        let again = report.again;
        self.found(name, None, KnownFault { report, ..known });
        if again.is_none() {
            self.forget(name);
        }
        Ok(again)
    }

    /// The claim that the volume is bound to.
    async fn claim_of(
        &self,
        volume: &PersistentVolume,
    ) -> Result<Option<Arc<PersistentVolumeClaim>>, ApiError> {
        let Some(reference) = pv::claim(volume) else {
            return Ok(None);
        };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        let kube = &self.context.kube;
        let claim = kube.find_live(&self.claims, namespace, name).await?;
        Ok(claim.filter(|claim| {
            reference.uid == claim.uid()
                && pvc::volume_name(claim) == volume.metadata.name.as_deref()
        }))
    }

    fn failed(&self, claim: Option<&PersistentVolumeClaim>, status: &Status) {
        let (Some(claim), false) = (claim, status.code() == Code::Aborted) else {
            return;
        };
        let message = format!("{}; it is tried again", pv::rpc_error(status));
        self.context.events.warning(claim, "FaultFailed", message);
    }

    /// Remembers what was found, and says what has changed.
    fn found(&self, volume: &str, claim: Option<&PersistentVolumeClaim>, now: KnownFault) {
        let mut all = self.known.lock();
        let before = all.get(volume).cloned();
        let KnownFault { report, name, .. } = now.clone();
        let event = decide::event(before.as_ref().map(|known| &known.report), &report);
        let was = before
            .as_ref()
            .map_or(FaultState::Absent, |known| known.report.state);
        if was != report.state {
            self.context.health_changed.notify_one();
        }
        // A fault that ends has the name that it had.
        let name = match (&before, name) {
            (Some(before), "") => before.name,
            _ => name,
        };
        if report.state == FaultState::Absent {
            all.remove(volume);
        } else {
            all.insert(volume.to_owned(), KnownFault { name, ..now });
        }
        self.count_active(&all);
        drop(all);
        let Some((kind, reason)) = event else {
            return;
        };
        self.metrics.changed(name, report.state);
        tracing::info!(volume, fault = name, state = ?report.state, "{}", report.message);
        if let Some(claim) = claim {
            let about = kube::Resource::object_ref(claim, &());
            self.context
                .events
                .emit(about, kind, reason, report.message);
        }
    }

    fn forget(&self, volume: &str) {
        let mut all = self.known.lock();
        all.remove(volume);
        self.count_active(&all);
    }

    fn count_active(&self, all: &BTreeMap<String, KnownFault>) {
        let active = all.values().filter(|known| known.report.is_active());
        self.metrics.active(active.count());
    }
}

fn volume_key(volume: &PersistentVolume) -> VolumeKey {
    (claim_namespace(volume).to_owned(), volume.name_any())
}

/// The namespace of the claim that a volume names.
fn claim_namespace(volume: &PersistentVolume) -> &str {
    let reference = pv::claim(volume);
    reference
        .and_then(|claim| claim.namespace.as_deref())
        .unwrap_or_default()
}
