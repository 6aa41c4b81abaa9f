//! The Controller, GroupController and SnapshotMetadata services, without locks and without a
//! runtime. The gRPC server calls them on blocking threads and holds the locks of the named
//! objects.

use std::collections::BTreeSet;
use std::sync::Arc;

mod accessibility;
mod anchors;
pub mod capabilities;
mod capability_set;
mod capacity;
mod expand;
mod groups;
mod growth;
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

pub use crate::csi::error::{Error, Result};
pub use anchors::{AnchorLook, Anchors};

use hostloop_proto::csi;

use self::parameters::UnknownKeys;
use crate::csi::capability::CapabilityRules;
use crate::csi::topology::{Segments, Topology};
use crate::reach::kernels::Kernels;
use crate::storage::{Pools, VolumeRecord};

/// What the command line says about the controller services.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's ID, under which its volumes can be published.
    pub node_id: String,
    /// The topology of this node; every volume is accessible only there. Empty if the topology is
    /// off.
    pub topology: Topology,
    /// Maximum number of volumes published to this node at once; `None` means no limit.
    pub attach_limit: Option<u64>,
    /// Serve ControllerPublish and Unpublish (`--enable-attach`).
    pub attach: bool,
    /// Serve ControllerExpandVolume.
    pub expansion: bool,
    /// Serve ControllerModifyVolume.
    pub modify: bool,
    /// Names of the accepted mutable parameters; empty accepts all known ones.
    pub mutable_parameters: Vec<String>,
    /// What becomes of unknown parameters of classes.
    pub unknown_parameters: UnknownKeys,
    /// Serve SnapshotMetadata.
    pub snapshot_metadata: bool,
    /// The form of the block metadata: blocks of one fixed size, or runs of any length.
    pub metadata_blocks: MetadataBlocks,
    /// How capabilities are read.
    pub capabilities: CapabilityRules,
    /// Serve faults on request (`--enable-faults`).
    pub faults: bool,
    /// Which nodes share a kernel (`--kernels`).
    pub kernels: Kernels,
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
    /// A configuration for this node ID: all optional services, no limits, no topology.
    pub fn new(node_id: &str) -> Config {
        Config {
            node_id: node_id.to_owned(),
            topology: Topology::default(),
            attach_limit: None,
            attach: true,
            expansion: true,
            modify: true,
            mutable_parameters: Vec::new(),
            unknown_parameters: UnknownKeys::Rejected,
            snapshot_metadata: true,
            metadata_blocks: MetadataBlocks::Variable,
            capabilities: CapabilityRules::default(),
            faults: false,
            kernels: Kernels::default(),
        }
    }
}

/// The Controller, GroupController and SnapshotMetadata services.
pub struct Controller {
    /// The pools with the volumes.
    pub pools: Arc<Pools>,
    /// The command line's settings.
    pub config: Config,
    slots: publish::Slots,
    /// Attaches the devices of shared volumes; `None` if this driver has no such volumes.
    anchors: Option<Arc<dyn Anchors>>,
}

impl Controller {
    /// Creates the services over these pools.
    pub fn new(pools: Arc<Pools>, config: Config) -> Controller {
        Controller {
            pools,
            config,
            slots: publish::Slots::default(),
            anchors: None,
        }
    }

    /// Serves volumes that all nodes of a kernel may use.
    pub fn with_anchors(self, anchors: Arc<dyn Anchors>) -> Controller {
        Controller {
            anchors: Some(anchors),
            ..self
        }
    }

    /// Fails if a switch turns this call off.
    fn require(on: bool, call: &'static str) -> Result<()> {
        if on { Ok(()) } else { Err(Error::Off(call)) }
    }

    /// The topology of all volumes and snapshots on this node.
    fn here(&self) -> Result<Arc<Segments>> {
        Ok(self.config.topology.segments()?)
    }

    /// The nodes that share this node's kernel, with this node; empty if no kernel is shared.
    fn kernel_nodes(&self) -> BTreeSet<String> {
        let kernel = self.config.kernels.of(&self.config.node_id);
        kernel.map(|kernel| kernel.nodes).unwrap_or_default()
    }

    /// The nodes that may use a volume because they share this node's kernel, with this node; empty for
    /// a volume of this node alone.
    fn nodes_of(&self, record: &VolumeRecord) -> BTreeSet<String> {
        if record.is_shared() {
            self.kernel_nodes()
        } else {
            BTreeSet::new()
        }
    }

    /// The message for a volume.
    fn message_of(&self, record: &VolumeRecord) -> Result<csi::Volume> {
        Ok(to_proto::volume(
            record,
            &*self.here()?,
            &self.nodes_of(record),
        ))
    }

    /// The message for a volume that is made. Its nodes become those of a PersistentVolume, which can't
    /// be changed. So a shared one waits while the list of the nodes can't be read.
    fn message_of_new(&self, record: &VolumeRecord) -> Result<csi::Volume> {
        let nodes = self.nodes_of(record);
        if record.is_shared() && !nodes.contains(&self.config.node_id) {
            return Err(Error::NotYet(format!(
                "volume {} is made for all nodes of a kernel, and ConfigMap hostloop-kernels can't be \
                 read now, or does not name this node: its PersistentVolume would be of this node for \
                 good",
                record.id
            )));
        }
        Ok(to_proto::volume(record, &*self.here()?, &nodes))
    }
}
