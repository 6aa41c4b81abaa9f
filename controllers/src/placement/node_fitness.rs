//! Reasons why a node can't take a claim.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;

use crate::api::{node, quantity};
use crate::client::Resource;

/// Why a node can't take a claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfit {
    #[error("is cordoned")]
    Cordoned,
    /// The condition `Ready` is not `True`: kubelet reports a problem, or no longer reports at all.
    #[error("is not ready")]
    NotReady,
    #[error("is under disk pressure")]
    DiskPressure,
    #[error("is being deleted")]
    Deleting,
    #[error("is out of service")]
    OutOfService,
    /// The driver is not in the node's CSINode.
    #[error("does not run the CSI driver")]
    NoDriver,
    #[error("is not in the class's allowedTopologies")]
    NotAllowed,
    #[error("does not have the claim's source")]
    NoSource,
    #[error("had no room for it a moment ago")]
    Refused,
    /// The node has no capacity object for the class.
    #[error("has not published its capacity")]
    CapacityUnknown,
    #[error("{}", little(*left))]
    Little {
        /// Bytes that are left after the assignments.
        left: i64,
    },
    #[error("makes volumes up to {}", quantity::written(*largest))]
    TooLarge {
        /// Bytes of the largest volume it makes.
        largest: i64,
    },
}

fn little(left: i64) -> String {
    match left {
        0 => "has none for volumes of this class".to_owned(),
        left => format!("has {} left", quantity::written(left.max(0))),
    }
}

/// Why a node can't take any claim of the driver, if so.
pub(super) fn of_node(node: &Node, registered: Option<&CSINode>, driver: &str) -> Option<Unfit> {
    let runs = registered.is_some_and(|node| node::registered(node, driver).is_some());
    let [deleting, out, unready, cordoned, pressed] = of_itself(node);
    let unfit_nodes = [deleting, out, unready, (!runs, Unfit::NoDriver), cordoned, pressed];
    unfit_nodes.into_iter().find(|(is, _)| *is).map(|(_, unfit)| unfit)
}

/// The reasons in the Node object itself, each with whether it applies.
fn of_itself(node: &Node) -> [(bool, Unfit); 5] {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    // A condition that the node never reported excludes nothing.
    let unready = node::condition(node, "Ready").is_some_and(|is| is != "True");
    let pressed = node::condition(node, "DiskPressure") == Some("True");
    [
        (node.is_deleting(), Unfit::Deleting),
        (node::is_out_of_service(node), Unfit::OutOfService),
        (unready, Unfit::NotReady),
        (cordoned, Unfit::Cordoned),
        (pressed, Unfit::DiskPressure),
    ]
}

/// True if a change of a node is irrelevant for placement, like a heartbeat.
pub(super) fn is_same(old: &Node, new: &Node) -> bool {
    of_itself(old) == of_itself(new) && old.metadata.labels == new.metadata.labels
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: &Value, conditions: &Value) -> Node {
        crate::testing::read(json!({"metadata": {"name": "n"}, "spec": spec,
            "status": {"conditions": conditions}}))
    }

    fn registered(driver: &str) -> CSINode {
        crate::testing::read(json!({"metadata": {"name": "n"}, "spec": {"drivers": [
            {"name": driver, "nodeID": "n", "topologyKeys": []}]}}))
    }

    #[test]
    fn what_a_node_says_that_counts() {
        let is = |kind: &str, status: &str| json!([{"type": kind, "status": status}]);
        let (none, ready) = (json!({}), is("Ready", "True"));
        let was = node(&none, &ready);
        let mut beaten = was.clone();
        beaten.metadata.resource_version = Some("2".to_owned());
        beaten.status.get_or_insert_default().node_info = None;
        let mut labelled = was.clone();
        labelled.metadata.labels = Some([("zone".to_owned(), "a".to_owned())].into());
        for (what, now, same) in [
            ("a heartbeat", beaten, true),
            ("a label", labelled, false),
            ("cordoned", node(&json!({"unschedulable": true}), &ready), false),
            ("not ready", node(&none, &is("Ready", "False")), false),
            ("full", node(&none, &is("DiskPressure", "True")), false),
        ] {
            assert_eq!(is_same(&was, &now), same, "{what}");
            assert_eq!(is_same(&now, &was), same, "{what}");
        }
    }

    #[test]
    fn nodes_that_get_no_claims() {
        let none = json!({});
        let is = |kind: &str, status: &str| json!([{"type": kind, "status": status}]);
        let ready = is("Ready", "True");
        let out = json!({"taints": [{"key": node::OUT_OF_SERVICE, "effect": "NoExecute"}]});
        let other = json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}]});
        let ours = registered("d");
        for (what, spec, conditions, csi_node, unfit) in [
            ("well", &none, &ready, Some(&ours), None),
            ("silent", &none, &json!([]), Some(&ours), None),
            ("tainted", &other, &ready, Some(&ours), None),
            (
                "cordoned",
                &json!({"unschedulable": true}),
                &ready,
                Some(&ours),
                Some(Unfit::Cordoned),
            ),
            ("not ready", &none, &is("Ready", "False"), Some(&ours), Some(Unfit::NotReady)),
            ("lost", &none, &is("Ready", "Unknown"), Some(&ours), Some(Unfit::NotReady)),
            ("full", &none, &is("DiskPressure", "True"), Some(&ours), Some(Unfit::DiskPressure)),
            ("not full", &none, &is("DiskPressure", "False"), Some(&ours), None),
            ("out", &out, &ready, Some(&ours), Some(Unfit::OutOfService)),
            ("without drivers", &none, &ready, None, Some(Unfit::NoDriver)),
            ("with another", &none, &ready, Some(&registered("e")), Some(Unfit::NoDriver)),
        ] {
            assert_eq!(of_node(&node(spec, conditions), csi_node, "d"), unfit, "{what}");
        }
        let mut deleting = node(&none, &ready);
        deleting.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert_eq!(of_node(&deleting, Some(&ours), "d"), Some(Unfit::Deleting));
    }
}
