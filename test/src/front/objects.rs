//! Objects of the cluster as plain JSON, so that a test sees all fields, typed or not.

use std::path::Path;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::fields::{name, text};

/// Kinds: the API group, and true if they are namespaced. All are served in v1.
const KINDS: [(&str, &str, bool); 27] = [
    ("Namespace", "", false),
    ("Node", "", false),
    ("Secret", "", true),
    ("Event", "", true),
    ("Pod", "", true),
    ("PersistentVolumeClaim", "", true),
    ("PersistentVolume", "", false),
    ("ConfigMap", "", true),
    ("DaemonSet", "apps", true),
    ("Deployment", "apps", true),
    ("StatefulSet", "apps", true),
    ("Lease", "coordination.k8s.io", true),
    ("StorageClass", STORAGE, false),
    ("CSIDriver", STORAGE, false),
    ("CSINode", STORAGE, false),
    ("VolumeAttachment", STORAGE, false),
    ("CSIStorageCapacity", STORAGE, true),
    ("VolumeAttributesClass", STORAGE, false),
    ("VolumeSnapshot", SNAPSHOTS, true),
    ("VolumeSnapshotContent", SNAPSHOTS, false),
    ("VolumeSnapshotClass", SNAPSHOTS, false),
    ("VolumeGroupSnapshot", GROUPS, true),
    ("VolumeGroupSnapshotContent", GROUPS, false),
    ("VolumeGroupSnapshotClass", GROUPS, false),
    ("ValidatingAdmissionPolicy", ADMISSION, false),
    ("ValidatingAdmissionPolicyBinding", ADMISSION, false),
    ("CustomResourceDefinition", "apiextensions.k8s.io", false),
];

const STORAGE: &str = "storage.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const GROUPS: &str = "groupsnapshot.storage.k8s.io";

pub fn with(mut object: Value, change: Value) -> Value {
    json_patch::merge(&mut object, &change);
    object
}

/// A volume of 1 GiB for one writer, with this change.
pub fn volume(name: &str, driver: &str, handle: &str, change: Value) -> Value {
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": driver, "volumeHandle": handle},
        },
    });
    with(volume, change)
}

pub fn snapshot(namespace: &str, name: &str, class: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": claim},
        },
    })
}

/// A group snapshot of the claims with this label.
pub fn group_snapshot(namespace: &str, name: &str, class: &str, label: (&str, &str)) -> Value {
    json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "volumeGroupSnapshotClassName": class,
            "source": {"selector": {"matchLabels": {label.0: label.1}}},
        },
    })
}

/// A VolumeSnapshotClass or VolumeGroupSnapshotClass of a driver, with this change.
pub fn snapshot_class(kind: &str, name: &str, driver: &str, change: Value) -> Value {
    let class = json!({
        "apiVersion": Place::of(kind, "", name).resource.api_version, "kind": kind,
        "metadata": {"name": name}, "driver": driver, "deletionPolicy": "Delete",
    });
    with(class, change)
}

pub fn attributes_class(name: &str, driver: &str, parameters: Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
        "metadata": {"name": name}, "driverName": driver, "parameters": parameters,
    })
}

pub fn csi_driver(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
        "metadata": {"name": name}, "spec": spec,
    })
}

/// The capacity of 1 GiB that a node publishes for a class. `key` is the driver's topology key.
pub fn capacity(namespace: &str, driver: &str, class: &str, key: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
        "metadata": {"name": "room", "namespace": namespace, "labels": {
            "csi.storage.k8s.io/drivername": driver,
            "csi.storage.k8s.io/managed-by": format!("external-provisioner-{node}"),
        }},
        "storageClassName": class, "capacity": "1Gi",
        "nodeTopology": {"matchLabels": {key: node}},
    })
}

/// The change of a claim that is restored from a snapshot.
pub fn restored(snapshot: &str) -> Value {
    let (group, kind) = (SNAPSHOTS, "VolumeSnapshot");
    json!({"spec": {"dataSource": {"apiGroup": group, "kind": kind, "name": snapshot}}})
}

/// The change of a claim that clones another.
pub fn cloned(claim: &str) -> Value {
    json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": claim}}})
}

/// The change of a claim that asks for this size.
pub fn sized(size: &str) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": size}}}})
}

/// The change of a claim that asks for this VolumeAttributesClass.
pub fn with_attributes(class: &str) -> Value {
    json!({"spec": {"volumeAttributesClassName": class}})
}

/// The attachment of a volume to a node.
pub fn attachment(name: &str, attacher: &str, node: &str, volume: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": attacher, "nodeName": node, "source": {"persistentVolumeName": volume},
        },
    })
}

