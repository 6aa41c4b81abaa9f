//! The calls of a volume's life, as an orchestrator makes them. Each must succeed.

use std::path::Path;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::client::{Csi, mounted, new_volume};
use hostloop_test::requests::{self, id_of};

/// CreateVolume of this size, as ext4; returns the ID.
pub(crate) async fn create(csi: &Csi, name: &str, bytes: u64) -> String {
    create_as(csi, name, bytes, "ext4").await
}

/// CreateVolume of this size with this filesystem; returns the ID.
pub(crate) async fn create_as(csi: &Csi, name: &str, bytes: u64, fs: &str) -> String {
    let volume_capabilities = vec![mounted(fs, Mode::SingleNodeWriter)];
    let request = csi::CreateVolumeRequest {
        volume_capabilities,
        ..new_volume(name, bytes)
    };
    id_of(csi.ok(request).await)
}

/// NodeStageVolume as ext4.
pub(crate) async fn stage(csi: &Csi, id: &str, staging: &Path) {
    stage_as(csi, id, staging, "ext4").await;
}

/// NodeStageVolume with this filesystem.
pub(crate) async fn stage_as(csi: &Csi, id: &str, staging: &Path, fs: &str) {
    let volume_capability = Some(mounted(fs, Mode::SingleNodeWriter));
    let stage = requests::stage(id, staging);
    csi.ok(csi::NodeStageVolumeRequest {
        volume_capability,
        ..stage
    })
    .await;
}

/// NodePublishVolume.
pub(crate) async fn publish(csi: &Csi, id: &str, staging: &Path, target: &Path) {
    csi.ok(requests::publish(id, staging, target)).await;
}

/// NodeGetVolumeStats.
pub(crate) async fn stats(csi: &Csi, id: &str, target: &Path) {
    csi.ok(csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: requests::text(target),
        ..Default::default()
    })
    .await;
}

/// NodeUnpublishVolume.
pub(crate) async fn unpublish(csi: &Csi, id: &str, target: &Path) {
    csi.ok(requests::unpublish(id, target)).await;
}

/// NodeUnstageVolume.
pub(crate) async fn unstage(csi: &Csi, id: &str, staging: &Path) {
    csi.ok(requests::unstage(id, staging)).await;
}

/// DeleteVolume.
pub(crate) async fn delete(csi: &Csi, id: &str) {
    csi.ok(requests::delete(id)).await;
}
