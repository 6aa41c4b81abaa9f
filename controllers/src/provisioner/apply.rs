//! Carries out the decisions for claims: the CSI calls, writes and events.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::{DeleteVolumeRequest, Volume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use tokio::time::Instant;

use crate::api::constants::{CLONE_FINALIZER, SNAPSHOT_FINALIZER};
use crate::api::pvc::{self, DataSource};
use crate::api::scope::{NODE_LABEL, node_label};
use crate::client::{ApiError, EventKind, Resource};
use crate::controller::{ObjectKey, finalizers};
use crate::csi::{CallKind, ErrorClass, Failure, Freed, class};
use crate::queue::Outcome;
use crate::secrets::{self, Credentials, LackedSecret};
use crate::snapshots::VolumeSnapshot;

use super::Provisioner;
use super::decide::{self, Draft, Plan, Step, decide};
use super::error::{AttemptState, Error, without};
use super::in_flight::{PendingAttempt, PendingPv, SLOW};
use super::one_node;
use super::pv_object;
use super::source::SourceObjects;

/// Emit `Provisioning` only if CreateVolume takes longer than this.
const SHORT: Duration = Duration::from_secs(1);
/// Read the claim again after a CreateVolume call that took longer than this.
const LONG: Duration = Duration::from_secs(5);
/// Number of immediate attempts to delete a volume that cannot be used.
const DELETE_TRIES: u32 = 5;

const PROVISIONING: &str = "Provisioning";
const SUCCEEDED: &str = "ProvisioningSucceeded";
const FAILED: &str = "ProvisioningFailed";
const ONE_NODE: &str = "AllPodsOnOneNode";

impl Plan {
    /// The UID of the claim that the volume is for.
    pub(crate) fn uid(&self) -> &str {
        self.draft.claim.metadata.uid.as_deref().unwrap_or_default()
    }
}

impl Provisioner {
    /// Reconciles the claim of this UID.
    pub(super) async fn claim(&self, uid: &str) -> Outcome {
        if self.in_flight.has_pending_pv(uid) {
            return Outcome::Done;
        }
        if let Some(PendingAttempt::Background(plans)) = self.in_flight.attempt(uid)
            && let Some(last) = plans.last()
        {
            if !self.context.acts() {
                // The new leader finds the same volume by its name.
                self.in_flight.forget(uid);
                return Outcome::Done;
            }
            return self.retry(uid, last.clone()).await;
        }
        let Some(claim) = self.claims.get(uid).pop() else {
            self.in_flight.forget(uid);
            self.for_room.leave(uid);
            return Outcome::Done;
        };
        let (step, source) = match self.step(&claim, None).await {
            Ok(decided) => decided,
            Err(error) => return self.failed_early(&claim, error).await,
        };
        match step {
            Step::NotOurs => {
                self.in_flight.forget(uid);
                Outcome::Done
            }
            Step::Nothing => Outcome::Done,
            Step::Wait(left) => Outcome::RetryAfter(left),
            Step::External(kind) => {
                let message = format!(
                    "the claim's source is a {kind}: an external populator has to make the volume"
                );
                self.context.events.normal(&*claim, PROVISIONING, message);
                Outcome::Done
            }
            Step::Create(plan) => {
                // Earlier exits leave no finalizer on the source.
                match self.begin(&plan, &source, true).await {
                    Ok(()) => self.make(Arc::new(*plan), false).await,
                    Err(error) => self.failed_early(&claim, error.into()).await,
                }
            }
        }
    }

    async fn step(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        last: Option<Arc<Plan>>,
    ) -> Result<(Step, SourceObjects), Error> {
        let facts = self.gather(claim, last).await?;
        let step = decide(&facts, self.settings())?;
        Ok((step, facts.volume.source))
    }

