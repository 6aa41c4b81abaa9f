//! A node that has left for good offers no room: its capacity objects are deleted. No process is left
//! that made them, so only the leader can do it.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::{Cluster, TOPOLOGY};
use crate::foreign::is_foreign;
use crate::model::view::name;
use crate::trace;

/// Checks the capacity objects of hostloop after a quiet time.
pub(super) fn are_deleted(cluster: &Cluster) {
    let mut capacities = cluster.api.shared("csistoragecapacities");
    capacities.retain(|capacity| !is_foreign(capacity));
    let gone = cluster.machines.iter().filter(|machine| machine.is_gone());
    for node in gone.map(|machine| machine.name()) {
        for capacity in of_node(&capacities, node) {
            trace::violation(format!(
                "not deleted: {} of node {node}, which has left for good: {}",
                name(capacity),
                capacity["metadata"]["labels"]
            ));
        }
    }
}

/// The capacity objects that offer room on a node.
fn of_node<'a>(capacities: &'a [Arc<Value>], node: &str) -> impl Iterator<Item = &'a Value> {
    let all = capacities.iter().map(|capacity| &**capacity);
    all.filter(move |capacity| capacity["nodeTopology"]["matchLabels"][TOPOLOGY] == *node)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn capacities_of_a_node_are_found() {
        let capacity = |name: &str, node: &str| {
            Arc::new(json!({"metadata": {"name": name},
                "nodeTopology": {"matchLabels": {TOPOLOGY: node}}}))
        };
        let all = [
            capacity("a", "n1"),
            capacity("b", "n2"),
            capacity("c", "n1"),
        ];
        let found: Vec<&str> = of_node(&all, "n1").map(name).collect();
        assert_eq!(found, ["a", "c"]);
        assert_eq!(of_node(&all, "n3").count(), 0);
    }
}
