//! The objects that make a claim of a cut. All of one cut have one name.

use hostloop_api_objects::constants::is_name;
use hostloop_api_objects::labels::{MANAGED_BY, node_label};
use hostloop_report::cuts::TakenCut;
use serde_json::{Value, json};

use super::explored_claim::ExploredClaim;
use crate::new_objects::{self, SNAPSHOT_API, from_snapshot};

/// The label of all objects of an exploration. Its value is the exploration's ID.
pub(super) const EXPLORATION: &str = "hostloop.csi.dev/exploration";
/// The label of the objects of a cut that stays.
pub(super) const KEPT: &str = "hostloop.csi.dev/kept-cut";

/// The beginning of the ID of each exploration.
const PREFIX: &str = "exploration-";

/// The ID of an exploration. It stands in names, labels and selectors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ExplorationId(String);

impl ExplorationId {
    /// `None` for a text that can't be one: nodes and labels say it.
    pub(super) fn parse(text: &str) -> Option<ExplorationId> {
        let is_id = text.starts_with(PREFIX)
            && text.len() > PREFIX.len()
            && text.len() <= 63
            && is_name(text);
        is_id.then(|| ExplorationId(text.to_owned()))
    }

    /// The ID in what the API server only checks.
    pub(super) fn of_dry_run() -> ExplorationId {
        ExplorationId(format!("{PREFIX}dry-run"))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Selects the objects of the exploration.
    pub(super) fn selector(&self) -> String {
        format!("{EXPLORATION}={}", self.0)
    }

    /// The name of the objects of a cut: `explore-CLAIM-EXPLORATION-NUMBER`. The name of a Job is a
    /// label of its pods, so it has at most 63 characters.
    pub(super) fn name(&self, claim: &str, number: u32) -> String {
        const CLAIM: usize = 36;
        const ID: usize = 8;
        let claim: String = claim.chars().take(CLAIM).collect();
        // A dot would end the host name of the Job's pod.
        let claim = claim.replace('.', "-");
        let id: String = self.0[PREFIX.len()..].chars().take(ID).collect();
        let (claim, id) = (claim.trim_end_matches('-'), id.replace('.', "-"));
        format!("explore-{claim}-{id}-{number:04}")
    }
}

/// Selects what any exploration has left and does not keep.
pub(super) fn selector_of_all() -> String {
    format!("{EXPLORATION},!{KEPT}")
}

/// The labels of an object of an exploration.
pub(super) fn labels(exploration: &ExplorationId) -> Value {
    new_objects::labels(EXPLORATION, exploration.as_str())
}

/// What the objects of one cut have in common.
pub(super) struct CutObjects<'a> {
    pub(super) claim: &'a ExploredClaim,
    pub(super) driver: &'a str,
    /// The node that has taken the cut.
    pub(super) node: &'a str,
    pub(super) exploration: &'a ExplorationId,
    pub(super) cut: &'a TakenCut,
}

impl CutObjects<'_> {
    pub(super) fn name(&self) -> String {
        self.exploration.name(&self.claim.name, self.cut.number)
    }

    /// The content of the snapshot. Its end is that of the cut.
    ///
    /// The node alone has said the handle. So the content is that node's: with the handle of another
    /// node's snapshot, nothing is restored, and no other node deletes anything.
    pub(super) fn content(&self) -> Value {
        let name = self.name();
        let mut labels = labels(self.exploration);
        labels[MANAGED_BY] = json!(node_label(self.node));
        json!({
            "apiVersion": SNAPSHOT_API,
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "deletionPolicy": "Delete",
                "driver": self.driver,
                "source": {"snapshotHandle": self.cut.snapshot},
                "volumeSnapshotRef": {
                    "apiVersion": SNAPSHOT_API,
                    "kind": "VolumeSnapshot",
                    "namespace": self.claim.namespace,
                    "name": name,
                },
            },
        })
    }

    pub(super) fn snapshot(&self) -> Value {
        json!({
            "apiVersion": SNAPSHOT_API,
            "kind": "VolumeSnapshot",
            "metadata": self.metadata(),
            "spec": {"source": {"volumeSnapshotContentName": self.name()}},
        })
    }

    /// The claim that the cut becomes.
    pub(super) fn claim(&self) -> Value {
        claim_of(
            self.claim,
            &self.name(),
            self.cut.size_bytes,
            self.metadata(),
        )
    }

    fn metadata(&self) -> Value {
        json!({
            "name": self.name(),
            "namespace": self.claim.namespace,
            "labels": labels(self.exploration),
        })
    }
}

