//! `full`: a file takes all free room of the pool's filesystem, so what is written to its thin volumes
//! finds none. The file's name says what it is, and the pool promises no room that the file has.

use super::error::Obstacle;
use crate::storage::Pools;

/// Other files on the filesystem would have no room either, such as those of the node.
pub(super) fn obstacle(pools: &Pools, slot: usize) -> Option<Obstacle> {
    let pool = pools.slots()[slot].state.clone().ok()?;
    (!pool.is_alone()).then_some(Obstacle::Shared)
}
