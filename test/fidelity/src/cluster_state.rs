//! The state of a cluster, as fields of objects in words. It has no UIDs, times, versions and
//! counts, so two clusters in the same state have the same.

use std::collections::{BTreeMap, BTreeSet};

use hostloop_fake_api::quantity;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Difference, FoundObjects, Names, Side};

/// The fields of an object, without empty ones.
pub(crate) type Fields = BTreeMap<String, String>;

/// What begins the name of a field with an event about the object.
pub(crate) const EVENT: &str = "event ";

/// The objects and records of a cluster, by what they are called. Events may be about an object
/// that does not exist any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterState(BTreeMap<String, Fields>);

impl ClusterState {
    /// The state of a cluster in which this was found.
    pub fn of(found: &FoundObjects) -> ClusterState {
        let names = Names::of(found);
        let mut objects = BTreeMap::new();
        for (kind, describe) in DESCRIBED {
            for object in found.all(kind) {
                let called = called(kind, text(object, "/metadata/name"), &names);
                objects.insert(called, describe(object, &names));
            }
        }
        for (records, describe) in [
            (&found.records.volumes, volume_record as Describe),
            (&found.records.snapshots, snapshot_record as Describe),
        ] {
            for record in records {
                let called = names.readable(text(record, "/id")).to_owned();
                objects.insert(called, describe(record, &names));
            }
        }
        let mut state = ClusterState(objects);
        for event in found.all("Event") {
            state.add_event(event, &names);
        }
        state
    }

    /// Adds the reason of an event about an object of the users, or about what belongs to one.
    fn add_event(&mut self, event: &Value, names: &Names) {
        let about = if event["regarding"].is_object() {
            &event["regarding"]
        } else {
            &event["involvedObject"]
        };
        let (kind, name) = (text(about, "/kind"), text(about, "/name"));
        let is_ours = match kind {
            "PersistentVolumeClaim" | "Pod" | "VolumeSnapshot" => {
                about["namespace"] == crate::NAMESPACE
            }
            // An object that is gone has no readable name any more.
            "PersistentVolume" | "VolumeSnapshotContent" => names.readable(name) != name,
            _ => false,
        };
        if is_ours {
            let fields = self.0.entry(called(kind, name, names)).or_default();
            let field = format!("{EVENT}{}", text(event, "/reason"));
            fields.insert(field, "sent".to_owned());
        }
    }

    /// What differs if this state is the simulator's and the other one that of a real cluster.
    pub fn differences(&self, real: &ClusterState) -> BTreeSet<Difference> {
        let (mut differences, none) = (BTreeSet::new(), Fields::new());
        let objects: BTreeSet<&String> = self.0.keys().chain(real.0.keys()).collect();
        for object in objects {
            let ours = self.0.get(object).unwrap_or(&none);
            let theirs = real.0.get(object).unwrap_or(&none);
            let only = match (exists(ours), exists(theirs)) {
                (true, false) => Some(Side::Simulator),
                (false, true) => Some(Side::Cluster),
                _ => None,
            };
            differences.extend(only.map(|only| Difference::Object {
                object: object.clone(),
                only,
            }));
            let fields: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
            for field in fields {
                let [simulated, real] = [ours, theirs].map(|of| of.get(field).cloned());
                if simulated == real || (only.is_some() && !field.starts_with(EVENT)) {
                    continue;
                }
                differences.insert(Difference::Field {
                    object: object.clone(),
                    field: field.clone(),
                    simulated: simulated.unwrap_or_default(),
                    real: real.unwrap_or_default(),
                });
            }
        }
        differences
    }

    /// An object's fields, for people.
    pub fn line(&self, object: &str) -> String {
        let fields = self.0.get(object).into_iter().flatten();
        let fields: Vec<String> = fields
            .map(|(field, value)| match field.strip_prefix(EVENT) {
                Some(reason) => reason.to_owned(),
                None => format!("{field}={value}"),
            })
            .collect();
        fields.join(", ")
    }
}

/// True if the object itself is there, and not only events about it.
fn exists(fields: &Fields) -> bool {
    fields.keys().any(|field| !field.starts_with(EVENT))
}

/// What an object is called.
fn called(kind: &str, name: &str, names: &Names) -> String {
    match kind {
        "PersistentVolumeClaim" => format!("claim {name}"),
        "Pod" => format!("pod {name}"),
        "VolumeSnapshot" => format!("snapshot {name}"),
        "Namespace" => format!("namespace {name}"),
        _ => names.readable(name).to_owned(),
    }
}

/// Makes the fields of an object or record.
type Describe = fn(&Value, &Names) -> Fields;

const DESCRIBED: [(&str, Describe); 6] = [
    ("Namespace", namespace),
    ("PersistentVolumeClaim", claim),
    ("PersistentVolume", volume),
    ("Pod", pod),
    ("VolumeSnapshot", snapshot),
    ("VolumeSnapshotContent", content),
];

fn namespace(namespace: &Value, _: &Names) -> Fields {
    fields([("phase", shown(namespace, "/status/phase"))])
}

