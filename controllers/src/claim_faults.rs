//! Gives volumes the faults that their claims ask for by the annotation `hostloop.csi.dev/fault`, or
//! their classes by a parameter, and says so by events, metrics and log lines.
//!
//! Only a process with the driver in it can do that, for the volumes of its node. It writes nothing
//! to the claim: users who may change the claim decide about the fault. Without `--enable-faults`,
//! each fault is refused by an event, and one that an earlier process has left is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::time::sleep;
use tonic::{Code, Status};

use crate::api::{pv, pvc};
use crate::cache::{Change, Store};
use crate::client::ApiError;
use crate::controller::workers::WORKERS;
use crate::controller::{Context, Controller};
use crate::kept_fields::HANDLES;
use crate::queue::{Outcome, Queue};

mod class_presets;
mod decide;
mod metrics;
#[cfg(test)]
mod tests;
mod volume_faults;

use class_presets::ClassPresets;
use decide::RequestedFault;
pub use metrics::Metrics;
pub use volume_faults::{FaultReport, FaultRequest, FaultState, VolumeFaults};

/// How often all volumes with a fault are looked at again.
const RESYNC: Duration = Duration::from_secs(600);
/// The wait after a look that failed.
const LOOK_RETRY: Duration = Duration::from_secs(15);
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

    /// The cached PersistentVolumes of the volumes with a recorded fault, and the handles of those
    /// without one.
    fn faulty_volumes(&self) -> (Vec<VolumeKey>, BTreeSet<String>) {
        let (mut keys, mut unnamed) = (Vec::new(), BTreeSet::new());
        for handle in self.driver_faults.faulty() {
            let context = &self.context;
            let volumes = context.caches.volumes_of(&context.driver.name, &handle);
            keys.extend(volumes.iter().map(|volume| volume_key(volume)));
            if volumes.is_empty() {
                unnamed.insert(handle);
            }
        }
        (keys, unnamed)
    }

    /// Ends the faults of volumes that no PersistentVolume names. The cache may lack one, so this asks
    /// the API server.
    async fn end_unnamed(&self, handles: BTreeSet<String>) -> Result<(), ClaimFaultsError> {
        let (kube, driver) = (&self.context.kube, &self.context.driver.name);
        let (mut named, mut names) = (BTreeSet::new(), Vec::new());
        kube.each_fields::<PersistentVolume>("", &HANDLES, |volume| {
            let handle = pv::handle(&volume, driver).map(str::to_owned);
            if let Some(handle) = handle.filter(|handle| handles.contains(handle)) {
                named.insert(handle);
                names.push(volume.name_any());
            }
        })
        .await?;
        for name in names {
            let volume = kube.get::<PersistentVolume>("", &name).await?;
            self.queue.add_all(volume.as_ref().map(volume_key));
        }
        let mut failed = None;
        for handle in handles.difference(&named) {
            match self.end(handle).await {
                Ok(ended) => tracing::info!(
                    volume = handle.as_str(),
                    state = ?ended.state,
                    "the fault of a volume ends with its PersistentVolume"
                ),
                Err(status) => failed = Some(status),
            }
        }
        failed.map_or(Ok(()), |status| Err(ClaimFaultsError::Driver(status)))
    }

    /// Ends the fault of a volume without a claim.
    async fn end(&self, handle: &str) -> Result<FaultReport, Status> {
        let request = FaultRequest {
            volume: handle.to_owned(),
            namespace: String::new(),
            fault: None,
        };
        self.driver_faults.apply(request).await
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
        let preset = claim.as_deref().and_then(|claim| self.presets.of(claim));
        let is_enabled = self.driver_faults.is_enabled();
        let requested = decide::requested(annotation, preset.as_deref(), is_enabled);
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
        let ended = self.end(&known.handle).await;
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
