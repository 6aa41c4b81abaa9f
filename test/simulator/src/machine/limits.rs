//! The name of the only pool, and the limits of drivers, which are so low that users come to them.

use hostloop_driver::node::InlineLimits;

/// The name of the only pool.
pub(crate) const POOL: &str = "pool";

/// What inline volumes a node may have at most. One namespace may have half of them, but always one of
/// the largest size.
pub(crate) const INLINE: InlineLimits = InlineLimits {
    size: 128 << 20,
    volumes: 4,
    total: 160 << 20,
};
