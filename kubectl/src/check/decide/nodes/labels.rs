//! The topology labels of a node, which kubelet writes when it registers the driver.

use crate::check::facts::Facts;
use crate::check::line::Line;

/// What is wrong with a node's topology labels, if kubelet has registered the driver there.
pub(super) fn line(node: &str, facts: &Facts) -> Option<Line> {
    let csi_nodes = facts.csi_nodes.iter().flatten();
    let csi_node = csi_nodes
        .into_iter()
        .find(|n| n.metadata.name.as_deref() == Some(node))?;
    let driver = csi_node
        .spec
        .drivers
        .iter()
        .find(|driver| driver.name == facts.driver)?;
    let nodes = facts.nodes.iter().flatten();
    let found = nodes
        .into_iter()
        .find(|n| n.metadata.name.as_deref() == Some(node))?;
    let labels = found.metadata.labels.as_ref();
    let mut keys = driver.topology_keys.iter().flatten();
    // The driver's own key has the node's ID as its value.
    let own = format!("topology.{}/node", facts.driver);
    keys.find_map(|key| match labels.and_then(|labels| labels.get(key)) {
        None => Some(Line::failed(
            format!("Node {node} has lost its topology label {key}: its volumes can't be used"),
            "The driver has kubelet write it again within a minute. If it stays away, something \
             removes it.",
        )),
        Some(now) if *key == own && *now != driver.node_id => Some(Line::failed(
            format!(
                "Topology label {key} of node {node} is {now}, not {}",
                driver.node_id
            ),
            format!(
                "Pods with volumes of the node can't be scheduled: kubectl label node {node} \
                 {key}={} --overwrite",
                driver.node_id
            ),
        )),
        Some(_) => None,
    })
}
