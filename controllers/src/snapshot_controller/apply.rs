//! Applies decisions about snapshots, contents and claims.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::json;

use super::decide::decide;
use super::kind::{self, Facts, SnapshotFailure, SnapshotKind, StatusChange, Step};
use super::metrics::Operation;
use super::names;
use super::{AfterStep, CONFLICT, RECHECK, ReconcileError, STEPS, SnapshotController, orphan};
use crate::cache::Store;
use crate::client::{ApiError, Resource};
use crate::controller::finalizers;
use crate::kept_fields::METADATA;
use crate::queue::Outcome;
use crate::snapshots::content::{Content, SnapshotClass};

impl SnapshotController {
    /// Takes steps for a snapshot until it is done or must wait.
    pub(super) async fn reconcile<K: SnapshotKind>(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Outcome, ReconcileError> {
        let mut last: Option<Arc<K::Snapshot>> = None;
        for _ in 0..STEPS {
            let (snapshots, ..) = K::watches(&self.watches);
            let Some(snapshot) = snapshots.get_in(namespace, name) else {
                // A content that was made just now may have come after the snapshot's end.
                self.queue.add_all(
                    last.iter()
                        .flat_map(|last| orphan::keys::<K>(kube::Resource::meta(&**last))),
                );
                if snapshots.leaves_out(namespace, name) {
                    // Others may use up the room for it while it is restored.
                    if K::FINALIZERS.contains(&names::SNAPSHOT_AS_SOURCE)
                        && self.watches.may_be_restored(namespace, name)
                    {
                        return Ok(Outcome::Done);
                    }
                    return self.let_go::<K>(namespace, name).await;
                }
                K::deleted(self, namespace, name);
                return Ok(Outcome::Done);
            };
            last = Some(snapshot.clone());
            let facts = self.watches.gather::<K>(&self.kube, snapshot).await?;
            self.measure(&facts);
            let step = decide(&facts);
            if let AfterStep::End(outcome) = self.apply(&facts, step).await? {
                return Ok(outcome);
            }
        }
        Ok(Outcome::RequeueAfter(CONFLICT))
    }

    async fn apply<K: SnapshotKind>(
        &self,
        facts: &Facts<K>,
        step: Step<K>,
    ) -> Result<AfterStep, ReconcileError> {
        let snapshot = &*facts.snapshot;
        let (snapshots, contents, _) = K::watches(&self.watches);
        if step.deletes() && !self.is_being_deleted(snapshot).await? {
            return Ok(AfterStep::End(Outcome::Failed));
        }
        match step {
            Step::Done => return Ok(AfterStep::End(Outcome::Done)),
            Step::Wait(why) => {
                tracing::debug!(snapshot = names::path(snapshot), why, "a snapshot waits");
                return Ok(AfterStep::End(Outcome::Failed));
            }
            Step::BlockDeletion(why) => {
                self.report_pending_deletion(snapshot, why);
                return Ok(AfterStep::End(Outcome::Failed));
            }
            Step::Fail(failure) => return self.fail(facts, failure).await,
            Step::SetClass(class) => {
                let patch = json!({"spec": {K::NAMES.class_field: class}});
                self.merge(snapshots, snapshot, patch).await?;
            }
            Step::Finalizers(finalizers) => {
                self.set_finalizers(snapshots, snapshot, finalizers).await?;
            }
            Step::Create(content) => {
                let next = self.create_for(facts, contents, &*content).await?;
                if let AfterStep::Look = next {
                    let (noun, path) = (K::NAMES.noun, names::path(snapshot));
                    let message =
                        format!("Waiting for {noun} {path} to be taken by the CSI driver");
                    let events = &self.context.events;
                    events.normal(snapshot, K::NAMES.reasons.making, message);
                }
                return Ok(next);
            }
            Step::Status(change) => self.write_status(facts, change).await?,
            Step::Bind(class) => return self.bind(facts, class).await,
            Step::Mark => {
                if let Some(content) = &facts.content {
                    self.mark(contents, &**content).await?;
                }
            }
            Step::DeleteContent => {
                self.delete_content(facts).await?;
                return Ok(AfterStep::End(Outcome::RequeueAfter(RECHECK)));
            }
            Step::Own(step) => return K::apply_own(self, facts, step).await,
        }
        Ok(AfterStep::Look)
    }

    /// True if this snapshot is being deleted at the API server, too. After that went back to a
    /// backup, the caches are listed one after the other: that of contents may be new while that
    /// of snapshots is still old.
    async fn is_being_deleted<R: Resource>(&self, snapshot: &R) -> Result<bool, ApiError> {
        let namespace = snapshot.namespace().unwrap_or_default();
        let name = snapshot.name_any();
        let found = self.kube.get_metadata::<R>(&namespace, &name, &METADATA);
        Ok(found.await?.is_some_and(|now| {
            now.metadata.deletion_timestamp.is_some() && now.metadata.uid == snapshot.uid()
        }))
    }

    /// Notes on a content that its snapshot is being deleted.
    pub(super) async fn mark<C: Content>(
        &self,
        contents: &Store<C>,
        content: &C,
    ) -> Result<(), ReconcileError> {
        let marks = json!({C::KEYS.being_deleted: "yes"});
        self.merge(
            contents,
            content,
            json!({"metadata": {"annotations": marks}}),
        )
        .await
    }

    pub(super) async fn set_finalizers<R: Resource>(
        &self,
        watch: &Store<R>,
        object: &R,
        finalizers: Vec<String>,
    ) -> Result<(), ReconcileError> {
        let patch = json!({"metadata": {"finalizers": finalizers}});
        self.merge(watch, object, patch).await
    }

    /// Creates an object for a snapshot. If the API server rejects the object, the snapshot fails.
    pub(super) async fn create_for<K: SnapshotKind, R: Resource>(
        &self,
        facts: &Facts<K>,
        watch: &Store<R>,
        object: &R,
    ) -> Result<AfterStep, ReconcileError> {
        match self.create(watch, object).await {
            Ok(true) => Ok(AfterStep::Look),
            Ok(false) => Ok(AfterStep::End(Outcome::RequeueAfter(CONFLICT))),
            Err(ReconcileError::Api(error @ ApiError::Rejected { .. })) => {
                let reason = K::NAMES.reasons.make_content;
                self.fail(facts, SnapshotFailure::new(reason, error.to_string()))
                    .await
            }
            Err(error) => Err(error),
        }
    }

    async fn bind<K: SnapshotKind>(
        &self,
        facts: &Facts<K>,
        class: Option<String>,
    ) -> Result<AfterStep, ReconcileError> {
        let Some(content) = &facts.content else {
            return Ok(AfterStep::Look);
        };
        let uid = facts.snapshot.uid();
        let mut patch = json!({"spec": {K::NAMES.reference_field: {"uid": uid}}});
        if let Some(class) = class {
            patch["spec"][K::NAMES.class_field] = json!(class);
        }
        let (_, contents, _) = K::watches(&self.watches);
        match self.merge(contents, &**content, patch).await {
            Ok(()) => Ok(AfterStep::Look),
            Err(ReconcileError::Api(error @ ApiError::Rejected { .. })) => {
                let reason = K::NAMES.reasons.bind;
                self.fail(facts, SnapshotFailure::new(reason, error.to_string()))
                    .await
            }
            Err(error) => Err(error),
        }
    }

    async fn write_status<K: SnapshotKind>(
        &self,
        facts: &Facts<K>,
        change: StatusChange,
    ) -> Result<(), ReconcileError> {
        let snapshot = &*facts.snapshot;
        let (events, names) = (&self.context.events, K::NAMES);
        let (snapshots, ..) = K::watches(&self.watches);
        let written = self.merge_status(snapshots, snapshot, change.patch).await;
        if let Err(ReconcileError::Api(error @ ApiError::Rejected { .. })) = &written {
            events.warning(snapshot, names.reasons.status_update, error.to_string());
        }
        written?;
        let (path, uid) = (names::path(snapshot), snapshot.uid().unwrap_or_default());
        if change.taken {
            self.metrics.end(names.of, Operation::Create, &uid);
            let message = format!("{} {path} was taken by the CSI driver", names.title);
            events.normal(snapshot, names.reasons.created, message);
        }
        if change.ready {
            self.metrics.end(names.of, Operation::CreateAndReady, &uid);
            let message = format!("{} {path} is ready to use", names.title);
            events.normal(snapshot, names.reasons.ready, message);
        }
        Ok(())
    }

    async fn delete_content<K: SnapshotKind>(
        &self,
        facts: &Facts<K>,
    ) -> Result<(), ReconcileError> {
        let Some(content) = &facts.content else {
            return Ok(());
        };
        self.may_write()?;
        let deleted = self.kube.delete(&**content).await;
        if let Err(error @ ApiError::Rejected { .. }) = &deleted {
            let (events, reason) = (&self.context.events, K::NAMES.reasons.delete_content);
            events.warning(&*facts.snapshot, reason, error.to_string());
        }
        Ok(deleted?)
    }

    /// Starts the duration metrics of a snapshot's operations.
    fn measure<K: SnapshotKind>(&self, facts: &Facts<K>) {
        let snapshot = &*facts.snapshot;
        let view = K::view(snapshot);
        let uid = snapshot.uid().unwrap_or_default();
        let content = facts.content.as_deref().map(Content::view);
        let class = view.class;
        let class = class.and_then(|name| kind::class_by_name::<K>(&facts.classes, name));
        let driver = content.map(|content| content.driver);
        let driver = driver.or(class.map(SnapshotClass::driver));
        let operations: &[Operation] = if snapshot.is_deleting() {
            &[Operation::Delete]
        } else if view.is_ready() {
            &[]
        } else if view.created.is_none() {
            &[Operation::Create, Operation::CreateAndReady]
        } else {
            &[Operation::CreateAndReady]
        };
        for operation in operations {
            let beforehand = view.given.is_some();
            self.metrics
                .begin(K::NAMES.of, *operation, &uid, driver, beforehand);
        }
    }

    /// Adds the snapshotter's finalizer to a bound content. Marks or deletes a content without a
    /// snapshot.
    pub(super) async fn reconcile_content<K: SnapshotKind>(
        &self,
        name: &str,
    ) -> Result<Outcome, ReconcileError> {
        let (_, contents, _) = K::watches(&self.watches);
        let Some(content) = contents.get(name) else {
            return Ok(Outcome::Done);
        };
        let view = content.view();
        if view.volumes.is_empty() == view.given.is_none() {
            let message = format!("exactly one of {} must be given", K::NAMES.handles);
            let (events, reason) = (&self.context.events, K::NAMES.reasons.content_validation);
            events.warning(&*content, reason, message);
            return Ok(Outcome::Failed);
        }
        let Some(uid) = view.user_uid() else {
            return Ok(Outcome::Done);
        };
        self.mark_orphan::<K>(&content, self.gone.has(uid)).await?;
        if content.is_deleting() {
            return Ok(Outcome::Done);
        }
        if let Some(finalizers) = names::with(&*content, &[K::Content::KEYS.finalizer]) {
            self.set_finalizers(contents, &*content, finalizers).await?;
        }
        self.delete_orphan::<K>(name).await
    }

    /// Removes the source finalizer from a claim, if no snapshot of it is being taken.
    pub(super) async fn release(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Outcome, ReconcileError> {
        let claims = &self.watches.claims;
        let Some(claim) = claims.get_in(namespace, name) else {
            if claims.leaves_out(namespace, name) && !self.watches.may_be_read(namespace, name) {
                self.may_write()?;
                let held = [names::CLAIM_AS_SOURCE];
                finalizers::let_go::<PersistentVolumeClaim>(&self.kube, namespace, name, &held)
                    .await?;
            }
            return Ok(Outcome::Done);
        };
        if let Some(finalizers) = self.watches.released(&claim, None) {
            self.set_finalizers(claims, &*claim, finalizers).await?;
        } else if claim.is_deleting() && claim.has_finalizer(names::CLAIM_AS_SOURCE) {
            self.report_pending_claim(&claim);
        }
        Ok(Outcome::Done)
    }
}