/// The name that the controller manager gives an attachment.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let hash = Sha256::digest(format!("{handle}{driver}{node}"));
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}

/// Kinds of namespaced objects, in the order of their deletion.
pub(super) const USERS_KINDS: [&str; 3] = [
    "VolumeGroupSnapshot",
    "VolumeSnapshot",
    "PersistentVolumeClaim",
];

/// Cluster-wide kinds of a driver, with the path of the field with the driver's name.
pub(super) const DRIVERS_KINDS: [(&str, &str); 4] = [
    ("PersistentVolume", "/spec/csi/driver"),
    ("VolumeAttachment", "/spec/attacher"),
    ("VolumeSnapshotContent", "/spec/driver"),
    ("VolumeGroupSnapshotContent", "/spec/driver"),
];

/// Kinds of classes.
pub(super) const CLASS_KINDS: [&str; 4] = [
    "StorageClass",
    "VolumeAttributesClass",
    "VolumeSnapshotClass",
    "VolumeGroupSnapshotClass",
];

/// A reference to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    resource: ApiResource,
    namespace: Option<String>,
    pub name: String,
}

impl Place {
    /// The reference with this kind and name. Cluster-wide kinds ignore the namespace.
    pub fn of(kind: &str, namespace: &str, name: &str) -> Place {
        let known = KINDS.iter().find(|known| known.0 == kind);
        let (kind, group, namespaced) =
            known.unwrap_or_else(|| panic!("{kind} is missing in the table of kinds"));
        let namespace = (*namespaced && !namespace.is_empty()).then(|| namespace.to_owned());
        Place {
            resource: of_kind(kind, group),
            namespace,
            name: name.to_owned(),
        }
    }

    /// The reference of an object, from its own fields.
    pub fn of_object(object: &Value) -> Place {
        let namespace = text(&object["metadata"]["namespace"]);
        let place = Place::of(text(&object["kind"]), namespace, name(object));
        match text(&object["apiVersion"]).rsplit('/').next() {
            None | Some("") => place,
            Some(version) => place.in_version(version),
        }
    }

    /// The same object in another served version.
    #[must_use]
    pub fn in_version(mut self, version: &str) -> Place {
        let resource = &mut self.resource;
        let gvk = GroupVersionKind::gvk(&resource.group, version, &resource.kind);
        *resource = ApiResource::from_gvk_with_plural(&gvk, &resource.plural);
        self
    }

    /// The object's kind.
    pub fn kind(&self) -> &str {
        &self.resource.kind
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.resource.kind, self.name)
    }
}

/// Looks up a resource by its plural; the flag is true for namespaced kinds.
pub fn resource(plural: &str) -> (ApiResource, bool) {
    let mut known = KINDS
        .iter()
        .map(|(kind, group, namespaced)| (of_kind(kind, group), *namespaced));
    let found = known.find(|(resource, _)| resource.plural == plural);
    found.unwrap_or_else(|| panic!("{plural} is missing in the table of kinds"))
}

