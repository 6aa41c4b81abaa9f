//! Chooses the StorageClasses that get capacity objects: those with late binding, which the scheduler
//! needs, and also those with Immediate binding, where the leader places claims by them.

use std::sync::Arc;

use k8s_openapi::api::storage::v1::StorageClass;

use super::Options;
use super::pass::Pass;
use crate::api::pvc;
use crate::api::scope::Scope;

/// True if classes with Immediate binding count.
pub(super) fn counts_immediate(options: &Options, scope: &Scope) -> bool {
    let on_nodes = scope.node().is_some();
    options.capacity_for_immediate_binding.unwrap_or(on_nodes)
}

impl Pass {
    /// The classes of this driver that get objects.
    pub(super) fn classes(&self) -> Vec<Arc<StorageClass>> {
        let mut classes = self.context.caches.classes().all();
        classes.retain(|class| {
            let has_capacity = self.immediate || pvc::is_delayed(class);
            class.provisioner == self.context.driver.name && has_capacity
        });
        classes
    }
}
