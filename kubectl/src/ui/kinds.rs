//! The kinds of objects that the page shows, the parts of them that it gets, and why an object
//! concerns hostloop.
//!
//! Nothing that may be secret is passed on: parameters, attributes, references to secrets, mount
//! options, and what containers run.

use serde_json::{Map, Value};

use super::concerns::{Concern, Name, any_claim_in};
use crate::api::text;

#[cfg(test)]
mod tests;

/// Where objects of a kind are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// In no namespace.
    Cluster,
    /// In the namespaces of people.
    Namespaces,
    /// In the namespace of hostloop's pods.
    System,
}

/// A kind of objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownKind {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) scope: Scope,
    /// The parts for the page; `None` for an object that has nothing to do with the driver.
    pub(super) show: fn(&Value, &OwnNames) -> Option<Value>,
}

/// The names that decide what is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnNames {
    pub(super) driver: String,
    /// The namespace of hostloop's pods.
    pub(super) system_namespace: String,
}

macro_rules! kinds {
    ($($group:literal $version:literal $kind:literal $plural:literal $scope:ident $show:expr;)+) => {
        [$(ShownKind {
            group: $group,
            version: $version,
            kind: $kind,
            plural: $plural,
            scope: Scope::$scope,
            show: $show,
        },)+]
    };
}

/// All kinds. Claims come first: they are what most people look for.
pub(super) const KINDS: [ShownKind; 15] = kinds! {
    "" "v1" "PersistentVolumeClaim" "persistentvolumeclaims" Namespaces |o, _| Some(whole(o));
    "" "v1" "PersistentVolume" "persistentvolumes" Cluster volume;
    "storage.k8s.io" "v1" "StorageClass" "storageclasses" Cluster class;
    "storage.k8s.io" "v1" "VolumeAttachment" "volumeattachments" Cluster attachment;
    "storage.k8s.io" "v1" "CSIStorageCapacity" "csistoragecapacities" System |o, _| Some(whole(o));
    "" "v1" "Pod" "pods" Namespaces pod;
    "" "v1" "Node" "nodes" Cluster |o, _| Some(node(o));
    "" "v1" "Event" "events" Namespaces event;
    "coordination.k8s.io" "v1" "Lease" "leases" System |o, _| Some(whole(o));
    "snapshot.storage.k8s.io" "v1" "VolumeSnapshot" "volumesnapshots" Namespaces
        |o, _| Some(whole(o));
    "snapshot.storage.k8s.io" "v1" "VolumeSnapshotContent" "volumesnapshotcontents" Cluster content;
    "groupsnapshot.storage.k8s.io" "v1" "VolumeGroupSnapshot" "volumegroupsnapshots" Namespaces
        |o, _| Some(whole(o));
    "groupsnapshot.storage.k8s.io" "v1" "VolumeGroupSnapshotContent"
        "volumegroupsnapshotcontents" Cluster content;
    "storage.k8s.io" "v1" "CSIDriver" "csidrivers" Cluster
        |o, names| (text(o, "/metadata/name") == names.driver).then(|| whole(o));
    "storage.k8s.io" "v1" "CSINode" "csinodes" Cluster csi_node;
};

/// The annotations of a claim that name its provisioner.
const PROVISIONER: [&str; 2] = [
    "/metadata/annotations/volume.kubernetes.io~1storage-provisioner",
    "/metadata/annotations/volume.beta.kubernetes.io~1storage-provisioner",
];

