//! Decides which handles of volumes, snapshots and groups belong to this node's driver.
//!
//! If the driver reports its pools, the controllers know one thing about a handle. One of its
//! dash-separated parts is the identity of its pool.

use std::fmt;
use std::sync::Arc;

/// The annotation of a CSIStorageCapacity that lists the node's pools, separated by commas. It
/// shows every process which node a handle belongs to.
pub const ANNOTATION: &str = "hostloop.csi.dev/pools";

/// The identities of the pools that this node's driver manages. Clones share the source.
#[derive(Clone, Default)]
pub struct Pools(Option<Arc<dyn Fn() -> Vec<String> + Send + Sync>>);

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pools").field(&self.known()).finish()
    }
}

impl Pools {
    /// Calls `ask` each time: a pool may appear late.
    pub fn reported(ask: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Pools(Some(Arc::new(ask)))
    }

    /// True if the driver reports its pools.
    pub fn are_reported(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the current pools; empty if the driver does not report pools.
    pub fn known(&self) -> Vec<String> {
        self.0.as_ref().map_or_else(Vec::new, |ask| ask())
    }

    /// True if a handle belongs to one of the pools; `None` if the driver does not report pools.
    pub fn own(&self, handle: &str) -> Option<bool> {
        let known = self.0.as_ref()?();
        Some(
            handle
                .split('-')
                .any(|part| known.iter().any(|pool| pool == part)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_by_pool() {
        let pools = |names: &'static [&str]| {
            Pools::reported(|| names.iter().map(|name| (*name).to_owned()).collect())
        };
        for (pools, handle, own) in [
            (Pools::default(), "vol-a1-0", None),
            (pools(&["a1", "b2"]), "vol-a1-0", Some(true)),
            (pools(&["a1", "b2"]), "snap-b2-0", Some(true)),
            (pools(&["a1", "b2"]), "vol-c3-0", Some(false)),
            (pools(&["a1"]), "vol-a11-0", Some(false)),
            (pools(&["a1"]), "", Some(false)),
            // No pool is ready yet, so no handle belongs to this node.
            (pools(&[]), "vol-a1-0", Some(false)),
        ] {
            assert_eq!(pools.own(handle), own, "{pools:?} {handle}");
        }
    }
}
