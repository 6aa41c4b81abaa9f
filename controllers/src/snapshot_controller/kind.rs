//! The [`SnapshotKind`] trait: differences between VolumeSnapshots and VolumeGroupSnapshots for
//! shared code, with the facts that decisions about a kind are made of, and the steps that they
//! choose.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use serde_json::Value;

use super::metrics::Of;
use super::names::BindState;
use super::watches::Watches;
use super::{AfterStep, ReconcileError, SnapshotController, SnapshotKey};
use crate::cache::Store;
use crate::client::{ApiError, Kube, Resource};
use crate::controller::ObjectKey;
use crate::snapshots::content::{Content, SnapshotClass};
use crate::snapshots::{DeletionPolicy, SnapshotError};

/// A kind of snapshot with its contents and classes.
pub(super) trait SnapshotKind: Sized + Send + Sync + 'static {
    type Snapshot: Resource;
    type Content: Content;
    type Class: SnapshotClass;
    /// Facts that only this kind's decisions need.
    type OwnFacts: Clone + Debug + Send + Sync;
    /// Steps that only this kind has.
    type OwnStep: Debug + Send;

    const NAMES: Names;
    /// The finalizers that a snapshot may have of this driver's controllers.
    const FINALIZERS: &[&str];

    fn key(namespace: String, name: String) -> SnapshotKey;
    fn content_key(content: ObjectKey) -> SnapshotKey;
    /// The key of a content, for when its snapshot with this UID was seen and is gone.
    fn orphan_key(content: ObjectKey, uid: String) -> SnapshotKey;
    fn watches(all: &Watches) -> WatchesOf<'_, Self>;

    fn view(snapshot: &Self::Snapshot) -> View<'_>;

    /// The name of the content that a snapshot names or would have.
    fn expected_content(snapshot: &Self::Snapshot) -> Option<String>;
    /// The names of contents that may have been made for a snapshot. Its user can't change them.
    fn made_contents(snapshot: &ObjectMeta) -> Vec<String>;
    fn own_facts(
        all: &Watches,
        kube: &Kube,
        snapshot: &Self::Snapshot,
        content: Option<&Self::Content>,
    ) -> impl Future<Output = Result<Self::OwnFacts, ApiError>> + Send;

    /// True if the controller of a group makes the snapshot's content.
    fn is_member(_: &Self::Snapshot) -> bool {
        false
    }
    /// The finalizers that a snapshot needs if its content has this policy.
    fn finalizers(policy: DeletionPolicy) -> Vec<&'static str>;
    /// The driver of the snapshot's volumes.
    fn driver(facts: &Facts<Self>) -> Result<&str, String>;
    /// The next step for a snapshot with a class and without a content.
    fn make(facts: &Facts<Self>, class: &Self::Class) -> Result<Step<Self>, SnapshotFailure>;
    /// The next step for a ready snapshot with its content and finalizers.
    fn when_ready(
        facts: &Facts<Self>,
        content: &Self::Content,
    ) -> Result<Step<Self>, SnapshotFailure>;
    /// A step that must precede the status, if the content was made for the snapshot.
    fn before_status(
        facts: &Facts<Self>,
        content: &Self::Content,
        bind_state: BindState,
    ) -> Result<Option<Step<Self>>, SnapshotFailure>;
    /// The last step: copy the content's status.
    fn copy_status(facts: &Facts<Self>, content: &Self::Content) -> Step<Self>;
    /// The next step for a snapshot that is being deleted.
    fn decide_deletion(facts: &Facts<Self>) -> Step<Self>;

    fn apply_own(
        controller: &SnapshotController,
        facts: &Facts<Self>,
        step: Self::OwnStep,
    ) -> impl Future<Output = Result<AfterStep, ReconcileError>> + Send;
    /// True if an own step deletes objects.
    fn deletes(_: &Self::OwnStep) -> bool {
        false
    }
    /// Queues keys that wait until a snapshot is gone.
    fn deleted(_: &SnapshotController, _namespace: &str, _name: &str) {}
}

