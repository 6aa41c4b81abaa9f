//! Calls of the Controller service, and the messages in them.

use std::time::Instant;

use hostloop_driver::controller::Result;
use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::{PATIENCE, Rig, TestKernel, map, mount_as};

/// What health says of a pool that does not answer in two seconds.
const SILENT: &str = "it has not answered for";

impl<K: TestKernel> Rig<K> {
    pub(crate) fn try_create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume> {
        let response = self.controller.create_volume(request)?;
        Ok(response.volume.unwrap())
    }

    /// Creates a volume and returns its ID.
    pub(crate) fn created(&self, request: csi::CreateVolumeRequest) -> String {
        self.try_create(request).unwrap().volume_id
    }

    pub(crate) fn delete(&self, id: &str) -> Result<()> {
        let request = csi::DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        self.controller.delete_volume(request).map(drop)
    }

    pub(crate) fn snapshot(&self, name: &str, volume: &str) -> Result<csi::Snapshot> {
        self.snapshot_as(name, volume, |_| {})
    }

    pub(crate) fn snapshot_as(
        &self,
        name: &str,
        volume: &str,
        change: impl FnOnce(&mut csi::CreateSnapshotRequest),
    ) -> Result<csi::Snapshot> {
        let mut request = csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..Default::default()
        };
        change(&mut request);
        let response = self.controller.create_snapshot(request)?;
        Ok(response.snapshot.unwrap())
    }

    pub(crate) fn delete_snapshot(&self, id: &str) -> Result<()> {
        let request = csi::DeleteSnapshotRequest {
            snapshot_id: id.to_owned(),
            ..Default::default()
        };
        self.controller.delete_snapshot(request).map(drop)
    }

    /// ControllerExpandVolume: returns the volume's size.
    pub(crate) fn grow(&self, id: &str, range: Option<csi::CapacityRange>) -> Result<i64> {
        self.grow_as(id, range, None)
    }

    pub(crate) fn grow_as(
        &self,
        id: &str,
        capacity_range: Option<csi::CapacityRange>,
        volume_capability: Option<csi::VolumeCapability>,
    ) -> Result<i64> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range,
            volume_capability,
            ..Default::default()
        };
        let response = self.controller.controller_expand_volume(request)?;
        assert!(response.node_expansion_required);
        Ok(response.capacity_bytes)
    }

    /// ControllerModifyVolume with parameters as for [`pairs`].
    pub(crate) fn modify(&self, id: &str, parameters: &str) -> Result<()> {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: id.to_owned(),
            mutable_parameters: pairs(parameters),
            ..Default::default()
        };
        self.controller.controller_modify_volume(request).map(drop)
    }

    /// The problems of a volume: the type and the reason of each.
    pub(crate) fn health(&self, id: &str) -> Result<Vec<(csi::VolumeHealthErrorType, String)>> {
        let request = csi::ControllerGetVolumeHealthRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        let end = Instant::now() + PATIENCE;
        loop {
            let request = request.clone();
            let response = self.controller.controller_get_volume_health(request)?;
            let health = response.volume_health.unwrap();
            assert_eq!(health.volume_id, id);
            let entries = health.health_statuses;
            // On a busy machine, a pool may not answer in time.
            let is_silent = entries.iter().any(|e| e.message.contains(SILENT));
            if !is_silent || Instant::now() > end {
                let entries = entries.into_iter();
                return Ok(entries.map(|e| (e.status(), e.reason)).collect());
            }
        }
    }

    /// The reasons of a volume's problems.
    pub(crate) fn reasons(&self, id: impl ToString) -> Vec<String> {
        let health = self.health(&id.to_string()).unwrap();
        health.into_iter().map(|(_, reason)| reason).collect()
    }
}

/// A request for 8 MiB of the default filesystem.
pub(crate) fn create_request(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: range(8 << 20, 0),
        volume_capabilities: vec![mount_as("", Mode::SingleNodeWriter)],
        ..csi::CreateVolumeRequest::default()
    }
}

/// The request of [`create_request`], with parameters as for [`pairs`].
pub(crate) fn create_request_with(name: &str, parameters: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        parameters: pairs(parameters),
        ..create_request(name)
    }
}

/// The request of [`create_request`], with this capability.
pub(crate) fn create_request_for(
    name: &str,
    capability: csi::VolumeCapability,
) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_capabilities: vec![capability],
        ..create_request(name)
    }
}

pub(crate) fn range(required_bytes: i64, limit_bytes: i64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange {
        required_bytes,
        limit_bytes,
    })
}

/// The map of a text such as "key=value other=value".
pub(crate) fn pairs(text: &str) -> std::collections::BTreeMap<String, String> {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('='));
    map(&pairs.map(|pair| pair.expect("a =")).collect::<Vec<_>>())
}

pub(crate) fn from(r#type: Type) -> Option<csi::VolumeContentSource> {
    Some(csi::VolumeContentSource {
        r#type: Some(r#type),
    })
}

pub(crate) fn of_volume(id: impl ToString) -> Type {
    Type::Volume(VolumeSource {
        volume_id: id.to_string(),
    })
}

pub(crate) fn of_snapshot(id: impl ToString) -> Type {
    Type::Snapshot(SnapshotSource {
        snapshot_id: id.to_string(),
    })
}
