//! Making volumes for claims.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hostloop_proto::csi::{DeleteVolumeRequest, Volume};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::runtime::ApiError;
use crate::runtime::csi::{Call, Class, Failure, class};
use crate::runtime::queue::Outcome;
use crate::runtime::scope::{NODE_LABEL, SELECTED_NODE, node_label};
use crate::secrets::{self, Credentials, SecretError};

use super::Provisioner;
use super::decide::{self, Found, Plan};
use super::error::{Problem, State};
use super::gather::Guarded;
use super::in_flight::{Left, SLOW, Unsaved};
use super::source::Asked;
use super::volume;
use crate::api::pvc::{self, Standing};

/// Of a CreateVolume call that takes longer it is told that it was made.
const SHORT: Duration = Duration::from_secs(1);
/// A CreateVolume call that took longer is followed by a look at the claim as it is now.
const LONG: Duration = Duration::from_secs(5);
/// How long a claim that found no room waits, before another node is chosen, for the scheduler to
/// be told of the room there is: it would choose the same node again.
const TELLING: Duration = Duration::from_secs(5);
/// How often a volume that can't be used is tried to be deleted at once.
const DELETE_TRIES: u32 = 5;

const PROVISIONING: &str = "Provisioning";
const SUCCEEDED: &str = "ProvisioningSucceeded";
const FAILED: &str = "ProvisioningFailed";

impl Plan {
    /// The UID of the claim it is for.
    pub(crate) fn uid(&self) -> &str {
        self.draft.claim.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Its source, as it is counted.
    pub(super) fn source(&self) -> &str {
        source_of(&self.draft.asked)
    }
}

fn source_of(asked: &Asked) -> &str {
    match asked {
        Asked::Nothing => "",
        Asked::Snapshot(_) => "VolumeSnapshot",
        Asked::Claim(_) => "PersistentVolumeClaim",
        Asked::Other(kind) => kind,
    }
}

/// What is to be done for a claim.
pub(super) enum Todo {
    /// Nothing, or nothing here.
    Nothing,
    /// Nothing before this time has passed.
    Wait(Duration),
    /// Its volume.
    Make(Box<Plan>),
}

impl Provisioner {
    /// Works on a claim, by its UID.
    pub(super) async fn claim(&self, uid: &str) -> Outcome {
        if self.kept.has_unsaved(uid) {
            return Outcome::Done;
        }
        if let Some(Left::Background(plan)) = self.kept.left(uid) {
            if !self.context.acts() {
                // Whoever leads now finds the same volume by its name.
                self.kept.forget(uid);
                return Outcome::Done;
            }
            return self.retry(uid, plan).await;
        }
        let Some(claim) = self.claims.get(uid).pop() else {
            self.kept.forget(uid);
            return Outcome::Done;
        };
        match self.todo(&claim).await {
            Ok(Todo::Nothing) => Outcome::Done,
            Ok(Todo::Wait(left)) => Outcome::FailedFor(left),
            Ok(Todo::Make(plan)) => self.make(Arc::new(*plan), false).await,
            Err(problem) => {
                let asked = super::source::asked(&claim).unwrap_or(Asked::Nothing);
                self.failed(&claim, source_of(&asked), None, problem).await
            }
        }
    }

    pub(super) fn standing(&self) -> Standing<'_> {
        Standing {
            driver: &self.context.driver.name,
            scope: &self.context.scope,
            leads: self.context.leader.leads(),
        }
    }

