//! What administrators do with data that they keep: they give its objects up, and make others for
//! it by hand.

use http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::cluster::{DRIVER, NAMESPACE};
use crate::model::view::{PROVISIONED_BY, collection, is_deleting, items, name as name_of, text};
use crate::users::snapshots::object;
use crate::users::{Refused, content_path, delete, patch, path, post, send, volume_path};

/// The annotation of a claim for a volume that was there before, with the handle of the volume.
pub(crate) const ADOPTED: &str = "simulator/adopted";

/// A provisioner that the cluster has no more.
const OTHER: &str = "former.csi.dev";

/// Creates a snapshot and a content for data that may exist.
pub(super) async fn existing(
    client: &Client,
    name: &str,
    handle: &str,
    policy: &str,
) -> Result<(), Refused> {
    let content = format!("existing-{name}");
    let made = json!({"apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent", "metadata": {"name": content},
        "spec": {"driver": DRIVER, "deletionPolicy": policy,
            "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"name": name, "namespace": NAMESPACE}}});
    let contents = collection("volumesnapshotcontents", "");
    let made = post(client, &contents, &made).await;
    let spec = json!({"source": {"volumeSnapshotContentName": content}});
    let snapshots = path("volumesnapshots", "");
    post(client, &snapshots, &object(name, &spec)).await?;
    made
}

/// Gives a snapshot up without its data, and creates another one of this data.
pub(super) async fn snapshot(
    client: &Client,
    name: &str,
    old: &str,
    policy: &str,
) -> Result<(), Refused> {
    let at = path("volumesnapshots", old);
    let found = send(client, Method::GET, &at, &Value::Null).await?;
    let is_ending = is_deleting(&found);
    let content = text(&found, "/status/boundVolumeSnapshotContentName");
    let content = content_path(if content.is_empty() { "none" } else { content });
    let found = send(client, Method::GET, &content, &Value::Null).await?;
    let handle = text(&found, "/status/snapshotHandle");
    if handle.is_empty() {
        return Err(unfit(format!("snapshot {old} has no data")));
    }
    // The driver may delete the data at this moment.
    if is_ending || is_deleting(&found) {
        return Err(unfit(format!("snapshot {old} is being deleted")));
    }
    let kept = json!({"spec": {"deletionPolicy": "Retain"}});
    patch(client, &content, &kept).await?;
    delete(client, &at).await?;
    delete(client, &content).await?;
    existing(client, name, handle, policy).await
}

/// The provisioner that made a volume, as its object says.
pub(super) fn maker(elsewhere: bool) -> &'static str {
    if elsewhere { OTHER } else { DRIVER }
}

/// Replaces the volume object that a deleted claim has left, and creates a claim for the new one.
/// Kubelet's path of a block device has the name of the volume object, so it could not know the
/// device again before it has put it down: users wait for that, and leave these alone here.
pub(super) async fn volume(
    client: &Client,
    name: &str,
    old: &str,
    (policy, maker): (&str, &str),
) -> Result<(), Refused> {
    let volumes = collection("persistentvolumes", "");
    let all = send(client, Method::GET, &volumes, &Value::Null).await?;
    let left = items(&all, "/items").find(|volume| is_left_of(volume, old));
    let Some(left) = left else {
        return Err(unfit(format!("claim {old} has left no volume")));
    };
    let volume = successor(left, name, (policy, maker));
    post(client, &volumes, &volume).await?;
    let at = volume_path(name_of(left));
    delete(client, &at).await?;
    let claims = path("persistentvolumeclaims", "");
    post(client, &claims, &claim_of(&volume, name)).await
}

fn unfit(message: String) -> Refused {
    Refused { code: 0, message }
}

/// True if a claim of this name had a volume, is gone, and has left it with all data.
fn is_left_of(volume: &Value, claim: &str) -> bool {
    let spec = &volume["spec"];
    volume["status"]["phase"] == "Released"
        && !is_deleting(volume)
        && spec["persistentVolumeReclaimPolicy"] == "Retain"
        && spec["csi"]["driver"] == DRIVER
        && spec["volumeMode"] != "Block"
        && spec["claimRef"]["namespace"] == NAMESPACE
        && spec["claimRef"]["name"] == *claim
}

/// A volume object for the same data and a claim of this name, as the manual describes it.
fn successor(volume: &Value, claim: &str, (policy, maker): (&str, &str)) -> Value {
    let mut spec = volume["spec"].clone();
    spec["claimRef"] = json!({"namespace": NAMESPACE, "name": claim});
    spec["persistentVolumeReclaimPolicy"] = json!(policy);
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": format!("adopted-{claim}"),
            "annotations": {PROVISIONED_BY: maker}},
        "spec": spec})
}