/// A claim with the content of a kept snapshot, for a person.
pub(super) fn claim_again(claim: &ExploredClaim, snapshot: &str, size_bytes: u64) -> Value {
    let metadata = json!({"name": snapshot, "namespace": claim.namespace});
    claim_of(claim, snapshot, size_bytes, metadata)
}

fn claim_of(claim: &ExploredClaim, snapshot: &str, size_bytes: u64, metadata: Value) -> Value {
    let spec = json!({
        "storageClassName": claim.class,
        "accessModes": claim.access_modes,
        "volumeMode": claim.volume_mode,
        "dataSource": from_snapshot(snapshot),
    });
    new_objects::claim(metadata, size_bytes, spec)
}

#[cfg(test)]
mod tests {
    use hostloop_api_objects::snapshots::{VolumeSnapshot, VolumeSnapshotContent};
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use rstest::rstest;

    use super::*;
    use crate::explore::testing::{cut, exploration, explored};
    use crate::test_objects::read;

    #[rstest]
    #[case::id("exploration-0123456789abcdef0123456789abcdef", true)]
    #[case::short("exploration-1", true)]
    #[case::nothing("exploration-", false)]
    #[case::other("snap-1", false)]
    #[case::selector("exploration-1,!a", false)]
    #[case::equals("exploration-1=a", false)]
    #[case::flag("--help", false)]
    fn ids(#[case] text: &str, #[case] is_id: bool) {
        assert_eq!(ExplorationId::parse(text).is_some(), is_id);
    }

    #[test]
    fn an_id_is_no_longer_than_a_label() {
        for (length, is_id) in [(51, true), (52, false)] {
            let text = format!("exploration-{}", "a".repeat(length));
            assert_eq!(ExplorationId::parse(&text).is_some(), is_id, "{text}");
        }
    }

    #[rstest]
    #[case::short("data", 7, "explore-data-01234567-0007")]
    #[case::dots("data.db", 1000, "explore-data-db-01234567-1000")]
    #[case::ends(
        "a234567890-234567890-234567890-2345-7890",
        1,
        "explore-a234567890-234567890-234567890-2345-01234567-0001"
    )]
    fn names(#[case] claim: &str, #[case] number: u32, #[case] expected: &str) {
        let name = exploration().name(claim, number);
        assert_eq!(name, expected);
        assert!(name.len() <= 63 && is_name(&name), "{name}");
    }

    #[test]
    fn a_cut_becomes_a_claim() {
        let (claim, cut, exploration) = (explored(), cut(7), exploration());
        let objects = CutObjects {
            claim: &claim,
            driver: "hostloop.csi.dev",
            node: "n1",
            exploration: &exploration,
            cut: &cut,
        };
        let name = "explore-data-01234567-0007";
        let content: VolumeSnapshotContent = read(objects.content());
        assert_eq!(content.metadata.labels.as_ref().unwrap()[MANAGED_BY], "n1");
        assert_eq!(
            content.spec.source.snapshot_handle.as_deref(),
            Some("snap-7")
        );
        assert_eq!(content.spec.volume_snapshot_ref.name.as_deref(), Some(name));
        let snapshot: VolumeSnapshot = read(objects.snapshot());
        let source = snapshot.spec.source.volume_snapshot_content_name;
        assert_eq!(source.as_deref(), Some(name));
        let made: PersistentVolumeClaim = read(objects.claim());
        let spec = made.spec.unwrap();
        assert_eq!(spec.data_source.unwrap().name, name);
        assert_eq!(spec.storage_class_name.as_deref(), Some("hostloop-ext4"));
        assert_eq!(spec.access_modes.unwrap(), ["ReadWriteOnce"]);
        let size = spec.resources.unwrap().requests.unwrap()["storage"]
            .0
            .clone();
        assert_eq!(size, "1073741824");
        for labels in [content.metadata, snapshot.metadata, made.metadata] {
            assert_eq!(labels.labels.unwrap()[EXPLORATION], exploration.as_str());
        }
        let again = claim_again(&claim, name, cut.size_bytes);
        assert_eq!(again["spec"], objects.claim()["spec"]);
        assert_eq!(again["metadata"]["labels"], Value::Null);
    }
}
