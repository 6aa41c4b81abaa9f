//! The name of the only pool, and the limits of drivers, which are so low that users come to them.

use hostloop_driver::node::InlineLimits;

/// The name of the only pool.
pub(crate) const POOL: &str = "pool";

/// What inline volumes a node may have at most. One namespace may have half of that, but always one of
/// the largest size.
pub(crate) const INLINE: InlineLimits = InlineLimits {
    size: 128 << 20,
    volumes: 4,
    total: 160 << 20,
};

/// The number of inline volumes that one namespace may have on a node.
pub(crate) const INLINE_OF_NAMESPACE: usize = INLINE.volumes / 2;