    async fn todo(&self, claim: &Arc<PersistentVolumeClaim>) -> Result<Todo, Problem> {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let driver = &*self.context.driver;
        if !pvc::is_for(claim, &driver.name) {
            self.kept.forget(uid);
            return Ok(Todo::Nothing);
        }
        let standing = self.standing();
        if !pvc::is_here(claim, standing) {
            return Ok(Todo::Nothing);
        }
        let class = self.class_of(claim).await?;
        if !pvc::is_due(claim, &class, standing) {
            return Ok(Todo::Nothing);
        }
        // Of a claim that came since, only another node could have made the volume, from which it
        // was taken: that is rare, and found out by the object's name.
        let has_volume = match self.kept.is_doubted(uid) {
            true => self.has_volume(claim).await?,
            false => self.sees_volume(claim),
        };
        if has_volume {
            return Ok(Todo::Nothing);
        }
        if let Some(left) = self.kept.waits(uid, class.metadata.uid.as_ref()) {
            return Ok(Todo::Wait(left));
        }
        if let Asked::Other(kind) = super::source::asked(claim)? {
            let message = format!(
                "the claim's source is of the kind {kind}, which the provisioner does not fill \
                 volumes from: assuming an external populator will"
            );
            self.context.events.normal(&**claim, PROVISIONING, message);
            return Ok(Todo::Nothing);
        }
        let (plan, guarded) = self.plan(claim, &class, None).await?;
        // Protect the source last, so that a claim that fails earlier leaves no finalizer on it.
        self.guard(guarded).await?;
        Ok(Todo::Make(Box::new(plan)))
    }

    /// Returns the volume to make for a claim, and the source to protect meanwhile. `last` is the
    /// plan of a call that may still be running.
    pub(super) async fn plan(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &Arc<StorageClass>,
        last: Option<&Plan>,
    ) -> Result<(Plan, Guarded), Problem> {
        let driver = &*self.context.driver;
        let draft = decide::draft(claim, class, driver, &self.settings)?;
        let (source, guarded) = match (self.source(&draft).await, last) {
            // The running call reads the source, which stays protected even while it is being
            // deleted.
            (Err(Problem::Source(_)), Some(last)) if last.draft.asked == draft.asked => {
                let source = last.request.volume_content_source.clone();
                (source, Guarded::Nothing)
            }
            (found, _) => found?,
        };
        let found = Found {
            source,
            topology: self.topology(&draft).await?,
            attributes: self.attributes(claim).await?,
        };
        let plan = decide::finish(draft, found, driver, &self.settings)?;
        Ok((plan, guarded))
    }

    /// Whether the volume of a claim has its object. A node's watch may not show it: another node
    /// may have made it, or an earlier process that wrote no labels.
    pub(super) async fn has_volume(&self, claim: &PersistentVolumeClaim) -> Result<bool, ApiError> {
        let volumes = self.context.caches.volumes();
        let found = self.kube.find(&volumes, "", &self.volume_of(claim)).await?;
        Ok(found.is_some())
    }

    /// Whether the object of a claim's volume is in sight.
    fn sees_volume(&self, claim: &PersistentVolumeClaim) -> bool {
        let volumes = self.context.caches.volumes();
        volumes.get(&self.volume_of(claim)).is_some()
    }

    /// The name of a claim's volume.
    fn volume_of(&self, claim: &PersistentVolumeClaim) -> String {
        self.settings.naming.volume_of(claim)
    }

