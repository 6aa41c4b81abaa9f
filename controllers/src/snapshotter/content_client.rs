//! Writes contents of both kinds, and reports failures.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::Options;
use super::decide::{Step, decide};
use super::parameters::ParameterError;
use super::requested_contents::RequestedContents;
use super::status;
use crate::api::scope::{MANAGED_BY, Scope};
use crate::cache::Store;
use crate::client::{ApiError, Kube, Resource};
use crate::controller::owner::Ownership;
use crate::controller::{Context, content_owner, finalizers};
use crate::csi::Failure;
use crate::queue::Outcome;
use crate::secrets::{SecretError, TemplateError};
use crate::snapshots::content::Content;

/// Default deadline of a CSI call.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often a status write is tried before a conflict is an error.
const TRIES: usize = 4;

/// The reason why work on a content failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    /// A call to the API server failed. Users can only fix the cause if the server rejects the
    /// call.
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Secret(SecretError),
    /// The driver returned an error. The message shows only the code and text, since the rest
    /// differs from call to call.
    #[error("{}: {:?}: {}", .0.call, .0.code(), .0.status.message())]
    Call(Failure),
    #[error("{call}: the CSI driver's answer has no snapshot")]
    Empty { call: &'static str },
    #[error("{kind} {name} does not exist: create it")]
    NoClass {
        /// `VolumeSnapshotClass` or `VolumeGroupSnapshotClass`.
        kind: String,
        name: String,
    },
    #[error("content {content} names no class, which its snapshot needs")]
    Classless { content: String },
    /// The content has no UID of a VolumeSnapshot.
    #[error("content {content} is not bound to a snapshot: its reference has no UID")]
    Unbound { content: String },
    #[error("the CSI driver has no snapshot {handle}")]
    NoSnapshot { handle: String },
    /// The group has no members, but the CSI call requires their IDs.
    #[error("content {content} names no member of its group snapshot")]
    NoMembers { content: String },
}

impl From<SecretError> for WorkError {
    fn from(error: SecretError) -> Self {
        match error {
            SecretError::Unreadable { source, .. } => WorkError::Api(source),
            error => WorkError::Secret(error),
        }
    }
}

impl From<Failure> for WorkError {
    fn from(failure: Failure) -> Self {
        WorkError::Call(failure)
    }
}

impl WorkError {
    /// True if users should see the error, unlike an outage of the API server.
    pub(super) fn is_for_users(&self) -> bool {
        !matches!(self, WorkError::Api(error) if !matches!(error, ApiError::Rejected { .. }))
    }
}

/// The contents that a reconciler handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The contents of this process.
    Own,
    /// Those without an owner: only their finalizer is removed.
    Unowned,
}

/// State that reconcilers of both kinds share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) part: Part,
    pub(super) context: Context,
    pub(super) kube: Kube,
    pub(super) options: Arc<Options>,
    pub(super) timeout: Duration,
}

impl Shared {
    pub(super) fn new(context: Context, options: Options, part: Part) -> Self {
        Shared {
            part,
            kube: context.kube.managed_by("hostloop-snapshotter"),
            timeout: context.common.timeout.unwrap_or(TIMEOUT),
            options: Arc::new(options),
            context,
        }
    }

    /// True if the leader takes this step for a content without an owner. Such a step makes no call
    /// to the driver, so any process can take it.
    pub(super) fn is_unowned<K: Resource>(
        &self,
        content: &K,
        step: &Step,
        volume: Option<&str>,
    ) -> bool {
        let unowned = self.owner(content, None, volume) == Ownership::Unknown;
        unowned && step.is_harmless() && self.context.leader.leads()
    }

    /// Determines the owner of a content from the caches alone.
    pub(super) fn owner<K: Resource>(
        &self,
        content: &K,
        handle: Option<&str>,
        volume: Option<&str>,
    ) -> Ownership {
        let context = &self.context;
        // Another process leads by now and owns the content.
        if !context.acts() {
            return Ownership::Remote;
        }
        // The source volumes only matter if other processes run a snapshotter.
        let volume = volume.filter(|_| context.scope != Scope::Cluster);
        let sources = volume.map_or_else(Vec::new, |volume| {
            context.caches.volumes_of(&context.driver.name, volume)
        });
        let sources = sources.iter().map(AsRef::as_ref);
        content_owner::owner(
            &context.scope,
            &context.pools,
            content.labels(),
            handle,
            sources,
        )
    }
}

/// Reads and writes the contents of one kind.
pub(super) struct ContentClient<K> {
    pub(super) kube: Kube,
    pub(super) watch: Store<K>,
    pub(super) requested: RequestedContents,
}

impl<K: Content> ContentClient<K> {
    /// The next step for a content.
    pub(super) fn next_step(&self, content: &K) -> Step {
        decide(content, self.requested.has(content))
    }

    /// True if a step is due at the API server, too. After that went back to a backup, the cache may
    /// still have the content as it was later.
    pub(super) async fn is_due(&self, content: &K, step: &Step) -> Result<bool, ApiError> {
        let now = self.kube.again(content).await?;
        Ok(now.is_some_and(|now| self.next_step(&now) == *step))
    }

    /// Annotates a content before the driver takes its snapshot, and labels it with its node. The
    /// write fails if the content has changed since it was read.
    pub(super) async fn begin(&self, content: &K, node: Option<String>) -> Result<K, ApiError> {
        let marked = content.annotations().contains_key(K::KEYS.being_created);
        if marked && node.is_none() {
            return Ok(content.clone());
        }
        let mut metadata = json!({
            "resourceVersion": content.resource_version(),
            "annotations": {K::KEYS.being_created: "yes"},
        });
        if let Some(node) = node {
            metadata["labels"] = json!({MANAGED_BY: node});
        }
        self.merge(content, json!({"metadata": metadata})).await
    }