/// A snapshot and all other inputs of its decision.
pub(super) struct Facts<K: SnapshotKind> {
    pub(super) snapshot: Arc<K::Snapshot>,
    /// The content that the snapshot names or would get, if it exists.
    pub(super) content: Option<Arc<K::Content>>,
    pub(super) classes: Vec<Arc<K::Class>>,
    /// All nodes, if contents are labelled with their node.
    pub(super) nodes: Option<Vec<Arc<Node>>>,
    /// What only this kind depends on.
    pub(super) own: K::OwnFacts,
}

/// The next step for a snapshot. Its facts are gathered again after each.
#[derive(Debug)]
pub(super) enum Step<K: SnapshotKind> {
    /// Nothing is left to do.
    Done,
    /// A requirement is not met yet: try again later.
    Wait(String),
    /// Write the name of the class to the snapshot.
    SetClass(String),
    /// Write these finalizers to the snapshot.
    Finalizers(Vec<String>),
    Create(Box<K::Content>),
    /// Bind the content to the snapshot, and write this class to it.
    Bind(Option<String>),
    /// Write the snapshot's status.
    Status(StatusChange),
    /// Annotate the content, so that the snapshotter sees the deletion.
    Mark,
    DeleteContent,
    /// The deletion must wait: report why, and try again.
    BlockDeletion(String),
    /// Report the failure, and try again.
    Fail(SnapshotFailure),
    /// A step that only this kind has.
    Own(K::OwnStep),
}

impl<K: SnapshotKind> Step<K> {
    /// True if the step deletes objects or data. Neither comes back.
    pub(super) fn deletes(&self) -> bool {
        match self {
            Step::Mark | Step::DeleteContent => true,
            Step::Own(step) => K::deletes(step),
            _ => false,
        }
    }
}

/// The failure of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnapshotFailure {
    pub(super) reason: &'static str,
    /// The message of the event and the status.
    pub(super) message: String,
    /// True if the snapshot also cannot be restored.
    pub(super) unready: bool,
}

impl SnapshotFailure {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        SnapshotFailure {
            reason,
            message: message.into(),
            unready: true,
        }
    }

    pub(super) fn still_ready(reason: &'static str, message: impl Into<String>) -> Self {
        SnapshotFailure {
            unready: false,
            ..SnapshotFailure::new(reason, message)
        }
    }
}

/// What a snapshot's status lacks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusChange {
    /// A merge patch of the status.
    pub(super) patch: Value,
    /// True if the status now shows that the snapshot has been taken.
    pub(super) taken: bool,
    /// True if the status now shows that the snapshot can be restored from.
    pub(super) ready: bool,
}

/// The watches of a kind's snapshots, contents and classes.
pub(super) type WatchesOf<'a, K> = (
    &'a Store<<K as SnapshotKind>::Snapshot>,
    &'a Store<<K as SnapshotKind>::Content>,
    &'a Store<<K as SnapshotKind>::Class>,
);

/// The fields that both kinds of snapshot have.
pub(super) struct View<'a> {
    pub(super) class: Option<&'a str>,
    /// The name of a pre-provisioned content in the spec.
    pub(super) given: Option<&'a str>,
    /// True if the spec selects volumes.
    pub(super) selects_volumes: bool,
    /// The name of the content in the status; never empty.
    pub(super) bound: Option<&'a str>,
    pub(super) created: Option<&'a Time>,
    pub(super) ready: Option<bool>,
    pub(super) error: Option<&'a SnapshotError>,
}

impl View<'_> {
    pub(super) fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }
}

pub(super) fn class_by_name<'a, K: SnapshotKind>(
    classes: &'a [Arc<K::Class>],
    name: &str,
) -> Option<&'a K::Class> {
    let mut classes = classes.iter().map(|class| &**class);
    classes.find(|class| class.name_any() == name)
}

