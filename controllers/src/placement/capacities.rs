//! The capacity objects of all nodes, and their indexes.

use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;

use super::room::{self, NodeRoom};
use crate::api::capacity::{keeper_of, managed_by};
use crate::cache::{Index, Store};
use crate::csi::pools;

/// The capacity objects of this driver.
pub(super) struct Capacities {
    pub(super) store: Store<CSIStorageCapacity>,
    by_owner_and_class: Index<CSIStorageCapacity>,
    by_class: Index<CSIStorageCapacity>,
    /// By the pools they name.
    by_pool: Index<CSIStorageCapacity>,
}

impl Capacities {
    pub(super) fn new(store: Store<CSIStorageCapacity>) -> Self {
        Capacities {
            by_owner_and_class: store.index(|object| {
                let keeper = keeper_of(object);
                let key = keeper.map(|keeper| room::key(keeper, &object.storage_class_name));
                key.into_iter().collect()
            }),
            by_class: store.index(|object| vec![object.storage_class_name.clone()]),
            by_pool: store.index(pools::named_by),
            store,
        }
    }

    /// The room in a node's object for a class.
    pub(super) fn room(&self, node: &str, class: &str) -> Option<NodeRoom> {
        let keeper = managed_by(Some(node));
        room::newest(&self.by_owner_and_class.get(&room::key(&keeper, class)))
    }

    /// True if a node has an object for a class.
    pub(super) fn has_class(&self, class: &str) -> bool {
        self.by_class.first(class).is_some()
    }

    /// The objects that name a pool.
    pub(super) fn of_pool(&self, pool: &str) -> Vec<Arc<CSIStorageCapacity>> {
        self.by_pool.get(pool)
    }
}
