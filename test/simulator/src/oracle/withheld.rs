//! After a quiet time, nodes publish all the room of their pools. Otherwise claims are refused for which
//! there is room.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_driver::storage::Provisioning;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::foreign::is_foreign;
use crate::machine::Machine;
use crate::model::view::{collection, name, text};
use crate::oracle::capacity::{available, provisioning};
use crate::oracle::objects::node_of_capacity;
use crate::oracle::promises::{LATE, LITTLE, Promises, Space};
use crate::users::bytes;
use crate::{effects, filesystems, shim, trace};

/// The parameter with the filesystem of a class.
const FS: &str = "csi.storage.k8s.io/fstype";
/// The parameters of the classes of which the oracle knows the room.
const KNOWN: [&str; 2] = [FS, "provisioning"];

/// What a driver may leave out of its own room, in bytes. That is less than the tables of a filesystem,
/// which a snapshot must not promise again.
const SMALL: u64 = 256 << 10;

/// The capacities that are less than pools have left.
#[derive(Default)]
pub(super) struct Withheld {
    /// Since when, by their names.
    since: BTreeMap<String, Duration>,
}

impl Withheld {
    /// Compares what nodes publish with what their pools have now.
    pub(super) fn note(&mut self, cluster: &Cluster, promises: &Promises) {
        let mut all = BTreeMap::new();
        for capacity in cluster.api.shared("csistoragecapacities") {
            if is_withheld(cluster, promises, &capacity) {
                let name = name(&capacity).to_owned();
                let since = self.since.get(&name).copied();
                all.insert(name, since.unwrap_or_else(shim::now));
            }
        }
        self.since = all;
    }

    /// Checks that no node has published too little for long, and that drivers know what they have.
    pub(super) fn check(&self, cluster: &Cluster, promises: &Promises) {
        if cluster.has_no_troubles() {
            let machines = cluster.machines.iter();
            for breach in machines.filter_map(|machine| unknown_room(machine, promises)) {
                trace::violation(breach);
            }
        }
        for capacity in cluster.api.shared("csistoragecapacities") {
            let since = self.since.get(name(&capacity)).copied();
            let Some(since) = since.filter(|since| shim::now() >= *since + LATE) else {
                continue;
            };
            let node = node_of_capacity(&capacity);
            trace::violation(format!(
                "published too little: {} of class {} on {node}, since {since:?}: the pool has {:?}",
                capacity["capacity"],
                capacity["storageClassName"],
                promises.space(node)
            ));
        }
    }
}

/// True if a capacity is less than the pool of its node has left for the volumes of its class.
fn is_withheld(cluster: &Cluster, promises: &Promises, capacity: &Value) -> bool {
    let node = node_of_capacity(capacity);
    let machine = cluster.machine_named(node);
    if is_foreign(capacity) || !machine.is_some_and(is_at_rest) {
        return false;
    }
    let class = text(capacity, "/storageClassName");
    let at = format!("{}/{class}", collection("storageclasses", ""));
    let found = cluster.api.shared_at(&at).zip(promises.space(node));
    found.is_some_and(|(object, space)| {
        let provisioning = provisioning(cluster, class, "");
        room(&object, provisioning, space).is_some_and(|room| is_less(capacity, room))
    })
}

/// The room that a driver does not know of, where snapshots share blocks: it lacks what they promise
/// twice.
fn unknown_room(machine: &Machine, promises: &Promises) -> Option<String> {
    if !machine.shares_blocks() || !is_at_rest(machine) {
        return None;
    }
    let space = promises.space_now(machine);
    let least = space.least_left(Provisioning::Thin);
    let known = available(machine, Provisioning::Thin)?;
    (known + SMALL < least).then(|| {
        format!(
            "too much is promised to snapshots: the driver of {} has {known} bytes left, of at least \
             {least}: the pool has {space:?}",
            machine.name()
        )
    })
}

/// True if a node makes no change, and all records of its pool are known.
fn is_at_rest(machine: &Machine) -> bool {
    let pool = machine.pools().map(|pools| pools.named(None));
    pool.is_some_and(|pool| pool.is_ok())
        && !machine.is_gone()
        && !machine.is_busy()
        && !effects::is_disk_full(machine.name())
        && machine.unreadable().next().is_none()
}

/// The room for the volumes of a class, in bytes; `None` if the oracle does not know it. Room for less
/// than the smallest volume is none.
fn room(class: &Value, provisioning: Provisioning, space: Space) -> Option<u64> {
    let parameters = class["parameters"].as_object()?;
    let is_known = parameters.keys().all(|key| KNOWN.contains(&key.as_str()));
    if !is_known || !class["mountOptions"].is_null() {
        return None;
    }
    let fs = parameters.get(FS).and_then(Value::as_str);
    let smallest = filesystems::smallest(fs.unwrap_or_default());
    let room = space.least_left(provisioning).saturating_sub(LITTLE);
    Some(room).filter(|room| *room >= smallest)
}

/// True if a capacity is less than this room.
fn is_less(capacity: &Value, room: u64) -> bool {
    let largest = &capacity["maximumVolumeSize"];
    bytes(&capacity["capacity"]) < room || !largest.is_null() && bytes(largest) < room
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::plain(json!({"parameters": {FS: "ext4"}}), true)]
    #[case::thick(json!({"parameters": {FS: "ext4", "provisioning": "thick"}}), true)]
    #[case::of_a_pool(json!({"parameters": {FS: "ext4", "pool": "elsewhere"}}), false)]
    #[case::with_options(json!({"parameters": {FS: "ext4"}, "mountOptions": ["refused"]}), false)]
    #[case::without_parameters(json!({}), false)]
    fn the_room_is_known_for_plain_classes(#[case] class: Value, #[case] expected: bool) {
        let found = room(&class, Provisioning::Thin, Space::promising(0));
        assert_eq!(found.is_some(), expected, "{class}");
    }

    #[test]
    fn room_for_less_than_the_smallest_volume_is_none() {
        let left = |bytes: u64| {
            let whole = Space::promising(0).least_left(Provisioning::Thin);
            Space::promising(whole - bytes)
        };
        for (fs, least) in [("ext4", 16_u64 << 20), ("xfs", 300 << 20)] {
            let class = json!({"parameters": {FS: fs}});
            for (bytes, expected) in [(least, Some(least)), (least - 4096, None)] {
                let found = room(&class, Provisioning::Thin, left(bytes + LITTLE));
                assert_eq!(found, expected, "{fs} {bytes}");
            }
        }
    }

    #[test]
    fn both_figures_of_a_capacity_are_compared() {
        for (capacity, largest, expected) in [
            ("8Mi", json!("8Mi"), false),
            ("9Mi", json!("8Mi"), false),
            ("7Mi", json!("8Mi"), true),
            ("8Mi", json!("7Mi"), true),
            ("8Mi", Value::Null, false),
        ] {
            let published = json!({"capacity": capacity, "maximumVolumeSize": largest});
            assert_eq!(is_less(&published, 8 << 20), expected, "{published}");
        }
    }
}
