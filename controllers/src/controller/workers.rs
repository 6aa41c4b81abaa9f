//! How many objects a controller works on at once, unless `--worker-threads` says otherwise.

use super::context::Common;
use crate::api::scope::Scope;

/// Most controllers have this many workers for each queue.
pub(crate) const WORKERS: usize = 10;
/// The placement of claims has this many, and so have the labels of objects.
pub(crate) const PLACEMENT_WORKERS: usize = 4;
/// The provisioner of a cluster has as many as upstream's.
const PROVISIONER_WORKERS: usize = 100;
/// The provisioner of one node has fewer: more calls would only wait in the driver.
const NODE_PROVISIONER_WORKERS: usize = 32;

/// The number of the provisioner's workers.
pub(crate) fn provisioner_workers(scope: &Scope) -> usize {
    match scope {
        Scope::Node { .. } => NODE_PROVISIONER_WORKERS,
        Scope::Cluster | Scope::Leader => PROVISIONER_WORKERS,
    }
}

impl Common {
    /// `--worker-threads`, or a controller's own default.
    pub(crate) fn workers(&self, default: usize) -> usize {
        self.worker_threads.unwrap_or(default)
    }
}
