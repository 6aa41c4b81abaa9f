//! The Controller, GroupController and SnapshotMetadata services, without locks and without a
//! runtime: the server calls them from threads that may block, holding the locks of what they name.

use std::sync::Arc;

mod accessibility;
pub mod capabilities;
mod capability;
mod capacity;
mod capacity_range;
pub mod error;
mod expand;
mod groups;
mod health;
mod list;
mod lookup;
pub mod metadata;
mod modify;
pub mod parameters;
mod publish;
mod snapshots;
mod to_proto;
mod volumes;

#[cfg(test)]
mod tests;

pub use error::{Error, Result};

use crate::csi::topology::{Segments, Topology};
use crate::csi::validate::CapabilityRules;
use crate::storage::Pools;

/// What the command line says about the controller services.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's ID: where its volumes can be published.
    pub node_id: String,
    /// Where this node is; every volume is accessible there only. Nowhere in particular where the
    /// topology is switched off.
    pub topology: Topology,
    /// Volumes that may be published to this node at once; `None` is no limit.
    pub attach_limit: Option<u64>,
    /// Serve ControllerPublish and Unpublish (`--enable-attach`).
    pub attach: bool,
    /// Serve expansion.
    pub expansion: bool,
    /// Serve ControllerExpandVolume (with expansion).
    pub controller_expansion: bool,
    /// Serve ControllerModifyVolume.
    pub modify: bool,
    /// Mutable parameter names that are taken; empty takes all that we know.
    pub mutable_parameters: Vec<String>,
    /// Serve SnapshotMetadata.
    pub snapshot_metadata: bool,
    /// Answer snapshot metadata in blocks of this fixed size, or in runs of any length.
    pub metadata_blocks: MetadataBlocks,
    /// How capabilities are read.
    pub capabilities: CapabilityRules,
}

/// The form of changed-block answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataBlocks {
    /// Blocks of one size in bytes, a multiple of 4096.
    Fixed(u32),
    /// Runs of any length.
    Variable,
}

impl Config {
    /// Every optional service on, no limit and no topology, for the node of this ID.
    pub fn new(node_id: &str) -> Config {
        Config {
            node_id: node_id.to_owned(),
            topology: Topology::default(),
            attach_limit: None,
            attach: true,
            expansion: true,
            controller_expansion: true,
            modify: true,
            mutable_parameters: Vec::new(),
            snapshot_metadata: true,
            metadata_blocks: MetadataBlocks::Variable,
            capabilities: CapabilityRules::default(),
        }
    }

    /// Whether ControllerExpandVolume is served.
    fn expands(&self) -> bool {
        self.expansion && self.controller_expansion
    }
}

/// The services.
pub struct Controller {
    /// Where volumes live.
    pub pools: Arc<Pools>,
    /// What the command line says.
    pub config: Config,
    slots: publish::Slots,
}

impl Controller {
    /// The services over these pools.
    pub fn new(pools: Arc<Pools>, config: Config) -> Controller {
        Controller {
            pools,
            config,
            slots: publish::Slots::default(),
        }
    }

    /// Where volumes and snapshots are.
    fn here(&self) -> Result<Arc<Segments>> {
        Ok(self.config.topology.segments()?)
    }
}
