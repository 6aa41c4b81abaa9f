//! Group snapshots.

use std::collections::BTreeSet;
use std::time::SystemTime;

use hostloop_proto::csi;
use hostloop_proto::csi::group_controller_service_capability as capability;
use hostloop_proto::csi::group_controller_service_capability::rpc::Type as GroupRpc;
use tonic::Status;

use super::{Answer, Group, Snapshot, State, check, snapshots, unimplemented};
use crate::options::Options;

impl State {
    pub(crate) fn group_controller_get_capabilities(
        &mut self,
        options: &Options,
        _: csi::GroupControllerGetCapabilitiesRequest,
    ) -> Answer<csi::GroupControllerGetCapabilitiesResponse> {
        let capability = |rpc: &GroupRpc| csi::GroupControllerServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc {
                r#type: (*rpc).into(),
            })),
        };
        Ok(csi::GroupControllerGetCapabilitiesResponse {
            capabilities: options.capabilities.group.iter().map(capability).collect(),
        })
    }

    pub(crate) fn create_volume_group_snapshot(
        &mut self,
        options: &Options,
        request: csi::CreateVolumeGroupSnapshotRequest,
    ) -> Answer<csi::CreateVolumeGroupSnapshotResponse> {
        can(options)?;
        check::given("name", &request.name)?;
        let sources: BTreeSet<_> = request.source_volume_ids.iter().cloned().collect();
        if sources.is_empty() || sources.len() < request.source_volume_ids.len() {
            let why = "source_volume_ids must contain each volume once";
            return Err(Status::invalid_argument(why));
        }
        let named = self.groups.values().find(|g| g.name == request.name);
        let id = match named {
            Some(there) if there.sources != sources || there.parameters != request.parameters => {
                let why = format!(
                    "group {} has this name and other volumes or parameters",
                    there.id
                );
                return Err(Status::already_exists(why));
            }
            Some(there) => there.id.clone(),
            None => self.new_group(options, request)?,
        };
        Ok(csi::CreateVolumeGroupSnapshotResponse {
            group_snapshot: Some(self.polled_group(options, &id)?),
        })
    }

    fn new_group(
        &mut self,
        options: &Options,
        request: csi::CreateVolumeGroupSnapshotRequest,
    ) -> Answer<String> {
        let sources = request.source_volume_ids.iter();
        let sources: Vec<_> = sources
            .map(|id| Ok(self.volume(id)?.clone()))
            .collect::<Answer<_>>()?;
        let (group, created) = (self.new_id(options, "group"), SystemTime::now().into());
        let mut members = Vec::new();
        for source in sources {
            let id = self.new_id(options, "snap");
            members.push(id.clone());
            let snapshot = Snapshot {
                id: id.clone(),
                // No request can have the empty name.
                name: String::new(),
                size: source.capacity,
                place: source.place,
                source: source.id,
                created,
                polls_left: options.ready_after_polls,
                parameters: request.parameters.clone(),
                group: Some(group.clone()),
            };
            self.snapshots.insert(id, snapshot);
        }
        let made = Group {
            id: group.clone(),
            name: request.name,
            created,
            sources: request.source_volume_ids.into_iter().collect(),
            members,
            parameters: request.parameters,
            polls_left: options.ready_after_polls,
        };
        self.groups.insert(group.clone(), made);
        Ok(group)
    }

    /// Answers a caller that polls a group until it is ready.
    fn polled_group(&mut self, options: &Options, id: &str) -> Answer<csi::VolumeGroupSnapshot> {
        let group = self.groups.get_mut(id);
        let group = group.ok_or_else(|| Status::not_found(format!("group {id} does not exist")))?;
        let ready = group.polls_left == 0;
        group.polls_left = group.polls_left.saturating_sub(1);
        let group = group.clone();
        let members = group.members.iter();
        Ok(csi::VolumeGroupSnapshot {
            snapshots: members.filter_map(|id| self.polled(options, id)).collect(),
            group_snapshot_id: group.id,
            creation_time: Some(group.created),
            ready_to_use: ready,
        })
    }

    pub(crate) fn delete_volume_group_snapshot(
        &mut self,
        options: &Options,
        request: csi::DeleteVolumeGroupSnapshotRequest,
    ) -> Answer<csi::DeleteVolumeGroupSnapshotResponse> {
        can(options)?;
        check::path("group_snapshot_id", &request.group_snapshot_id)?;
        if let Some(group) = self.groups.get(&request.group_snapshot_id) {
            members(group, &request.snapshot_ids)?;
            for member in group.members.clone() {
                self.snapshots.remove(&member);
            }
            self.groups.remove(&request.group_snapshot_id);
        }
        Ok(csi::DeleteVolumeGroupSnapshotResponse {})
    }

    pub(crate) fn get_volume_group_snapshot(
        &mut self,
        options: &Options,
        request: csi::GetVolumeGroupSnapshotRequest,
    ) -> Answer<csi::GetVolumeGroupSnapshotResponse> {
        can(options)?;
        check::path("group_snapshot_id", &request.group_snapshot_id)?;
        if let Some(group) = self.groups.get(&request.group_snapshot_id) {
            members(group, &request.snapshot_ids)?;
        }
        Ok(csi::GetVolumeGroupSnapshotResponse {
            group_snapshot: Some(self.polled_group(options, &request.group_snapshot_id)?),
        })
    }

    /// The snapshot with this ID, those of this volume, or all.
    pub(crate) fn matching(
        &mut self,
        options: &Options,
        id: &str,
        source: &str,
    ) -> Vec<csi::Snapshot> {
        match id {
            "" => {
                let all = self.snapshots.values();
                let of = all.filter(|s| source.is_empty() || s.source == source);
                of.map(|s| snapshots::to_csi(options, s)).collect()
            }
            id => self.polled(options, id).into_iter().collect(),
        }
    }
}

fn can(options: &Options) -> Answer<()> {
    let rpc = GroupRpc::CreateDeleteGetVolumeGroupSnapshot;
    if options.capabilities.group.contains(&rpc) {
        Ok(())
    } else {
        Err(unimplemented(rpc.as_str_name()))
    }
}

/// Checks that these are the group's snapshots, in any order.
fn members(group: &Group, ids: &[String]) -> Answer<()> {
    let there: BTreeSet<_> = group.members.iter().collect();
    if ids.iter().collect::<BTreeSet<_>>() == there {
        Ok(())
    } else {
        Err(Status::invalid_argument(format!(
            "snapshot_ids are not those of group {}",
            group.id
        )))
    }
}