    pub(super) async fn class_of(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Result<Arc<StorageClass>, Problem> {
        let name = pvc::class_name(claim).unwrap_or_default();
        if let Some(class) = self.context.caches.classes().get(name) {
            return Ok(class);
        }
        let missing = || Problem::NoClass {
            name: name.to_owned(),
        };
        if name.is_empty() {
            return Err(missing());
        }
        let class = self.kube.get::<StorageClass>("", name).await?;
        class.map(Arc::new).ok_or_else(missing)
    }

    /// Makes a volume by its plan, for the first time or again.
    pub(super) async fn make(&self, plan: Arc<Plan>, again: bool) -> Outcome {
        let claim = plan.draft.claim.clone();
        let since = Instant::now();
        let made = self.call(&plan, again).await;
        let volume = match made {
            Ok(Some(volume)) => volume,
            Ok(None) => {
                // Whoever leads now makes the same volume, by its name.
                self.kept.forget(plan.uid());
                return Outcome::Done;
            }
            Err(problem) => {
                // A failure may leave less room, too, or be for want of some.
                self.room_changed();
                let source = plan.source().to_owned();
                return self.failed(&claim, &source, Some(plan), problem).await;
            }
        };
        let driver = &self.context.driver.name;
        let mut object = volume::object(&plan, &volume, driver, &self.identity, &self.settings);
        if let Some(node) = self.context.scope.node() {
            let label = node_label(node);
            object.labels_mut().insert(NODE_LABEL.to_owned(), label);
        }
        let doubtful = again || since.elapsed() > LONG || self.kept.is_doubted(plan.uid());
        let unsaved = Arc::new(Unsaved {
            plan: plan.clone(),
            object,
            since,
        });
        // From here on the volume is remembered by this, whatever becomes of the claim.
        self.kept.keep_unsaved(unsaved.clone());
        self.kept.forget(plan.uid());
        if self.save(&unsaved, doubtful).await == Outcome::Failed {
            self.unsaved.add_after(plan.draft.name.clone(), self.retry);
        }
        self.room_changed();
        Outcome::Done
    }

    /// Has the driver make a volume; `None` if that is another process's to do by now.
    async fn call(&self, plan: &Plan, again: bool) -> Result<Option<Volume>, Problem> {
        let class_name = plan.draft.class.name_any();
        let secrets = plan.secrets.provisioner.as_ref();
        let secrets = match self.secret(secrets, &class_name).await {
            // The secret may be gone with the claim's namespace. The volume of the earlier call must
            // still be found, to be deleted.
            Err(Problem::NoSecret { .. }) if again && self.claims.get(plan.uid()).is_empty() => {
                Credentials::new()
            }
            read => read?,
        };
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
        let answer = answer.map_err(|failure| self.refused(plan, &failure, &secrets))?;
        match volume::check(plan, answer) {
            Ok(volume) => Ok(Some(volume)),
            Err(unusable) => {
                let fate = match unusable.volume_id {
                    None => "not deleted, for want of an ID".to_owned(),
                    Some(id) => self.undo(id, secrets).await,
                };
                Err(Problem::Unusable {
                    driver: self.context.driver.name.clone(),
                    what: unusable.what,
                    fate,
                })
            }
        }
    }

    /// Tells that a volume is being made, if that was not told before: what is over at once needs
    /// no news of its beginning.
    fn begun(&self, claim: &PersistentVolumeClaim, again: bool) {
        if again {
            return;
        }
        let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
        let message = format!("making the volume of claim {namespace}/{name}");
        self.context.events.normal(claim, PROVISIONING, message);
    }

    fn refused(
        &self,
        plan: &Plan,
        failure: &Failure,
        secrets: &BTreeMap<String, String>,
    ) -> Problem {
        let (draft, scope) = (&plan.draft, &self.context.scope);
        let has_topology = self.context.driver.has_topology();
        let movable = pvc::is_movable(&draft.claim, scope, has_topology, &draft.asked);
        let state = match class(Call::CreateVolume { movable }, failure.code()) {
            Class::Retry | Class::InBackground => State::Background,
            Class::Final | Class::InUse => State::Finished,
            Class::Reschedule => State::Reschedule,
            Class::Infeasible => State::Infeasible,
        };
        Problem::Create {
            code: failure.code(),
            message: without(failure.status.message(), secrets),
            state,
        }
    }

    /// Deletes a volume that can't be used, as far as one timeout allows.
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

    /// Notes a failure, tells of it, and does what it calls for.
    async fn failed(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        source: &str,
        plan: Option<Arc<Plan>>,
        problem: Problem,
    ) -> Outcome {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        self.tell_failure(claim, source, &problem);
        match (problem.state(), plan) {
            (State::Background, Some(plan)) => {
                self.kept.leave(uid, Left::Background(plan));
                Outcome::Failed
            }
            (State::NoChange | State::Background, _) => Outcome::Failed,
            (State::Finished, _) => {
                self.kept.forget(uid);
                Outcome::Failed
            }
            (State::Infeasible, plan) => {
                let class = plan.and_then(|plan| plan.draft.class.metadata.uid.clone());
                let until = Instant::now() + SLOW;
                self.kept.leave(uid, Left::Slow { class, until });
                Outcome::FailedFor(SLOW)
            }
            (State::Reschedule, _) => {
                self.kept.forget(uid);
                self.context.room.change_and_wait(TELLING).await;
                self.reschedule(claim).await
            }
        }
    }

    pub(super) fn tell_failure(
        &self,
        claim: &PersistentVolumeClaim,
        source: &str,
        problem: &Problem,
    ) {
        let class_name = pvc::class_name(claim).unwrap_or_default();
        let next = match problem.state() {
            State::Reschedule => "; another node is to be selected",
            _ => "",
        };
        let message =
            format!("failed to provision volume with StorageClass {class_name:?}: {problem}{next}");
        tracing::warn!(claim = %claim.name_any(), namespace = claim.namespace(), "{message}");
        self.context.events.warning(claim, FAILED, message);
        self.metrics.provisioned(class_name, source, None);
    }

    /// Has the scheduler choose another node.
    pub(super) async fn reschedule(&self, claim: &PersistentVolumeClaim) -> Outcome {
        let patch = json!({"metadata": {
            "uid": claim.uid(),
            "resourceVersion": claim.resource_version(),
            "annotations": {SELECTED_NODE: null},
        }});
        match self.kube.merge(claim, patch).await {
            Ok(written) => {
                self.context.caches.claims().wrote(written);
                Outcome::Done
            }
            Err(ApiError::NotFound { .. }) => Outcome::Done,
            // It has changed: what it says now is decided anew.
            Err(error) => {
                tracing::info!(claim = %claim.name_any(), %error, "not rescheduled yet");
                Outcome::Failed
            }
        }
    }

    /// What is in a secret a class names.
    pub(super) async fn secret(
        &self,
        reference: Option<&SecretReference>,
        class_name: &str,
    ) -> Result<Credentials, Problem> {
        secrets::read(&self.kube, reference)
            .await
            .map_err(|error| match error {
                SecretError::Missing { namespace, name } => Problem::NoSecret {
                    namespace,
                    name,
                    class: class_name.to_owned(),
                },
                error => error.into(),
            })
    }

    /// Tells of a volume that has got its object.
    pub(super) fn succeeded(&self, unsaved: &Unsaved) {
        let (plan, draft) = (&unsaved.plan, &unsaved.plan.draft);
        let message = format!("Successfully provisioned volume {}", draft.name);
        self.context
            .events
            .normal(&*draft.claim, SUCCEEDED, message);
        let class_name = pvc::class_name(&draft.claim).unwrap_or_default();
        let took = unsaved.since.elapsed();
        self.metrics
            .provisioned(class_name, plan.source(), Some(took));
    }

    /// Tells that a volume has no object yet.
    pub(super) fn not_saved(&self, unsaved: &Unsaved, why: &str) {
        let draft = &unsaved.plan.draft;
        let message = format!("PersistentVolume {} cannot be saved yet: {why}", draft.name);
        tracing::warn!(claim = %draft.claim.name_any(), "{message}");
        self.context.events.warning(&*draft.claim, FAILED, message);
    }
}

/// A driver's words, which may repeat what it was told in confidence.
pub(super) fn without(message: &str, secrets: &BTreeMap<String, String>) -> String {
    let mut message = message.to_owned();
    for value in secrets.values().filter(|value| value.len() >= 4) {
        message = message.replace(value.as_str(), "***");
    }
    message
}
