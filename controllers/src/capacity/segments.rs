//! The places volumes can be in.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;

use crate::runtime::{Caches, Scope};

type Segment = BTreeMap<String, String>;

/// The places the loops serve: this node's own, or every different one that nodes with the driver
/// are in. A driver without topology has one place, which is everywhere.
pub(super) fn segments(
    scope: &Scope,
    has_topology: bool,
    driver: &str,
    caches: &Caches,
) -> BTreeSet<Segment> {
    match scope {
        _ if !has_topology => BTreeSet::from([Segment::new()]),
        Scope::Node { segments, .. } => BTreeSet::from([segments.clone()]),
        Scope::Cluster => {
            let nodes = caches.nodes();
            let of_node = |csi_node: &CSINode| {
                segment(csi_node, nodes.get(&csi_node.name_any())?.as_ref(), driver)
            };
            caches
                .csi_nodes()
                .all()
                .iter()
                .filter_map(|csi_node| of_node(csi_node))
                .collect()
        }
    }
}

/// Where a node is in the driver's terms; `None` if it does not have the driver, or not all labels
/// yet.
fn segment(csi_node: &CSINode, node: &Node, driver: &str) -> Option<Segment> {
    let registered = csi_node
        .spec
        .drivers
        .iter()
        .find(|known| known.name == driver)?;
    let keys = registered
        .topology_keys
        .as_deref()
        .filter(|keys| !keys.is_empty())?;
    keys.iter()
        .map(|key| Some((key.clone(), node.labels().get(key)?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn places_of_nodes() {
        let caches = Caches::unwatched();
        for (name, labels, drivers) in [
            (
                "n1",
                json!({"zone": "a", "rack": "1"}),
                json!([{"name": "d", "nodeID": "x", "topologyKeys": ["zone"]}]),
            ),
            (
                "n2",
                json!({"zone": "a"}),
                json!([{"name": "d", "nodeID": "x", "topologyKeys": ["zone"]}]),
            ),
            (
                "n3",
                json!({"zone": "b"}),
                json!([{"name": "d", "nodeID": "x", "topologyKeys": ["zone"]}]),
            ),
            (
                "unlabelled",
                json!({}),
                json!([{"name": "d", "nodeID": "x", "topologyKeys": ["zone"]}]),
            ),
            (
                "other",
                json!({"zone": "c"}),
                json!([{"name": "e", "nodeID": "x", "topologyKeys": ["zone"]}]),
            ),
        ] {
            let node = json!({"metadata": {"name": name, "labels": labels}});
            caches
                .nodes()
                .wrote(serde_json::from_value(node).expect("a node"));
            let csi_node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
            caches
                .csi_nodes()
                .wrote(serde_json::from_value(csi_node).expect("a CSINode"));
        }
        let zone = |value: &str| Segment::from([("zone".to_owned(), value.to_owned())]);
        let found = segments(&Scope::Cluster, true, "d", &caches);
        assert_eq!(found, BTreeSet::from([zone("a"), zone("b")]));
        let here = Scope::Node {
            name: "n1".to_owned(),
            segments: zone("a"),
        };
        assert_eq!(
            segments(&here, true, "d", &caches),
            BTreeSet::from([zone("a")])
        );
        assert_eq!(
            segments(&Scope::Cluster, false, "d", &caches),
            BTreeSet::from([Segment::new()])
        );
    }
}
