//! The name of the only pool, the limits of drivers, which are so low that users come to them, and what
//! drivers take.

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

/// The mutable parameters that users have from the manual.
pub(crate) const MUTABLE: [&str; 3] = ["directIO", "provisioning", "readAheadKiB"];

/// Those that an administrator may let drivers accept alone. No driver knows the last one, so it is
/// accepted and has no effect.
pub(crate) const ACCEPTED: [&str; 3] = ["directIO", "readAheadKiB", "unknown"];