    /// Labels a content with its node.
    pub(super) async fn adopt(&self, content: &K, node: Option<String>) -> Result<K, ApiError> {
        let Some(node) = node else {
            return Ok(content.clone());
        };
        let version = content.resource_version();
        let metadata = json!({"resourceVersion": version, "labels": {MANAGED_BY: node}});
        self.merge(content, json!({"metadata": metadata})).await
    }

    /// Removes the annotation of [`ContentClient::begin`].
    pub(super) async fn settle(&self, content: &K) -> Result<K, ApiError> {
        if !content.annotations().contains_key(K::KEYS.being_created) {
            return Ok(content.clone());
        }
        let metadata = json!({
            "uid": content.uid(),
            "annotations": {K::KEYS.being_created: null},
        });
        self.merge(content, json!({"metadata": metadata})).await
    }

    /// Applies the patch from `news` to the content's status. After a conflict it reads the content
    /// again, so that the driver's answer is not lost.
    pub(super) async fn record(
        &self,
        content: K,
        news: impl Fn(&K) -> Option<Value>,
    ) -> Result<K, ApiError> {
        let mut current = content;
        let mut tries = 1;
        loop {
            let Some(status) = news(&current) else {
                return Ok(current);
            };
            match self.kube.merge_status_unchanged(&current, status).await {
                Ok(written) => return Ok(self.noted(written)),
                Err(error) if error.is_conflict() && tries < TRIES => {
                    tries += 1;
                    let Some(newest) = self.kube.again(&current).await? else {
                        return Err(error);
                    };
                    current = newest;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes the finalizer.
    pub(super) async fn release(&self, content: &K) -> Result<(), ApiError> {
        finalizers::remove(&self.kube, Some(&self.watch), content, K::KEYS.finalizer).await?;
        Ok(())
    }

    async fn merge(&self, content: &K, patch: Value) -> Result<K, ApiError> {
        let written = self.kube.merge(content, patch).await?;
        Ok(self.noted(written))
    }

    fn noted(&self, written: K) -> K {
        self.watch.apply_write(written.clone());
        written
    }
}

/// The reason of an event, and the beginning of its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTemplate {
    pub(super) reason: &'static str,
    pub(super) message: &'static str,
}

/// Maps the result of a final write to an outcome. A missing content counts as success.
pub(super) fn quiet<K: Content>(content: &K, result: Result<(), ApiError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error) if error.is_not_found() => Outcome::Done,
        Err(error) => {
            tracing::warn!(content = content.name_any(), %error, "cannot update a content");
            Outcome::Failed
        }
    }
}

impl Shared {
    /// Maps the result of a create or read call to an outcome, and reports errors.
    pub(super) async fn end<K: Content>(
        &self,
        contents: &ContentClient<K>,
        name: &str,
        template: EventTemplate,
        result: Result<K, WorkError>,
    ) -> Outcome {
        match result {
            Ok(now) if now.view().is_ready() => match contents.next_step(&now) {
                Step::Rest => Outcome::Done,
                // The content was deleted while the driver took its snapshot.
                _ => Outcome::RequeueAfter(Duration::ZERO),
            },
            // The call is repeated with backoff until the snapshot is ready.
            Ok(_) => Outcome::Failed,
            Err(WorkError::Api(ApiError::NotFound { .. })) => Outcome::Done,
            Err(error) => self.report(contents, name, template, &error).await,
        }
    }

    /// Reports an error. A content that needs another step by now does not wait for the next try:
    /// after a final error, its deletion is free to go on.
    async fn report<K: Content>(
        &self,
        contents: &ContentClient<K>,
        name: &str,
        template: EventTemplate,
        error: &WorkError,
    ) -> Outcome {
        tracing::warn!(content = name, %error, "{}", template.message);
        if error.is_for_users() {
            self.tell(contents, name, template, error).await;
        }
        match contents
            .watch
            .get(name)
            .map(|content| contents.next_step(&content))
        {
            Some(Step::Create | Step::Check { .. }) => Outcome::Failed,
            Some(_) => Outcome::RequeueAfter(Duration::ZERO),
            None => Outcome::Done,
        }
    }

    /// Writes an error to a content's status, and emits an event if the error is new.
    async fn tell<K: Content>(
        &self,
        contents: &ContentClient<K>,
        name: &str,
        template: EventTemplate,
        error: &WorkError,
    ) {
        let Some(content) = contents.watch.get(name) else {
            return;
        };
        let message = format!("{}: {error}", template.message);
        let now = Timestamp::now();
        let Some(status) = status::of_failure(content.view().error, &message, now) else {
            return;
        };
        self.context
            .events
            .warning(content.as_ref(), template.reason, message.clone());
        // A node may only write to contents with its label, which the leader adds.
        if content_owner::label(&self.context.scope, content.labels()).is_some() {
            return;
        }
        // Another process may have made the content ready.
        match contents
            .kube
            .merge_status_unchanged(content.as_ref(), status)
            .await
        {
            Ok(written) => contents.watch.apply_write(written),
            Err(error) => tracing::warn!(content = name, %error, "cannot write a content's status"),
        }
    }

    /// Emits an event that says why a snapshot was not deleted.
    pub(super) fn report_deletion<K: Resource>(
        &self,
        content: &K,
        reason: &'static str,
        message: &str,
        error: &WorkError,
    ) -> Outcome {
        tracing::warn!(content = content.name_any(), %error, "{message}");
        let message = format!("{message}: {error}");
        self.context.events.warning(content, reason, message);
        Outcome::Failed
    }
}
