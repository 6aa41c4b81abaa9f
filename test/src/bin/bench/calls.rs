//! The calls of a volume's life, as an orchestrator makes them. Each must succeed.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::client::{Csi, mounted, new_volume};
use hostloop_test::machine::text;

/// CreateVolume of this size, as ext4; returns the ID.
pub(crate) async fn create(csi: &Csi, name: &str, bytes: u64) -> String {
    create_as(csi, name, bytes, "ext4").await
}

/// CreateVolume of this size with this filesystem; returns the ID.
pub(crate) async fn create_as(csi: &Csi, name: &str, bytes: u64, fs: &str) -> String {
    let volume_capabilities = vec![mounted(fs, Mode::SingleNodeWriter)];
    let request = csi::CreateVolumeRequest { volume_capabilities, ..new_volume(name, bytes) };
    let answer = csi.ok(request).await;
    answer.volume.expect("CreateVolume answers a volume").volume_id
}

/// NodeStageVolume as ext4.
pub(crate) async fn stage(csi: &Csi, id: &str, staging: &Path) {
    stage_as(csi, id, staging, "ext4").await;
}

/// NodeStageVolume with this filesystem.
pub(crate) async fn stage_as(csi: &Csi, id: &str, staging: &Path, fs: &str) {
    csi.ok(csi::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging).to_owned(),
        volume_capability: Some(mounted(fs, Mode::SingleNodeWriter)),
        ..Default::default()
    })
    .await;
}

/// NodePublishVolume.
pub(crate) async fn publish(csi: &Csi, id: &str, staging: &Path, target: &Path) {
    csi.ok(csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: text(staging).to_owned(),
        target_path: text(target).to_owned(),
        volume_capability: Some(mounted("ext4", Mode::SingleNodeWriter)),
        ..Default::default()
    })
    .await;
}

/// NodeGetVolumeStats.
pub(crate) async fn stats(csi: &Csi, id: &str, target: &Path) {
    csi.ok(csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: text(target).to_owned(),
        ..Default::default()
    })
    .await;
}

/// NodeUnpublishVolume.
pub(crate) async fn unpublish(csi: &Csi, id: &str, target: &Path) {
    let (volume_id, target_path) = (id.to_owned(), text(target).to_owned());
    csi.ok(csi::NodeUnpublishVolumeRequest { volume_id, target_path }).await;
}

/// NodeUnstageVolume.
pub(crate) async fn unstage(csi: &Csi, id: &str, staging: &Path) {
    let (volume_id, staging_target_path) = (id.to_owned(), text(staging).to_owned());
    csi.ok(csi::NodeUnstageVolumeRequest { volume_id, staging_target_path }).await;
}

/// DeleteVolume.
pub(crate) async fn delete(csi: &Csi, id: &str) {
    let volume_id = id.to_owned();
    csi.ok(csi::DeleteVolumeRequest { volume_id, ..Default::default() }).await;
}
