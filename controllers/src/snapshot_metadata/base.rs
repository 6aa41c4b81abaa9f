//! Who may compare with which snapshot.
//!
//! A base is named by its handle, which says nothing of a namespace. So the request's namespace must
//! have, or have had, a VolumeSnapshotContent with this handle. A backup tool may ask for its own
//! namespace: it made a content there. A user who guesses a handle learns nothing, not even whether
//! there is such a snapshot.

use super::refusal::Refusal;
use super::target::Target;
use crate::snapshots::VolumeSnapshotContent;

/// The handle that a content names or got.
pub(super) fn handle_of(content: &VolumeSnapshotContent) -> Option<&str> {
    let reported = content
        .status
        .as_ref()
        .and_then(|status| status.snapshot_handle.as_deref());
    let by_hand = content.spec.source.snapshot_handle.as_deref();
    by_hand.or(reported).filter(|handle| !handle.is_empty())
}

/// The namespace that a content is of.
pub(super) fn namespace_of(content: &VolumeSnapshotContent) -> Option<&str> {
    let namespace = content.spec.volume_snapshot_ref.namespace.as_deref();
    namespace.filter(|namespace| !namespace.is_empty())
}

/// What is known of a base.
#[derive(Clone, Copy, Debug)]
pub(super) struct BaseFacts<'a> {
    /// Its handle.
    pub(super) handle: &'a str,
    /// The namespace of the request.
    pub(super) namespace: &'a str,
    /// True if a content with this handle was of this namespace before.
    pub(super) was_in_namespace: bool,
}

/// Decides whether a caller may compare the target with a base. `contents` are those of the driver.
/// The driver checks the volume again, because contents need not name it.
pub(super) fn check_base<'a>(
    base: BaseFacts<'_>,
    target: &Target,
    contents: impl IntoIterator<Item = &'a VolumeSnapshotContent>,
) -> Result<(), Refusal> {
    if base.handle == target.handle {
        return Ok(());
    }
    let mut is_known = base.was_in_namespace;
    let mut volumes = Vec::new();
    for content in contents {
        if handle_of(content) == Some(base.handle) {
            is_known |= namespace_of(content) == Some(base.namespace);
            volumes.extend(content.spec.source.volume_handle.as_deref());
        }
    }
    if !is_known {
        return Err(Refusal::ForeignBase {
            namespace: base.namespace.to_owned(),
        });
    }
    let is_other = target
        .volume
        .as_deref()
        .is_some_and(|volume| volumes.iter().any(|one| *one != volume));
    if is_other {
        return Err(Refusal::OtherVolume);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tonic::Code;

    use super::*;
    use crate::testing::read;

    fn content(namespace: &str, source: Value, handle: Option<&str>) -> VolumeSnapshotContent {
        read(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c"},
            "spec": {
                "driver": "d", "deletionPolicy": "Delete", "source": source,
                "volumeSnapshotRef": {"namespace": namespace, "name": "s"},
            },
            "status": {"snapshotHandle": handle},
        }))
    }

    #[test]
    fn who_may_compare_with_what() {
        let of_volume = |namespace: &str, volume: &str| {
            content(namespace, json!({"volumeHandle": volume}), Some("b"))
        };
        let by_hand = |namespace: &str| content(namespace, json!({"snapshotHandle": "b"}), None);
        let target = |volume: Option<&str>| Target {
            handle: "t".to_owned(),
            volume: volume.map(str::to_owned),
            node: None,
        };
        let (known, unknown) = (target(Some("v")), target(None));
        for (base, was_here, target, contents, expected) in [
            // The caller's own snapshot.
            ("b", false, &known, vec![of_volume("ns", "v")], Ok(())),
            // Its content was deleted.
            ("b", true, &known, vec![], Ok(())),
            // A backup tool's content for a snapshot of a user.
            (
                "b",
                false,
                &unknown,
                vec![of_volume("user", "v"), by_hand("ns")],
                Ok(()),
            ),
            ("b", false, &known, vec![by_hand("ns")], Ok(())),
            // The same snapshot.
            ("t", false, &known, vec![], Ok(())),
            // A guess.
            ("b", false, &known, vec![], Err(Code::PermissionDenied)),
            (
                "b",
                false,
                &known,
                vec![of_volume("user", "v")],
                Err(Code::PermissionDenied),
            ),
            (
                "b",
                false,
                &known,
                vec![of_volume("user", "w")],
                Err(Code::PermissionDenied),
            ),
            (
                "c",
                false,
                &known,
                vec![of_volume("ns", "v")],
                Err(Code::PermissionDenied),
            ),
            // Another volume's snapshot.
            (
                "b",
                false,
                &known,
                vec![of_volume("ns", "w")],
                Err(Code::InvalidArgument),
            ),
            (
                "b",
                true,
                &known,
                vec![of_volume("user", "w")],
                Err(Code::InvalidArgument),
            ),
            // Which volume the target is of, only the driver knows.
            ("b", false, &unknown, vec![of_volume("ns", "w")], Ok(())),
        ] {
            let facts = BaseFacts {
                handle: base,
                namespace: "ns",
                was_in_namespace: was_here,
            };
            let found = check_base(facts, target, &contents).map_err(|refusal| refusal.code());
            assert_eq!(found, expected, "{facts:?} {contents:?}");
        }
    }

    #[test]
    fn handles_of_contents() {
        for (source, reported, expected) in [
            (json!({"volumeHandle": "v"}), Some("h"), Some("h")),
            (json!({"volumeHandle": "v"}), Some(""), None),
            (json!({"volumeHandle": "v"}), None, None),
            (json!({"snapshotHandle": "h"}), None, Some("h")),
            // A node reports handles, and an administrator named this one.
            (json!({"snapshotHandle": "h"}), Some("i"), Some("h")),
        ] {
            let content = content("ns", source, reported);
            assert_eq!(handle_of(&content), expected, "{content:?}");
        }
    }
}
