//! Reports why a snapshot, or the deletion of a snapshot or of its claim, is stuck: by an event, and
//! in the snapshot's status.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::kind::SnapshotKind;
use super::kind::{Facts, SnapshotFailure};
use super::{AfterStep, ReconcileError, SnapshotController, names};
use crate::client::Resource;
use crate::queue::Outcome;
use crate::snapshots::SnapshotError;

impl SnapshotController {
    /// Reports a failure in the snapshot's status and by an event, unless the status already has
    /// it.
    pub(super) async fn fail<K: SnapshotKind>(
        &self,
        facts: &Facts<K>,
        failure: SnapshotFailure,
    ) -> Result<AfterStep, ReconcileError> {
        let snapshot = &*facts.snapshot;
        let known = K::view(snapshot)
            .error
            .and_then(|error| error.message.as_deref());
        if known != Some(failure.message.as_str()) {
            let error = SnapshotError {
                time: Some(Time(Timestamp::now())),
                message: Some(failure.message.clone()),
            };
            let mut status = json!({"error": error});
            if failure.unready {
                status["readyToUse"] = json!(false);
            }
            let (snapshots, ..) = K::watches(&self.watches);
            self.merge_status(snapshots, snapshot, status).await?;
            let events = &self.context.events;
            events.warning(snapshot, failure.reason, failure.message);
        }
        Ok(AfterStep::End(Outcome::Failed))
    }

    /// Reports why a snapshot that is being deleted stays.
    pub(super) fn report_pending_deletion<R: Resource>(&self, snapshot: &R, why: String) {
        let events = &self.context.events;
        events.warning(snapshot, "SnapshotDeletePending", why);
    }

    /// Reports which snapshots a claim that is being deleted stays for.
    pub(super) fn report_pending_claim(&self, claim: &PersistentVolumeClaim) {
        let keeping = names::some_of(&self.watches.keeping(claim, None));
        let message = format!(
            "The claim stays until these snapshots of it are taken: {keeping}. Delete those that \
             cannot be taken"
        );
        let events = &self.context.events;
        events.waits(claim, "ClaimDeletePending", message);
    }
}
