//! Reconciles contents of both kinds. [`ContentKind`] contains the differences between them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Options;
use super::content_client::{ContentClient, EventTemplate, Shared, WorkError};
use super::decide::Step;
use super::requested_contents::RequestedContents;
use crate::cache::{Caches, Index, Store};
use crate::controller::ObjectKey;
use crate::controller::owner::Ownership;
use crate::csi::{Failure, Waiters};
use crate::queue::{Outcome, Queue};
use crate::secrets::Credentials;
use crate::snapshots::content::{Content, SnapshotClass};

/// A kind of contents, and the CSI calls for it.
pub(super) trait ContentKind: Sized + Send + Sync + 'static {
    type Content: Content;
    type Class: SnapshotClass;
    /// The request that takes a snapshot.
    type Making: Send;
    /// The driver's answer.
    type Snapshot: Send + Sync;
    /// The request that deletes a snapshot.
    type Deletion: Send;

    /// The names of the queues: for this process's contents, for those without an owner, and for
    /// classes.
    const QUEUES: (&'static str, &'static str, &'static str);
    /// The CSI call that takes a snapshot.
    const CALL: &'static str;
    /// The class parameter for the secret of read calls.
    const ASKING: &'static str;
    /// The events for failures to take, check and delete a snapshot.
    const CREATE: EventTemplate;
    const CHECK: EventTemplate;
    const DELETE: EventTemplate;

    fn watches(caches: &Caches) -> (Store<Self::Content>, Store<Self::Class>);

    /// The request for a content's snapshot; `None` if the content names no volume.
    fn making(
        options: &Options,
        content: &Self::Content,
        inputs: SnapshotInputs<'_>,
    ) -> Option<Self::Making>;
    /// Sends that request.
    fn make(
        shared: &Shared,
        making: Self::Making,
    ) -> impl Future<Output = Result<Option<Self::Snapshot>, Failure>> + Send;
    /// Asks about the snapshot of this ID.
    fn ask(
        reconciler: &Reconciler<Self>,
        content: &Self::Content,
        handle: &str,
    ) -> impl Future<Output = Result<Answer<Self::Snapshot>, WorkError>> + Send;
    /// The request that deletes a content's snapshot.
    fn deletion(
        content: &Self::Content,
        handle: String,
        secrets: Credentials,
    ) -> Result<Self::Deletion, WorkError>;
    /// Sends that request.
    fn delete(
        shared: &Shared,
        deletion: Self::Deletion,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// The change of a content's status after the driver's answer. `made` is true if the snapshot
    /// was taken for this content.
    fn news(content: &Self::Content, reported: &Self::Snapshot, made: bool) -> Option<Value>;
    /// The status patch for a content after its snapshot is deleted.
    fn cleared() -> Value;
}

/// Inputs of the request for a snapshot.
pub(super) struct SnapshotInputs<'a> {
    /// The UID of the VolumeSnapshot or VolumeGroupSnapshot.
    pub(super) uid: &'a str,
    pub(super) secrets: Credentials,
    pub(super) parameters: BTreeMap<String, String>,
}

/// The driver's answer about one snapshot.
pub(super) enum Answer<T> {
    Found(T),
    /// The driver has no snapshot of that ID.
    Nothing,
    /// The driver has no call to check it, so the content is assumed to be right.
    Assumed(T),
}

/// Reconciles the contents of one kind.
pub(super) struct Reconciler<K: ContentKind> {
    pub(super) shared: Shared,
    pub(super) contents: ContentClient<K::Content>,
    pub(super) classes: Store<K::Class>,
    /// Contents that wait for room in a pool.
    pub(super) for_room: Waiters<ObjectKey>,
    /// Contents that are not ready, by class.
    by_class: Index<K::Content>,
}

impl<K: ContentKind> Reconciler<K> {
    /// Creates a reconciler of the keys in a queue.
    pub(super) fn new(shared: Shared, queue: &Queue<ObjectKey>) -> Self {
        let (watch, classes) = K::watches(&shared.context.caches);
        let kube = shared.kube.clone();
        let for_room = Waiters::queued(&shared.context.freed, queue);
        let by_class = watch.index(class_of_unready);
        Reconciler {
            contents: ContentClient {
                kube,
                watch,
                requested: RequestedContents::default(),
            },
            classes,
            for_room,
            by_class,
            shared,
        }
    }

    /// The contents that may wait for a class.
    pub(super) fn of_class(&self, class: &str) -> impl Iterator<Item = ObjectKey> + use<K> {
        let contents = self.by_class.get(class).into_iter();
        contents.map(|content| ObjectKey::of_content(&*content))
    }

    /// Takes the next step for one content.
    pub(super) async fn reconcile(&self, name: &str) -> Outcome {
        let Some(content) = self.contents.watch.get(name) else {
            self.for_room.leave(name);
            return Outcome::Done;
        };
        if !self.serves(&content) {
            return Outcome::Done;
        }
        let step = self.contents.next_step(&content);
        if step == Step::Rest {
            return Outcome::Done;
        }
        match self.owner(&content, &step).await {
            Ok(Ownership::Local) => {}
            Ok(Ownership::Remote) => return Outcome::Done,
            // The caches may show its volumes later, or the driver its snapshot.
            Ok(Ownership::Unknown) => return Outcome::Failed,
            Err(error) => {
                tracing::warn!(content = name, %error, "cannot find the owner of a content");
                return Outcome::Failed;
            }
        }
        self.apply(&content, step).await
    }
}

/// The index key of a content that is not ready: its class.
fn class_of_unready<K: Content>(content: &K) -> Vec<String> {
    let view = content.view();
    let class = view.class.filter(|_| !view.is_ready());
    class.map(str::to_owned).into_iter().collect()
}
