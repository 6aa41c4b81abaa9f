//! The services over pools in a temporary directory and a kernel in memory.

use super::Config;
use crate::storage::{PoolId, VolumeId, VolumeRecord};
use crate::testkit::{Configs, record_of};

pub(super) mod bench;
mod growth;
mod health;
mod in_use;
mod missing;
mod powercut;
mod publishing;
mod reading;
mod shared;
mod sizes;
mod snapshots;
mod topology;
mod volumes;

/// A configuration with all services on.
pub(super) fn config() -> Config {
    Configs::default().controller
}

/// New IDs of one pool, in the order of their creation.
pub(super) fn ids(number: usize) -> Vec<VolumeId> {
    let pool = PoolId::generate();
    (0..number).map(|_| VolumeId::generate(pool)).collect()
}

/// The record of an unused volume.
pub(super) fn record() -> VolumeRecord {
    record_of(PoolId::generate(), "v")
}
