//! Chooses the StorageClasses that get capacity objects: those with late binding, for the
//! scheduler, and those with Immediate binding if the leader places their claims.

use std::sync::Arc;

use k8s_openapi::api::storage::v1::StorageClass;

use super::Options;
use crate::api::pvc;
use crate::api::scope::Scope;
use crate::controller::Context;

/// True if classes with Immediate binding count.
pub(super) fn counts_immediate(options: &Options, scope: &Scope) -> bool {
    let on_nodes = scope.node().is_some();
    options.capacity_for_immediate_binding.unwrap_or(on_nodes)
}

/// The classes of this driver that get objects, `immediate` ones among them.
pub(super) fn classes(context: &Context, immediate: bool) -> Vec<Arc<StorageClass>> {
    let mut classes = context.caches.classes().all();
    classes.retain(|class| {
        let has_capacity = immediate || pvc::is_delayed(class);
        class.provisioner == context.driver.name && has_capacity
    });
    classes
}
