//! ControllerExpandVolume.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::plugin_capability::volume_expansion::Type as Expansion;
use tonic::Status;

use super::{Answer, State, can, check};
use crate::options::Options;

impl State {
    pub(crate) fn controller_expand_volume(
        &mut self,
        options: &Options,
        request: csi::ControllerExpandVolumeRequest,
    ) -> Answer<csi::ControllerExpandVolumeResponse> {
        can(options, ControllerRpc::ExpandVolume)?;
        check::given("volume_id", &request.volume_id)?;
        if request.capacity_range.is_none() {
            return Err(Status::invalid_argument("capacity_range is required"));
        }
        let volume = self.volume(&request.volume_id)?;
        let offline = options.capabilities.expansion == Some(Expansion::Offline);
        if offline && !volume.published.is_empty() {
            let why = format!("volume {} is in use", volume.id);
            return Err(Status::failed_precondition(why));
        }
        let size = check::size(options, request.capacity_range.as_ref(), volume.capacity)?;
        let mut required = options.node_expansion_required;
        if size > volume.capacity {
            let here = self.volumes.values().filter(|v| v.place == volume.place);
            let used: i64 = here.map(|v| v.capacity).sum();
            if used - volume.capacity + size > options.capacity {
                let why = format!("volume {} does not fit with {size} bytes", volume.id);
                return Err(Status::resource_exhausted(why));
            }
            self.volume_mut(&request.volume_id)?.capacity = size;
        }
        let block = request.volume_capability.and_then(|c| c.access_type);
        if let Some(csi::volume_capability::AccessType::Block(_)) = block {
            required = false;
        }
        Ok(csi::ControllerExpandVolumeResponse {
            capacity_bytes: self.volume(&request.volume_id)?.capacity,
            node_expansion_required: required,
        })
    }
}
