//! The services over pools in a temporary directory and a kernel in memory.

use super::*;

mod bench;
mod health;
mod in_use;
mod missing;
mod places;
mod publishing;
mod reading;
mod snapshots;
mod volumes;

/// Everything switched on.
pub(super) fn config() -> Config {
    Config {
        topology: [("t/node".to_owned(), "n1".to_owned())].into(),
        metadata_blocks: MetadataBlocks::Fixed(4096),
        ..Config::new("n1")
    }
}