fn claim(claim: &Value, names: &Names) -> Fields {
    fields([
        ("phase", shown(claim, "/status/phase")),
        ("volume", reference(claim, "/spec/volumeName", names)),
        ("class", shown(claim, "/spec/storageClassName")),
        ("request", size(claim, "/spec/resources/requests/storage")),
        ("capacity", size(claim, "/status/capacity/storage")),
        ("access", list(claim, "/status/accessModes")),
        (
            "requested attributes",
            shown(claim, "/spec/volumeAttributesClassName"),
        ),
        (
            "attributes",
            shown(claim, "/status/currentVolumeAttributesClassName"),
        ),
        (
            "modification",
            shown(claim, "/status/modifyVolumeStatus/status"),
        ),
        (
            "resize",
            shown(claim, "/status/allocatedResourceStatuses/storage"),
        ),
        ("conditions", conditions(claim)),
        ("finalizers", list(claim, "/metadata/finalizers")),
        ("deleted", deleted(claim)),
    ])
}

fn volume(volume: &Value, _: &Names) -> Fields {
    fields([
        ("phase", shown(volume, "/status/phase")),
        (
            "policy",
            shown(volume, "/spec/persistentVolumeReclaimPolicy"),
        ),
        ("claim", shown(volume, "/spec/claimRef/name")),
        ("class", shown(volume, "/spec/storageClassName")),
        ("capacity", size(volume, "/spec/capacity/storage")),
        ("access", list(volume, "/spec/accessModes")),
        (
            "attributes",
            shown(volume, "/spec/volumeAttributesClassName"),
        ),
        ("finalizers", list(volume, "/metadata/finalizers")),
        ("deleted", deleted(volume)),
    ])
}

fn pod(pod: &Value, _: &Names) -> Fields {
    fields([
        ("phase", shown(pod, "/status/phase")),
        ("node", sign(!text(pod, "/spec/nodeName").is_empty())),
        ("deleted", deleted(pod)),
    ])
}

fn snapshot(snapshot: &Value, names: &Names) -> Fields {
    let bound = "/status/boundVolumeSnapshotContentName";
    fields([
        ("ready", shown(snapshot, "/status/readyToUse")),
        ("restore size", size(snapshot, "/status/restoreSize")),
        ("error", sign(snapshot["status"]["error"].is_object())),
        ("content", reference(snapshot, bound, names)),
        ("finalizers", list(snapshot, "/metadata/finalizers")),
        ("deleted", deleted(snapshot)),
    ])
}

fn content(content: &Value, _: &Names) -> Fields {
    let handle = text(content, "/status/snapshotHandle");
    fields([
        ("ready", shown(content, "/status/readyToUse")),
        ("restore size", size(content, "/status/restoreSize")),
        ("error", sign(content["status"]["error"].is_object())),
        ("handle", sign(!handle.is_empty())),
        ("policy", shown(content, "/spec/deletionPolicy")),
        ("class", shown(content, "/spec/volumeSnapshotClassName")),
        ("finalizers", list(content, "/metadata/finalizers")),
        ("deleted", deleted(content)),
    ])
}

fn volume_record(record: &Value, names: &Names) -> Fields {
    fields([
        ("size", shown(record, "/capacity_bytes")),
        ("requested", shown(record, "/requested_bytes")),
        ("format", shown(record, "/format")),
        ("settings", shown(record, "/settings")),
        ("snapshot", reference(record, "/source/snapshot", names)),
        ("source", reference(record, "/source/volume", names)),
        ("never used", sign(record["fresh"] == true)),
        ("grows", sign(record["growth"].is_object())),
    ])
}

fn snapshot_record(record: &Value, _: &Names) -> Fields {
    fields([
        ("size", shown(record, "/size_bytes")),
        ("requested", shown(record, "/requested_bytes")),
        ("format", shown(record, "/format")),
        ("provisioning", shown(record, "/provisioning")),
    ])
}

fn fields<const N: usize>(all: [(&str, String); N]) -> Fields {
    let all = all.into_iter().filter(|(_, value)| !value.is_empty());
    all.map(|(field, value)| (field.to_owned(), value))
        .collect()
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let field = object.pointer(pointer).and_then(Value::as_str);
    field.unwrap_or_default()
}

/// A field in one word or as JSON; empty if there is none.
fn shown(object: &Value, pointer: &str) -> String {
    match object.pointer(pointer) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// A size in bytes. Some fields have a quantity, and some a number.
fn size(object: &Value, pointer: &str) -> String {
    let text = shown(object, pointer);
    match quantity::nanos(&text) {
        Some(nanos) => (nanos / 1_000_000_000).to_string(),
        None => text,
    }
}

/// A list of words, in the order of the alphabet.
fn list(object: &Value, pointer: &str) -> String {
    let items = object.pointer(pointer).and_then(Value::as_array);
    let items: BTreeSet<&str> = items
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    joined(items)
}

/// The types of the conditions that are true.
fn conditions(object: &Value) -> String {
    let all = object["status"]["conditions"].as_array();
    let all = all.into_iter().flatten();
    let is_so = all.filter(|condition| condition["status"] == "True");
    joined(is_so.map(|condition| text(condition, "/type")).collect())
}

fn joined(words: BTreeSet<&str>) -> String {
    words.into_iter().collect::<Vec<_>>().join(" and ")
}

/// What an object or record refers to. One that is gone has no readable name.
fn reference(object: &Value, pointer: &str, names: &Names) -> String {
    let raw = text(object, pointer);
    let readable = names.readable(raw);
    if !raw.is_empty() && readable == raw {
        return "one that is gone".to_owned();
    }
    readable.to_owned()
}

fn deleted(object: &Value) -> String {
    sign(!object["metadata"]["deletionTimestamp"].is_null())
}

fn sign(is_so: bool) -> String {
    if is_so {
        "yes".to_owned()
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests;
