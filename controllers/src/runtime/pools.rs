//! Which handles of volumes, snapshots and groups are of this node's driver.
//!
//! Of a driver's handles the loops know one thing only, and only if the driver says so: that one
//! of their parts, which dashes separate, is the identity of the pool they are kept in.

use std::fmt;
use std::sync::Arc;

/// The annotation of a capacity object that names the pools of the node it is of, separated by
/// commas: so that anybody can tell which node a handle is of.
pub const ANNOTATION: &str = "hostloop.csi.dev/pools";

/// The identities of the pools this node's driver keeps. Clones are the same.
#[derive(Clone, Default)]
pub struct Pools(Option<Arc<dyn Fn() -> Vec<String> + Send + Sync>>);

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pools").field(&self.known()).finish()
    }
}

impl Pools {
    /// Asked for each time: a pool may turn up late.
    pub fn told(ask: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Self {
        Pools(Some(Arc::new(ask)))
    }

    /// Whether the driver says anything of pools.
    pub fn are_told(&self) -> bool {
        self.0.is_some()
    }

    /// Those there are now; none if the driver says nothing of pools.
    pub fn known(&self) -> Vec<String> {
        self.0.as_ref().map_or_else(Vec::new, |ask| ask())
    }

    /// Whether a handle is of one of them; `None` if the driver says nothing of pools.
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
    fn handles_say_whose_they_are() {
        let pools = |names: &'static [&str]| {
            Pools::told(|| names.iter().map(|name| (*name).to_owned()).collect())
        };
        for (pools, handle, own) in [
            (Pools::default(), "vol-a1-0", None),
            (pools(&["a1", "b2"]), "vol-a1-0", Some(true)),
            (pools(&["a1", "b2"]), "snap-b2-0", Some(true)),
            (pools(&["a1", "b2"]), "vol-c3-0", Some(false)),
            (pools(&["a1"]), "vol-a11-0", Some(false)),
            (pools(&["a1"]), "", Some(false)),
            // Its pools are not there yet: nothing is its own until they are.
            (pools(&[]), "vol-a1-0", Some(false)),
        ] {
            assert_eq!(pools.own(handle), own, "{pools:?} {handle}");
        }
    }
}
