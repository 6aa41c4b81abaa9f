//! Who may write what. Each node's process writes its own node's objects alone, as the admission
//! policies restrict its account (`deploy/base/policy-*.yaml`), and a leader what its roles grant. No
//! one writes an object of another driver, but as the cluster's snapshot controller does for all.

use std::collections::BTreeSet;
use std::time::Duration;

use hostloop_fake_api::{FakeApi, Write};
use parking_lot::Mutex;
use serde_json::Value;

use crate::cluster::{DRIVER, TOPOLOGY};
use crate::foreign::{self, is_foreign};
use crate::machine::node_of;
use crate::model::view::{
    MANAGED_BY, PROVISIONED_BY, SELECTED_NODE, annotation, has_finalizer, items, name, namespace,
    text, without_finalizer,
};
use crate::oracle::lost::ECHO;
use crate::{shim, trace};

/// The label of claims and volumes with their node.
const NODE: &str = "hostloop.csi.dev/node";
/// The annotations of a claim with its driver.
const PROVISIONERS: [&str; 2] = [
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];
/// The snapshot controller's finalizer of a claim while a snapshot of it is taken.
const AS_SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// What a node says something about.
const TOLD_OF: [&str; 5] = [
    "PersistentVolumeClaim",
    "PersistentVolume",
    "VolumeSnapshotContent",
    "VolumeGroupSnapshotContent",
    "StorageClass",
];

/// When the API server last went back to a backup. One process runs one history.
static WENT_BACK: Mutex<Option<Duration>> = Mutex::new(None);

/// The API server goes back to a backup. For a moment, processes know objects as they were.
pub(super) fn went_back() {
    *WENT_BACK.lock() = Some(shim::now());
}

/// True if the API server has ever gone back to a backup.
pub(super) fn has_gone_back() -> bool {
    WENT_BACK.lock().is_some()
}

/// The names of the contents of snapshots of another driver. An event names nothing else of the
/// content that it is about.
#[derive(Default)]
struct ForeignContents(BTreeSet<String>);

impl ForeignContents {
    /// Those that were there before users came.
    fn there_before() -> ForeignContents {
        let mut contents = ForeignContents::default();
        foreign::objects().for_each(|object| contents.note(&object));
        contents
    }

    /// An object is written. After a restore, hostloop may have a content of the same name.
    fn note(&mut self, object: &Value) {
        if !is_content(text(object, "/kind")) {
            return;
        }
        if is_foreign(object) {
            self.0.insert(name(object).to_owned());
        } else {
            self.0.remove(name(object));
        }
    }
}

/// Watches the writes of hostloop's processes from now on.
pub(crate) fn watch(api: &FakeApi) {
    let mut contents = ForeignContents::there_before();
    api.on_write(move |write| {
        if let Some(object) = write.new {
            contents.note(object);
        }
        if let Some(breach) = breach(write, &contents) {
            trace::violation(breach);
        }
    });
}

/// What a write breaks, if it breaks something.
fn breach(write: &Write, contents: &ForeignContents) -> Option<String> {
    let actor = write.who;
    if node_of(actor).is_none() && !actor.starts_with("leader") {
        return None;
    }
    let object = deciding_object(write)?;
    let kind = text(object, "/kind");
    let is_allowed = if concerns_others(kind, object, contents) {
        node_of(actor).is_none() && is_for_all_drivers(write.method, kind, write.old, write.new)
    } else {
        may_write(actor, write.method, kind, object) || has_just_gone_back()
    };
    if is_allowed {
        return None;
    }
    let (method, path) = (write.method, write.path);
    Some(format!(
        "not its own: {actor} did {method} {path}, and may not: the object was {}",
        brief(object)
    ))
}

/// The object that decides about a write: as it was, or as it is now if it is new. A content without
/// a node is that of the node which takes it.
fn deciding_object<'a>(write: &Write<'a>) -> Option<&'a Value> {
    let Some(old) = write.old else {
        return write.new;
    };
    if is_content(text(old, "/kind")) && label(old, MANAGED_BY).is_empty() {
        return write.new.or(Some(old));
    }
    Some(old)
}

