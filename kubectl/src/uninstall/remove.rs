//! Removes hostloop's objects.

use std::collections::BTreeSet;
use std::time::Duration;

use hostloop_api_objects::snapshot_metadata::SnapshotMetadataService;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::Error;
use crate::api::{ApiError, Objects};
use crate::dry_run::DryRun;
use crate::manifests::{self, ObjectKey, Settings, Snapshots};
use crate::{Cluster, FAULT_DISKS, NAME_LABEL};

/// The kinds of everything that `install` may apply, and the namespaces of it.
fn kinds() -> (BTreeSet<(String, String)>, BTreeSet<String>) {
    let snapshots = Snapshots {
        class: true,
        group_class: true,
        controller: true,
    };
    let all = Settings {
        snapshots,
        snapshot_metadata: true,
        ..Settings::default()
    }
    .objects();
    let keys: Vec<ObjectKey> = all.iter().map(ObjectKey::of).collect();
    let namespaces = keys.iter().map(|key| key.namespace.clone()).collect();
    let kinds = keys.into_iter().map(|key| (key.version, key.kind));
    (kinds.chain([published()]).collect(), namespaces)
}

/// The kind of the object that the controller makes for backup tools.
fn published() -> (String, String) {
    let version = SnapshotMetadataService::api_version(&());
    let kind = SnapshotMetadataService::kind(&());
    (version.into_owned(), kind.into_owned())
}

/// The objects in the cluster with hostloop's label, of the kinds and namespaces that `install`
/// uses.
pub(super) async fn ours(cluster: &Cluster, objects: &mut Objects) -> Result<Vec<Value>, ApiError> {
    let (kinds, mut namespaces) = kinds();
    namespaces.insert(cluster.system_namespace.clone());
    let (label, value) = NAME_LABEL;
    let mut ours = Vec::new();
    for (version, kind) in kinds {
        let selector = format!("{label}={value}");
        let found: Vec<Value> = objects.list((&version, &kind), "", &selector).await?;
        ours.extend(
            found
                .into_iter()
                .filter(|object| namespaces.contains(&ObjectKey::of(object).namespace)),
        );
    }
    Ok(ours)
}

/// True for classes: without them, no new volume or snapshot begins.
pub(super) fn is_class(object: &Value) -> bool {
    ObjectKey::of(object).kind.ends_with("Class")
}

/// Deletes objects in this order.
pub(super) async fn remove(all: &[Value], objects: &mut Objects) -> Result<(), ApiError> {
    for object in all {
        objects.delete(object).await?;
    }
    Ok(())
}

/// Deletes all objects but the classes: what runs first, the namespace last. It stays if it has
/// pods of others, and the answer says so.
pub(super) async fn remove_rest(
    rest: &[Value],
    cluster: &Cluster,
    objects: &mut Objects,
) -> Result<Vec<String>, Error> {
    let mut rest = rest.to_vec();
    rest.sort_by_key(order);
    let namespace = cluster.system_namespace.as_str();
    let pods: Vec<Pod> = objects.list(("v1", "Pod"), namespace, "").await?;
    let foreign: Vec<String> = pods
        .iter()
        .filter(|pod| is_foreign(pod))
        .map(|p| p.name_any())
        .collect();
    let mut kept = Vec::new();
    for object in &rest {
        let key = ObjectKey::of(object);
        if let ("Namespace", Some(pod)) = (key.kind.as_str(), foreign.first()) {
            kept.push(format!("{key} stays: it has other pods, such as {pod}"));
            continue;
        }
        objects.delete(object).await?;
    }
    Ok(kept)
}

/// How long the namespace may take to end, with its pods, or a definition.
pub(super) const END: Duration = Duration::from_secs(120);

/// Waits until the namespace is gone, so that hostloop can be installed again.
pub(super) async fn until_gone(cluster: &Cluster, objects: &mut Objects) -> Result<(), Error> {
    let namespace = ObjectKey::new("v1", "Namespace", "", &cluster.system_namespace);
    if is_gone_in_time(&namespace, None, objects).await? {
        Ok(())
    } else {
        Err(Error::NamespaceStays {
            name: namespace.name,
        })
    }
}

