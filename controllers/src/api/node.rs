//! Nodes: references to them, whether they are ready, and which of them can use a volume.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, ObjectReference, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver};
use kube::ResourceExt;

use super::scope::{NODE_LABEL, node_label};
use super::{node_selector, pv};

/// Taint that an administrator sets on a node that is down and will not come back as it was.
pub(crate) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Status of a node condition; `None` if the node never reported it.
pub(crate) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a str> {
    let conditions = node.status.as_ref()?.conditions.as_deref()?;
    let found = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some(&found.status)
}

/// True if kubelet reports that the node is ready.
pub(crate) fn is_ready(node: &Node) -> bool {
    condition(node, "Ready") == Some("True")
}

/// True if the node has the out-of-service taint.
pub(crate) fn is_out_of_service(node: &Node) -> bool {
    let mut taints = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    taints.any(|taint| taint.key == OUT_OF_SERVICE)
}

/// The first node that matches the affinity of a volume; `None` if it has no affinity.
pub(crate) fn node_of(volume: &PersistentVolume, nodes: &[Arc<Node>]) -> Option<String> {
    nodes_of(volume, nodes)?.into_iter().next()
}

/// The node that has a volume. All nodes of a kernel match the affinity of a volume that they share,
/// and its label names the one that has it; `None` if it lacks the label, or that node is gone.
pub(crate) fn owner_of(volume: &PersistentVolume, nodes: &[Arc<Node>]) -> Option<String> {
    if !pv::is_shared(volume) {
        return node_of(volume, nodes);
    }
    let label = volume.labels().get(NODE_LABEL)?;
    let mut names = nodes.iter().map(|node| node.name_any());
    names.find(|name| node_label(name) == *label)
}

/// The nodes that match the affinity of a volume. `None` if it has no affinity, so any node can use
/// it.
pub(crate) fn nodes_of(volume: &PersistentVolume, nodes: &[Arc<Node>]) -> Option<Vec<String>> {
    let terms = pv::node_terms(volume)?;
    let fitting = nodes.iter().filter(|node| fits(node, terms));
    Some(fitting.map(|node| node.name_any()).collect())
}

/// True if a node fits one of the terms.
pub(crate) fn fits(node: &Node, terms: &[NodeSelectorTerm]) -> bool {
    let name = node.name_any();
    node_selector::fits(
        terms,
        |key: &str| Some(node.labels().get(key).map(String::as_str)),
        |key: &str| Some((key == "metadata.name").then_some(name.as_str())),
    ) == Some(true)
}

/// The driver's entry in a CSINode.
pub(crate) fn registered<'n>(csi_node: &'n CSINode, driver: &str) -> Option<&'n CSINodeDriver> {
    csi_node
        .spec
        .drivers
        .iter()
        .find(|known| known.name == driver)
}

/// A reference to a Node for events. Like kubelet, it uses the node's name as UID.
pub(crate) fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, zone: &str) -> Arc<Node> {
        let node = json!({"metadata": {"name": name, "labels": {"zone": zone, "size": "7"}}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    #[test]
    fn readiness_is_a_condition() {
        let cases = [
            (
                json!({"conditions": [{"type": "Ready", "status": "True"}]}),
                true,
            ),
            (
                json!({"conditions": [{"type": "Ready", "status": "Unknown"}]}),
                false,
            ),
            (
                json!({"conditions": [{"type": "DiskPressure", "status": "True"}]}),
                false,
            ),
            (json!({}), false),
        ];
        for (status, ready) in cases {
            let node = json!({"metadata": {"name": "a"}, "status": status});
            assert_eq!(
                is_ready(&serde_json::from_value(node).unwrap()),
                ready,
                "{status}"
            );
        }
    }

    #[test]
    fn nodes() {
        let nodes = [node("a", "east"), node("b", "west")];
        let label = |key: &str, operator: &str, values: Value| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let named = json!({"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["b"]}]});
        for (terms, expected) in [
            (json!([label("zone", "In", json!(["west"]))]), Some("b")),
            (json!([label("zone", "NotIn", json!(["east"]))]), Some("b")),
            (json!([label("zone", "In", json!(["north"]))]), None),
            (json!([label("zone", "Exists", json!([]))]), Some("a")),
            (json!([label("zone", "DoesNotExist", json!([]))]), None),
            (json!([label("size", "Gt", json!(["6"]))]), Some("a")),
            (json!([label("size", "Lt", json!(["7"]))]), None),
            (json!([label("zone", "Gt", json!(["6"]))]), None),
            (json!([named]), Some("b")),
            (json!([{}]), None),
            (json!([{}, label("zone", "In", json!(["west"]))]), Some("b")),
        ] {
            let volume = json!({"metadata": {}, "spec": {"nodeAffinity": {
                "required": {"nodeSelectorTerms": terms}}}});
            let volume = serde_json::from_value(volume).unwrap();
            assert_eq!(node_of(&volume, &nodes).as_deref(), expected, "{terms}");
        }
        let anywhere = serde_json::from_value(json!({"metadata": {}, "spec": {}})).unwrap();
        assert_eq!(node_of(&anywhere, &nodes), None);
        assert_eq!(nodes_of(&anywhere, &nodes), None);
        let both = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            label("zone", "In", json!(["west", "east"]))]}}}});
        let both = serde_json::from_value(both).unwrap();
        let names = ["a", "b"].map(str::to_owned);
        assert_eq!(nodes_of(&both, &nodes), Some(names.into()));
    }

    #[test]
    fn the_label_of_a_shared_volume_names_its_owner() {
        let long = "n".repeat(80);
        let nodes = [node("a", "z"), node("b", "z"), node(&long, "z")];
        for (reach, label, expected) in [
            ("node", json!({"hostloop.csi.dev/node": "b"}), Some("a")),
            ("kernel", json!({"hostloop.csi.dev/node": "b"}), Some("b")),
            (
                "kernel",
                json!({"hostloop.csi.dev/node": node_label(&long)}),
                Some(&*long),
            ),
            ("kernel", json!({"hostloop.csi.dev/node": "gone"}), None),
            ("kernel", json!({}), None),
        ] {
            let volume = json!({
                "metadata": {"labels": label},
                "spec": {
                    "csi": {"driver": "d", "volumeHandle": "h", "volumeAttributes": {"reach": reach}},
                    "nodeAffinity": crate::testing::affinity("zone", &["z"]),
                },
            });
            let volume = serde_json::from_value(volume).unwrap();
            let found = owner_of(&volume, &nodes);
            assert_eq!(found.as_deref(), expected, "{reach} {label}");
        }
    }
}
