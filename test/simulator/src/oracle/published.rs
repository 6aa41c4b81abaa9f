//! What the capacity objects of a node say beside its room.

use std::collections::BTreeSet;

use hostloop_fake_api::{FakeApi, Write};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::node_of;
use crate::model::view::{annotation, name, text};
use crate::oracle::objects::capacities_of;
use crate::trace;

/// The annotation with the pools of a node, separated by commas.
const POOLS: &str = "hostloop.csi.dev/pools";

/// Watches from now on that nodes make no capacity object without their pools. A correction may come
/// late, and until then no other process knows where a handle belongs.
pub(crate) fn watch(api: &FakeApi) {
    api.on_write(|write| {
        if let Some(capacity) = made_without_pools(write) {
            trace::violation(format!(
                "not published: {} makes a capacity object without its pools: {}",
                write.who, capacity["metadata"]
            ));
        }
    });
}

/// The capacity object that a node makes with this write, if it names no pool.
fn made_without_pools<'a>(write: &Write<'a>) -> Option<&'a Value> {
    node_of(write.who)?;
    let made = write.new.filter(|_| write.old.is_none())?;
    let is_capacity = text(made, "/kind") == "CSIStorageCapacity";
    let has_pools = annotation(made, POOLS).is_some_and(|pools| !pools.is_empty());
    (is_capacity && !has_pools).then_some(made)
}

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
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::named("node", "CSIStorageCapacity", json!({POOLS: "a1"}), false)]
    #[case::unnamed("node-2", "CSIStorageCapacity", Value::Null, true)]
    #[case::of_no_pool("node", "CSIStorageCapacity", json!({POOLS: ""}), true)]
    #[case::by_the_leader("leader", "CSIStorageCapacity", Value::Null, false)]
    #[case::of_another_kind("node", "PersistentVolume", Value::Null, false)]
    fn a_node_names_its_pools_from_the_first(
        #[case] who: &str,
        #[case] kind: &str,
        #[case] annotations: Value,
        #[case] expected: bool,
    ) {
        let object = json!({"kind": kind, "metadata": {"annotations": annotations}});
        let mut write = Write {
            who,
            method: "POST",
            path: "/",
            old: None,
            new: Some(&object),
        };
        assert_eq!(made_without_pools(&write).is_some(), expected);
        write.old = Some(&object);
        assert_eq!(made_without_pools(&write), None);
    }

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
