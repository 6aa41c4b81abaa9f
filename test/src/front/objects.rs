//! Objects of the cluster as plain JSON, so that a test sees all fields, typed or not.

use std::path::Path;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Kinds: group and version, plural, and true if they are namespaced.
const KINDS: [(&str, &str, &str, &str, bool); 24] = [
    ("coordination.k8s.io", "v1", "Lease", "leases", true),
    ("", "v1", "Namespace", "namespaces", false),
    ("", "v1", "Node", "nodes", false),
    ("", "v1", "Secret", "secrets", true),
    ("", "v1", "Event", "events", true),
    ("", "v1", "Pod", "pods", true),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("", "v1", "PersistentVolume", "persistentvolumes", false),
    ("", "v1", "ConfigMap", "configmaps", true),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", false),
    ("storage.k8s.io", "v1", "CSIDriver", "csidrivers", false),
    ("storage.k8s.io", "v1", "CSINode", "csinodes", false),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false),
    ("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", true),
    ("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", false),
    (SNAPSHOTS, "v1", "VolumeSnapshot", "volumesnapshots", true),
    (SNAPSHOTS, "v1", "VolumeSnapshotContent", "volumesnapshotcontents", false),
    (SNAPSHOTS, "v1", "VolumeSnapshotClass", "volumesnapshotclasses", false),
    (GROUPS, "v1", "VolumeGroupSnapshot", "volumegroupsnapshots", true),
    (GROUPS, "v1", "VolumeGroupSnapshotContent", "volumegroupsnapshotcontents", false),
    (GROUPS, "v1", "VolumeGroupSnapshotClass", "volumegroupsnapshotclasses", false),
    (ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", false),
    (
        ADMISSION,
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
    ),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false),
];

const ADMISSION: &str = "admissionregistration.k8s.io";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
const GROUPS: &str = "groupsnapshot.storage.k8s.io";

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
pub(super) const USERS_KINDS: [&str; 3] =
    ["VolumeGroupSnapshot", "VolumeSnapshot", "PersistentVolumeClaim"];

/// Cluster-wide kinds of a driver, with the path of the field with the driver's name.
pub(super) const DRIVERS_KINDS: [(&str, &str); 4] = [
    ("PersistentVolume", "/spec/csi/driver"),
    ("VolumeAttachment", "/spec/attacher"),
    ("VolumeSnapshotContent", "/spec/driver"),
    ("VolumeGroupSnapshotContent", "/spec/driver"),
];

/// Kinds of classes.
pub(super) const CLASS_KINDS: [&str; 4] =
    ["StorageClass", "VolumeAttributesClass", "VolumeSnapshotClass", "VolumeGroupSnapshotClass"];

/// A reference to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    resource: ApiResource,
    namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Place {
    /// The reference with this kind and name. Cluster-wide kinds ignore the namespace.
    pub fn of(kind: &str, namespace: &str, name: &str) -> Place {
        let known = KINDS.iter().find(|known| known.2 == kind);
        let (group, version, _, plural, namespaced) =
            known.unwrap_or_else(|| panic!("{kind} is missing in the table of kinds"));
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let namespace = namespaced.then(|| namespace.to_owned());
        Place {
            resource: ApiResource::from_gvk_with_plural(&gvk, plural),
            namespace: namespace.filter(|n| !n.is_empty()),
            name: name.to_owned(),
        }
    }

    /// The reference of an object, from its own fields.
    pub fn of_object(object: &Value) -> Place {
        let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let place = Place::of(
            &field(&object["kind"]),
            &field(&metadata["namespace"]),
            &field(&metadata["name"]),
        );
        match field(&object["apiVersion"]).rsplit('/').next() {
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
    let known = KINDS.iter().find(|known| known.3 == plural);
    let (group, version, kind, _, namespaced) =
        known.unwrap_or_else(|| panic!("{plural} is missing in the table of kinds"));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    (ApiResource::from_gvk_with_plural(&gvk, plural), *namespaced)
}

/// A client of the cluster in this kubeconfig.
pub async fn client(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig);
    let file = file.unwrap_or_else(|e| panic!("{}: {e}", kubeconfig.display()));
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
    let config = config.unwrap_or_else(|e| panic!("{}: {e}", kubeconfig.display()));
    Client::try_from(config).expect("a client can be made")
}

/// The objects of a cluster. Every error fails the test.
#[derive(Clone)]
pub struct Objects {
    client: Client,
}

impl Objects {
    /// Connects to the cluster in this kubeconfig.
    pub async fn connect(kubeconfig: &Path) -> Objects {
        Objects { client: client(kubeconfig).await }
    }

    fn api(&self, at: &Place) -> Api<DynamicObject> {
        match &at.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &at.resource),
            None => Api::all_with(self.client.clone(), &at.resource),
        }
    }

    /// Creates an object.
    pub async fn create(&self, object: Value) -> Value {
        let at = Place::of_object(&object);
        let made = self.try_create(object).await;
        made.unwrap_or_else(|e| panic!("making {at}: {e}"))
    }

    /// Creates an object and returns the error if the API server rejects it.
    pub async fn try_create(&self, object: Value) -> Result<Value, kube::Error> {
        let at = Place::of_object(&object);
        let object = serde_json::from_value(object).expect("it is an object");
        let made = self.api(&at).create(&PostParams::default(), &object).await?;
        Ok(plain(made))
    }

    /// Reads an object, if it exists.
    pub async fn get(&self, at: &Place) -> Option<Value> {
        let got = self.api(at).get_opt(&at.name).await;
        got.unwrap_or_else(|e| panic!("getting {at}: {e}")).map(plain)
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

    /// Starts to delete an object. A missing object is no error.
    pub async fn delete(&self, at: &Place) {
        match self.api(at).delete(&at.name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(e) => panic!("deleting {at}: {e}"),
        }
    }

    /// Merges `change` into an object.
    pub async fn merge(&self, at: &Place, change: Value) -> Value {
        let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
        let patched = self.api(at).patch(&at.name, &params, &patch).await;
        plain(patched.unwrap_or_else(|e| panic!("changing {at}: {e}")))
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
        let field = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of = |e: &Value| (field(&e["type"]), field(&e["reason"]), field(&e["message"]));
        events.iter().filter(about).map(of).collect()
    }
}

fn plain(object: DynamicObject) -> Value {
    serde_json::to_value(object).expect("objects are JSON")
}

/// Merges a change into a value: objects by their keys, anything else as a whole. Null removes.
pub fn merge(value: &mut Value, change: Value) {
    match (value, change) {
        (Value::Object(value), Value::Object(change)) => {
            for (key, change) in change {
                match change {
                    Value::Null => drop(value.remove(&key)),
                    change => merge(value.entry(key).or_insert(Value::Null), change),
                }
            }
        }
        (value, change) => *value = change,
    }
}
