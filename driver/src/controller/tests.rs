//! The services over pools in a temporary directory and a kernel in memory.

use super::*;
use crate::sys::FsType;

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
        node_id: "n1".to_owned(),
        topology: [("t/node".to_owned(), "n1".to_owned())].into(),
        attach_limit: None,
        attach: true,
        expansion: true,
        controller_expansion: true,
        modify: true,
        mutable_parameters: Vec::new(),
        snapshot_metadata: true,
        metadata_blocks: MetadataBlocks::Fixed(4096),
        capabilities: CapabilityRules {
            default_fs: FsType::Ext4,
            reject_multi_node: false,
            mount_group: false,
        },
    }
}