impl ShownKind {
    /// Why an object of this kind concerns hostloop.
    pub(super) fn concern(&self, object: &Value, names: &OwnNames) -> Concern {
        let namespace = text(object, "/metadata/namespace");
        let (itself, through) = match self.kind {
            "PersistentVolumeClaim" => (
                PROVISIONER
                    .iter()
                    .any(|path| text(object, path) == names.driver),
                vec![
                    cluster_wide(object, "StorageClass", "/spec/storageClassName"),
                    cluster_wide(object, "PersistentVolume", "/spec/volumeName"),
                ],
            ),
            "Pod" => (
                is_system_pod(object, names) || has_inline(object, names),
                claims(object),
            ),
            "Event" => {
                let about = text(object, "/involvedObject/namespace");
                let (kind, name) = ("/involvedObject/kind", "/involvedObject/name");
                (
                    false,
                    vec![named(text(object, kind), about, text(object, name))],
                )
            }
            "VolumeSnapshot" => {
                let claim = text(object, "/spec/source/persistentVolumeClaimName");
                let kind = "VolumeSnapshotContent";
                let through = vec![
                    named("PersistentVolumeClaim", namespace, claim),
                    cluster_wide(object, kind, "/spec/source/volumeSnapshotContentName"),
                    cluster_wide(object, kind, "/status/boundVolumeSnapshotContentName"),
                ];
                (false, through)
            }
            "VolumeGroupSnapshot" => {
                let kind = "VolumeGroupSnapshotContent";
                let contents = [
                    cluster_wide(object, kind, "/spec/source/volumeGroupSnapshotContentName"),
                    cluster_wide(object, kind, "/status/boundVolumeGroupSnapshotContentName"),
                ];
                let known: Vec<Name> = contents.into_iter().flatten().collect();
                let any = known.is_empty().then(|| any_claim_in(namespace));
                (false, known.into_iter().chain(any).map(Some).collect())
            }
            // Objects of other drivers are not among what the others show.
            _ => (true, Vec::new()),
        };
        Concern {
            itself,
            through: through.into_iter().flatten().collect(),
        }
    }
}

/// The object without a namespace that `object` names at this path.
fn cluster_wide(object: &Value, kind: &str, path: &str) -> Option<Name> {
    named(kind, "", text(object, path))
}

/// The name of an object, if it has one.
fn named(kind: &str, namespace: &str, name: &str) -> Option<Name> {
    let key = match namespace {
        "" => name.to_owned(),
        namespace => format!("{namespace}/{name}"),
    };
    (!name.is_empty()).then(|| (kind.to_owned(), key))
}

/// The prefixes of annotations that Kubernetes, the CSI sidecars and hostloop set.
const ANNOTATIONS: [&str; 8] = [
    "hostloop.csi.dev/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "pv.kubernetes.io/",
    "snapshot.storage.kubernetes.io/",
    "groupsnapshot.storage.kubernetes.io/",
    "csi.alpha.kubernetes.io/",
    "storageclass.kubernetes.io/",
];

/// The object without what is never shown.
fn whole(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.retain(|key, _| {
                ANNOTATIONS.iter().any(|prefix| key.starts_with(prefix)) && !key.contains("secret")
            });
        }
    }
    object
}

/// The object without the values at these paths.
fn without(object: &Value, paths: &[&str]) -> Value {
    let mut object = whole(object);
    for path in paths {
        let (parent, field) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(field);
        }
    }
    object
}

/// The metadata of the object, and of the rest only the values at these paths.
fn only(object: &Value, paths: &[&str]) -> Value {
    let mut kept = Value::Object(Map::new());
    kept["metadata"] = whole(object)["metadata"].clone();
    for path in paths {
        let Some(value) = object.pointer(path) else {
            continue;
        };
        let place = path
            .split('/')
            .skip(1)
            .fold(&mut kept, |at, field| &mut at[field]);
        *place = value.clone();
    }
    kept
}

fn volume(object: &Value, names: &OwnNames) -> Option<Value> {
    if text(object, "/spec/csi/driver") != names.driver {
        return None;
    }
    let mut shown = without(
        object,
        &["/spec/mountOptions", "/spec/csi/volumeAttributes"],
    );
    if let Some(csi) = shown["spec"]["csi"].as_object_mut() {
        csi.retain(|field, _| !field.ends_with("SecretRef"));
    }
    Some(shown)
}

fn class(object: &Value, names: &OwnNames) -> Option<Value> {
    let ours = text(object, "/provisioner") == names.driver;
    ours.then(|| without(object, &["/parameters", "/mountOptions"]))
}

fn attachment(object: &Value, names: &OwnNames) -> Option<Value> {
    let ours = text(object, "/spec/attacher") == names.driver;
    ours.then(|| {
        without(
            object,
            &[
                "/spec/source/inlineVolumeSpec",
                "/status/attachmentMetadata",
            ],
        )
    })
}

