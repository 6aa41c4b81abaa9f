//! Objects of any kind, as JSON.

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::Value;

use crate::world::World;

/// The kinds that the tests read, and their API groups.
const KINDS: [(&str, &str); 23] = [
    ("Namespace", ""),
    ("Node", ""),
    ("Event", ""),
    ("Secret", ""),
    ("Pod", ""),
    ("PersistentVolumeClaim", ""),
    ("PersistentVolume", ""),
    ("DaemonSet", "apps"),
    ("Deployment", "apps"),
    ("StatefulSet", "apps"),
    ("Lease", "coordination.k8s.io"),
    ("StorageClass", "storage.k8s.io"),
    ("VolumeAttributesClass", "storage.k8s.io"),
    ("VolumeAttachment", "storage.k8s.io"),
    ("CSIDriver", "storage.k8s.io"),
    ("CSINode", "storage.k8s.io"),
    ("CSIStorageCapacity", "storage.k8s.io"),
    ("VolumeSnapshotClass", "snapshot.storage.k8s.io"),
    ("VolumeSnapshot", "snapshot.storage.k8s.io"),
    ("VolumeSnapshotContent", "snapshot.storage.k8s.io"),
    ("VolumeGroupSnapshot", "groupsnapshot.storage.k8s.io"),
    ("VolumeGroupSnapshotContent", "groupsnapshot.storage.k8s.io"),
    ("VolumeGroupSnapshotClass", "groupsnapshot.storage.k8s.io"),
];

fn resource(kind: &str) -> ApiResource {
    let group = KINDS.iter().find(|(name, _)| *name == kind);
    let (_, group) = group.unwrap_or_else(|| panic!("{kind} is none of the tests' kinds"));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

/// A field by its JSON pointer, as text; empty if it does not exist.
pub(crate) fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    let field = value.pointer(pointer).and_then(Value::as_str);
    field.unwrap_or_default()
}

/// `metadata.name`.
pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// Panics if a field, by its JSON pointer, is not this text.
pub(crate) fn assert_text(value: &Value, pointer: &str, expected: &str) {
    assert_eq!(text(value, pointer), expected, "{pointer} of {value}");
}

/// The CSI handle of a PersistentVolume.
pub(crate) fn handle_of(volume: &Value) -> &str {
    text(volume, "/spec/csi/volumeHandle")
}

/// The restarts of a pod's first container, once it has started.
pub(crate) fn restarts(pod: &Value) -> Option<u64> {
    let count = pod.pointer("/status/containerStatuses/0/restartCount");
    count.and_then(Value::as_u64)
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).expect("what was JSON is JSON")
}

/// Requests as the administrator. `namespace` is empty for cluster-wide kinds.
impl World {
    fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (client, resource): (Client, _) = (self.client(), resource(kind));
        match namespace {
            "" => Api::all_with(client, &resource),
            _ => Api::namespaced_with(client, namespace, &resource),
        }
    }

    /// The object with this name, if it exists.
    pub(crate) fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let found = self.wait(self.api(kind, namespace).get_opt(name));
        let found = found.unwrap_or_else(|e| panic!("{kind} {name}: {e}"));
        found.map(value)
    }

    /// [`World::find`], but a missing object fails the test.
    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Value {
        let found = self.find(kind, namespace, name);
        found.unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    /// All objects of a kind, in a namespace or everywhere.
    pub(crate) fn list(&self, kind: &str, namespace: &str) -> Vec<Value> {
        let listed = self.wait(self.api(kind, namespace).list(&ListParams::default()));
        let listed = listed.unwrap_or_else(|e| panic!("{kind}: {e}"));
        listed.items.into_iter().map(value).collect()
    }

    /// Creates an object with its own kind, name and namespace.
    pub(crate) fn create(&self, object: &Value) -> Value {
        let (kind, namespace) = (text(object, "/kind"), text(object, "/metadata/namespace"));
        let body = serde_json::from_value(object.clone()).expect("it is an object");
        let (api, params) = (self.api(kind, namespace), PostParams::default());
        let created = self.wait(api.create(&params, &body));
        value(created.unwrap_or_else(|e| panic!("{kind} {}: {e}", name(object))))
    }

    /// Changes an object by a merge patch.
    pub(crate) fn patch(&self, kind: &str, namespace: &str, name: &str, patch: &Value) -> Value {
        let (api, params) = (self.api(kind, namespace), PatchParams::default());
        let patched = self.wait(api.patch(name, &params, &Patch::Merge(patch)));
        value(patched.unwrap_or_else(|e| panic!("{kind} {name}: {e}")))
    }

    /// Deletes an object, without waiting. A missing object is no error.
    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.delete_with(kind, namespace, name, &DeleteParams::default());
    }

    /// [`World::delete`] of a pod without a grace period: its object disappears at once.
    pub(crate) fn force_delete(&self, namespace: &str, pod: &str) {
        let now = DeleteParams::default().grace_period(0);
        self.delete_with("Pod", namespace, pod, &now);
    }

    fn delete_with(&self, kind: &str, namespace: &str, name: &str, params: &DeleteParams) {
        let deleted = self.wait(self.api(kind, namespace).delete(name, params));
        match deleted {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(e) => panic!("{kind} {name}: {e}"),
        }
    }

    /// Waits until the object is gone.
    pub(crate) fn gone(&self, kind: &str, namespace: &str, name: &str) {
        self.until(&format!("the end of {kind} {name}"), || {
            match self.find(kind, namespace, name) {
                None => Ok(()),
                Some(object) => Err(object.to_string()),
            }
        });
    }

    /// Deletes an object, and waits until it is gone.
    pub(crate) fn remove(&self, kind: &str, namespace: &str, name: &str) {
        self.delete(kind, namespace, name);
        self.gone(kind, namespace, name);
    }
}
