//! What to write, by what there should be and what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::ResourceExt;

use crate::runtime::scope::label_value;

/// The label that names the driver.
pub(crate) const DRIVER: &str = "csi.storage.k8s.io/drivername";
/// The label that names who keeps an object.
pub(crate) const MANAGED_BY: &str = "csi.storage.k8s.io/managed-by";
/// Who that is, to others that know upstream.
const MANAGER: &str = "external-provisioner";

/// What an object is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    pub(super) class: String,
    pub(super) segment: BTreeMap<String, String>,
}

/// What room there is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) available: i64,
    /// The largest volume that can be made, if the driver says so.
    pub(super) largest: Option<i64>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Create(Item, Room),
    Update(Arc<CSIStorageCapacity>, Room),
    Delete(Arc<CSIStorageCapacity>),
}

/// What to do so that there is one object for each item, saying what room there is.
pub(super) fn plan(
    wanted: &BTreeMap<Item, Room>,
    there: &[Arc<CSIStorageCapacity>],
) -> Vec<Action> {
    let mut told = BTreeSet::new();
    let mut actions = Vec::new();
    for object in there {
        let item = item(object);
        match wanted.get(&item) {
            Some(room) if told.insert(item) => {
                if self::room(object) != Some(*room) {
                    actions.push(Action::Update(object.clone(), *room));
                }
            }
            // Obsolete, or told twice.
            _ => actions.push(Action::Delete(object.clone())),
        }
    }
    let missing = wanted.iter().filter(|(item, _)| !told.contains(*item));
    actions.extend(missing.map(|(item, room)| Action::Create(item.clone(), *room)));
    actions
}

fn item(object: &CSIStorageCapacity) -> Item {
    let selector = object.node_topology.as_ref();
    let labels = selector.and_then(|selector| selector.match_labels.clone());
    Item {
        class: object.storage_class_name.clone(),
        segment: labels.unwrap_or_default(),
    }
}

fn room(object: &CSIStorageCapacity) -> Option<Room> {
    let bytes = |quantity: &Quantity| {
        quantity
            .0
            .parse::<i64>()
            .ok()
            .or_else(|| binary(&quantity.0))
    };
    let largest = match &object.maximum_volume_size {
        None => None,
        Some(quantity) => Some(bytes(quantity)?),
    };
    Some(Room {
        available: bytes(object.capacity.as_ref()?)?,
        largest,
    })
}

/// The API server may write `1073741824` as it was sent; others may have written `1Gi`.
fn binary(text: &str) -> Option<i64> {
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50)];
    let (unit, shift) = units.into_iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: i64 = text.strip_suffix(unit)?.parse().ok()?;
    number.checked_mul(1 << shift)
}

/// Bytes, in the form that needs no reading.
pub(super) fn quantity(bytes: i64) -> Quantity {
    Quantity(bytes.to_string())
}

/// Whose objects these are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) driver: String,
    pub(crate) managed_by: String,
}

impl Writer {
    pub(crate) fn new(driver: &str, node: Option<&str>) -> Self {
        let managed_by = match node {
            None => MANAGER.to_owned(),
            Some(node) => label_value(&format!("{MANAGER}-{node}")),
        };
        Writer {
            driver: driver.to_owned(),
            managed_by,
        }
    }

    /// A new object.
    pub(super) fn object(
        &self,
        item: &Item,
        room: Room,
        namespace: &str,
        owner: Option<&OwnerReference>,
    ) -> CSIStorageCapacity {
        let labels = [(DRIVER, &self.driver), (MANAGED_BY, &self.managed_by)];
        CSIStorageCapacity {
            metadata: ObjectMeta {
                generate_name: Some("csisc-".to_owned()),
                namespace: Some(namespace.to_owned()),
                labels: Some(
                    labels
                        .map(|(key, value)| (key.to_owned(), value.clone()))
                        .into(),
                ),
                owner_references: owner.map(|owner| vec![owner.clone()]),
                ..ObjectMeta::default()
            },
            storage_class_name: item.class.clone(),
            node_topology: Some(LabelSelector {
                match_labels: (!item.segment.is_empty()).then(|| item.segment.clone()),
                match_expressions: None,
            }),
            capacity: Some(quantity(room.available)),
            maximum_volume_size: room.largest.map(quantity),
        }
    }
}

/// The owner that controls an object.
pub(super) fn controller(object: &impl ResourceExt) -> Option<OwnerReference> {
    let owner = object
        .owner_references()
        .iter()
        .find(|owner| owner.controller == Some(true))?;
    Some(OwnerReference {
        block_owner_deletion: None,
        ..owner.clone()
    })
}

/// A reference to an object as the one that controls another.
pub(super) fn controlled_by(
    version: &str,
    kind: &str,
    object: &impl ResourceExt,
) -> OwnerReference {
    OwnerReference {
        api_version: version.to_owned(),
        kind: kind.to_owned(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(class: &str, node: &str) -> Item {
        let segment = BTreeMap::from([("t/node".to_owned(), node.to_owned())]);
        Item {
            class: class.to_owned(),
            segment,
        }
    }

    fn room(available: i64) -> Room {
        Room {
            available,
            largest: Some(available / 2),
        }
    }

    fn object(item: &Item, room: Room) -> Arc<CSIStorageCapacity> {
        Arc::new(Writer::new("d", None).object(item, room, "ns", None))
    }

    #[test]
    fn what_differs_is_written_and_nothing_else() {
        let (a, b) = (item("a", "n1"), item("b", "n1"));
        let elsewhere = item("a", "n2");
        let wanted = BTreeMap::from([(a.clone(), room(100)), (b.clone(), room(50))]);
        let (told_a, told_b) = (object(&a, room(100)), object(&b, room(50)));
        let stale = object(&b, room(70));
        let obsolete = object(&elsewhere, room(1));
        let mut other_form = (*told_a).clone();
        other_form.capacity = Some(Quantity("1Gi".to_owned()));
        other_form.maximum_volume_size = None;
        let gib = Room {
            available: 1 << 30,
            largest: None,
        };
        for (what, there, actions) in [
            ("all told", vec![told_a.clone(), told_b.clone()], vec![]),
            (
                "nothing",
                vec![],
                vec![
                    Action::Create(a.clone(), room(100)),
                    Action::Create(b.clone(), room(50)),
                ],
            ),
            (
                "one stale",
                vec![told_a.clone(), stale.clone()],
                vec![Action::Update(stale, room(50))],
            ),
            (
                "one twice, one obsolete",
                vec![told_a.clone(), told_a.clone(), told_b, obsolete.clone()],
                vec![Action::Delete(told_a.clone()), Action::Delete(obsolete)],
            ),
        ] {
            assert_eq!(plan(&wanted, &there), actions, "{what}");
        }
        assert_eq!(super::room(&other_form), Some(gib));
    }

    #[test]
    fn managers_have_the_name_of_their_node() {
        for (node, managed_by) in [
            (None, "external-provisioner"),
            (Some("n1"), "external-provisioner-n1"),
        ] {
            assert_eq!(Writer::new("d", node).managed_by, managed_by);
        }
    }
}
