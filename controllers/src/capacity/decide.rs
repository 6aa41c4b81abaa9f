//! Decides which capacity objects to write; pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::capacity::{DRIVER, MANAGED_BY, managed_by};
use crate::api::quantity;
use crate::controller::EventKey;
use crate::csi::pools;
use crate::node_endpoint;
use crate::queue::QueueKey;

/// Subject of a capacity object: a class and a topology segment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    pub(super) class: String,
    pub(super) segment: BTreeMap<String, String>,
}

impl Item {
    /// True if the object has this subject.
    pub(super) fn is_of(&self, object: &CSIStorageCapacity) -> bool {
        item(object) == *self
    }
}

/// Room for volumes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FreeCapacity {
    pub(super) available: i64,
    /// Size of the largest volume that can be made, if the driver reports it.
    pub(super) largest: Option<i64>,
}

/// The objects that should exist, with their room. `None` if the room is unknown at present; an
/// existing object then keeps its value.
pub(super) type DesiredObjects = BTreeMap<Item, Option<FreeCapacity>>;

/// How exactly the published room must match the present room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Precision {
    /// To the byte.
    Exact,
    /// Small changes relative to the room may wait for an exact pass. Otherwise each node would
    /// write once for each of many volumes.
    Approximate,
}

impl QueueKey for Precision {}

impl EventKey for Precision {
    fn text(&self) -> String {
        match self {
            Precision::Exact => "exact".to_owned(),
            Precision::Approximate => "approximate".to_owned(),
        }
    }
}

/// A change of less than 1/SMALL of the capacity is small.
const SMALL: u64 = 32;

fn is_near(published: i64, now: i64) -> bool {
    published.abs_diff(now) < published.max(0).unsigned_abs() / SMALL
}

impl Precision {
    /// True if the published room is close enough.
    fn takes(self, published: FreeCapacity, now: FreeCapacity) -> bool {
        published == now
            || self == Precision::Approximate
                && is_near(published.available, now.available)
                && match (published.largest, now.largest) {
                    (Some(published), Some(now)) => published == now || is_near(published, now),
                    (published, now) => published == now,
                }
    }
}

/// Other metadata of the objects. A field that is `None` is left as it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Marks {
    /// The controlling owner of the objects.
    pub(super) owner: Option<OwnerReference>,
    /// The pools of this node, separated by commas.
    pub(super) pools: Option<String>,
    /// Where the leader reads this node's changed blocks.
    pub(super) endpoint: Option<String>,
}

/// What a pass decides by.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) desired: DesiredObjects,
    /// The existing objects of this writer.
    pub(super) objects: Vec<Arc<CSIStorageCapacity>>,
    pub(super) marks: Marks,
}

/// A write to the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Create(Item, FreeCapacity),
    Update(Arc<CSIStorageCapacity>, FreeCapacity),
    Delete(Arc<CSIStorageCapacity>),
}

/// Decides the writes for exactly one object per item, with the present room. Creations come first
/// and deletions last: where one object replaces another, the node always has one.
pub(super) fn decide(facts: &Facts, precision: Precision) -> Vec<Step> {
    let Facts {
        desired,
        objects,
        marks,
    } = facts;
    let mut published = BTreeSet::new();
    let (mut updates, mut deletes) = (Vec::new(), Vec::new());
    for object in objects {
        let item = item(object);
        match desired.get(&item) {
            Some(room) if published.insert(item) => {
                let known = self::room(object);
                let room = room.or(known);
                if let Some(room) = room
                    && !(known.is_some_and(|published| precision.takes(published, room))
                        && marks.are_on(object))
                {
                    updates.push(Step::Update(object.clone(), room));
                }
            }
            // The item is obsolete, or has another object already.
            _ => deletes.push(Step::Delete(object.clone())),
        }
    }
    let missing = desired
        .iter()
        .filter(|(item, _)| !published.contains(*item));
    let mut steps: Vec<_> = missing
        .filter_map(|(item, room)| Some(Step::Create(item.clone(), (*room)?)))
        .collect();
    steps.extend(updates);
    steps.extend(deletes);
    steps
}