/// Waits until the object is gone, or its name is that of another UID. False if it stays.
async fn is_gone_in_time(
    key: &ObjectKey,
    uid: Option<&str>,
    objects: &mut Objects,
) -> Result<bool, ApiError> {
    let end = Instant::now() + END;
    while let Some(stored) = objects.get(key).await? {
        if uid.is_some() && stored["metadata"]["uid"].as_str() != uid {
            break;
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        sleep(Duration::from_millis(500)).await;
    }
    Ok(true)
}

/// Workloads before their rights and policies, the namespace last.
fn order(object: &Value) -> u8 {
    match ObjectKey::of(object).kind.as_str() {
        "Deployment" | "DaemonSet" => 0,
        "Namespace" => 2,
        _ => 1,
    }
}

/// True for a pod that is not hostloop's.
fn is_foreign(pod: &Pod) -> bool {
    let name = pod.labels().get(NAME_LABEL.0).map(String::as_str);
    !matches!(name, Some("hostloop" | "hostloop-controller" | FAULT_DISKS))
}

/// Deletes the snapshot API's definitions if the person asks for it and no object needs them; says
/// which stay.
pub(super) async fn definitions(
    requested: bool,
    how: DryRun,
    cluster: &mut Objects,
) -> Result<Vec<String>, Error> {
    let (mut lines, mut deleted) = (Vec::new(), Vec::new());
    for definition in manifests::crds() {
        let key = ObjectKey::of(&definition);
        let Some(stored) = cluster.get(&key).await? else {
            continue;
        };
        if !requested {
            lines.push(format!("{key} stays: others may use it"));
            continue;
        }
        match first_object(&stored, cluster).await? {
            Some(object) => lines.push(format!("{key} stays: there is {}", ObjectKey::of(&object))),
            None if how == DryRun::None => {
                cluster.delete(&stored).await?;
                deleted.push((key, stored));
            }
            None => {
                if how == DryRun::Server {
                    cluster.delete(&stored).await?;
                }
                lines.push(format!("{key} would be removed"));
            }
        }
    }
    for (key, stored) in deleted {
        let uid = stored["metadata"]["uid"].as_str();
        if !is_gone_in_time(&key, uid, cluster).await? {
            return Err(Error::CrdStays { name: key.name });
        }
        lines.push(format!("{key} removed"));
    }
    if requested || lines.is_empty() {
        return Ok(lines);
    }
    Ok(vec![
        "The CRDs of the snapshot API stay, because others may use them; --crds removes \
         those without objects."
            .to_owned(),
    ])
}

/// An object of a definition, if there is one.
async fn first_object(stored: &Value, cluster: &mut Objects) -> Result<Option<Value>, ApiError> {
    let spec = &stored["spec"];
    let versions = spec["versions"].as_array().into_iter().flatten();
    let served = versions
        .into_iter()
        .find(|version| version["served"] == true);
    let (group, kind) = (spec["group"].as_str(), spec["names"]["kind"].as_str());
    let name = served.and_then(|version| version["name"].as_str());
    let (Some(group), Some(kind), Some(name)) = (group, kind, name) else {
        return Ok(None);
    };
    let version = format!("{group}/{name}");
    let objects: Vec<Value> = cluster.list((&version, kind), "", "").await?;
    Ok(objects.into_iter().next())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_runs_goes_first_and_the_namespace_last() {
        let mut all: Vec<Value> = ["Namespace", "Role", "DaemonSet", "CSIDriver", "Deployment"]
            .map(|kind| json!({"kind": kind}))
            .to_vec();
        all.sort_by_key(order);
        let kinds: Vec<String> = all
            .iter()
            .map(|object| ObjectKey::of(object).kind)
            .collect();
        assert_eq!(
            kinds,
            ["DaemonSet", "Deployment", "Role", "CSIDriver", "Namespace"]
        );
    }

    #[test]
    fn classes_are_those_that_begin_volumes() {
        for (kind, is_one) in [
            ("StorageClass", true),
            ("VolumeSnapshotClass", true),
            ("VolumeGroupSnapshotClass", true),
            ("VolumeAttributesClass", true),
            ("ClusterRole", false),
            ("CSIDriver", false),
        ] {
            assert_eq!(is_class(&json!({"kind": kind})), is_one, "{kind}");
        }
    }

    #[test]
    fn the_kinds_of_everything_that_is_applied() {
        let (kinds, namespaces) = kinds();
        assert!(
            kinds
                .iter()
                .any(|(_, kind)| kind == "VolumeGroupSnapshotClass")
        );
        assert!(kinds.len() > 14, "{kinds:?}");
        assert!(
            ["", "hostloop", "kube-system"]
                .iter()
                .all(|one| namespaces.contains(*one))
        );
    }

    #[test]
    fn pods_of_others() {
        for (name, is_other) in [
            ("hostloop", false),
            ("hostloop-controller", false),
            ("hostloop-fault-disks", false),
            ("prometheus", true),
        ] {
            let pod = json!({"metadata": {"labels": {"app.kubernetes.io/name": name}}});
            assert_eq!(
                is_foreign(&serde_json::from_value(pod).unwrap()),
                is_other,
                "{name}"
            );
        }
        assert!(is_foreign(&Pod::default()));
    }
}
