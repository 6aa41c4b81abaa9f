//! Classes that administrators make: as they were, or as others with the same name.

use kube::Client;
use serde_json::{Value, json};

use crate::cluster::{DRIVER, classes, storage_class};
use crate::history::unusual::ClassKind;
use crate::machine::limits::POOL;
use crate::model::view::{collection, plural};
use crate::secret;
use crate::users::{self, Refused, is_immediate, post};

/// A mount option that the driver takes.
const GOOD_OPTION: &str = "noatime";
/// A mount option that the driver refuses.
pub(crate) const BAD_OPTION: &str = "errors=panic";

/// What begins the parameters that Kubernetes gives a meaning to.
pub(crate) const OF_KUBERNETES: &str = "csi.storage.k8s.io";
/// The calls for which a class names one secret.
const CALLS: [&str; 5] = [
    "provisioner",
    "controller-expand",
    "node-stage",
    "node-publish",
    "node-expand",
];

/// The kind of the objects.
pub(super) fn kind(of: ClassKind) -> &'static str {
    match of {
        ClassKind::Storage => "StorageClass",
        ClassKind::Attributes => "VolumeAttributesClass",
        ClassKind::Snapshot => "VolumeSnapshotClass",
        ClassKind::Group => "VolumeGroupSnapshotClass",
    }
}

/// The path of the objects of a kind.
pub(crate) fn path(kind: &str) -> String {
    collection(&plural(kind), "")
}

/// Creates a class of volumes again.
pub(super) async fn create_again(client: &Client, name: &str) -> Result<(), Refused> {
    match storage_class(name) {
        Some(class) => post(client, &collection("storageclasses", ""), &class).await,
        None => Ok(()),
    }
}

/// Deletes a class of volumes.
pub(super) async fn delete(client: &Client, name: &str) -> Result<(), Refused> {
    let at = format!("{}/{name}", collection("storageclasses", ""));
    users::delete(client, &at).await
}

/// A class of a kind in one of its versions. `own` is as the first administrator made it.
pub(super) fn class(of: ClassKind, name: &str, version: &str) -> Value {
    let known =
        classes().find(|class| class["kind"] == kind(of) && class["metadata"]["name"] == *name);
    let mut class = known.unwrap_or_else(|| new_class(of, name));
    match of {
        ClassKind::Storage => change_storage_class(&mut class, version),
        ClassKind::Attributes => {
            let other = classes().find(|other| {
                other["kind"] == class["kind"] && other["metadata"]["name"] == *version
            });
            if let Some(other) = other {
                class["parameters"] = other["parameters"].clone();
            }
        }
        ClassKind::Snapshot | ClassKind::Group => match version {
            "retain" => class["deletionPolicy"] = json!("Retain"),
            "delete" => class["deletionPolicy"] = json!("Delete"),
            "secret" if of == ClassKind::Snapshot => {
                class["parameters"] = json!({
                    format!("{OF_KUBERNETES}/snapshotter-secret-name"): "${volumesnapshot.name}",
                    format!("{OF_KUBERNETES}/snapshotter-secret-namespace"):
                        "${volumesnapshot.namespace}",
                });
            }
            _ => {}
        },
    }
    class
}

/// A class that no administrator has made before.
fn new_class(of: ClassKind, name: &str) -> Value {
    let mode = if is_immediate(name) {
        "Immediate"
    } else {
        "WaitForFirstConsumer"
    };
    match of {
        ClassKind::Storage => json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": mode,
            "reclaimPolicy": "Delete", "allowVolumeExpansion": true,
            "parameters": {format!("{OF_KUBERNETES}/fstype"): "ext4"}}),
        ClassKind::Attributes => json!({"apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttributesClass", "metadata": {"name": name}, "driverName": DRIVER,
            "parameters": {"directIO": "true"}}),
        ClassKind::Snapshot => json!({"apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotClass", "metadata": {"name": name}, "driver": DRIVER,
            "deletionPolicy": "Delete"}),
        ClassKind::Group => json!({"apiVersion": "groupsnapshot.storage.k8s.io/v1",
            "kind": "VolumeGroupSnapshotClass", "metadata": {"name": name}, "driver": DRIVER,
            "deletionPolicy": "Delete"}),
    }
}

fn change_storage_class(class: &mut Value, version: &str) {
    match version {
        "retain" => class["reclaimPolicy"] = json!("Retain"),
        "delete" => class["reclaimPolicy"] = json!("Delete"),
        "xfs" | "btrfs" => class["parameters"][format!("{OF_KUBERNETES}/fstype")] = json!(version),
        "pool" => class["parameters"]["pool"] = json!(POOL),
        "nowhere" => class["parameters"]["pool"] = json!("nowhere"),
        "noatime" => class["mountOptions"] = json!([GOOD_OPTION]),
        "refused" => class["mountOptions"] = json!([GOOD_OPTION, BAD_OPTION]),
        "default" => {
            let is_default = "storageclass.kubernetes.io/is-default-class";
            class["metadata"]["annotations"] = json!({is_default: "true"});
        }
        "secret" => {
            for call in CALLS {
                let key = format!("{OF_KUBERNETES}/{call}-secret");
                class["parameters"][format!("{key}-name")] = json!("${pvc.name}");
                class["parameters"][format!("{key}-namespace")] = json!("${pvc.namespace}");
            }
            let key = format!("{OF_KUBERNETES}/controller-modify-secret");
            class["parameters"][format!("{key}-name")] = json!(secret::to_modify("${pvc.name}"));
            class["parameters"][format!("{key}-namespace")] = json!("${pvc.namespace}");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_differ_where_they_say() {
        let storage = |name: &str, version: &str| class(ClassKind::Storage, name, version);
        let fs = |class: &Value| class["parameters"][format!("{OF_KUBERNETES}/fstype")].clone();
        assert_eq!(fs(&storage("ext4-now", "own")), "ext4");
        assert_eq!(fs(&storage("ext4-now", "xfs")), "xfs");
        assert_eq!(storage("kept", "delete")["reclaimPolicy"], "Delete");
        assert_eq!(
            storage("options-now", "noatime")["mountOptions"],
            json!(["noatime"])
        );
        assert_eq!(
            storage("secret", "secret")["volumeBindingMode"],
            "WaitForFirstConsumer"
        );
        let secret = storage("secret-now", "secret");
        let stage = &secret["parameters"][format!("{OF_KUBERNETES}/node-stage-secret-name")];
        assert_eq!(*stage, "${pvc.name}");
        for (version, pool) in [("pool", "pool"), ("nowhere", "nowhere")] {
            assert_eq!(storage("pool-now", version)["parameters"]["pool"], pool);
        }
        let modify =
            &secret["parameters"][format!("{OF_KUBERNETES}/controller-modify-secret-name")];
        assert_eq!(*modify, "${pvc.name}-modify");
        let attributes = class(ClassKind::Attributes, "direct", "buffered");
        assert_eq!(attributes["parameters"]["directIO"], "false");
        let snapshot = class(ClassKind::Snapshot, "kept", "delete");
        assert_eq!(snapshot["deletionPolicy"], "Delete");
        let group = class(ClassKind::Group, "deleted", "retain");
        assert_eq!(group["kind"], "VolumeGroupSnapshotClass");
        assert_eq!(group["deletionPolicy"], "Retain");
    }
}
