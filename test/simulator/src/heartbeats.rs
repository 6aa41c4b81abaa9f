//! The signs of life of kubelets. On a real node, kubelet writes a lease every ten seconds, which
//! would be most of the requests of a cluster at rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The kubelets that give no sign of life, by node. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Heartbeats(Arc<Mutex<BTreeMap<String, Instant>>>);

impl Heartbeats {
    /// The node stops.
    pub(crate) fn stop(&self, node: &str) {
        let mut stopped = self.0.lock();
        stopped.entry(node.to_owned()).or_insert_with(Instant::now);
    }

    /// The node runs again.
    pub(crate) fn go_on(&self, node: &str) {
        self.0.lock().remove(node);
    }

    /// The last sign of life of a node that stands still.
    pub(crate) fn last(&self, node: &str) -> Option<Instant> {
        self.0.lock().get(node).copied()
    }
}
