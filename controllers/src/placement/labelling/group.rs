//! Nodes of VolumeGroupSnapshotContents. All volumes of a group must be on one node: volumes on
//! different nodes can't be snapshotted at one moment.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::Labelling;
use crate::api::scope::{MANAGED_BY, node_label};
use crate::client::Resource;
use crate::placement::source_location::{self, SourceLocation};
use crate::queue::Outcome;
use crate::snapshots::VolumeGroupSnapshotContent;
use crate::snapshots::content::{Content, GROUP};

/// What to do for a group content without the label `managed-by`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum GroupLabelStep {
    /// Do nothing: the nodes are not all known.
    Nothing,
    Label(String),
    /// The volumes are on these different nodes: report an error.
    Spans(BTreeSet<String>),
}

/// Decides by the locations of a group's volumes or snapshots.
fn decide(locations: &[SourceLocation]) -> GroupLabelStep {
    let nodes = nodes(locations);
    // A member without a known node may be on another one.
    let all_known = locations.iter().all(|location| location.node().is_some());
    match nodes.first() {
        Some(_) if nodes.len() > 1 => {
            GroupLabelStep::Spans(nodes.into_iter().map(str::to_owned).collect())
        }
        Some(node) if all_known => GroupLabelStep::Label((*node).to_owned()),
        _ => GroupLabelStep::Nothing,
    }
}

/// Decides for a content that [`is_deleted_before_begun`]: any node of a volume can release it.
fn decide_release(locations: &[SourceLocation]) -> GroupLabelStep {
    match nodes(locations).first() {
        Some(node) => GroupLabelStep::Label((*node).to_owned()),
        None => GroupLabelStep::Nothing,
    }
}

/// The known nodes of these locations.
fn nodes(locations: &[SourceLocation]) -> BTreeSet<&str> {
    locations.iter().filter_map(SourceLocation::node).collect()
}

/// True if a content without a label is deleted with its group, and no node has begun to take it.
fn is_deleted_before_begun(content: &VolumeGroupSnapshotContent) -> bool {
    content.is_unwanted() && !content.has_begun()
}

/// The handles of a pre-provisioned group's snapshots; without them, the handle of the group.
fn snapshots(content: &VolumeGroupSnapshotContent) -> Vec<String> {
    match &content.spec.source.group_snapshot_handles {
        Some(given) if given.volume_snapshot_handles.is_empty() => {
            vec![given.volume_group_snapshot_handle.clone()]
        }
        Some(given) => given.volume_snapshot_handles.clone(),
        None => Vec::new(),
    }
}

/// The error message for a group with volumes on several nodes.
fn complaint(nodes: &BTreeSet<String>) -> String {
    let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
    format!(
        "Failed to create group snapshot: its volumes are on different nodes ({}), and can't be \
         snapshotted at one moment; make a group of the volumes of each",
        nodes.join(", ")
    )
}

impl Labelling {
    /// Labels a group content, by its name, with the node of its members.
    pub(in crate::placement) async fn group_label(&self, name: &str) -> Outcome {
        let watch = self.shared.context.caches.group_contents();
        let Some(content) = watch.get(name) else {
            self.unlocated.lock().remove(&(GROUP.word, name.to_owned()));
            return Outcome::Done;
        };
        if content.spec.driver != self.shared.context.driver.name {
            return Outcome::Done;
        }
        if let Some(label) = content.labels().get(MANAGED_BY) {
            let location =
                source_location::of_label(label, &self.shared.context.caches.nodes().all());
            return self.report_unlocated(&watch, &content, &location).await;
        }
        let locations = self.locations(&content);
        let step = if is_deleted_before_begun(&content) {
            decide_release(&locations)
        } else {
            decide(&locations)
        };
        match step {
            GroupLabelStep::Nothing => {
                let unlocated = locations.iter().find(|location| location.is_unlocated());
                match unlocated.or(locations.first()) {
                    Some(location) => self.report_unlocated(&watch, &content, location).await,
                    None => Outcome::Done,
                }
            }
            GroupLabelStep::Label(node) => {
                let label = node_label(&node);
                self.shared
                    .label(&watch, &*content, MANAGED_BY, &label)
                    .await
            }
            GroupLabelStep::Spans(_) if content.is_deleting() => Outcome::Done,
            GroupLabelStep::Spans(nodes) => self.report(&watch, &content, complaint(&nodes)).await,
        }
    }

