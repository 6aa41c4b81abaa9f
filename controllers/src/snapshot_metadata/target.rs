//! Which snapshot a caller means: from the name of a VolumeSnapshot to the handle at the driver.

use kube::ResourceExt;

use super::refusal::Refusal;
use crate::api::scope::MANAGED_BY;
use crate::snapshots::{VolumeSnapshot, VolumeSnapshotContent};

/// A snapshot at the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) handle: String,
    /// The handle of its volume, unless the content was made for an existing snapshot.
    pub(super) volume: Option<String>,
    /// The label of the node that has it.
    pub(super) node: Option<String>,
}

/// The name of a snapshot, for messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct SnapshotName<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl SnapshotName<'_> {
    /// The snapshot can't be read at present.
    pub(super) fn not_available(self, why: impl Into<String>) -> Refusal {
        Refusal::NotAvailable {
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            why: why.into(),
        }
    }
}

/// The name of the content that a snapshot is bound to.
pub(super) fn content_name(
    of: SnapshotName<'_>,
    snapshot: Option<&VolumeSnapshot>,
) -> Result<String, Refusal> {
    let Some(snapshot) = snapshot else {
        return Err(Refusal::NoSnapshot {
            namespace: of.namespace.to_owned(),
            name: of.name.to_owned(),
        });
    };
    // A new object has no status yet.
    let status = snapshot.status.as_ref();
    if status.and_then(|status| status.ready_to_use) != Some(true) {
        return Err(of.not_available("it is not ready to use"));
    }
    let content = snapshot.bound_content();
    content
        .map(str::to_owned)
        .ok_or_else(|| of.not_available("it is not bound to a VolumeSnapshotContent"))
}

/// The snapshot at the driver, by the content that a VolumeSnapshot is bound to. The content must
/// refer back: users may write any name into a snapshot's status.
pub(super) fn target(
    of: SnapshotName<'_>,
    snapshot: &VolumeSnapshot,
    content: Option<&VolumeSnapshotContent>,
    driver: &str,
) -> Result<Target, Refusal> {
    let Some(content) = content else {
        return Err(of.not_available("its VolumeSnapshotContent does not exist"));
    };
    if !refers_to(content, of, snapshot) {
        return Err(of.not_available("its VolumeSnapshotContent is of another VolumeSnapshot"));
    }
    let status = content.status.as_ref();
    if status.and_then(|status| status.ready_to_use) != Some(true) {
        return Err(of.not_available("its VolumeSnapshotContent is not ready to use"));
    }
    let handle = status.and_then(|status| status.snapshot_handle.clone());
    let Some(handle) = handle.filter(|handle| !handle.is_empty()) else {
        return Err(of.not_available("its VolumeSnapshotContent has no snapshot handle"));
    };
    if content.spec.driver != driver {
        return Err(Refusal::OtherDriver {
            name: of.name.to_owned(),
            driver: driver.to_owned(),
        });
    }
    Ok(Target {
        handle,
        volume: content.spec.source.volume_handle.clone(),
        node: content.labels().get(MANAGED_BY).cloned(),
    })
}

