//! Snapshots.

use std::time::SystemTime;

use hostloop_proto::csi;
use hostloop_proto::csi::controller_service_capability::rpc::Type as ControllerRpc;
use hostloop_proto::csi::plugin_capability::service::Type as Service;
use tonic::Status;

use super::{Answer, Snapshot, State, can, check};
use crate::options::Options;

impl State {
    pub(crate) fn create_snapshot(
        &mut self,
        options: &Options,
        request: csi::CreateSnapshotRequest,
    ) -> Answer<csi::CreateSnapshotResponse> {
        can(options, ControllerRpc::CreateDeleteSnapshot)?;
        check::given("name", &request.name)?;
        check::given("source_volume_id", &request.source_volume_id)?;
        let named = self.snapshots.values().find(|s| s.name == request.name);
        let id = match named {
            Some(there) if there.source != request.source_volume_id => {
                let why = format!("snapshot {} of another volume has this name", there.id);
                return Err(Status::already_exists(why));
            }
            Some(there) if there.parameters != request.parameters => {
                let why = format!("snapshot {} has this name and other parameters", there.id);
                return Err(Status::already_exists(why));
            }
            Some(there) => there.id.clone(),
            None => self.new_snapshot(options, request)?,
        };
        Ok(csi::CreateSnapshotResponse {
            snapshot: self.polled(options, &id),
        })
    }

    fn new_snapshot(
        &mut self,
        options: &Options,
        request: csi::CreateSnapshotRequest,
    ) -> Answer<String> {
        let source = self.volume(&request.source_volume_id)?;
        let (size, place) = (source.capacity, source.place.clone());
        let snapshot = Snapshot {
            id: self.new_id(options, "snap"),
            name: request.name,
            source: request.source_volume_id,
            size,
            created: SystemTime::now().into(),
            place,
            polls_left: options.ready_after_polls,
            parameters: request.parameters,
            group: None,
        };
        let id = snapshot.id.clone();
        self.snapshots.insert(id.clone(), snapshot);
        Ok(id)
    }

    /// Answers a caller that polls a snapshot until it is ready.
    pub(crate) fn polled(&mut self, options: &Options, id: &str) -> Option<csi::Snapshot> {
        let snapshot = self.snapshots.get_mut(id)?;
        let answer = to_csi(options, snapshot);
        snapshot.polls_left = snapshot.polls_left.saturating_sub(1);
        Some(answer)
    }

    pub(crate) fn delete_snapshot(
        &mut self,
        options: &Options,
        request: csi::DeleteSnapshotRequest,
    ) -> Answer<csi::DeleteSnapshotResponse> {
        can(options, ControllerRpc::CreateDeleteSnapshot)?;
        check::path("snapshot_id", &request.snapshot_id)?;
        let snapshot = self.snapshots.get(&request.snapshot_id);
        if let Some(group) = snapshot.and_then(|s| s.group.as_ref()) {
            let why = format!("snapshot {} belongs to {group}", request.snapshot_id);
            return Err(Status::failed_precondition(why));
        }
        self.snapshots.remove(&request.snapshot_id);
        Ok(csi::DeleteSnapshotResponse {})
    }

    pub(crate) fn get_snapshot(
        &mut self,
        options: &Options,
        request: csi::GetSnapshotRequest,
    ) -> Answer<csi::GetSnapshotResponse> {
        can(options, ControllerRpc::GetSnapshot)?;
        check::path("snapshot_id", &request.snapshot_id)?;
        let snapshot = self.polled(options, &request.snapshot_id);
        let none = || Status::not_found(format!("snapshot {} does not exist", request.snapshot_id));
        Ok(csi::GetSnapshotResponse {
            snapshot: Some(snapshot.ok_or_else(none)?),
        })
    }
}

/// The snapshot in CSI terms.
pub(crate) fn to_csi(options: &Options, snapshot: &Snapshot) -> csi::Snapshot {
    let placed = Service::SnapshotAccessibilityConstraints;
    let placed = options.capabilities.services.contains(&placed);
    let place = csi::Topology {
        segments: snapshot.place.clone(),
    };
    csi::Snapshot {
        size_bytes: snapshot.size,
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.source.clone(),
        creation_time: Some(snapshot.created),
        ready_to_use: snapshot.polls_left == 0,
        group_snapshot_id: snapshot.group.clone().unwrap_or_default(),
        accessible_topology: placed.then_some(place).into_iter().collect(),
    }
}
