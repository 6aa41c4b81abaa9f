//! A thick volume that lost space gets it back before its next use.

use std::fs::File;

use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeWriter;
use rustix::fs::{FallocateFlags, fallocate};
use tonic::{Code, Status};

use super::Rig;
use crate::kernel::file::allocated_bytes;
use crate::storage::{Access, Provisioning, Reserve, VolumeId};
use crate::testkit::*;

/// A thick volume that was used once and lost half of its space to a trim.
fn trimmed(rig: &Rig) -> (VolumeId, File) {
    let id = rig.volume(Access::Block, 16 * MI);
    let mut settings = rig.record(id).settings.clone();
    settings.provisioning = Provisioning::Thick;
    rig.node.pools.modify_volume(&id, settings).unwrap();
    rig.stage(id, "a", &block_as(SingleNodeWriter)).unwrap();
    rig.unstage(id, "a").unwrap();
    let image = rig.open_image(id);
    assert!(allocated_bytes(&image).unwrap() >= 16 * MI);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&image, hole, 0, 8 * MI).unwrap();
    assert!(allocated_bytes(&image).unwrap() <= 8 * MI);
    (id, image)
}

#[test]
fn staging_takes_what_was_trimmed_or_changes_nothing() {
    let mut rig = Rig::new();
    let (id, image) = trimmed(&rig);
    // The reserve keeps all free space.
    rig.options.reserve = Reserve::Bytes(u64::MAX / 4);
    rig.restart();
    let before = rig.record(id);
    rig.kernel.take_effects();
    let refused = rig.stage(id, "a", &block_as(SingleNodeWriter)).unwrap_err();
    assert_eq!(Status::from(refused).code(), Code::ResourceExhausted);
    assert_eq!(rig.record(id), before);
    assert!(allocated_bytes(&image).unwrap() <= 8 * MI);
    assert_eq!(rig.kernel.take_effects(), [] as [&str; 0]);

    rig.options.reserve = Reserve::Bytes(0);
    rig.restart();
    rig.stage(id, "a", &block_as(SingleNodeWriter)).unwrap();
    assert!(allocated_bytes(&image).unwrap() >= 16 * MI);
}
