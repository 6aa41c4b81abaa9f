//! Decides which handles of volumes, snapshots and groups belong to this node's driver.
//!
//! If the driver reports its pools, the controllers know one thing about a handle: the second of
//! its three dash-separated parts is the identity of its pool ([`pool_of`]).

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;

/// The annotation of a CSIStorageCapacity that lists the node's pools, separated by commas. It
/// shows every process which node a handle belongs to.
pub const ANNOTATION: &str = "hostloop.csi.dev/pools";

/// How many pools a capacity object may name. The admission policy refuses one with more, and each
/// is an entry of an index.
const MAX: usize = 16;

/// The value of the annotation for these pools.
pub(crate) fn annotation(mut pools: Vec<String>) -> String {
    pools.sort();
    pools.truncate(MAX);
    pools.join(",")
}

/// The pools in a capacity object's annotation, of which only so many count: the node writes it.
pub(crate) fn named_by(object: &CSIStorageCapacity) -> Vec<String> {
    let text = object.annotations().get(ANNOTATION);
    let names = text.map_or("", String::as_str).split(',').map(str::trim);
    names
        .filter(|pool| !pool.is_empty())
        .take(MAX)
        .map(str::to_owned)
        .collect()
}

/// The identity of the pool in a handle. All handles are of the form `PREFIX-POOL-UUID`. The other
/// parts are not looked up: a node could name one of them as its pool, and all handles have it.
pub fn pool_of(handle: &str) -> Option<&str> {
    let (_, rest) = handle.split_once('-')?;
    let (pool, _) = rest.split_once('-')?;
    (!pool.is_empty()).then_some(pool)
}

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
        Some(pool_of(handle).is_some_and(|named| known.iter().any(|pool| pool == named)))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_a_volume("vol-a1-0190", Some("a1"))]
    #[case::of_a_snapshot("snap-a1-0190-77", Some("a1"))]
    #[case::of_a_group("group-a1-0190", Some("a1"))]
    #[case::without_a_pool("vol--0190", None)]
    #[case::with_nothing_after_the_pool("vol-a1", None)]
    #[case::of_an_inline_volume("csi-0190", None)]
    #[case::without_parts("vol", None)]
    #[case::of_nothing("", None)]
    fn a_handle_names_its_pool_in_one_place(#[case] handle: &str, #[case] expected: Option<&str>) {
        assert_eq!(pool_of(handle), expected);
    }

    #[test]
    fn the_first_pools_are_named() {
        let pools: Vec<_> = (0..20).rev().map(|n| format!("{n:016x}")).collect();
        let text = annotation(pools);
        let named: Vec<_> = text.split(',').collect();
        assert_eq!((named.len(), named[0]), (MAX, "0000000000000000"));
        assert_eq!((named[15], text.len()), ("000000000000000f", 271));
    }

    #[test]
    fn pools_of_a_capacity() {
        let mut object = CSIStorageCapacity::default();
        assert!(named_by(&object).is_empty());
        let names: Vec<_> = (0..1_000).map(|n| format!("p{n}")).collect();
        for (text, count, last) in [("p1, p2,", 2, "p2"), (&*names.join(","), MAX, "p15")] {
            object
                .annotations_mut()
                .insert(ANNOTATION.to_owned(), text.to_owned());
            let named = named_by(&object);
            assert_eq!(named.len(), count);
            assert_eq!(named.last().map(String::as_str), Some(last));
        }
    }

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
            (pools(&["vol", "snap", "0"]), "vol-a1-0", Some(false)),
            // No pool is ready yet, so no handle belongs to this node.
            (pools(&[]), "vol-a1-0", Some(false)),
        ] {
            assert_eq!(pools.own(handle), own, "{pools:?} {handle}");
        }
    }
}
