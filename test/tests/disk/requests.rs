//! Requests that several modules send.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_test::client::new_volume;
use hostloop_test::driver::NODE;
use hostloop_test::machine;

/// The capability of a plain volume: mounted ext4, one writer.
pub(crate) fn plain() -> Option<csi::VolumeCapability> {
    new_volume("", 0).volume_capabilities.pop()
}

/// A path as requests have it.
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    machine::text(path.as_ref()).to_owned()
}

/// The ID of a new volume.
pub(crate) fn id_of(answer: csi::CreateVolumeResponse) -> String {
    answer.volume.expect("a volume is answered").volume_id
}

pub(crate) fn delete(id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() }
}

pub(crate) fn attach(id: &str) -> csi::ControllerPublishVolumeRequest {
    csi::ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: NODE.to_owned(),
        volume_capability: plain(),
        ..Default::default()
    }
}

pub(crate) fn detach(id: &str) -> csi::ControllerUnpublishVolumeRequest {
    csi::ControllerUnpublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: NODE.to_owned(),
        ..Default::default()
    }
}

pub(crate) fn stage(id: &str, staging: impl AsRef<Path>) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging),
        volume_capability: plain(),
        ..Default::default()
    }
}

pub(crate) fn publish(
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

pub(crate) fn unpublish(id: &str, target: impl AsRef<Path>) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(target) }
}

pub(crate) fn unstage(id: &str, staging: impl AsRef<Path>) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: text(staging) }
}
