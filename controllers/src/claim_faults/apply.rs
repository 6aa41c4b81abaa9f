//! Gives volumes their faults, and says what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use tonic::{Code, Status};

use super::decide::{self, KnownFault, RequestedFault, Step, VolumeKey, volume_key};
use super::{ClaimFaults, FaultReport, FaultRequest, FaultState};
use crate::api::pv;
use crate::client::ApiError;
use crate::kept_fields::HANDLES;

/// Why the fault of a volume is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimFaultsError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{}", pv::rpc_error(.0))]
    Driver(Status),
}

impl ClaimFaults {
    /// Takes a step for the volume with this key. Returns when to look again.
    pub(super) async fn apply(
        &self,
        key: &VolumeKey,
        claim: Option<&PersistentVolumeClaim>,
        step: Step,
    ) -> Result<Option<Duration>, ClaimFaultsError> {
        let (namespace, name) = key;
        match step {
            Step::Nothing => Ok(None),
            Step::HandOver(key) => {
                self.queue.add(key);
                Ok(None)
            }
            Step::Forget => {
                self.forget(name);
                Ok(None)
            }
            Step::EndUnnamed(known) => self.end_known(name, known).await,
            Step::Give { handle, requested } => {
                let fault = match &requested {
                    RequestedFault::Fault(fault) => Some(fault.clone()),
                    RequestedFault::Nothing | RequestedFault::Refused(_) => None,
                };
                let request = FaultRequest {
                    volume: handle.clone(),
                    namespace: namespace.clone(),
                    fault,
                };
                let before = self
                    .known
                    .lock()
                    .get(name)
                    .map(|known| known.report.clone());
                let report = match self.driver_faults.apply(request).await {
                    Ok(found) => decide::report(&requested, before.as_ref(), found),
                    Err(status) => {
                        self.failed(claim, &status);
                        return Err(ClaimFaultsError::Driver(status));
                    }
                };
                let again = report.again;
                let known = KnownFault {
                    handle,
                    name: requested.name(),
                    report,
                };
                self.found(name, claim, known);
                Ok(again)
            }
        }
    }

    /// Ends the fault of a volume that has lost its PersistentVolume, and with it any claim.
    async fn end_known(
        &self,
        name: &str,
        known: KnownFault,
    ) -> Result<Option<Duration>, ClaimFaultsError> {
        let ended = self.end(&known.handle).await;
        let report = ended.map_err(ClaimFaultsError::Driver)?;
        let again = report.again;
        self.found(name, None, KnownFault { report, ..known });
        if again.is_none() {
            self.forget(name);
        }
        Ok(again)
    }

    /// Ends the faults of volumes that no PersistentVolume of this node names. The cache may lack one, so
    /// this asks the API server.
    pub(super) async fn end_unnamed(
        &self,
        handles: BTreeSet<String>,
    ) -> Result<(), ClaimFaultsError> {
        let (kube, driver) = (&self.context.kube, &self.context.driver.name);
        let mut naming = Vec::new();
        kube.each_fields::<PersistentVolume>("", &HANDLES, |volume| {
            let handle = pv::handle(&volume, driver).map(str::to_owned);
            if let Some(handle) = handle.filter(|handle| handles.contains(handle)) {
                naming.push((volume.name_any(), handle));
            }
        })
        .await?;
        let mut named = BTreeSet::new();
        for (name, handle) in naming {
            let volume = match kube.get::<PersistentVolume>("", &name).await {
                // Any node can make such a one.
                Err(error) if error.is_too_large() => None,
                found => found?,
            };
            if let Some(volume) = volume.filter(|volume| self.context.may_have(volume)) {
                named.insert(handle);
                self.queue.add(volume_key(&volume));
            }
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
        if (was == FaultState::Active) != report.is_active() {
            self.count_active(&all);
        }
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
        let was_active = all
            .remove(volume)
            .is_some_and(|known| known.report.is_active());
        if was_active {
            self.count_active(&all);
        }
    }

    /// Counts again, after one has changed: users may have thousands that wait, which are looked at every
    /// few seconds.
    fn count_active(&self, all: &BTreeMap<String, KnownFault>) {
        let active = all.values().filter(|known| known.report.is_active());
        self.metrics.active(active.count());
    }
}