    /// Repeats CreateVolume for a volume that an earlier call may have created. Only the topology
    /// stays the same: the claim, its class and its secrets may have been corrected since. If the
    /// claim is gone or now belongs to another process, the same request is still needed: its answer
    /// names the volume to delete. It goes with the secret of the class now, unless that is another
    /// class, which may have no secret: the driver would refuse, and the volume stay.
    async fn retry(&self, uid: &str, last: Arc<Plan>) -> Outcome {
        let context = self.settings().claim_context(self.context.leader.leads());
        let wanted = self
            .claims
            .get(uid)
            .pop()
            .filter(|claim| pvc::is_for(claim, context.driver) && pvc::is_here(claim, context));
        let claim = wanted.as_ref().unwrap_or(&last.draft.claim);
        let planned = async {
            match self.step(claim, Some(last.clone())).await? {
                (Step::Create(plan), source) => {
                    self.begin(&plan, &source, wanted.is_some()).await?;
                    Ok(Some(*plan))
                }
                _ => Ok(None),
            }
        };
        match (planned.await, &wanted) {
            (Ok(Some(plan)), Some(_)) => self.make(Arc::new(plan), true).await,
            (Ok(Some(plan)), None) if plan.request == last.request => {
                let same = Plan {
                    secrets: plan.secrets,
                    ..Plan::clone(&last)
                };
                self.make(Arc::new(same), true).await
            }
            (Ok(_), _) | (Err(_), None) => self.make(last, true).await,
            (Err(error), Some(claim)) => {
                self.tell_failure(claim, last.draft.source.kind(), &error);
                match error.state() {
                    AttemptState::Reschedule => self.reschedule(claim).await,
                    _ => Outcome::Failed,
                }
            }
        }
    }

    /// Prepares a CreateVolume call: stores its topology and protects the source.
    async fn begin(
        &self,
        plan: &Plan,
        source: &SourceObjects,
        wanted: bool,
    ) -> Result<(), ApiError> {
        if let Some(topology) = &plan.topology {
            self.in_flight.set_topology(plan.uid(), topology.clone());
        }
        if plan.protects_source && wanted {
            self.add_source_finalizer(source).await
        } else {
            Ok(())
        }
    }

    /// Adds the finalizer that protects a source until the volume exists.
    async fn add_source_finalizer(&self, source: &SourceObjects) -> Result<(), ApiError> {
        // The API server accepts no finalizer for what is being deleted. The snapshot-controller
        // keeps such a snapshot by the claim alone, and a source claim has the finalizer already.
        if let Some(snapshot) = source.snapshot.as_ref().filter(|it| !it.is_deleting()) {
            finalizers::add(&self.kube, None, &**snapshot, SNAPSHOT_FINALIZER).await?;
        }
        if let Some(claim) = source.claim.as_ref().filter(|it| !it.is_deleting()) {
            let watch = self.context.caches.claims();
            finalizers::add(&self.kube, Some(&watch), &**claim, CLONE_FINALIZER).await?;
        }
        Ok(())
    }

    /// Removes the finalizer of a snapshot that no claim waits for any more. If this fails, the
    /// sweep repeats it.
    ///
    /// A node skips this step: it sees only its own claims, and a claim of another node may wait
    /// for the same snapshot. The leader sees all claims.
    pub(super) async fn remove_source_finalizer(&self, draft: &Draft) {
        let (Some(protection), DataSource::Snapshot(name)) = (&self.protection, &draft.source)
        else {
            return;
        };
        let namespace = draft.claim.namespace().unwrap_or_default();
        if protection.is_awaited(&namespace, &draft.source, draft.claim.uid().as_deref()) {
            return;
        }
        let removed = async {
            if let Some(snapshot) = self.kube.get::<VolumeSnapshot>(&namespace, name).await? {
                finalizers::remove(&self.kube, None, &snapshot, SNAPSHOT_FINALIZER).await?;
            }
            Ok::<_, ApiError>(())
        };
        if let Err(error) = removed.await {
            tracing::info!(
                snapshot = %name, namespace, %error,
                "cannot remove the finalizer of a snapshot"
            );
        }
    }

