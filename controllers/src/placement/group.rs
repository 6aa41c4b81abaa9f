//! Nodes of VolumeGroupSnapshotContents. All volumes of a group must be on one node: volumes on
//! different nodes can't be snapshotted at one moment.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::Placement;
use super::source_location::SourceLocation;
use crate::api::scope::{MANAGED_BY, node_label};
use crate::client::Resource;
use crate::queue::Outcome;
use crate::snapshots::VolumeGroupSnapshotContent;
use crate::snapshotter::status_of_failure;

const FAILED: &str = "GroupSnapshotCreationFailed";

/// What to do for a group content without the label `managed-by`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Todo {
    /// Do nothing: the nodes are not all known.
    Nothing,
    Label(String),
    /// The volumes are on these different nodes: report an error.
    Spans(BTreeSet<String>),
}

/// Decides by the locations of a group's volumes or snapshots.
fn decide(locations: &[SourceLocation]) -> Todo {
    let nodes: BTreeSet<&str> = locations.iter().filter_map(SourceLocation::node).collect();
    if nodes.len() > 1 {
        return Todo::Spans(nodes.into_iter().map(str::to_owned).collect());
    }
    // A member without a known node may be on another one.
    let all_known = locations.iter().all(|location| location.node().is_some());
    match nodes.first() {
        Some(node) if all_known => Todo::Label((*node).to_owned()),
        _ => Todo::Nothing,
    }
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

impl Placement {
    /// Labels a group content, by its name, with the node of its members.
    pub(super) async fn group_label(&self, name: &str) -> Outcome {
        let watch = self.context.caches.group_contents();
        let Some(content) = watch.get(name) else {
            return Outcome::Done;
        };
        let ours = content.spec.driver == self.context.driver.name;
        if !ours || content.labels().contains_key(MANAGED_BY) {
            return Outcome::Done;
        }
        match decide(&self.locations(&content)) {
            Todo::Nothing => Outcome::Done,
            Todo::Label(node) => {
                let label = node_label(&node);
                self.label(&watch, &*content, MANAGED_BY, &label, true).await
            }
            Todo::Spans(nodes) => self.spans(&content, &nodes).await,
        }
    }

    /// Locates each part of a group: its volumes, or the snapshots of a pre-provisioned group.
    fn locations(&self, content: &VolumeGroupSnapshotContent) -> Vec<SourceLocation> {
        let namespace = content.spec.volume_group_snapshot_ref.namespace.as_deref();
        match &content.spec.source.volume_handles {
            Some(volumes) => {
                let location = |handle: &String| self.bound_location(handle, namespace);
                volumes.iter().map(location).collect()
            }
            None => {
                let location = |handle: &String| self.snapshot_location(handle);
                snapshots(content).iter().map(location).collect()
            }
        }
    }

    /// Writes the error to the content's status, and emits an event if the error is new.
    async fn spans(
        &self,
        content: &VolumeGroupSnapshotContent,
        nodes: &BTreeSet<String>,
    ) -> Outcome {
        let message = complaint(nodes);
        let known = content.status.as_ref();
        let known = known.and_then(|status| status.error.as_ref());
        let Some(status) = status_of_failure(known, &message, Timestamp::now()) else {
            return Outcome::Done;
        };
        let going = content.is_deleting();
        if going || !self.context.leader.leads() {
            return Outcome::Done;
        }
        self.context.events.warning(content, FAILED, message);
        match self.kube.merge_status_unchanged(content, status).await {
            Ok(written) => {
                self.context.caches.group_contents().apply_write(written);
                Outcome::Done
            }
            Err(error) if error.is_not_found() => Outcome::Done,
            Err(error) => {
                tracing::warn!(
                    content = content.name_any(), %error,
                    "cannot write a content's status"
                );
                Outcome::Failed
            }
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
        for (locations, todo) in [
            (vec![], Todo::Nothing),
            (vec![on("n1")], Todo::Label("n1".to_owned())),
            (vec![on("n1"), on("n1")], Todo::Label("n1".to_owned())),
            (vec![on("n1"), unknown()], Todo::Nothing),
            (vec![SourceLocation::Anywhere], Todo::Nothing),
            (vec![on("n2"), unknown(), on("n1")], Todo::Spans(both)),
        ] {
            assert_eq!(decide(&locations), todo, "{locations:?}");
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
        for (source, expected) in
            [(given(&["s"]), vec!["s"]), (given(&[]), vec!["g"]), (json!({}), vec![])]
        {
            assert_eq!(snapshots(&content(source.clone())), expected, "{source}");
        }
    }
}
