//! A message for users if a claim has an access mode for several nodes, but its volume is on one.
//! CSI lets a driver accept such a claim: the mode allows pods to share the volume, and the node
//! affinity keeps them together.

use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume};

use crate::api::pv;

/// The access modes that allow pods on several nodes.
const MULTI_NODE: [&str; 2] = ["ReadOnlyMany", "ReadWriteMany"];

/// Returns the message for the claim of a new volume on `node`; `None` if its access modes promise
/// no more than one node, or if the affinity does not name this node alone.
pub(crate) fn message(volume: &PersistentVolume, node: &str) -> Option<String> {
    let spec = volume.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let modes: Vec<&str> = modes
        .iter()
        .map(String::as_str)
        .filter(|mode| MULTI_NODE.contains(mode))
        .collect();
    let tied = match pv::node_terms(volume)? {
        [term] => names_only(term, node),
        _ => false,
    };
    (tied && !modes.is_empty()).then(|| {
        format!(
            "All pods of this claim run on node {node}, because its volume is there. {} lets them \
             share it on that node only: a pod that cannot run on {node} stays Pending",
            modes.join(" and ")
        )
    })
}

/// True if a requirement of the term has the node's name as its only value. Drivers with volumes of
/// one node have a topology key for it.
fn names_only(term: &NodeSelectorTerm, node: &str) -> bool {
    let requirements = term.match_expressions.as_deref().unwrap_or_default();
    requirements.iter().any(|one| {
        one.operator == "In" && matches!(one.values.as_deref(), Some([value]) if value == node)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{affinity, read, shared};

    #[test]
    fn claims_that_need_the_message() {
        let here = affinity("zone", &["n1"]);
        let with_zone = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "node", "operator": "In", "values": ["n1"]},
            {"key": "zone", "operator": "In", "values": ["a"]},
        ]}]}});
        let two_terms = json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "node", "operator": "In", "values": ["n1"]}]},
            {"matchExpressions": [{"key": "node", "operator": "In", "values": ["n2"]}]},
        ]}});
        let not_here = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "node", "operator": "NotIn", "values": ["n1"]},
        ]}]}});
        for (modes, affinity, named) in [
            (
                &["ReadWriteMany"][..],
                here.clone(),
                Some("ReadWriteMany lets"),
            ),
            (&["ReadOnlyMany"], here.clone(), Some("ReadOnlyMany lets")),
            (
                &["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"],
                here.clone(),
                Some("ReadOnlyMany and ReadWriteMany lets"),
            ),
            (&["ReadWriteMany"], with_zone, Some("ReadWriteMany lets")),
            (&["ReadWriteOnce"], here.clone(), None),
            (&["ReadWriteOncePod"], here.clone(), None),
            (&[], here, None),
            (&["ReadWriteMany"], affinity("zone", &["a"]), None),
            (&["ReadWriteMany"], affinity("node", &["n1", "n2"]), None),
            (&["ReadWriteMany"], two_terms, None),
            (&["ReadWriteMany"], not_here, None),
            (&["ReadWriteMany"], Value::Null, None),
        ] {
            let volume = json!({"spec": {"accessModes": modes, "nodeAffinity": affinity}});
            let message = message(&read(volume.clone()), "n1");
            let expected = match (&message, named) {
                (None, None) => true,
                (Some(text), Some(named)) => {
                    text.starts_with("All pods of this claim run on node n1,")
                        && text.contains(named)
                }
                _ => false,
            };
            assert!(expected, "{volume}: {message:?}");
        }
    }

    #[test]
    fn a_shared_volume_needs_the_message_if_its_kernel_has_one_node() {
        for (nodes, expected) in [(&["n1"][..], true), (&["n1", "n2"], false)] {
            let volume = json!({"spec": {"accessModes": ["ReadWriteMany"], "csi": {
                "driver": "d", "volumeHandle": "h"}}});
            let volume = shared(volume, "node", nodes);
            assert_eq!(
                message(&read(volume), "n1").is_some(),
                expected,
                "{nodes:?}"
            );
        }
    }
}
