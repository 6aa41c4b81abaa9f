//! Pre-provisioned contents that stay although an administrator deleted them. A leader bound one from
//! its cache to a VolumeSnapshot that the API server had lost by going back to a backup. An
//! administrator may have copied the content from another cluster. So it keeps its finalizer, and its
//! data, without the annotation that its VolumeSnapshot is being deleted.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{annotation, is_deleting, text, uid};
use crate::oracle::content_kinds::{ContentKind, KINDS, SNAPSHOTS};
use crate::oracle::objects::ours;
use crate::oracle::ownership;

/// True if an object is a deleted content that may stay.
pub(super) fn may_stay(cluster: &Cluster, object: &Value) -> bool {
    let has_gone_back = ownership::has_gone_back();
    KINDS.iter().any(|kind| {
        let owners = ours(cluster, kind.owners);
        waits_for_lost_owner(kind, object, &owners, has_gone_back)
    })
}

/// The handles of snapshots that may stay with their contents.
pub(super) fn kept_snapshots(cluster: &Cluster) -> BTreeSet<String> {
    let owners = ours(cluster, SNAPSHOTS.owners);
    let contents = ours(cluster, SNAPSHOTS.plural);
    handles(&contents, &owners, ownership::has_gone_back())
}

/// The given handles of contents that may stay.
fn handles(contents: &[Value], owners: &[Value], has_gone_back: bool) -> BTreeSet<String> {
    let staying = contents
        .iter()
        .filter(|content| waits_for_lost_owner(&SNAPSHOTS, content, owners, has_gone_back));
    staying
        .map(|content| text(content, SNAPSHOTS.given).to_owned())
        .collect()
}

/// True if a deleted content waits for the deletion of an owner that does not exist, because its data
/// would go with it. `has_gone_back`: the API server has gone back to a backup.
fn waits_for_lost_owner(
    kind: &ContentKind,
    content: &Value,
    owners: &[Value],
    has_gone_back: bool,
) -> bool {
    let owner = text(content, kind.owner);
    has_gone_back
        && is_deleting(content)
        && text(content, "/spec/deletionPolicy") == "Delete"
        && content.pointer(kind.given).is_some()
        && !owner.is_empty()
        && annotation(content, kind.being_deleted).is_none()
        && owners.iter().all(|one| uid(one) != owner)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::oracle::departures::tests::set;

    /// What there is after the deletion of a content.
    struct Facts {
        is_deleting: bool,
        policy: &'static str,
        is_given: bool,
        /// The UID in the content's reference.
        owner: &'static str,
        is_marked: bool,
        /// The UID of the one owner that exists.
        present: &'static str,
        has_gone_back: bool,
    }

    /// A content that may stay, beside the owner of another.
    const STAYS: Facts = Facts {
        is_deleting: true,
        policy: "Delete",
        is_given: true,
        owner: "1",
        is_marked: false,
        present: "2",
        has_gone_back: true,
    };

    #[rstest]
    #[case::bound_after_a_backup(STAYS, true)]
    #[case::without_a_backup(Facts { has_gone_back: false, ..STAYS }, false)]
    #[case::not_deleted(Facts { is_deleting: false, ..STAYS }, false)]
    #[case::retained(Facts { policy: "Retain", ..STAYS }, false)]
    #[case::made(Facts { is_given: false, ..STAYS }, false)]
    #[case::not_bound(Facts { owner: "", ..STAYS }, false)]
    #[case::marked(Facts { is_marked: true, ..STAYS }, false)]
    #[case::with_its_owner(Facts { present: "1", ..STAYS }, false)]
    fn contents_that_may_stay(#[case] facts: Facts, #[case] expected: bool) {
        let given_snapshot = json!({"snapshotHandle": ""});
        let given_group = json!({"groupSnapshotHandles": {"volumeGroupSnapshotHandle": "g"}});
        let [snapshots, groups] = &KINDS;
        for (kind, reference, given) in [
            (snapshots, "volumeSnapshotRef", given_snapshot),
            (groups, "volumeGroupSnapshotRef", given_group),
        ] {
            let made = json!({"volumeHandle": "v", "volumeHandles": ["v"]});
            let source = if facts.is_given { given } else { made };
            let content = json!({
                "metadata": {"deletionTimestamp": facts.is_deleting.then_some("now"),
                    "annotations": {kind.being_deleted: facts.is_marked.then_some("yes")}},
                "spec": {"deletionPolicy": facts.policy, "source": source,
                    reference: {"uid": facts.owner}}});
            let owners = [json!({"metadata": {"uid": facts.present}})];
            let may_stay = waits_for_lost_owner(kind, &content, &owners, facts.has_gone_back);
            assert_eq!(may_stay, expected, "{content}");
        }
    }

    #[test]
    fn a_snapshot_stays_with_its_content() {
        let contents = [("s", "1"), ("t", "2")].map(|(handle, owner)| {
            json!({"metadata": {"deletionTimestamp": "now"},
                "spec": {"deletionPolicy": "Delete", "source": {"snapshotHandle": handle},
                    "volumeSnapshotRef": {"uid": owner}}})
        });
        let owners = [json!({"metadata": {"uid": "2"}})];
        assert_eq!(handles(&contents, &owners, true), set(&["s"]));
        assert_eq!(handles(&contents, &owners, false), set(&[]));
    }
}
