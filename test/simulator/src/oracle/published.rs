//! What the capacity objects of a node say beside its room.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{annotation, name};
use crate::oracle::objects::capacities_of;
use crate::trace;

/// The annotation with the pools of a node, separated by commas.
const POOLS: &str = "hostloop.csi.dev/pools";

/// Checks after a quiet time that each capacity object of a node names the pools of all that the node
/// has. By this alone do other processes know where a handle belongs.
pub(super) fn name_their_pools(cluster: &Cluster) {
    let present = cluster.machines.iter().filter(|one| !one.is_gone());
    for machine in present.filter(|one| one.pools().is_some()) {
        let handles = machine.handles();
        for capacity in capacities_of(cluster, machine.name()) {
            let unnamed = unnamed(&capacity, &handles);
            if !unnamed.is_empty() {
                trace::violation(format!(
                    "not published: {} of {} does not name the pools {unnamed:?}: {}",
                    name(&capacity),
                    machine.name(),
                    capacity["metadata"]["annotations"]
                ));
            }
        }
    }
}

/// The pools in handles that a capacity object does not name.
fn unnamed<'a>(capacity: &Value, handles: &'a BTreeSet<String>) -> BTreeSet<&'a str> {
    let named = annotation(capacity, POOLS).unwrap_or_default();
    let named: BTreeSet<&str> = named.split(',').collect();
    let pools = handles.iter().filter_map(|handle| pool_of(handle));
    pools.filter(|pool| !named.contains(pool)).collect()
}

/// The pool in a handle: the second of its parts.
fn pool_of(handle: &str) -> Option<&str> {
    handle.split('-').nth(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pools_without_a_name() {
        let handles = ["vol-a1-1", "vol-a1-2", "snap-b2-3"].map(str::to_owned);
        let handles = BTreeSet::from(handles);
        for (annotations, expected) in [
            (json!({POOLS: "a1,b2"}), vec![]),
            (json!({POOLS: "b2"}), vec!["a1"]),
            (json!({POOLS: "a1"}), vec!["b2"]),
            (json!({POOLS: "nonsense"}), vec!["a1", "b2"]),
            (Value::Null, vec!["a1", "b2"]),
        ] {
            let capacity = json!({"metadata": {"name": "c", "annotations": annotations}});
            let found: Vec<&str> = unnamed(&capacity, &handles).into_iter().collect();
            assert_eq!(found, expected, "{capacity}");
        }
    }
}
