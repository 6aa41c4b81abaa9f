//! Objects that still need hostloop.

use hostloop_terminal::humanize::count;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::ResourceExt;
use serde_json::Value;

use super::Error;
use crate::api::{ApiError, Objects};
use crate::manifests::ObjectKey;
use crate::volume_objects::{claim_ref, handle, inline_volumes, title, volume_phase};
use crate::{Cluster, output};

/// Fails if objects of the driver are left, and names them.
pub(super) async fn refuse(cluster: &Cluster, objects: &mut Objects) -> Result<(), Error> {
    let left = find(cluster, objects).await?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(Error::InUse(left))
    }
}

/// Volumes, contents of snapshots and groups, and pods with inline volumes.
async fn find(cluster: &Cluster, objects: &mut Objects) -> Result<Vec<String>, ApiError> {
    let driver = cluster.driver_name.as_str();
    let volumes: Vec<PersistentVolume> = objects.list(("v1", "PersistentVolume"), "", "").await?;
    let mut left: Vec<String> = volumes
        .iter()
        .filter_map(|one| volume(one, driver))
        .collect();
    for (version, kind) in [
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent"),
        (
            "groupsnapshot.storage.k8s.io/v1",
            "VolumeGroupSnapshotContent",
        ),
    ] {
        let contents: Vec<Value> = objects.list((version, kind), "", "").await?;
        left.extend(contents.iter().filter_map(|one| content(one, driver)));
    }
    let pods: Vec<Pod> = objects.list(("v1", "Pod"), "", "").await?;
    left.extend(pods.iter().filter_map(|one| inline(one, driver)));
    Ok(left)
}

/// The volume and its claim, if it is the driver's.
fn volume(volume: &PersistentVolume, driver: &str) -> Option<String> {
    handle(volume, driver)?;
    let name = volume.name_any();
    let claim = claim_ref(volume).and_then(|claim| {
        Some(format!(
            "{}/{}",
            claim.namespace.as_deref()?,
            claim.name.as_deref()?
        ))
    });
    Some(match (claim, volume_phase(volume)) {
        (Some(claim), Some("Released")) => {
            format!("PersistentVolume {name} (its claim {claim} is deleted)")
        }
        (Some(claim), _) => format!("PersistentVolume {name} of claim {claim}"),
        (None, _) => format!("PersistentVolume {name}"),
    })
}

/// The content and its snapshot, if it is the driver's.
fn content(content: &Value, driver: &str) -> Option<String> {
    if content["spec"]["driver"] != driver {
        return None;
    }
    let key = ObjectKey::of(content);
    let reference = ["volumeSnapshotRef", "volumeGroupSnapshotRef"]
        .map(|field| &content["spec"][field])
        .into_iter()
        .find(|reference| reference.is_object());
    let name = reference.and_then(|reference| {
        Some((
            reference["namespace"].as_str()?,
            reference["name"].as_str()?,
        ))
    });
    Some(match name {
        Some((namespace, name)) => format!("{key} of {namespace}/{name}"),
        None => key.to_string(),
    })
}

/// The pod, if it has an inline volume of the driver. One that has ended needs the driver until
/// kubelet has unmounted its volumes, which its deletion waits for.
fn inline(pod: &Pod, driver: &str) -> Option<String> {
    let has_one = !inline_volumes(pod, driver).is_empty();
    has_one.then(|| format!("Pod {} with an inline volume", title(&pod.metadata)))
}

/// What the error says: the first of them, and the number of the others.
pub(super) fn sentence(left: &[String]) -> String {
    format!(
        "{} left with data that needs hostloop:{}\nDelete the pods, claims and \
         snapshots first, then uninstall again",
        match left.len() {
            1 => "1 object is".to_owned(),
            n => format!("{} are", count(n, "object")),
        },
        output::first_lines(left)
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    #[test]
    fn volumes_of_the_driver_are_named_with_their_claims() {
        let one = |driver: &str, claim: Value, phase: &str| {
            let one = json!({"metadata": {"name": "v"}, "status": {"phase": phase},
                "spec": {"csi": {"driver": driver}, "claimRef": claim}});
            volume(&read(one), "d")
        };
        let claim = || json!({"namespace": "n", "name": "c"});
        for (got, said) in [
            (
                one("d", claim(), "Bound"),
                Some("PersistentVolume v of claim n/c"),
            ),
            (
                one("d", claim(), "Released"),
                Some("PersistentVolume v (its claim n/c is deleted)"),
            ),
            (
                one("d", json!(null), "Available"),
                Some("PersistentVolume v"),
            ),
            (one("other", claim(), "Bound"), None),
        ] {
            assert_eq!(got.as_deref(), said);
        }
        assert_eq!(volume(&PersistentVolume::default(), "d"), None);
    }

    #[test]
    fn contents_and_inline_volumes() {
        let object = json!({"kind": "VolumeSnapshotContent", "metadata": {"name": "c"},
            "spec": {"driver": "d", "volumeSnapshotRef": {"namespace": "n", "name": "s"}}});
        let said = "VolumeSnapshotContent c of n/s";
        assert_eq!(content(&object, "d").as_deref(), Some(said));
        assert_eq!(content(&object, "other"), None);
        let pod: Pod = read(json!({"metadata": {"name": "p", "namespace": "n"},
            "spec": {"volumes": [{"csi": {"driver": "d"}}]}}));
        assert_eq!(
            inline(&pod, "d").as_deref(),
            Some("Pod n/p with an inline volume")
        );
        assert_eq!(inline(&pod, "other"), None);
    }

    #[test]
    fn the_list_is_bounded() {
        let all: Vec<String> = (0..13).map(|n| format!("PersistentVolume v{n}")).collect();
        let said = sentence(&all);
        assert!(said.starts_with("13 objects are left"), "{said}");
        assert!(
            said.contains("\n  PersistentVolume v9\n  and 3 more\n"),
            "{said}"
        );
        assert!(sentence(&all[..1]).starts_with("1 object is left"));
        assert!(!sentence(&all[..10]).contains("more"));
    }
}
