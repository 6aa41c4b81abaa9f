//! How many objects a controller works on at once, unless `--worker-threads` says otherwise.

use super::context::Common;
use crate::api::scope::Scope;

/// Of most controllers, in each queue.
pub(crate) const WORKERS: usize = 10;
/// Of the placement of claims, and of the labels of objects.
pub(crate) const PLACEMENT: usize = 4;
/// Of the provisioner, as upstream's.
const PROVISIONER: usize = 100;
/// Of the provisioner of one node. More calls would only wait in the driver.
const PROVISIONER_ON_NODE: usize = 32;

/// The workers of the provisioner.
pub(crate) fn of_provisioner(scope: &Scope) -> usize {
    match scope {
        Scope::Node { .. } => PROVISIONER_ON_NODE,
        Scope::Cluster | Scope::Leader => PROVISIONER,
    }
}

impl Common {
    /// `--worker-threads`, or a controller's own default.
    pub(crate) fn workers(&self, default: usize) -> usize {
        self.worker_threads.unwrap_or(default)
    }
}
