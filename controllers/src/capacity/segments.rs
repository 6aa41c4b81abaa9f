//! Topology segments that volumes can be in.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;

use crate::api::node;
use crate::api::scope::Scope;
use crate::api::topology::{NodeTopology, Segment};
use crate::cache::{Caches, Change};

/// The segments this process serves: its node's own, or all distinct segments of nodes with the
/// driver. A driver without topology has one empty segment, which means everywhere.
pub(super) fn segments(
    scope: &Scope,
    has_topology: bool,
    driver: &str,
    caches: &Caches,
) -> BTreeSet<Segment> {
    match scope {
        _ if !has_topology => BTreeSet::from([Segment::new()]),
        Scope::Node { segments, .. } => BTreeSet::from([segments.clone()]),
        Scope::Leader => BTreeSet::new(),
        Scope::Cluster => {
            let nodes = caches.nodes();
            caches
                .csi_nodes()
                .all()
                .iter()
                .filter_map(|csi_node| {
                    segment(csi_node, nodes.get(&csi_node.name_any())?.as_ref(), driver)
                })
                .collect()
        }
    }
}

/// True if a node's segment may have changed; most changes of nodes are irrelevant.
pub(super) fn moved(change: &Change<Node>) -> bool {
    let both = change.both();
    both.is_none_or(|(old, new)| old.labels() != new.labels())
}

/// True if the topology keys that the driver registered on a node may have changed.
pub(super) fn registered(change: &Change<CSINode>, driver: &str) -> bool {
    let both = change.both();
    both.is_none_or(|(old, new)| topology_keys(old, driver) != topology_keys(new, driver))
}

/// The topology keys that the driver registered on a node.
fn topology_keys<'n>(csi_node: &'n CSINode, driver: &str) -> Option<&'n [String]> {
    node::registered(csi_node, driver)?.topology_keys.as_deref()
}

/// The segment of a node. `None` if the node lacks the driver or some of its topology labels.
fn segment(csi_node: &CSINode, node: &Node, driver: &str) -> Option<Segment> {
    let place = NodeTopology::new(node, Some(csi_node), driver);
    place
        .segment(&place.keys)
        .filter(|segment| !segment.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{csi_node, read};

    #[test]
    fn changes_that_matter() {
        let node = |labels: serde_json::Value| -> Node {
            read(json!({"metadata": {"name": "n", "labels": labels}}))
        };
        let csi_node = |driver: &str, key: &str| -> CSINode { read(csi_node("n", driver, key)) };
        let here = node(json!({"zone": "a"}));
        for (old, new, news) in [
            (None, here.clone(), true),
            (Some(here.clone()), here.clone(), false),
            (Some(here.clone()), node(json!({"zone": "b"})), true),
        ] {
            let (old, new) = (old.map(Into::into), new.into());
            assert_eq!(moved(&Change::Applied { old, new }), news);
        }
        assert!(moved(&Change::Deleted(here.into())));
        let ours = csi_node("d", "zone");
        for (old, new, news) in [
            (None, ours.clone(), true),
            (Some(ours.clone()), ours.clone(), false),
            (Some(ours.clone()), csi_node("d", "rack"), true),
            (Some(ours.clone()), csi_node("e", "zone"), true),
            (Some(csi_node("e", "x")), csi_node("e", "y"), false),
        ] {
            let (old, new) = (old.map(Into::into), new.into());
            assert_eq!(registered(&Change::Applied { old, new }, "d"), news);
        }
        assert!(registered(&Change::Deleted(ours.into()), "d"));
    }

    #[test]
    fn places_of_nodes() {
        let caches = Caches::unwatched();
        for (name, labels, driver) in [
            ("n1", json!({"zone": "a", "rack": "1"}), "d"),
            ("n2", json!({"zone": "a"}), "d"),
            ("n3", json!({"zone": "b"}), "d"),
            ("unlabelled", json!({}), "d"),
            ("other", json!({"zone": "c"}), "e"),
        ] {
            let node = json!({"metadata": {"name": name, "labels": labels}});
            caches.nodes().apply_write(read(node));
            caches
                .csi_nodes()
                .apply_write(read(csi_node(name, driver, "zone")));
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
