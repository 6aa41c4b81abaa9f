//! Doing what was decided for snapshots, their contents and their claims.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::metrics::{Of, Operation};
use super::names;
use super::snapshot::{self, Facts, Failure, Step};
use super::status::StatusChange;
use super::{CONFLICT, Controller, Next, STEPS, Stop, UNTOLD};
use crate::runtime::queue::Outcome;
use crate::runtime::{ApiError, Resource, Watch};
use crate::snapshots::{SnapshotError, VolumeSnapshotContent};

impl Controller {
    /// Brings a snapshot on.
    pub(super) async fn snapshot(&self, namespace: &str, name: &str) -> Result<Outcome, Stop> {
        for _ in 0..STEPS {
            let Some(snapshot) = self.seen.snapshots.get_in(namespace, name) else {
                return Ok(Outcome::Done);
            };
            let facts = self.seen.snapshot(&self.kube, snapshot).await?;
            self.measure(&facts);
            let step = if names::is_deleting(&*facts.snapshot) {
                snapshot::decide_deletion(&facts)
            } else {
                snapshot::decide(&facts)
            };
            if let Next::End(outcome) = self.take(&facts, step).await? {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Again(CONFLICT))
    }

    async fn take(&self, facts: &Facts, step: Step) -> Result<Next, Stop> {
        let snapshot = &*facts.snapshot;
        let snapshots = &self.seen.snapshots;
        match step {
            Step::Done => return Ok(Next::End(Outcome::Done)),
            Step::Wait(why) => {
                tracing::debug!(snapshot = names::path(snapshot), why, "waiting");
                return Ok(Next::End(Outcome::Failed));
            }
            Step::Pend(why) => {
                self.context
                    .events
                    .warning(snapshot, "SnapshotDeletePending", why);
                return Ok(Next::End(Outcome::Failed));
            }
            Step::Fail(failure) => return self.fail(facts, failure).await,
            Step::SetClass(class) => {
                let patch = json!({"spec": {"volumeSnapshotClassName": class}});
                self.merge(snapshots, snapshot, patch).await?;
            }
            Step::Finalizers(finalizers) => {
                let patch = json!({"metadata": {"finalizers": finalizers}});
                self.merge(snapshots, snapshot, patch).await?;
            }
            Step::Adopt(owner) => {
                let mut owners = snapshot.owner_references().to_vec();
                owners.push(owner);
                let patch = json!({"metadata": {"ownerReferences": owners}});
                self.merge(snapshots, snapshot, patch).await?;
            }
            Step::ClaimFinalizers(finalizers) => {
                if let Some(claim) = &facts.claim {
                    let patch = json!({"metadata": {"finalizers": finalizers}});
                    self.merge(&self.seen.claims, &**claim, patch).await?;
                }
            }
            Step::Create(content) => return self.make(facts, &content).await,
            Step::Status(change) => return self.say(facts, change).await,
            Step::Bind(class) => return self.bind(facts, class).await,
            Step::Mark => {
                if let Some(content) = &facts.content {
                    let patch = json!({"metadata": {"annotations": {names::BEING_DELETED: "yes"}}});
                    self.merge(&self.seen.contents, &**content, patch).await?;
                }
            }
            Step::DeleteContent => return self.delete_content(facts).await,
        }
        Ok(Next::Look)
    }

    async fn make(&self, facts: &Facts, content: &VolumeSnapshotContent) -> Result<Next, Stop> {
        match self.create(&self.seen.contents, content).await {
            Ok(true) => {
                let path = names::path(&*facts.snapshot);
                let message = format!("Waiting for snapshot {path} to be taken by the CSI driver");
                let events = &self.context.events;
                events.normal(&*facts.snapshot, "CreatingSnapshot", message);
                Ok(Next::Look)
            }
            Ok(false) => Ok(Next::End(Outcome::Again(CONFLICT))),
            Err(Stop::Api(error @ ApiError::Refused { .. })) => {
                let failure = Failure::new("SnapshotContentCreationFailed", error.to_string());
                self.fail(facts, failure).await
            }
            Err(stop) => Err(stop),
        }
    }

    async fn bind(&self, facts: &Facts, class: Option<String>) -> Result<Next, Stop> {
        let Some(content) = &facts.content else {
            return Ok(Next::Look);
        };
        let mut patch = json!({"spec": {"volumeSnapshotRef": {"uid": facts.snapshot.uid()}}});
        if let Some(class) = class {
            patch["spec"]["volumeSnapshotClassName"] = json!(class);
        }
        match self.merge(&self.seen.contents, &**content, patch).await {
            Ok(()) => Ok(Next::Look),
            Err(Stop::Api(error @ ApiError::Refused { .. })) => {
                let failure = Failure::new("SnapshotBindFailed", error.to_string());
                self.fail(facts, failure).await
            }
            Err(stop) => Err(stop),
        }
    }

    async fn say(&self, facts: &Facts, change: StatusChange) -> Result<Next, Stop> {
        let snapshot = &*facts.snapshot;
        let events = &self.context.events;
        let written = self
            .merge_status(&self.seen.snapshots, snapshot, change.patch)
            .await;
        if let Err(Stop::Api(error @ ApiError::Refused { .. })) = &written {
            events.warning(snapshot, "SnapshotStatusUpdateFailed", error.to_string());
        }
        written?;
        let (path, uid) = (names::path(snapshot), snapshot.uid().unwrap_or_default());
        if change.taken {
            self.metrics.end(Of::Snapshot, Operation::Create, &uid);
            let message = format!("Snapshot {path} was taken by the CSI driver");
            events.normal(snapshot, "SnapshotCreated", message);
        }
        if change.ready {
            self.metrics
                .end(Of::Snapshot, Operation::CreateAndReady, &uid);
            let message = format!("Snapshot {path} is ready to use");
            events.normal(snapshot, "SnapshotReady", message);
        }
        Ok(Next::Look)
    }

    async fn delete_content(&self, facts: &Facts) -> Result<Next, Stop> {
        if let Some(content) = &facts.content {
            self.may_write()?;
            let deleted = self.kube.delete(&**content).await;
            if let Err(error @ ApiError::Refused { .. }) = &deleted {
                let events = &self.context.events;
                let reason = "SnapshotContentObjectDeleteError";
                events.warning(&*facts.snapshot, reason, error.to_string());
            }
            deleted?;
        }
        Ok(Next::End(Outcome::Again(UNTOLD)))
    }

    async fn fail(&self, facts: &Facts, failure: Failure) -> Result<Next, Stop> {
        let snapshot = &*facts.snapshot;
        let status = snapshot.status.as_ref();
        let known = status.and_then(|status| status.error.as_ref());
        self.tell_failure(&self.seen.snapshots, snapshot, known, failure)
            .await
    }

    /// Says in an object's status and by an event why it can't be, unless that is known.
    pub(super) async fn tell_failure<K: Resource>(
        &self,
        watch: &Watch<K>,
        object: &K,
        known: Option<&SnapshotError>,
        failure: Failure,
    ) -> Result<Next, Stop> {
        let known = known.and_then(|error| error.message.as_deref());
        if known != Some(failure.message.as_str()) {
            let error = SnapshotError {
                time: Some(Time(Timestamp::now())),
                message: Some(failure.message.clone()),
            };
            let mut status = json!({"error": error});
            if failure.unready {
                status["readyToUse"] = json!(false);
            }
            self.merge_status(watch, object, status).await?;
            let events = &self.context.events;
            events.warning(object, failure.reason, failure.message);
        }
        Ok(Next::End(Outcome::Failed))
    }

    /// Takes the time of what is going on for a snapshot.
    fn measure(&self, facts: &Facts) {
        let snapshot = &*facts.snapshot;
        let uid = snapshot.uid().unwrap_or_default();
        let class = snapshot.spec.volume_snapshot_class_name.as_deref();
        let mut classes = facts.classes.iter();
        let class = classes.find(|it| it.metadata.name.as_deref() == class && class.is_some());
        let content = facts.content.as_ref();
        let driver = content.map(|content| content.spec.driver.as_str());
        let driver = driver.or(class.map(|class| class.driver.as_str()));
        let beforehand = snapshot.spec.source.volume_snapshot_content_name.is_some();
        let begin = |operation| {
            self.metrics
                .begin(Of::Snapshot, operation, &uid, driver, beforehand);
        };
        if names::is_deleting(snapshot) {
            return begin(Operation::Delete);
        }
        let status = snapshot.status.clone().unwrap_or_default();
        if status.ready_to_use == Some(true) {
            return;
        }
        if status.creation_time.is_none() {
            begin(Operation::Create);
        }
        begin(Operation::CreateAndReady);
    }

    /// Holds a content for its driver's loop, once it is bound to a snapshot.
    pub(super) async fn content(&self, name: &str) -> Result<Outcome, Stop> {
        let Some(content) = self.seen.contents.get(name) else {
            return Ok(Outcome::Done);
        };
        let source = &content.spec.source;
        if source.volume_handle.is_some() == source.snapshot_handle.is_some() {
            let message = "exactly one of volumeHandle and snapshotHandle must be given";
            let events = &self.context.events;
            events.warning(&*content, "ContentValidationError", message);
            return Ok(Outcome::Failed);
        }
        let uid = content.spec.volume_snapshot_ref.uid.as_deref();
        if uid.is_none_or(str::is_empty) || names::is_deleting(&*content) {
            return Ok(Outcome::Done);
        }
        if let Some(finalizers) = names::with(&*content, &[names::CONTENT_BOUND]) {
            let patch = json!({"metadata": {"finalizers": finalizers}});
            self.merge(&self.seen.contents, &*content, patch).await?;
        }
        Ok(Outcome::Done)
    }

    /// Removes the source finalizer from a claim, if no snapshot of it is being taken.
    pub(super) async fn release(&self, namespace: &str, name: &str) -> Result<Outcome, Stop> {
        let Some(claim) = self.seen.claims.get_in(namespace, name) else {
            return Ok(Outcome::Done);
        };
        if let Some(finalizers) = self.seen.released(&claim, None) {
            let patch = json!({"metadata": {"finalizers": finalizers}});
            self.merge(&self.seen.claims, &*claim, patch).await?;
        }
        Ok(Outcome::Done)
    }
}