    /// Creates a volume by its plan, for the first time or again.
    async fn make(&self, plan: Arc<Plan>, again: bool) -> Outcome {
        let claim = plan.draft.claim.clone();
        let since = Instant::now();
        if let Some(key) = ObjectKey::of_claim(&claim) {
            self.for_room.enter(&key, Freed::Room);
        }
        let made = self.call(&plan, again).await;
        if !matches!(&made, Err(error) if error.lacks_room()) {
            self.for_room.leave(plan.uid());
        }
        let volume = match made {
            Ok(Some(volume)) => volume,
            Ok(None) => {
                // The new leader creates the same volume, by its name.
                self.in_flight.forget(plan.uid());
                return Outcome::Done;
            }
            Err(error) => {
                // A failed call may have used space, or failed because space is short.
                self.context.room.change();
                let source = plan.draft.source.kind();
                return self.failed(&claim, source, Some(plan), error).await;
            }
        };
        let driver = &self.context.driver.name;
        let mut object = pv_object::build(&plan, &volume, driver, &self.identity, &self.flags);
        if let Some(node) = self.context.scope.node() {
            let label = node_label(node);
            object.labels_mut().insert(NODE_LABEL.to_owned(), label);
        }
        let doubtful =
            again || since.elapsed() > LONG || self.in_flight.needs_live_check(plan.uid());
        let pending = Arc::new(PendingPv {
            plan: plan.clone(),
            object,
            since,
        });
        // From here on, the pending PersistentVolume keeps track of the volume if the claim is
        // deleted.
        self.in_flight.add_pending_pv(pending.clone());
        self.in_flight.forget(plan.uid());
        if self.create_pv(&pending, doubtful).await == Outcome::Failed {
            let key = ObjectKey::new(claim.metadata.namespace.as_deref(), &plan.draft.name);
            self.pending_pvs.add_after(key, self.retry);
        }
        self.context.room.change();
        Outcome::Done
    }