/// True for the kinds of the contents of snapshots and groups.
fn is_content(kind: &str) -> bool {
    kind.ends_with("SnapshotContent")
}

fn has_just_gone_back() -> bool {
    let since = *WENT_BACK.lock();
    since.is_some_and(|since| shim::now() <= since + ECHO)
}

/// True if a process may do this to an object of hostloop, or of no driver.
fn may_write(actor: &str, verb: &str, kind: &str, object: &Value) -> bool {
    match node_of(actor) {
        Some(node) => may_node_write(node, verb, kind, object),
        None => may_leader_write(verb, kind),
    }
}

fn may_node_write(node: &str, verb: &str, kind: &str, object: &Value) -> bool {
    match (kind, verb) {
        ("Event", "POST" | "PATCH") => is_said_by(object, node),
        ("PersistentVolume", "POST") => is_placed(object, node) && is_named_after_claim(object),
        ("PersistentVolume", "PATCH" | "DELETE") => {
            text(object, "/spec/csi/driver") == DRIVER
                && (is_placed(object, node) || label(object, NODE) == node)
        }
        ("PersistentVolumeClaim", "PATCH") => is_claim_of(object, node),
        ("VolumeAttachment", "PATCH") => {
            text(object, "/spec/attacher") == DRIVER && text(object, "/spec/nodeName") == node
        }
        ("CSIStorageCapacity", "POST" | "PATCH" | "DELETE") => is_capacity_of(object, node),
        // It names neither node nor driver.
        ("VolumeSnapshot", "PATCH") => true,
        ("VolumeSnapshotContent" | "VolumeGroupSnapshotContent", "PATCH") => {
            text(object, "/spec/driver") == DRIVER && label(object, MANAGED_BY) == node
        }
        _ => false,
    }
}

/// True if the roles of the controllers allow it.
fn may_leader_write(verb: &str, kind: &str) -> bool {
    match kind {
        "Lease" => true,
        "Event" => verb == "POST" || verb == "PATCH",
        "PersistentVolume" => verb == "PATCH" || verb == "DELETE",
        "PersistentVolumeClaim" | "VolumeAttachment" | "VolumeGroupSnapshot" => verb == "PATCH",
        "CSIStorageCapacity" => verb == "DELETE",
        "VolumeSnapshot" | "VolumeSnapshotContent" | "VolumeGroupSnapshotContent" => verb != "PUT",
        "CustomResourceDefinition" => verb == "POST",
        _ => false,
    }
}

/// True for an object of another driver, and for an event about one.
fn concerns_others(kind: &str, object: &Value, contents: &ForeignContents) -> bool {
    let about = text(object, "/involvedObject/name");
    let is_of_content = is_content(text(object, "/involvedObject/kind"));
    is_foreign(object)
        || kind == "Event"
            && (about.starts_with(foreign::PREFIX) || is_of_content && contents.0.contains(about))
}

/// True if the snapshot controller does this for each driver, as upstream's: it makes and deletes
/// contents, binds them, and protects claims. The rest is for the driver's own processes.
fn is_for_all_drivers(verb: &str, kind: &str, old: Option<&Value>, new: Option<&Value>) -> bool {
    match (kind, verb, old) {
        ("VolumeSnapshot" | "VolumeGroupSnapshot", ..) => true,
        ("Event", ..) => {
            let event = new.or(old);
            let about = event.map_or("", |event| text(event, "/involvedObject/kind"));
            about.contains("Snapshot") || about == "PersistentVolumeClaim"
        }
        ("VolumeSnapshotContent" | "VolumeGroupSnapshotContent", "POST" | "DELETE", _) => true,
        ("VolumeSnapshotContent" | "VolumeGroupSnapshotContent", "PATCH", Some(old)) => {
            new.is_some_and(|new| is_only_bound(old, new))
        }
        ("PersistentVolumeClaim", "PATCH", Some(old)) => is_only_protected(old, new),
        _ => false,
    }
}

/// True if a content may have another reference, class or annotation now, or one finalizer more.
fn is_only_bound(old: &Value, new: &Value) -> bool {
    let mut finalizers = items(old, "/metadata/finalizers");
    old["status"] == new["status"]
        && old["metadata"]["labels"] == new["metadata"]["labels"]
        && finalizers.all(|one| one.as_str().is_some_and(|one| has_finalizer(new, one)))
}

