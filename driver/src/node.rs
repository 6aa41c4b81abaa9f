//! The Node service, without locks and without a runtime: the server calls it from threads that
//! may block, holding the lock of the volume.

use std::sync::Arc;

use hostloop_proto::csi;

mod capability;
mod ephemeral;
pub mod error;
mod expand;
mod format;
mod fs_group;
mod health;
mod info;
mod inline_limits;
mod loop_device;
mod mount_options;
mod mount_stage;
mod publish;
mod read_only_loop;
mod stage;
mod stats;
mod target_path;
mod unpublish;
mod unstage;
mod volume_lookup;

pub use error::{Error, Result};
pub use inline_limits::InlineLimits;

use self::inline_limits::Making;
use crate::csi::topology::Topology;
use crate::csi::validate::CapabilityRules;
use crate::storage::Pools;

/// What the command line says about the node service.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's ID.
    pub node_id: String,
    /// Where this node is.
    pub topology: Topology,
    /// `max_volumes_per_node`; 0 lets the orchestrator decide.
    pub max_volumes: u64,
    /// Report the topology (`--enable-topology`).
    pub report_topology: bool,
    /// Serve NodeExpandVolume.
    pub expansion: bool,
    /// NodeExpandVolume refuses to be asked for more than this (`--max-volume-size-node`), bytes.
    pub max_volume_bytes: Option<u64>,
    /// Refuse to stage what was not published by the controller (`--check-volume-lifecycle`).
    pub check_lifecycle: bool,
    /// How capabilities are read.
    pub capabilities: CapabilityRules,
    /// Limits on the number and the size of inline volumes.
    pub inline: InlineLimits,
}

impl Config {
    /// Every optional service on, no limit and no topology, for the node of this ID.
    pub fn new(node_id: &str) -> Config {
        Config {
            node_id: node_id.to_owned(),
            topology: Topology::default(),
            max_volumes: 0,
            report_topology: true,
            expansion: true,
            max_volume_bytes: None,
            check_lifecycle: false,
            capabilities: CapabilityRules::default(),
            inline: InlineLimits::default(),
        }
    }
}

/// The service.
pub struct Node {
    /// Where volumes live, and the kernel.
    pub pools: Arc<Pools>,
    /// What the command line says.
    pub config: Config,
    making: Making,
}

impl Node {
    /// The service over these pools.
    pub fn new(pools: Arc<Pools>, config: Config) -> Node {
        Node {
            pools,
            config,
            making: Making::default(),
        }
    }

    /// NodeStageVolume: attaches the volume, makes its filesystem if it never had one, and mounts
    /// it at the staging path; a block volume is attached and left there.
    pub fn node_stage_volume(
        &self,
        req: csi::NodeStageVolumeRequest,
    ) -> Result<csi::NodeStageVolumeResponse> {
        self.stage(&req)?;
        Ok(csi::NodeStageVolumeResponse {})
    }

    /// NodeUnstageVolume: unmounts and detaches what of the volume is at the staging path.
    /// Success also for a volume that is unknown, or not staged there.
    pub fn node_unstage_volume(
        &self,
        req: csi::NodeUnstageVolumeRequest,
    ) -> Result<csi::NodeUnstageVolumeResponse> {
        self.unstage(&req)?;
        Ok(csi::NodeUnstageVolumeResponse {})
    }

    /// NodePublishVolume: binds a staged volume to the target; makes and mounts an inline one.
    pub fn node_publish_volume(
        &self,
        req: csi::NodePublishVolumeRequest,
    ) -> Result<csi::NodePublishVolumeResponse> {
        self.publish(&req)?;
        Ok(csi::NodePublishVolumeResponse {})
    }

    /// NodeUnpublishVolume: unmounts what of the volume is at the target, and removes the empty
    /// directory or file there; deletes an inline volume. Success also for an unknown volume.
    pub fn node_unpublish_volume(
        &self,
        req: csi::NodeUnpublishVolumeRequest,
    ) -> Result<csi::NodeUnpublishVolumeResponse> {
        self.unpublish(&req)?;
        Ok(csi::NodeUnpublishVolumeResponse {})
    }

    /// NodeGetVolumeStats: bytes and inodes of a filesystem, the size of a device.
    pub fn node_get_volume_stats(
        &self,
        req: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse> {
        let usage = self.stats(&req)?;
        Ok(csi::NodeGetVolumeStatsResponse { usage })
    }

    /// NodeGetVolumeHealth: what is wrong with a volume, here and at the paths of the request.
    pub fn node_get_volume_health(
        &self,
        req: csi::NodeGetVolumeHealthRequest,
    ) -> Result<csi::NodeGetVolumeHealthResponse> {
        let volume_health = Some(self.volume_health(&req)?);
        Ok(csi::NodeGetVolumeHealthResponse { volume_health })
    }

    /// NodeGetStorageHealth: what is wrong with the pools.
    pub fn node_get_storage_health(
        &self,
        _: csi::NodeGetStorageHealthRequest,
    ) -> Result<csi::NodeGetStorageHealthResponse> {
        let backend_health = self.storage_health();
        Ok(csi::NodeGetStorageHealthResponse { backend_health })
    }

    /// NodeExpandVolume: lets device and filesystem follow the image, in use or not.
    pub fn node_expand_volume(
        &self,
        req: csi::NodeExpandVolumeRequest,
    ) -> Result<csi::NodeExpandVolumeResponse> {
        let bytes = self.expand(&req)?;
        Ok(csi::NodeExpandVolumeResponse {
            capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        })
    }

    /// NodeGetCapabilities.
    pub fn node_get_capabilities(
        &self,
        _: csi::NodeGetCapabilitiesRequest,
    ) -> Result<csi::NodeGetCapabilitiesResponse> {
        let capabilities = info::capabilities(&self.config);
        Ok(csi::NodeGetCapabilitiesResponse { capabilities })
    }

    /// NodeGetInfo.
    pub fn node_get_info(&self, _: csi::NodeGetInfoRequest) -> Result<csi::NodeGetInfoResponse> {
        info::info(&self.config)
    }
}

#[cfg(test)]
mod tests;
