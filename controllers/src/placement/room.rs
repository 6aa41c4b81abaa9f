//! Reads the room of nodes in capacity objects.

use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;

use crate::api::quantity;
use crate::cache::store::version;

/// Room of a node for volumes of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeRoom {
    /// Bytes available.
    pub(super) available: i64,
    /// Bytes of the largest volume, if the driver reports it.
    pub(super) largest: Option<i64>,
    /// Resource version of the capacity object.
    pub(super) version: u64,
}

/// The room in a capacity object. Without a capacity, it is 0.
fn room(object: &CSIStorageCapacity) -> NodeRoom {
    let capacity = object.capacity.as_ref();
    let largest = object.maximum_volume_size.as_ref();
    NodeRoom {
        available: capacity
            .and_then(|capacity| quantity::bytes(&capacity.0))
            .unwrap_or(0),
        largest: largest.and_then(|largest| quantity::bytes(&largest.0)),
        version: version(object),
    }
}

/// The room in the newest of these objects.
pub(super) fn newest(objects: &[Arc<CSIStorageCapacity>]) -> Option<NodeRoom> {
    let rooms = objects.iter().map(|object| room(object));
    rooms.max_by_key(|room| room.version)
}

/// True if there may be more room than before.
pub(super) fn is_more(old: Option<&CSIStorageCapacity>, new: &CSIStorageCapacity) -> bool {
    let Some(old) = old.map(room) else {
        return true;
    };
    let new = room(new);
    let largest_before = old.largest.unwrap_or(i64::MAX);
    new.available > old.available || new.largest.unwrap_or(i64::MAX) > largest_before
}

/// Index key of the capacity objects of one node and class.
pub(super) fn key(keeper: &str, class: &str) -> String {
    format!("{keeper}/{class}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(version: u64, capacity: Value, largest: Value) -> Arc<CSIStorageCapacity> {
        let object = json!({
            "metadata": {"name": "c", "resourceVersion": version.to_string()},
            "storageClassName": "fast", "capacity": capacity, "maximumVolumeSize": largest,
        });
        Arc::new(serde_json::from_value(object).expect("an object"))
    }

    #[test]
    fn rooms() {
        let expected_room = |available, largest, version| {
            Some(NodeRoom {
                available,
                largest,
                version,
            })
        };
        let old = object(3, json!("1Gi"), json!("512Mi"));
        let new = object(10, json!("2048"), Value::Null);
        let empty = object(11, Value::Null, Value::Null);
        for (objects, room) in [
            (vec![], None),
            (
                vec![old.clone()],
                expected_room(1 << 30, Some(512 << 20), 3),
            ),
            (
                vec![new.clone(), old.clone()],
                expected_room(2048, None, 10),
            ),
            (vec![new, empty], expected_room(0, None, 11)),
        ] {
            assert_eq!(newest(&objects), room, "{objects:?}");
        }
    }

    #[test]
    fn more_room() {
        let of = |available: &str, largest: Value| object(1, json!(available), largest);
        for (old, new, more) in [
            (None, of("0", Value::Null), true),
            (Some(of("10", Value::Null)), of("11", Value::Null), true),
            (Some(of("10", Value::Null)), of("10", Value::Null), false),
            (Some(of("10", Value::Null)), of("9", Value::Null), false),
            (Some(of("10", json!("4"))), of("9", json!("5")), true),
            (Some(of("10", json!("4"))), of("9", Value::Null), true),
            (Some(of("10", Value::Null)), of("9", json!("9")), false),
        ] {
            assert_eq!(is_more(old.as_deref(), &new), more, "{old:?} {new:?}");
        }
    }
}