/// True if a claim has no other change than the finalizer of snapshots that are taken of it.
fn is_only_protected(old: &Value, new: Option<&Value>) -> bool {
    let before = without_finalizer(old, AS_SOURCE);
    let Some(new) = new else {
        // The last finalizer is removed.
        return before.as_array().is_some_and(Vec::is_empty);
    };
    before == without_finalizer(new, AS_SOURCE)
        && old["spec"] == new["spec"]
        && old["status"] == new["status"]
        && ["labels", "annotations", "ownerReferences"]
            .iter()
            .all(|field| old["metadata"][*field] == new["metadata"][*field])
}

fn label<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["labels"][key]
        .as_str()
        .unwrap_or_default()
}

/// True if a volume of hostloop can be reached on this node alone.
fn is_placed(volume: &Value, node: &str) -> bool {
    const TERMS: &str = "/spec/nodeAffinity/required/nodeSelectorTerms";
    let mut terms = items(volume, TERMS).peekable();
    text(volume, "/spec/csi/driver") == DRIVER
        && terms.peek().is_some()
        && terms.all(|term| {
            items(term, "/matchExpressions").any(|one| {
                one["key"] == TOPOLOGY
                    && one["operator"] == "In"
                    && items(one, "/values").eq([&Value::from(node)])
            })
        })
}

/// True if a new volume is for one claim, and has a name and a class as claims of hostloop expect.
pub(super) fn is_named_after_claim(volume: &Value) -> bool {
    let claim = text(volume, "/spec/claimRef/uid");
    !claim.is_empty()
        && name(volume).strip_prefix("hostloop-") == Some(claim)
        && annotation(volume, PROVISIONED_BY) == Some(DRIVER)
        && !text(volume, "/spec/storageClassName").is_empty()
}

/// True if the cluster has assigned a claim to hostloop on this node, or if it has the node's label.
fn is_claim_of(claim: &Value, node: &str) -> bool {
    let mut drivers = PROVISIONERS
        .iter()
        .filter_map(|key| annotation(claim, key))
        .filter(|driver| !driver.is_empty())
        .peekable();
    let is_assigned = drivers.peek().is_some();
    drivers.all(|driver| driver == DRIVER)
        && (is_assigned && annotation(claim, SELECTED_NODE) == Some(node)
            || label(claim, NODE) == node)
}

fn is_capacity_of(capacity: &Value, node: &str) -> bool {
    let manager = label(capacity, "csi.storage.k8s.io/managed-by");
    label(capacity, "csi.storage.k8s.io/drivername") == DRIVER
        && is_manager_on(node, manager)
        && capacity["nodeTopology"]["matchLabels"][TOPOLOGY] == node
}

/// True if a label names the manager of a node's capacity objects. Where both names are too long for a
/// label, a hash replaces a part of the manager's name, or all that follows it.
fn is_manager_on(node: &str, manager: &str) -> bool {
    match node.len() {
        0..=42 => manager.strip_prefix("external-provisioner-") == Some(node),
        43..=52 => manager.ends_with(&format!("-{node}")),
        _ => manager.starts_with("external-provisioner-") && manager.len() == 29,
    }
}

/// True if an event comes from the driver on this node, about something that the driver serves.
fn is_said_by(event: &Value, node: &str) -> bool {
    let (kind, about) = (
        text(event, "/involvedObject/kind"),
        text(event, "/involvedObject/name"),
    );
    text(event, "/source/component") == DRIVER
        && text(event, "/reportingComponent") == DRIVER
        && text(event, "/source/host") == node
        && text(event, "/reportingInstance") == node
        && (TOLD_OF.contains(&kind) || kind == "Node" && about == node)
}

/// What of an object says to which driver and node it belongs.
fn brief(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "{} {}/{} with labels {} and annotations {}",
        object["kind"],
        namespace(object),
        name(object),
        metadata["labels"],
        metadata["annotations"]
    )
}

#[cfg(test)]
mod tests;