    /// Locates each part of a group: its volumes, or the snapshots of a pre-provisioned group.
    fn locations(&self, content: &VolumeGroupSnapshotContent) -> Vec<SourceLocation> {
        let namespace = content.spec.volume_group_snapshot_ref.namespace.as_deref();
        match &content.spec.source.volume_handles {
            Some(volumes) => volumes
                .iter()
                .map(|handle| self.shared.bound_location(handle, namespace))
                .collect(),
            None => snapshots(content)
                .iter()
                .map(|handle| self.shared.snapshot_location(handle))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_by_where_their_parts_are() {
        let on = |node: &str| SourceLocation::Node(node.to_owned());
        let unknown = || SourceLocation::Unknown("why".to_owned());
        let both = ["n1", "n2"].map(str::to_owned).into();
        for (locations, step) in [
            (vec![], GroupLabelStep::Nothing),
            (vec![on("n1")], GroupLabelStep::Label("n1".to_owned())),
            (
                vec![on("n1"), on("n1")],
                GroupLabelStep::Label("n1".to_owned()),
            ),
            (vec![on("n1"), unknown()], GroupLabelStep::Nothing),
            (vec![SourceLocation::Anywhere], GroupLabelStep::Nothing),
            (
                vec![on("n2"), unknown(), on("n1")],
                GroupLabelStep::Spans(both),
            ),
        ] {
            assert_eq!(decide(&locations), step, "{locations:?}");
        }
    }

    /// Without a label, no node would release such a content.
    #[test]
    fn groups_that_are_deleted_before_begun() {
        let on = |node: &str| SourceLocation::Node(node.to_owned());
        let gone = || SourceLocation::Gone("why".to_owned());
        let label = |node: &str| GroupLabelStep::Label(node.to_owned());
        for (locations, step) in [
            (vec![], GroupLabelStep::Nothing),
            (vec![on("n1")], label("n1")),
            (vec![on("n2"), on("n1")], label("n1")),
            (vec![gone(), on("n1")], label("n1")),
            (vec![gone(), gone()], GroupLabelStep::Nothing),
        ] {
            assert_eq!(decide_release(&locations), step, "{locations:?}");
        }
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {GROUP.being_deleted: "yes"}}});
        let in_use = json!({"metadata": {"annotations": {GROUP.being_deleted: null}}});
        let marked = json!({"metadata": {"annotations": {GROUP.being_created: "yes"}}});
        let taken = json!({"status": {"volumeGroupSnapshotHandle": "g"}});
        let given = json!({"spec": {"source": {"volumeHandles": null, "groupSnapshotHandles":
            {"volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["s"]}}}});
        for (what, changes, expected) in [
            ("deleted", vec![&deleted], true),
            ("not deleted", vec![], false),
            ("in use", vec![&deleted, &in_use], false),
            ("begun", vec![&deleted, &marked], false),
            ("taken", vec![&deleted, &taken], false),
            ("given", vec![&deleted, &given], false),
        ] {
            let content = json!({"metadata": {"name": "g"}, "spec": {
                "driver": "d", "deletionPolicy": "Delete",
                "source": {"volumeHandles": ["v", "w"]}, "volumeGroupSnapshotRef": {}}});
            let content = changes.into_iter().fold(content, crate::testing::with);
            assert_eq!(
                is_deleted_before_begun(&crate::testing::read(content)),
                expected,
                "{what}"
            );
        }
    }

    #[test]
    fn snapshots_of_groups() {
        let content = |source: serde_json::Value| -> VolumeGroupSnapshotContent {
            crate::testing::read(json!({"metadata": {"name": "g"}, "spec": {
                "driver": "d", "deletionPolicy": "Delete", "source": source,
                "volumeGroupSnapshotRef": {}}}))
        };
        let given = |members: &[&str]| {
            json!({"groupSnapshotHandles": {
            "volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": members}})
        };
        for (source, expected) in [
            (given(&["s"]), vec!["s"]),
            (given(&[]), vec!["g"]),
            (json!({}), vec![]),
        ] {
            assert_eq!(snapshots(&content(source.clone())), expected, "{source}");
        }
    }
}