fn of_kind(kind: &str, group: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

/// The settings of a client of the cluster in this kubeconfig.
pub(crate) async fn config(kubeconfig: &Path) -> Config {
    let file = Kubeconfig::read_from(kubeconfig);
    let file = file.unwrap_or_else(|e| panic!("{}: {e}", kubeconfig.display()));
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    config.unwrap_or_else(|e| panic!("{}: {e}", kubeconfig.display()))
}

/// A client of the cluster in this kubeconfig.
pub async fn client(kubeconfig: &Path) -> Client {
    Client::try_from(config(kubeconfig).await).expect("a client can be made")
}

/// The objects of a cluster. Every error fails the test.
#[derive(Clone)]
pub struct Objects {
    client: Client,
}

impl Objects {
    /// Connects to the cluster in this kubeconfig.
    pub async fn connect(kubeconfig: &Path) -> Objects {
        Objects {
            client: client(kubeconfig).await,
        }
    }

    fn api(&self, at: &Place) -> Api<DynamicObject> {
        match &at.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &at.resource),
            None => Api::all_with(self.client.clone(), &at.resource),
        }
    }

    pub async fn create(&self, object: Value) -> Value {
        let at = Place::of_object(&object);
        self.try_create(object)
            .await
            .unwrap_or_else(|e| panic!("making {at}: {e}"))
    }

    /// [`Objects::create`], but returns the error.
    pub async fn try_create(&self, object: Value) -> kube::Result<Value> {
        let at = Place::of_object(&object);
        let object = serde_json::from_value(object).expect("it is an object");
        self.api(&at)
            .create(&PostParams::default(), &object)
            .await
            .map(plain)
    }

    /// Asks whether an object could be created.
    pub async fn dry_create(&self, object: Value) -> kube::Result<Value> {
        let at = Place::of_object(&object);
        let object = serde_json::from_value(object).expect("it is an object");
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        self.api(&at).create(&params, &object).await.map(plain)
    }

    /// Creates a namespace.
    pub async fn namespace(&self, name: &str) {
        self.create(named("Namespace", name)).await;
    }

    /// Creates a node with a driver and without a kubelet.
    pub async fn node(&self, node: &str, labels: Value, driver: &str, topology_keys: &[&str]) {
        let labels = json!({"metadata": {"labels": labels}});
        let made = self.create(with(named("Node", node), labels)).await;
        let owner = json!({
            "apiVersion": "v1", "kind": "Node", "name": node, "uid": made["metadata"]["uid"],
        });
        self.create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
            "metadata": {"name": node, "ownerReferences": [owner]},
            "spec": {"drivers": [
                {"name": driver, "nodeID": id_of(node), "topologyKeys": topology_keys},
            ]},
        }))
        .await;
    }

    /// Reads an object, if it exists.
    pub async fn get(&self, at: &Place) -> Option<Value> {
        let got = self.api(at).get_opt(&at.name).await;
        got.unwrap_or_else(|e| panic!("getting {at}: {e}"))
            .map(plain)
    }

    /// All objects of a kind in a namespace, or in all namespaces if `namespace` is empty. A kind
    /// that the server does not know has no objects.
    pub async fn list(&self, kind: &str, namespace: &str) -> Vec<Value> {
        let at = Place::of(kind, namespace, "");
        match self.api(&at).list(&ListParams::default()).await {
            Ok(list) => list.items.into_iter().map(plain).collect(),
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(e) => panic!("listing {kind}: {e}"),
        }
    }

    /// Starts to delete an object. A missing object is not an error.
    pub async fn delete(&self, at: &Place) {
        self.delete_with(at, &DeleteParams::default()).await;
    }

    /// [`Objects::delete`] with these parameters.
    pub async fn delete_with(&self, at: &Place, params: &DeleteParams) {
        match self.api(at).delete(&at.name, params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(e) => panic!("deleting {at}: {e}"),
        }
    }

    /// Merges `change` into an object.
    pub async fn merge(&self, at: &Place, change: Value) -> Value {
        self.try_merge(at, change)
            .await
            .unwrap_or_else(|e| panic!("changing {at}: {e}"))
    }

    /// [`Objects::merge`], but returns the error.
    pub async fn try_merge(&self, at: &Place, change: Value) -> kube::Result<Value> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
        self.api(at)
            .patch(&at.name, &params, &patch)
            .await
            .map(plain)
    }

    /// Merges `change` into the status of an object.
    pub async fn merge_status(&self, at: &Place, change: Value) -> Value {
        let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
        let patched = self.api(at).patch_status(&at.name, &params, &patch).await;
        plain(patched.unwrap_or_else(|e| panic!("changing the status of {at}: {e}")))
    }

    /// The type, reason and message of each event about an object.
    pub async fn events(&self, at: &Place) -> Vec<(String, String, String)> {
        let namespace = at.namespace.as_deref().unwrap_or("default");
        let events = self.list("Event", namespace).await;
        let about = |event: &&Value| {
            let object = &event["involvedObject"];
            object["kind"] == at.kind() && object["name"] == at.name
        };
        let field = |event: &Value, name: &str| text(&event[name]).to_owned();
        let of = |e: &Value| (field(e, "type"), field(e, "reason"), field(e, "message"));
        events.iter().filter(about).map(of).collect()
    }
}

/// A Node or Namespace without any further field.
pub fn named(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
}

/// The driver's ID of a node, which differs from the node's name.
pub fn id_of(node: &str) -> String {
    format!("id-of-{node}")
}

/// A StorageClass of a driver with immediate binding and deletion, with this change.
pub fn class(name: &str, driver: &str, change: Value) -> Value {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name}, "provisioner": driver,
        "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete",
        "allowVolumeExpansion": true,
    });
    with(class, change)
}

/// A claim of this class and size for one writer, with this change.
pub fn claim(namespace: &str, name: &str, class: &str, size: &str, change: Value) -> Value {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}},
        },
    });
    with(claim, change)
}

fn plain(object: DynamicObject) -> Value {
    serde_json::to_value(object).expect("objects are JSON")
}
