//! The driver as a process, on real pools: one program, because linking eight takes minutes.
//! `scripts/test` runs each module as a step of its own.

mod concurrency;
mod crash;
mod enospc;
mod harness;
mod hostile;
mod leaks;
mod sanity;
mod walk;

use hostloop_proto::csi;

/// DeleteVolume of this ID.
fn delete(id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest {
        volume_id: id.to_owned(),
        ..Default::default()
    }
}

/// The ID of a new volume.
fn id_of(answer: csi::CreateVolumeResponse) -> String {
    answer.volume.expect("a volume is answered").volume_id
}
