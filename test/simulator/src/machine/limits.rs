//! The name of the only pool, and the limits of drivers, which are so low that users come to them.

use hostloop_driver::node::InlineLimits;

use crate::history::World;
use crate::machine::CAPACITY;

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

/// What the snapshots of one namespace may promise on a node with troubles, in bytes: as much as one of
/// a large thick volume.
const SNAPSHOTS_OF_NAMESPACE: u64 = 32 << 20;

/// What the snapshots of one namespace may promise on a node, in bytes. In a calm world, only the pool
/// limits them, as on the real cluster that is compared with it.
pub(crate) fn snapshots_of_namespace(world: World) -> u64 {
    match world {
        World::Calm => CAPACITY,
        World::Rough | World::Hard => SNAPSHOTS_OF_NAMESPACE,
    }
}
