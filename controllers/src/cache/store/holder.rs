//! For which budget an object counts: that of its namespace, or that of the node that wrote it.

use std::any::{Any, TypeId};

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;

use crate::api::pv;
use crate::client::Resource;

/// The topology keys of nodes, of which an installation has one: the usual one, and that of the
/// overlay `csi-hostpath`. By its value, the admission policies restrict a node to volumes and
/// capacities of its own.
const NODE_KEYS: [&str; 2] = [
    "topology.hostloop.csi.dev/node",
    "topology.hostpath.csi/node",
];

/// True if nodes write the objects of this kind, and not users.
pub(super) fn is_of_nodes<K: 'static>() -> bool {
    let kinds = [
        TypeId::of::<PersistentVolume>(),
        TypeId::of::<CSIStorageCapacity>(),
    ];
    kinds.contains(&TypeId::of::<K>())
}

/// The namespace of an object, or the node of a volume or capacity. `None` if no user and no node
/// can make such an object: it has no limit.
pub(super) fn holder_of<K: Resource>(object: &K) -> Option<&str> {
    let any: &dyn Any = object;
    if let Some(volume) = any.downcast_ref::<PersistentVolume>() {
        return node_of_term(pv::node_terms(volume)?.first()?);
    }
    if let Some(capacity) = any.downcast_ref::<CSIStorageCapacity>() {
        let labels = capacity.node_topology.as_ref()?.match_labels.as_ref()?;
        let mut nodes = NODE_KEYS.iter().filter_map(|key| labels.get(*key));
        let first = nodes.next()?;
        return Some(nodes.next().map_or(first.as_str(), |_| ""));
    }
    let namespace = object.meta().namespace.as_deref();
    namespace.filter(|namespace| !namespace.is_empty())
}

/// The node of a term. The policy wants it in an expression of its own. A node may add a second one
/// with any name, so all such volumes count for one node without a name, as do such capacities.
fn node_of_term(term: &NodeSelectorTerm) -> Option<&str> {
    let expressions = term.match_expressions.iter().flatten();
    let mut of_nodes = expressions.filter(|expression| NODE_KEYS.contains(&&*expression.key));
    let first = of_nodes.next()?;
    if of_nodes.next().is_some() {
        return Some("");
    }
    match first.values.as_deref() {
        Some([node]) if first.operator == "In" => Some(node),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const NODE: &str = NODE_KEYS[0];
    const OTHER: &str = NODE_KEYS[1];

    /// A volume with a term of these expressions.
    fn volume(expressions: Value) -> PersistentVolume {
        let terms = json!([{"matchExpressions": expressions}]);
        crate::testing::read(json!({"metadata": {"name": "v"},
            "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}}))
    }

    fn within(key: &str, nodes: &[&str]) -> Value {
        json!({"key": key, "operator": "In", "values": nodes})
    }

    #[rstest]
    #[case::of_a_node(json!([within(NODE, &["n1"])]), Some("n1"))]
    #[case::with_the_other_key(json!([within(OTHER, &["n1"])]), Some("n1"))]
    #[case::with_both_keys(json!([within(OTHER, &["n2"]), within(NODE, &["n1"])]), Some(""))]
    #[case::of_a_node_in_a_zone(json!([within("zone", &["z"]), within(NODE, &["n1"])]), Some("n1"))]
    #[case::with_two_names(json!([within(NODE, &["x"]), within(NODE, &["n1"])]), Some(""))]
    #[case::of_several_nodes(json!([within(NODE, &["n1", "n2"])]), None)]
    #[case::of_a_zone(json!([within("zone", &["z"])]), None)]
    #[case::not_on_a_node(json!([{"key": NODE, "operator": "NotIn", "values": ["n1"]}]), None)]
    #[case::on_any_node(json!([{"key": NODE, "operator": "Exists"}]), None)]
    fn a_volume_counts_for_its_node(#[case] expressions: Value, #[case] expected: Option<&str>) {
        assert_eq!(holder_of(&volume(expressions)), expected);
        assert_eq!(holder_of(&PersistentVolume::default()), None);
    }

    fn capacity(labels: Value) -> CSIStorageCapacity {
        crate::testing::read(json!({"metadata": {"name": "c", "namespace": "hostloop"},
            "storageClassName": "fast", "nodeTopology": {"matchLabels": labels}}))
    }

    fn claim(metadata: Value) -> PersistentVolumeClaim {
        crate::testing::read(json!({ "metadata": metadata }))
    }

    #[test]
    fn a_capacity_counts_for_its_node() {
        assert_eq!(holder_of(&capacity(json!({NODE: "n1"}))), Some("n1"));
        assert_eq!(holder_of(&capacity(json!({"zone": "z"}))), None);
        assert_eq!(holder_of(&CSIStorageCapacity::default()), None);
    }

    #[test]
    fn other_objects_count_for_their_namespaces() {
        let of_team = claim(json!({"namespace": "team", "name": "c"}));
        assert_eq!(holder_of(&of_team), Some("team"));
        assert_eq!(holder_of(&claim(json!({"name": "c"}))), None);
        assert!(is_of_nodes::<PersistentVolume>() && is_of_nodes::<CSIStorageCapacity>());
        assert!(!is_of_nodes::<PersistentVolumeClaim>());
    }
}