/// The name of a driver's only class with the default annotation. The errors begin like those of
/// the upstream snapshot-controller, because people and Kubernetes' own tests search for that text.
pub(super) fn only_default_class<K: SnapshotKind>(
    classes: &[Arc<K::Class>],
    driver: &str,
) -> Result<String, String> {
    let defaults: Vec<_> = classes
        .iter()
        .filter(|class| {
            let marked = class.annotations().get(K::NAMES.default_class);
            class.driver() == driver && marked.is_some_and(|marked| marked == "true")
        })
        .collect();
    let kind = <K::Class as kube::Resource>::kind(&());
    match defaults[..] {
        [class] => Ok(class.name_any()),
        [] => Err(format!(
            "cannot find default {} class of driver {driver}: name a {kind}",
            K::NAMES.noun
        )),
        _ => Err(format!(
            "{} default snapshot classes were found of driver {driver}: name a {kind}",
            defaults.len()
        )),
    }
}

/// The words for a kind that users and other controllers use.
pub(super) struct Names {
    pub(super) of: Of,
    /// The kind's name in the middle of a message.
    pub(super) noun: &'static str,
    /// The kind's name at the start of a message.
    pub(super) title: &'static str,
    /// The two fields of a spec, one of which selects volumes.
    pub(super) sources: &'static str,
    /// The two fields of a content's spec, one of which names volumes.
    pub(super) handles: &'static str,
    pub(super) class_field: &'static str,
    pub(super) reference_field: &'static str,
    pub(super) bound_field: &'static str,
    pub(super) content_name: fn(&str) -> String,
    pub(super) default_class: &'static str,
    pub(super) reasons: Reasons,
}

/// The reasons of events.
pub(super) struct Reasons {
    pub(super) validation: &'static str,
    pub(super) content_validation: &'static str,
    pub(super) missing: &'static str,
    pub(super) misbound: &'static str,
    pub(super) content_mismatch: &'static str,
    pub(super) content_misbound: &'static str,
    pub(super) get_class: &'static str,
    pub(super) default_class: &'static str,
    pub(super) make_content: &'static str,
    pub(super) making: &'static str,
    pub(super) bind: &'static str,
    pub(super) status_update: &'static str,
    pub(super) created: &'static str,
    pub(super) ready: &'static str,
    pub(super) delete_content: &'static str,
}

/// The reasons of events about VolumeSnapshots and their contents.
pub(super) const SNAPSHOT_REASONS: Reasons = Reasons {
    validation: "SnapshotValidationError",
    content_validation: "ContentValidationError",
    missing: "SnapshotContentMissing",
    misbound: "SnapshotMisbound",
    content_mismatch: "SnapshotContentMismatch",
    content_misbound: "SnapshotContentMisbound",
    get_class: "GetSnapshotClassFailed",
    default_class: "SetDefaultSnapshotClassFailed",
    make_content: "SnapshotContentCreationFailed",
    making: "CreatingSnapshot",
    bind: "SnapshotBindFailed",
    status_update: "SnapshotStatusUpdateFailed",
    created: "SnapshotCreated",
    ready: "SnapshotReady",
    delete_content: "SnapshotContentObjectDeleteError",
};

/// The reasons of events about VolumeGroupSnapshots and their contents.
pub(super) const GROUP_REASONS: Reasons = Reasons {
    validation: "GroupSnapshotValidationError",
    content_validation: "GroupContentValidationError",
    missing: "GroupSnapshotContentMissing",
    misbound: "GroupSnapshotMisbound",
    content_mismatch: "GroupSnapshotContentMismatch",
    content_misbound: "GroupSnapshotContentMisbound",
    get_class: "GetGroupSnapshotClassFailed",
    default_class: "SetDefaultGroupSnapshotClassFailed",
    make_content: "GroupSnapshotContentCreationFailed",
    making: "CreatingGroupSnapshot",
    bind: "GroupSnapshotBindFailed",
    status_update: "GroupSnapshotStatusUpdateFailed",
    created: "GroupSnapshotCreated",
    ready: "GroupSnapshotReady",
    delete_content: "GroupSnapshotContentObjectDeleteError",
};
