//! Decides whether the cluster has lost what kubelet wrote when it registered the driver.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;

use crate::api::node::registered;

/// What the cluster has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The driver's entry in the CSINode, or topology keys of it.
    Registration,
    /// Labels of the Node, by their keys.
    Labels(Vec<String>),
    /// A label has another value.
    Changed {
        key: String,
        registered: String,
        now: String,
    },
}

/// Compares Node and CSINode with the topology that the driver reports.
pub(super) fn decide(
    driver: &str,
    segments: &BTreeMap<String, String>,
    node: &Node,
    csi_node: Option<&CSINode>,
) -> Option<Lost> {
    let labels = node.labels();
    let changed = segments.iter().find_map(|(key, registered)| {
        let now = labels.get(key).filter(|now| *now != registered)?.clone();
        Some(Lost::Changed {
            key: key.clone(),
            registered: registered.clone(),
            now,
        })
    });
    if changed.is_some() {
        return changed;
    }
    let missing = segments.keys().filter(|key| !labels.contains_key(*key));
    let missing: Vec<String> = missing.cloned().collect();
    if !missing.is_empty() {
        return Some(Lost::Labels(missing));
    }
    let keys = csi_node.and_then(|csi_node| registered(csi_node, driver));
    let keys = keys.map(|driver| driver.topology_keys.as_deref().unwrap_or_default());
    let is_whole = keys.is_some_and(|keys| segments.keys().all(|key| keys.contains(key)));
    (!is_whole).then_some(Lost::Registration)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registrar::lost::tests::{DRIVER, csi_node, entry, node, segments};

    #[test]
    fn what_a_cluster_can_lose() {
        let keys = &["key", "zone"];
        let both = json!({"key": "n1", "zone": "a", "other": "x"});
        let labels = |keys: &[&str]| {
            Some(Lost::Labels(
                keys.iter().map(|key| (*key).to_owned()).collect(),
            ))
        };
        let changed = |key: &str, registered: &str, now: &str| {
            let [key, registered, now] = [key, registered, now].map(str::to_owned);
            Some(Lost::Changed {
                key,
                registered,
                now,
            })
        };
        for (found, drivers, expected) in [
            (both.clone(), entry(keys), None),
            (json!({"key": "n1"}), entry(keys), labels(&["zone"])),
            (json!({}), entry(keys), labels(&["key", "zone"])),
            (
                json!({"key": "n2", "zone": "a"}),
                entry(keys),
                changed("key", "n1", "n2"),
            ),
            // Kubelet would refuse to register it.
            (json!({"key": "n2"}), json!([]), changed("key", "n1", "n2")),
            (both.clone(), json!([]), Some(Lost::Registration)),
            (both.clone(), entry(&["key"]), Some(Lost::Registration)),
        ] {
            let node = serde_json::from_value(node(found.clone())).unwrap();
            let csi_node = serde_json::from_value(csi_node(drivers.clone())).unwrap();
            let got = decide(DRIVER, &segments(), &node, Some(&csi_node));
            assert_eq!(got, expected, "{found} {drivers}");
        }
        let node = serde_json::from_value(node(both)).unwrap();
        assert_eq!(
            decide(DRIVER, &segments(), &node, None),
            Some(Lost::Registration)
        );
        // Without a topology, kubelet still has to know the driver.
        let csi_node = serde_json::from_value(csi_node(entry(&[]))).unwrap();
        assert_eq!(
            decide(DRIVER, &BTreeMap::new(), &node, Some(&csi_node)),
            None
        );
    }
}
