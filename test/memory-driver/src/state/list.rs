//! Paginated lists, and the capabilities of the Controller service.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability as capability;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::{list_snapshots_response, list_volumes_response};
use tonic::Status;

use super::{Answer, State, can, check, volumes};
use crate::options::Options;

impl State {
    pub(crate) fn controller_get_capabilities(
        &mut self,
        options: &Options,
        _: csi::ControllerGetCapabilitiesRequest,
    ) -> Answer<csi::ControllerGetCapabilitiesResponse> {
        let capability = |rpc: &ControllerRpc| csi::ControllerServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc {
                r#type: (*rpc).into(),
            })),
        };
        let rpcs = options.capabilities.controller.iter();
        Ok(csi::ControllerGetCapabilitiesResponse {
            capabilities: rpcs.map(capability).collect(),
        })
    }

    pub(crate) fn list_volumes(
        &mut self,
        options: &Options,
        request: csi::ListVolumesRequest,
    ) -> Answer<csi::ListVolumesResponse> {
        can(options, ControllerRpc::ListVolumes)?;
        let nodes = ControllerRpc::ListVolumesPublishedNodes;
        let nodes = options.capabilities.controller.contains(&nodes);
        let all = self.volumes.values().map(|v| list_volumes_response::Entry {
            volume: Some(volumes::to_csi(options, v)),
            status: nodes.then(|| list_volumes_response::VolumeStatus {
                published_node_ids: v.published.keys().cloned().collect(),
            }),
        });
        let (entries, next_token) = page(all, request.max_entries, &request.starting_token)?;
        Ok(csi::ListVolumesResponse {
            entries,
            next_token,
        })
    }

    pub(crate) fn controller_get_volume(
        &mut self,
        options: &Options,
        request: csi::ControllerGetVolumeRequest,
    ) -> Answer<csi::ControllerGetVolumeResponse> {
        can(options, ControllerRpc::GetVolume)?;
        check::given("volume_id", &request.volume_id)?;
        let volume = self.volume(&request.volume_id)?;
        Ok(csi::ControllerGetVolumeResponse {
            volume: Some(volumes::to_csi(options, volume)),
            status: Some(csi::controller_get_volume_response::VolumeStatus {
                published_node_ids: volume.published.keys().cloned().collect(),
            }),
        })
    }

    pub(crate) fn list_snapshots(
        &mut self,
        options: &Options,
        request: csi::ListSnapshotsRequest,
    ) -> Answer<csi::ListSnapshotsResponse> {
        can(options, ControllerRpc::ListSnapshots)?;
        let found = self.matching(options, &request.snapshot_id, &request.source_volume_id);
        let entries = found
            .into_iter()
            .map(|s| list_snapshots_response::Entry { snapshot: Some(s) });
        let (entries, next_token) = page(entries, request.max_entries, &request.starting_token)?;
        Ok(csi::ListSnapshotsResponse {
            entries,
            next_token,
        })
    }
}

/// A page of a list, and the token of the next page: the number of its first entry.
pub(crate) fn page<T>(
    all: impl IntoIterator<Item = T>,
    max_entries: i32,
    starting_token: &str,
) -> Answer<(Vec<T>, String)> {
    let max = usize::try_from(max_entries)
        .map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    let start: usize = match starting_token {
        "" => 0,
        token => token
            .parse()
            .map_err(|_| Status::aborted("starting_token is not a token of this driver"))?,
    };
    let max = if max == 0 { usize::MAX } else { max };
    let mut rest = all.into_iter().skip(start);
    let page: Vec<T> = rest.by_ref().take(max).collect();
    let next = match rest.next() {
        Some(_) => (start + page.len()).to_string(),
        None => String::new(),
    };
    Ok((page, next))
}