/// A claim of this name for a volume.
fn claim_of(volume: &Value, name: &str) -> Value {
    let of = &volume["spec"];
    let mut spec = json!({"volumeName": name_of(volume),
        "resources": {"requests": of["capacity"]}});
    for field in [
        "accessModes",
        "storageClassName",
        "volumeMode",
        "volumeAttributesClassName",
    ] {
        if !of[field].is_null() {
            spec[field] = of[field].clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE,
            "annotations": {ADOPTED: of["csi"]["volumeHandle"]}},
        "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(change: &Value) -> Value {
        let mut volume = json!({"metadata": {"name": "pvc-1"}, "status": {"phase": "Released"},
            "spec": {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
                "capacity": {"storage": "10Mi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "kept", "nodeAffinity": {"required": {}},
                "csi": {"driver": DRIVER, "volumeHandle": "vol-1"},
                "claimRef": {"namespace": NAMESPACE, "name": "c1", "uid": "1"}}});
        overwrite(&mut volume, change);
        volume
    }

    /// Writes the fields of `change` over those of `object`.
    fn overwrite(object: &mut Value, change: &Value) {
        for (field, value) in change.as_object().into_iter().flatten() {
            match value {
                Value::Object(_) => overwrite(&mut object[field], value),
                value => object[field] = value.clone(),
            }
        }
    }

    #[test]
    fn what_a_claim_has_left_with_all_data() {
        for (change, expected) in [
            (json!({}), true),
            (json!({"status": {"phase": "Bound"}}), false),
            (json!({"metadata": {"deletionTimestamp": "now"}}), false),
            (
                json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
                false,
            ),
            (json!({"spec": {"volumeMode": "Block"}}), false),
            (json!({"spec": {"csi": {"driver": "other"}}}), false),
            (json!({"spec": {"claimRef": {"name": "c2"}}}), false),
        ] {
            assert_eq!(is_left_of(&left(&change), "c1"), expected, "{change}");
        }
    }

    #[test]
    fn a_successor_has_the_same_data_and_another_claim() {
        let left = left(&json!({}));
        let volume = successor(&left, "c3", ("Delete", maker(false)));
        assert_eq!(volume["metadata"]["annotations"][PROVISIONED_BY], DRIVER);
        let others = successor(&left, "c3", ("Delete", maker(true)));
        assert_eq!(others["metadata"]["annotations"][PROVISIONED_BY], OTHER);
        for field in ["csi", "capacity", "nodeAffinity", "accessModes"] {
            assert_eq!(volume["spec"][field], left["spec"][field], "{field}");
        }
        let reference = json!({"namespace": NAMESPACE, "name": "c3"});
        assert_eq!(volume["spec"]["claimRef"], reference);
        let claim = claim_of(&volume, "c3");
        assert_eq!(claim["spec"]["volumeName"], "adopted-c3");
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "10Mi");
        assert_eq!(claim["metadata"]["annotations"][ADOPTED], "vol-1");
        assert_eq!(claim["spec"]["volumeAttributesClassName"], Value::Null);
    }
}
