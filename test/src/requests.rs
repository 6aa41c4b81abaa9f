//! CSI requests that several tests send. A test changes the fields that differ.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use crate::client::new_volume;
use crate::driver::NODE;
use crate::machine;

/// The capability of a plain volume: mounted ext4, one writer.
pub fn plain() -> Option<csi::VolumeCapability> {
    new_volume("", 0).volume_capabilities.pop()
}

/// A path as a field of a request.
pub fn text(path: impl AsRef<Path>) -> String {
    machine::text(path.as_ref()).to_owned()
}

/// The ID of a new volume.
pub fn id_of(answer: csi::CreateVolumeResponse) -> String {
    answer
        .volume
        .expect("CreateVolume answers a volume")
        .volume_id
}

/// The content source of a volume that is cloned.
pub fn of_volume(id: &str) -> Option<csi::VolumeContentSource> {
    let r#type = Some(Type::Volume(VolumeSource {
        volume_id: id.to_owned(),
    }));
    Some(csi::VolumeContentSource { r#type })
}

/// The content source of a snapshot that is restored.
pub fn of_snapshot(id: &str) -> Option<csi::VolumeContentSource> {
    let r#type = Some(Type::Snapshot(SnapshotSource {
        snapshot_id: id.to_owned(),
    }));
    Some(csi::VolumeContentSource { r#type })
}

/// DeleteVolume.
pub fn delete(id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    }
}

/// CreateSnapshot.
pub fn snapshot(name: &str, volume: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: volume.to_owned(),
        ..Default::default()
    }
}

/// DeleteSnapshot.
pub fn delete_snapshot(id: &str) -> csi::DeleteSnapshotRequest {
    csi::DeleteSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    }
}

/// ControllerPublishVolume to the driver's node.
pub fn attach(id: &str) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: NODE.to_owned(),
        volume_capability: plain(),
        ..Default::default()
    }
}

/// ControllerUnpublishVolume from the driver's node.
pub fn detach(id: &str) -> csi::ControllerUnpublishVolumeRequest {
    let (volume_id, node_id) = (id.to_owned(), NODE.to_owned());
    csi::ControllerUnpublishVolumeRequest {
        volume_id,
        node_id,
        ..Default::default()
    }
}

/// NodeStageVolume.
pub fn stage(id: &str, staging: impl AsRef<Path>) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
        volume_capability: plain(),
        ..Default::default()
    }
}

/// NodePublishVolume.
pub fn publish(
    id: &str,
    staging: impl AsRef<Path>,
    target: impl AsRef<Path>,
) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
        target_path: text(target),
        volume_capability: plain(),
        ..Default::default()
    }
}

/// NodeUnpublishVolume.
pub fn unpublish(id: &str, target: impl AsRef<Path>) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: text(target),
    }
}

/// NodeUnstageVolume.
pub fn unstage(id: &str, staging: impl AsRef<Path>) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
    }
}