    /// Calls CreateVolume. Returns `None` if another process serves the claim by now.
    async fn call(&self, plan: &Plan, again: bool) -> Result<Option<Volume>, Error> {
        let (secrets, lacked) = self.credentials(plan, again).await?;
        let mut request = plan.request.clone();
        request.secrets = secrets.clone();
        if !self.context.acts() {
            return Ok(None);
        }
        let csi = &self.context.driver.csi;
        let mut call = pin!(csi.create_volume(request, self.timeout));
        let answer = match tokio::time::timeout(SHORT, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                self.begun(&plan.draft.claim, again);
                call.await
            }
        };
        let answer = answer.map_err(|failure| match lacked.explains(&failure) {
            Some(missing) => Error::of_secret(missing, &plan.draft.class.name_any()),
            None => self.refused(plan, &failure, &secrets),
        })?;
        match pv_object::check(plan, answer) {
            Ok(volume) => Ok(Some(volume)),
            Err(unusable) => {
                let fate = match unusable.volume_id {
                    None => "not deleted, because it has no ID".to_owned(),
                    Some(id) => self.undo(id, secrets).await,
                };
                Err(Error::Unusable {
                    driver: self.context.driver.name.clone(),
                    what: unusable.what,
                    fate,
                })
            }
        }
    }

    /// Reads the secret of a CreateVolume call. If the claim of a repeated call is gone, the volume
    /// is only to be deleted, and the call may lack its secret.
    async fn credentials(
        &self,
        plan: &Plan,
        again: bool,
    ) -> Result<(Credentials, LackedSecret), Error> {
        let read = secrets::read(&self.kube, plan.secrets.provisioner.as_ref()).await;
        let is_unwanted = again && self.claims.get(plan.uid()).is_empty();
        secrets::unless_unwanted(read, is_unwanted)
            .map_err(|error| Error::of_secret(error, &plan.draft.class.name_any()))
    }

    /// Emits `Provisioning` for the first call.
    fn begun(&self, claim: &PersistentVolumeClaim, again: bool) {
        if again {
            return;
        }
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let message = format!("making the volume of claim {namespace}/{name}");
        self.context.events.normal(claim, PROVISIONING, message);
    }

    fn refused(&self, plan: &Plan, failure: &Failure, secrets: &BTreeMap<String, String>) -> Error {
        let (draft, scope) = (&plan.draft, &self.context.scope);
        let has_topology = self.context.driver.has_topology();
        let movable = decide::is_movable(&draft.claim, scope, has_topology, &draft.source);
        let state = match class(CallKind::CreateVolume { movable }, failure) {
            ErrorClass::InBackground => AttemptState::Background,
            ErrorClass::Final | ErrorClass::InUse => AttemptState::Finished,
            ErrorClass::Reschedule => AttemptState::Reschedule,
            ErrorClass::Infeasible => AttemptState::Infeasible,
        };
        Error::Create {
            code: failure.code(),
            message: without(failure.status.message(), secrets),
            state,
            lacks_room: failure.lacks_room(),
        }
    }

    /// Deletes a volume that cannot be used, within one timeout. Returns its fate for the message.
    async fn undo(&self, volume_id: String, secrets: BTreeMap<String, String>) -> String {
        let until = Instant::now() + self.timeout;
        let mut last = String::new();
        for attempt in 0..DELETE_TRIES {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let request = DeleteVolumeRequest {
                volume_id: volume_id.clone(),
                secrets: secrets.clone(),
            };
            match self.context.driver.csi.delete_volume(request, left).await {
                Ok(_) => return "deleted".to_owned(),
                Err(failure) => last = without(failure.status.message(), &secrets),
            }
            let pause = Duration::from_millis(100) * 2_u32.pow(attempt);
            tokio::time::sleep(pause.min(left)).await;
        }
        format!("not deleted: {last}")
    }

    /// Handles a failure before any call was made for the claim.
    async fn failed_early(&self, claim: &Arc<PersistentVolumeClaim>, error: Error) -> Outcome {
        let source = pvc::data_source(claim).unwrap_or(DataSource::Nothing);
        self.failed(claim, source.kind(), None, error).await
    }

    /// Reports a failure and schedules the next attempt.
    async fn failed(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        source: &str,
        plan: Option<Arc<Plan>>,
        error: Error,
    ) -> Outcome {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        self.tell_failure(claim, source, &error);
        match (error.state(), plan) {
            (AttemptState::Background, Some(plan)) => {
                self.in_flight.add_background(uid, plan);
                Outcome::Failed
            }
            (AttemptState::NoChange | AttemptState::Background, _) => Outcome::Failed,
            (state, plan) => self.answered(claim, plan.as_deref(), state).await,
        }
    }

    /// Schedules the next attempt after a final failure. An earlier request for the claim may still
    /// lack its final answer.
    async fn answered(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        plan: Option<&Plan>,
        state: AttemptState,
    ) -> Outcome {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let is_over = plan.is_none_or(|plan| self.in_flight.end_background(uid, plan));
        if state == AttemptState::Infeasible {
            if is_over {
                let class = plan.and_then(|plan| plan.draft.class.metadata.uid.clone());
                self.in_flight.set_slow(uid, class, Instant::now() + SLOW);
            }
            return Outcome::RetryAfter(SLOW);
        }
        if is_over {
            self.in_flight.forget(uid);
        }
        if state == AttemptState::Reschedule {
            return self.reschedule_once_published(claim).await;
        }
        Outcome::Failed
    }

    fn tell_failure(&self, claim: &PersistentVolumeClaim, source: &str, error: &Error) {
        let class_name = pvc::class_name(claim).unwrap_or_default();
        let next = match error.state() {
            AttemptState::Reschedule => "; another node will be selected",
            _ => "",
        };
        let message =
            format!("failed to provision volume with StorageClass {class_name:?}: {error}{next}");
        tracing::warn!(claim = %claim.name_any(), namespace = claim.namespace(), "{message}");
        self.context.events.warning(claim, FAILED, message);
        self.metrics
            .provisioned(self.known_class(class_name), source, None);
    }

    /// The class for metrics, if it exists: users can name any, and each name is a series for good.
    pub(super) fn known_class<'a>(&self, name: &'a str) -> &'a str {
        let found = self.context.caches.classes().get(name);
        found.map_or("", |_| name)
    }

    /// Counts and reports a volume after its PersistentVolume is created.
    pub(super) fn succeeded(&self, pending: &PendingPv) {
        let (plan, draft) = (&pending.plan, &pending.plan.draft);
        let message = format!("Successfully provisioned volume {}", draft.name);
        self.context
            .events
            .normal(&*draft.claim, SUCCEEDED, message);
        let node = self.context.scope.node();
        if let Some(message) = node.and_then(|node| one_node::message(&pending.object, node)) {
            self.context
                .events
                .once(&*draft.claim, EventKind::Normal, ONE_NODE, message);
        }
        let class_name = pvc::class_name(&draft.claim).unwrap_or_default();
        let took = pending.since.elapsed();
        let (class, source) = (self.known_class(class_name), plan.draft.source.kind());
        self.metrics.provisioned(class, source, Some(took));
    }

    /// Reports that a PersistentVolume cannot be written yet.
    pub(super) fn pv_failed(&self, pending: &PendingPv, why: &str) {
        let draft = &pending.plan.draft;
        let message = format!("PersistentVolume {} cannot be saved yet: {why}", draft.name);
        tracing::warn!(claim = %draft.claim.name_any(), "{message}");
        self.context.events.warning(&*draft.claim, FAILED, message);
    }
}