/// True if a content is of this snapshot. Its reference has no UID until it is bound.
fn refers_to(
    content: &VolumeSnapshotContent,
    of: SnapshotName<'_>,
    snapshot: &VolumeSnapshot,
) -> bool {
    let reference = &content.spec.volume_snapshot_ref;
    let uid = reference.uid.as_deref().filter(|uid| !uid.is_empty());
    reference.namespace.as_deref() == Some(of.namespace)
        && reference.name.as_deref() == Some(of.name)
        && uid.is_none_or(|uid| snapshot.metadata.uid.as_deref() == Some(uid))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tonic::Code;

    use super::*;
    use crate::testing::{read, with};

    const OF: SnapshotName<'_> = SnapshotName {
        namespace: "ns",
        name: "s",
    };

    fn snapshot(status: Value) -> VolumeSnapshot {
        read(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"namespace": "ns", "name": "s", "uid": "1"},
            "spec": {"source": {}}, "status": status,
        }))
    }

    fn content(change: Value) -> VolumeSnapshotContent {
        let whole = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c", "labels": {MANAGED_BY: "n1"}},
            "spec": {
                "driver": "d", "deletionPolicy": "Delete", "source": {"volumeHandle": "v"},
                "volumeSnapshotRef": {"namespace": "ns", "name": "s", "uid": "1"},
            },
            "status": {"readyToUse": true, "snapshotHandle": "h"},
        });
        read(with(whole, change))
    }

    #[test]
    fn contents_of_snapshots() {
        let bound =
            |name: &str| json!({"readyToUse": true, "boundVolumeSnapshotContentName": name});
        for (status, expected) in [
            (bound("c"), Ok("c")),
            (bound(""), Err("is not bound")),
            (json!({"readyToUse": true}), Err("is not bound")),
            (
                json!({"boundVolumeSnapshotContentName": "c"}),
                Err("not ready"),
            ),
            (
                json!({"readyToUse": false, "boundVolumeSnapshotContentName": "c"}),
                Err("not ready"),
            ),
            (json!({}), Err("not ready")),
            (Value::Null, Err("not ready")),
        ] {
            match (content_name(OF, Some(&snapshot(status.clone()))), expected) {
                (Ok(name), Ok(expected)) => assert_eq!(name, expected),
                (Err(refusal), Err(part)) => {
                    assert_eq!(refusal.code(), Code::Unavailable, "{status}");
                    assert!(refusal.to_string().contains(part), "{status}: {refusal}");
                }
                (found, _) => panic!("{status}: {found:?}"),
            }
        }
        let refusal = content_name(OF, None).unwrap_err();
        assert_eq!(refusal.code(), Code::NotFound);
    }

    #[test]
    fn snapshots_at_the_driver() {
        let of = |change: Value| target(OF, &snapshot(json!({})), Some(&content(change)), "d");
        let whole = Target {
            handle: "h".to_owned(),
            volume: Some("v".to_owned()),
            node: Some("n1".to_owned()),
        };
        assert_eq!(of(json!({})), Ok(whole.clone()));
        let unlabelled = json!({"metadata": {"labels": null}});
        assert_eq!(
            of(unlabelled),
            Ok(Target {
                node: None,
                ..whole.clone()
            })
        );
        let by_hand = json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "h"}}});
        assert_eq!(
            of(by_hand),
            Ok(Target {
                volume: None,
                ..whole.clone()
            })
        );
        let unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
        assert_eq!(of(unbound), Ok(whole));
        for (change, code) in [
            (json!({"spec": {"driver": "e"}}), Code::InvalidArgument),
            (json!({"status": null}), Code::Unavailable),
            (json!({"status": {"readyToUse": false}}), Code::Unavailable),
            (
                json!({"status": {"snapshotHandle": null}}),
                Code::Unavailable,
            ),
            (json!({"status": {"snapshotHandle": ""}}), Code::Unavailable),
            (
                json!({"spec": {"volumeSnapshotRef": {"namespace": "other"}}}),
                Code::Unavailable,
            ),
            (
                json!({"spec": {"volumeSnapshotRef": {"name": "other"}}}),
                Code::Unavailable,
            ),
            (
                json!({"spec": {"volumeSnapshotRef": {"uid": "2"}}}),
                Code::Unavailable,
            ),
            // What another snapshot's content is, is not for this caller.
            (
                json!({"spec": {"driver": "e", "volumeSnapshotRef": {"uid": "2"}}}),
                Code::Unavailable,
            ),
        ] {
            let refusal = of(change.clone()).unwrap_err();
            assert_eq!(refusal.code(), code, "{change}: {refusal}");
        }
        let refusal = target(OF, &snapshot(json!({})), None, "d").unwrap_err();
        assert_eq!(refusal.code(), Code::Unavailable);
    }
}