fn content(object: &Value, names: &OwnNames) -> Option<Value> {
    (text(object, "/spec/driver") == names.driver).then(|| whole(object))
}

fn csi_node(object: &Value, names: &OwnNames) -> Option<Value> {
    let drivers = object.pointer("/spec/drivers")?.as_array()?;
    let ours: Vec<_> = drivers
        .iter()
        .filter(|d| text(d, "/name") == names.driver)
        .collect();
    (!ours.is_empty()).then(|| {
        let mut shown = only(object, &[]);
        shown["spec"]["drivers"] = serde_json::json!(ours);
        shown
    })
}

fn node(object: &Value) -> Value {
    only(
        object,
        &["/spec/unschedulable", "/spec/taints", "/status/conditions"],
    )
}

/// A pod that uses volumes, or one of hostloop's.
fn pod(object: &Value, names: &OwnNames) -> Option<Value> {
    let volumes: Vec<Value> = volumes(object)
        .filter_map(|volume| pod_volume(volume, names))
        .collect();
    if volumes.is_empty() && !is_system_pod(object, names) {
        return None;
    }
    let mut shown = only(
        object,
        &[
            "/spec/nodeName",
            "/status/phase",
            "/status/conditions",
            "/status/startTime",
        ],
    );
    shown["spec"]["volumes"] = Value::Array(volumes);
    let statuses = object
        .pointer("/status/containerStatuses")
        .and_then(Value::as_array);
    let statuses = statuses.into_iter().flatten().map(|status| {
        let fields = ["name", "ready", "restartCount", "state"];
        fields
            .into_iter()
            .map(|field| (field.to_owned(), status[field].clone()))
            .collect()
    });
    shown["status"]["containerStatuses"] = Value::Array(statuses.map(Value::Object).collect());
    Some(shown)
}

/// True for one of hostloop's pods.
fn is_system_pod(object: &Value, names: &OwnNames) -> bool {
    text(object, "/metadata/namespace") == names.system_namespace
        && text(object, "/metadata/labels/app.kubernetes.io~1name").starts_with("hostloop")
}

fn volumes(object: &Value) -> impl Iterator<Item = &Value> {
    object
        .pointer("/spec/volumes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// True if the pod has an inline volume of the driver.
fn has_inline(object: &Value, names: &OwnNames) -> bool {
    volumes(object).any(|volume| text(volume, "/csi/driver") == names.driver)
}

/// The claims that the pod names.
fn claims(object: &Value) -> Vec<Option<Name>> {
    let (namespace, pod) = (
        text(object, "/metadata/namespace"),
        text(object, "/metadata/name"),
    );
    let claims = volumes(object).map(|volume| {
        let name = if volume["ephemeral"].is_object() {
            format!("{pod}-{}", text(volume, "/name"))
        } else {
            text(volume, "/persistentVolumeClaim/claimName").to_owned()
        };
        named("PersistentVolumeClaim", namespace, &name)
    });
    claims.collect()
}

/// A volume of a pod that a CSI driver may serve.
fn pod_volume(volume: &Value, names: &OwnNames) -> Option<Value> {
    let name = &volume["name"];
    let claim = volume.pointer("/persistentVolumeClaim/claimName");
    if let Some(claim) = claim {
        return Some(
            serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}),
        );
    }
    if volume["ephemeral"].is_object() {
        return Some(serde_json::json!({"name": name, "ephemeral": {}}));
    }
    let driver = text(volume, "/csi/driver");
    (driver == names.driver).then(|| serde_json::json!({"name": name, "csi": {"driver": driver}}))
}

/// An event about an object that the page may show.
fn event(object: &Value, _: &OwnNames) -> Option<Value> {
    let about = text(object, "/involvedObject/kind");
    let shown = about == "Pod"
        || about.starts_with("PersistentVolume")
        || about.starts_with("VolumeSnapshot")
        || about.starts_with("VolumeGroupSnapshot");
    shown.then(|| {
        let paths = [
            "/involvedObject",
            "/reason",
            "/message",
            "/type",
            "/count",
            "/series",
            "/firstTimestamp",
            "/lastTimestamp",
            "/eventTime",
            "/reportingComponent",
            "/source",
        ];
        only(object, &paths)
    })
}