fn item(object: &CSIStorageCapacity) -> Item {
    let selector = object.node_topology.as_ref();
    let labels = selector.and_then(|selector| selector.match_labels.clone());
    Item {
        class: object.storage_class_name.clone(),
        segment: labels.unwrap_or_default(),
    }
}

fn room(object: &CSIStorageCapacity) -> Option<FreeCapacity> {
    let largest = match &object.maximum_volume_size {
        None => None,
        Some(quantity) => Some(quantity::bytes(&quantity.0)?),
    };
    Some(FreeCapacity {
        available: quantity::bytes(&object.capacity.as_ref()?.0)?,
        largest,
    })
}

/// The quantity in a form that is easy to read.
fn written(bytes: i64) -> Quantity {
    Quantity(quantity::written(bytes))
}

impl Marks {
    fn are_on(&self, object: &CSIStorageCapacity) -> bool {
        let annotations = object.annotations();
        self.owner.as_ref().is_none_or(|owner| {
            object
                .owner_references()
                .iter()
                .any(|one| one.uid == owner.uid && one.controller == Some(true))
        }) && self
            .annotations()
            .all(|(key, value)| annotations.get(key) == Some(value))
    }

    /// The annotations that an object should have.
    fn annotations(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let pools = self.pools.iter().map(|pools| (pools::ANNOTATION, pools));
        let endpoint = self.endpoint.iter();
        pools.chain(endpoint.map(|endpoint| (node_endpoint::ANNOTATION, endpoint)))
    }

    /// The owners that an object should have. Only one owner may be its controller.
    fn owners(&self, object: &CSIStorageCapacity) -> Option<Vec<OwnerReference>> {
        let owner = self.owner.clone()?;
        let others = object.owner_references().iter();
        let others = others.filter(|one| one.controller != Some(true) && one.uid != owner.uid);
        Some(others.cloned().chain([owner.clone()]).collect())
    }

    /// The merge patch that updates an object. Its resource version guards against other writes.
    pub(super) fn patch(&self, object: &CSIStorageCapacity, room: FreeCapacity) -> Value {
        let mut metadata = json!({"resourceVersion": object.metadata.resource_version});
        if let Some(owners) = self.owners(object) {
            metadata["ownerReferences"] = json!(owners);
        }
        for (key, value) in self.annotations() {
            metadata["annotations"][key] = json!(value);
        }
        json!({
            "metadata": metadata,
            "capacity": written(room.available),
            "maximumVolumeSize": room.largest.map(written),
        })
    }
}

/// Labels that identify the writer of an object: the driver, and the process that manages it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) driver: String,
    pub(super) managed_by: String,
}

impl Writer {
    pub(super) fn new(driver: &str, node: Option<&str>) -> Self {
        Writer {
            driver: driver.to_owned(),
            managed_by: managed_by(node),
        }
    }

    /// Builds a new object.
    pub(super) fn object(
        &self,
        item: &Item,
        room: FreeCapacity,
        namespace: &str,
        marks: &Marks,
    ) -> CSIStorageCapacity {
        let labels = [(DRIVER, &self.driver), (MANAGED_BY, &self.managed_by)];
        let annotations: BTreeMap<String, String> = marks
            .annotations()
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .collect();
        CSIStorageCapacity {
            metadata: ObjectMeta {
                generate_name: Some("csisc-".to_owned()),
                namespace: Some(namespace.to_owned()),
                labels: Some(
                    labels
                        .map(|(key, value)| (key.to_owned(), value.clone()))
                        .into(),
                ),
                annotations: (!annotations.is_empty()).then_some(annotations),
                owner_references: marks.owner.as_ref().map(|owner| vec![owner.clone()]),
                ..ObjectMeta::default()
            },
            storage_class_name: item.class.clone(),
            node_topology: Some(LabelSelector {
                match_labels: (!item.segment.is_empty()).then(|| item.segment.clone()),
                match_expressions: None,
            }),
            capacity: Some(written(room.available)),
            maximum_volume_size: room.largest.map(written),
        }
    }
}

#[cfg(test)]
mod tests;
