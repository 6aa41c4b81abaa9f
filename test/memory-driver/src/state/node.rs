//! The Node service. It records paths and mounts nothing. While a volume is published, its target
//! path is an empty directory or file.

use std::io;
use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::node_service_capability as capability;
use hostloop_proto::csi::node_service_capability::rpc::Type as NodeRpc;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_usage::Unit;
use tonic::Status;

use super::{Answer, State, Volume, check, node_can};
use crate::options::Options;

impl State {
    pub(crate) fn node_get_info(
        &mut self,
        options: &Options,
        _: csi::NodeGetInfoRequest,
    ) -> Answer<csi::NodeGetInfoResponse> {
        let here = options.topology.first().cloned();
        let here = here.filter(|_| options.capabilities.topology());
        Ok(csi::NodeGetInfoResponse {
            node_id: options.node_id.clone(),
            max_volumes_per_node: options.attach_limit,
            accessible_topology: here.map(|segments| csi::Topology { segments }),
        })
    }

    pub(crate) fn node_get_capabilities(
        &mut self,
        options: &Options,
        _: csi::NodeGetCapabilitiesRequest,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        let capability = |rpc: &NodeRpc| csi::NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc {
                r#type: (*rpc).into(),
            })),
        };
        Ok(csi::NodeGetCapabilitiesResponse {
            capabilities: options.capabilities.node.iter().map(capability).collect(),
        })
    }

    pub(crate) fn node_stage_volume(
        &mut self,
        options: &Options,
        request: csi::NodeStageVolumeRequest,
    ) -> Answer<csi::NodeStageVolumeResponse> {
        node_can(options, NodeRpc::StageUnstageVolume)?;
        check::given("volume_id", &request.volume_id)?;
        check::path("staging_target_path", &request.staging_target_path)?;
        let capability = check::capability(request.volume_capability.as_ref())?;
        let volume = self.volume_mut(&request.volume_id)?;
        match volume.staged.get(&request.staging_target_path) {
            Some(there) if *there != capability => {
                let why = format!(
                    "volume {} is staged there with another capability",
                    volume.id
                );
                return Err(Status::already_exists(why));
            }
            _ => volume
                .staged
                .insert(request.staging_target_path, capability),
        };
        Ok(csi::NodeStageVolumeResponse {})
    }

    pub(crate) fn node_unstage_volume(
        &mut self,
        options: &Options,
        request: csi::NodeUnstageVolumeRequest,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        node_can(options, NodeRpc::StageUnstageVolume)?;
        check::path("volume_id", &request.volume_id)?;
        check::path("staging_target_path", &request.staging_target_path)?;
        if let Some(volume) = self.volumes.get_mut(&request.volume_id) {
            volume.staged.remove(&request.staging_target_path);
        }
        Ok(csi::NodeUnstageVolumeResponse {})
    }

    pub(crate) fn node_publish_volume(
        &mut self,
        options: &Options,
        request: csi::NodePublishVolumeRequest,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        check::given("volume_id", &request.volume_id)?;
        check::path("target_path", &request.target_path)?;
        let capability = check::capability(request.volume_capability.as_ref())?;
        let alone = check::mode(&capability)? == Mode::SingleNodeSingleWriter;
        let stages = options
            .capabilities
            .node
            .contains(&NodeRpc::StageUnstageVolume);
        let volume = self.volume_mut(&request.volume_id)?;
        if stages && !volume.staged.contains_key(&request.staging_target_path) {
            let why = format!("volume {} is not staged", volume.id);
            return Err(Status::failed_precondition(why));
        }
        let elsewhere = volume.targets.keys().find(|t| **t != request.target_path);
        if let Some(elsewhere) = elsewhere.filter(|_| alone) {
            let why = format!("volume {} is published at {elsewhere}", volume.id);
            return Err(Status::failed_precondition(why));
        }
        match volume.targets.get(&request.target_path) {
            Some(readonly) if *readonly != request.readonly => {
                let why = format!(
                    "volume {} is published there with another read-only flag",
                    volume.id
                );
                return Err(Status::already_exists(why));
            }
            Some(_) => {}
            None => {
                let path = Path::new(&request.target_path);
                let made = match capability.access_type {
                    Some(AccessType::Block(_)) => std::fs::File::create_new(path).map(drop),
                    _ => std::fs::create_dir(path),
                };
                made.or_else(but_for(io::ErrorKind::AlreadyExists))
                    .map_err(|e| Status::internal(format!("{}: {e}", path.display())))?;
                volume.targets.insert(request.target_path, request.readonly);
            }
        }
        Ok(csi::NodePublishVolumeResponse {})
    }

    pub(crate) fn node_unpublish_volume(
        &mut self,
        _: &Options,
        request: csi::NodeUnpublishVolumeRequest,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        check::path("volume_id", &request.volume_id)?;
        check::path("target_path", &request.target_path)?;
        if let Some(volume) = self.volumes.get_mut(&request.volume_id) {
            volume.targets.remove(&request.target_path);
            let path = Path::new(&request.target_path);
            let removed = if path.is_dir() {
                std::fs::remove_dir(path)
            } else {
                std::fs::remove_file(path)
            };
            removed
                .or_else(but_for(io::ErrorKind::NotFound))
                .map_err(|e| Status::internal(format!("{}: {e}", path.display())))?;
        }
        Ok(csi::NodeUnpublishVolumeResponse {})
    }

    pub(crate) fn node_get_volume_stats(
        &mut self,
        options: &Options,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        node_can(options, NodeRpc::GetVolumeStats)?;
        check::path("volume_path", &request.volume_path)?;
        let volume = self.at(&request.volume_id, &request.volume_path)?;
        Ok(csi::NodeGetVolumeStatsResponse {
            usage: vec![csi::VolumeUsage {
                available: volume.capacity,
                total: volume.capacity,
                used: 0,
                unit: Unit::Bytes.into(),
            }],
        })
    }

    pub(crate) fn node_expand_volume(
        &mut self,
        options: &Options,
        request: csi::NodeExpandVolumeRequest,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        node_can(options, NodeRpc::ExpandVolume)?;
        check::given("volume_id", &request.volume_id)?;
        check::path("volume_path", &request.volume_path)?;
        let volume = self.at(&request.volume_id, &request.volume_path)?;
        Ok(csi::NodeExpandVolumeResponse {
            capacity_bytes: volume.capacity,
        })
    }

    /// The volume staged or published at this path.
    fn at(&self, id: &str, path: &str) -> Answer<&Volume> {
        let volume = self.volume(id)?;
        if volume.targets.contains_key(path) || volume.staged.contains_key(path) {
            Ok(volume)
        } else {
            Err(Status::not_found(format!("volume {id} is not at {path}")))
        }
    }
}

/// Treats an error of this kind as success.
fn but_for(kind: io::ErrorKind) -> impl FnOnce(io::Error) -> io::Result<()> {
    move |error| {
        if error.kind() == kind {
            Ok(())
        } else {
            Err(error)
        }
    }
}
