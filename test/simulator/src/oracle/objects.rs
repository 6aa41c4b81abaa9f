//! The objects of the API server at one moment, read once for all checks.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::uses;
use crate::model::view::{name, namespace, text, uid};

/// Reasons of events that report progress. They don't say why something is not done.
const PROGRESS: [&str; 16] = [
    "CreatingSnapshot",
    "ExternalExpanding",
    "ExternalProvisioning",
    "FileSystemResizeRequired",
    "NodeReselected",
    "Provisioning",
    "ProvisioningSucceeded",
    "Resizing",
    "Scheduled",
    "SnapshotCreated",
    "SnapshotReady",
    "VolumeModify",
    "VolumeModifySuccessful",
    "VolumeResizeSuccessful",
    "WaitForFirstConsumer",
    "WaitForPodScheduled",
];

/// What the users of a cluster can see.
pub(super) struct Objects {
    pub(super) claims: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) snapshots: Vec<Value>,
    contents: Vec<Value>,
    /// By the UID of the object that they are about.
    events: BTreeMap<String, Vec<Event>>,
}

struct Event {
    reason: String,
    note: String,
}

impl Objects {
    pub(super) fn of(cluster: &Cluster) -> Objects {
        let mut events: BTreeMap<String, Vec<Event>> = BTreeMap::new();
        for event in cluster.api.all("events") {
            let (about, note) = if event["regarding"].is_null() {
                ("/involvedObject/uid", "/message")
            } else {
                ("/regarding/uid", "/note")
            };
            let about = text(&event, about).to_owned();
            events.entry(about).or_default().push(Event {
                reason: text(&event, "/reason").to_owned(),
                note: text(&event, note).to_owned(),
            });
        }
        Objects {
            claims: cluster.api.all("persistentvolumeclaims"),
            pods: cluster.api.all("pods"),
            snapshots: cluster.api.all("volumesnapshots"),
            contents: cluster.api.all("volumesnapshotcontents"),
            events,
        }
    }

    fn events_of(&self, object: &Value) -> impl Iterator<Item = &Event> {
        self.events.get(uid(object)).into_iter().flatten()
    }

    /// All events about an object, in one text.
    pub(super) fn history(&self, object: &Value) -> String {
        let events = self.events_of(object);
        let all: Vec<String> = events
            .map(|event| format!("{}: {}", event.reason, event.note))
            .collect();
        all.join("; ")
    }

    /// What events say about why something is not done.
    pub(super) fn reasons(&self, object: &Value) -> Vec<String> {
        self.events_of(object)
            .filter(|event| !PROGRESS.contains(&event.reason.as_str()))
            .map(|event| event.note.clone())
            .collect()
    }

    /// The pods that use a claim.
    pub(super) fn users(&self, claim: &Value) -> impl Iterator<Item = &Value> {
        self.pods
            .iter()
            .filter(move |pod| namespace(pod) == namespace(claim) && uses(pod, name(claim)))
    }

    /// The content of a snapshot.
    pub(super) fn content(&self, snapshot: &Value) -> Option<&Value> {
        self.contents
            .iter()
            .find(|content| text(content, "/spec/volumeSnapshotRef/uid") == uid(snapshot))
    }

    /// The claim or snapshot that is the source of a claim, if there is one of its name.
    pub(super) fn source(&self, claim: &Value) -> Option<&Value> {
        let sources = match text(claim, "/spec/dataSource/kind") {
            "VolumeSnapshot" => &self.snapshots,
            "PersistentVolumeClaim" => &self.claims,
            _ => return None,
        };
        let wanted = text(claim, "/spec/dataSource/name");
        sources
            .iter()
            .find(|source| name(source) == wanted && namespace(source) == namespace(claim))
    }

    /// True if a claim that came before the deletion of its source waits for its volume. A later
    /// one gets none from it. Times have whole seconds.
    pub(super) fn is_awaited(&self, source: &Value) -> bool {
        let deleted = text(source, "/metadata/deletionTimestamp");
        self.claims.iter().any(|claim| {
            ["", "Pending"].contains(&text(claim, "/status/phase"))
                && text(claim, "/metadata/creationTimestamp") <= deleted
                && self.source(claim).is_some_and(|it| uid(it) == uid(source))
        })
    }

    /// The snapshots that keep a deleted claim, because they may still be taken. Without a content,
    /// one with an error is broken.
    pub(super) fn to_be_taken(&self, claim: &Value) -> impl Iterator<Item = &Value> {
        self.snapshots.iter().filter(move |snapshot| {
            text(snapshot, "/spec/source/persistentVolumeClaimName") == name(claim)
                && namespace(snapshot) == namespace(claim)
                && snapshot["status"]["readyToUse"] != true
                && (snapshot["status"]["error"].is_null() || self.content(snapshot).is_some())
        })
    }
}
