//! Volume health.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::node_service_capability::rpc::Type as NodeRpc;

use super::{Answer, State, can, list, node_can};
use crate::options::Options;

impl State {
    fn health_of(&self, id: &str) -> csi::VolumeHealth {
        csi::VolumeHealth {
            volume_id: id.to_owned(),
            health_statuses: self.health.get(id).cloned().unwrap_or_default(),
        }
    }

    pub(crate) fn controller_list_volume_health(
        &mut self,
        options: &Options,
        request: csi::ControllerListVolumeHealthRequest,
    ) -> Answer<csi::ControllerListVolumeHealthResponse> {
        can(options, ControllerRpc::ListVolumeHealth)?;
        let all = self.volumes.keys().map(|id| self.health_of(id));
        let (entries, next_token) = list::page(all, request.max_entries, &request.starting_token)?;
        Ok(csi::ControllerListVolumeHealthResponse {
            entries,
            next_token,
        })
    }

    pub(crate) fn controller_get_volume_health(
        &mut self,
        options: &Options,
        request: csi::ControllerGetVolumeHealthRequest,
    ) -> Answer<csi::ControllerGetVolumeHealthResponse> {
        can(options, ControllerRpc::GetVolumeHealth)?;
        let id = self.volume(&request.volume_id)?.id.clone();
        Ok(csi::ControllerGetVolumeHealthResponse {
            volume_health: Some(self.health_of(&id)),
        })
    }

    pub(crate) fn node_get_volume_health(
        &mut self,
        options: &Options,
        request: csi::NodeGetVolumeHealthRequest,
    ) -> Answer<csi::NodeGetVolumeHealthResponse> {
        node_can(options, NodeRpc::GetVolumeHealth)?;
        let id = self.volume(&request.volume_id)?.id.clone();
        Ok(csi::NodeGetVolumeHealthResponse {
            volume_health: Some(self.health_of(&id)),
        })
    }

    pub(crate) fn node_get_storage_health(
        &mut self,
        options: &Options,
        _: csi::NodeGetStorageHealthRequest,
    ) -> Answer<csi::NodeGetStorageHealthResponse> {
        node_can(options, NodeRpc::GetStorageHealth)?;
        Ok(csi::NodeGetStorageHealthResponse::default())
    }
}
