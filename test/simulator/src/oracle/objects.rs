//! The objects of the API server at one moment, read once for all checks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::{Cluster, TOPOLOGY};
use crate::foreign::is_foreign;
use crate::model::uses;
use crate::model::view::{event_about, event_note, is_unbound, name, namespace, text, uid};
use crate::users::volume_path;

/// Reasons of events that report progress. They don't say why something is not done.
const PROGRESS: [&str; 20] = [
    "CreatingGroupSnapshot",
    "CreatingSnapshot",
    "ExternalExpanding",
    "ExternalProvisioning",
    "FileSystemResizeRequired",
    "GroupSnapshotCreated",
    "GroupSnapshotReady",
    "NodeRecovered",
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

/// What the users of a cluster can see of hostloop.
pub(super) struct Objects {
    pub(super) claims: Vec<Value>,
    pub(super) pods: Vec<Value>,
    pub(super) snapshots: Vec<Value>,
    contents: Vec<Value>,
    pub(super) groups: Vec<Arc<Value>>,
    pub(super) group_contents: Vec<Arc<Value>>,
    /// By the UID of the object that they are about.
    events: BTreeMap<String, Vec<Event>>,
}

struct Event {
    reason: String,
    note: String,
}

/// All objects of a kind (by plural) but those of another driver.
pub(super) fn ours(cluster: &Cluster, plural: &str) -> Vec<Value> {
    let mut all = cluster.api.all(plural);
    all.retain(|object| !is_foreign(object));
    all
}

/// The same, without a copy of each.
fn shared(cluster: &Cluster, plural: &str) -> Vec<Arc<Value>> {
    let mut all = cluster.api.shared(plural);
    all.retain(|object| !is_foreign(object));
    all
}

/// The object of a claim's volume.
pub(super) fn volume_of(cluster: &Cluster, claim: &Value) -> Option<Arc<Value>> {
    let at = volume_path(text(claim, "/spec/volumeName"));
    cluster.api.shared_at(&at)
}

/// True if a volume is for one pod alone.
pub(super) fn is_for_one_pod(volume: &Value) -> bool {
    volume["spec"]["accessModes"] == json!(["ReadWriteOncePod"])
}

/// True if a claim is for the content of something else, be it of a kind that hostloop knows or not.
pub(super) fn has_source(claim: &Value) -> bool {
    !claim["spec"]["dataSource"].is_null() || !claim["spec"]["dataSourceRef"].is_null()
}

/// The node of a capacity object; empty if it is of none.
pub(super) fn node_of_capacity(capacity: &Value) -> &str {
    capacity["nodeTopology"]["matchLabels"][TOPOLOGY]
        .as_str()
        .unwrap_or_default()
}

/// The capacity objects of a node.
pub(super) fn capacities_of(cluster: &Cluster, node: &str) -> Vec<Arc<Value>> {
    let mut all = shared(cluster, "csistoragecapacities");
    all.retain(|capacity| node_of_capacity(capacity) == node);
    all
}

/// The handles of all volumes, snapshots and groups with an object.
pub(super) fn handles_of_objects(cluster: &Cluster) -> BTreeSet<String> {
    let volumes = cluster.api.shared("persistentvolumes").into_iter();
    let volumes = volumes.map(|one| text(&one, "/spec/csi/volumeHandle").to_owned());
    let contents = cluster.api.shared("volumesnapshotcontents").into_iter();
    let snapshots = contents.map(|one| text(&one, "/status/snapshotHandle").to_owned());
    let contents = cluster
        .api
        .shared("volumegroupsnapshotcontents")
        .into_iter();
    let handle = "/status/volumeGroupSnapshotHandle";
    let groups = contents.map(|one| text(&one, handle).to_owned());
    volumes.chain(snapshots).chain(groups).collect()
}

/// What of an object says why it is as it is.
pub(super) fn state(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "deleted {}, finalizers {}, spec {}, status {}",
        metadata["deletionTimestamp"], metadata["finalizers"], object["spec"], object["status"]
    )
}

impl Objects {
    pub(super) fn of(cluster: &Cluster) -> Objects {
        let mut events: BTreeMap<String, Vec<Event>> = BTreeMap::new();
        for event in cluster.api.all("events") {
            let about = text(event_about(&event), "/uid").to_owned();
            events.entry(about).or_default().push(Event {
                reason: text(&event, "/reason").to_owned(),
                note: event_note(&event).to_owned(),
            });
        }
        Objects {
            claims: ours(cluster, "persistentvolumeclaims"),
            pods: ours(cluster, "pods"),
            snapshots: ours(cluster, "volumesnapshots"),
            contents: ours(cluster, "volumesnapshotcontents"),
            groups: shared(cluster, "volumegroupsnapshots"),
            group_contents: shared(cluster, "volumegroupsnapshotcontents"),
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

    /// Why volumes of a pod could not be attached.
    pub(super) fn attach_errors(&self, pod: &Value) -> impl Iterator<Item = String> {
        self.events_of(pod)
            .filter(|event| event.reason == "FailedAttachVolume")
            .map(|event| event.note.clone())
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
            is_unbound(claim)
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
