//! A thick volume that lost space gets it back before its next use.

use std::fs::File;

use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeWriter;
use rustix::fs::{FallocateFlags, fallocate};
use tonic::{Code, Status};

use super::bench::*;
use crate::pool::{Access, Provisioning, Reserve, VolumeId};
use crate::sys::file::allocated_bytes;

/// A thick volume that was used once and lost half of its space to a trim.
fn trimmed(bench: &Bench) -> (VolumeId, File) {
    let id = bench.volume(Access::Block);
    let mut settings = bench.record(id).settings.clone();
    settings.provisioning = Provisioning::Thick;
    bench.node.pools.modify_volume(&id, settings).unwrap();
    bench.stage(id, "a", &block(SingleNodeWriter)).unwrap();
    bench.unstage(id, "a").unwrap();
    let image = bench
        .node
        .pools
        .open_image(&bench.record(id), true)
        .unwrap();
    assert!(allocated_bytes(&image).unwrap() >= 16 * MI);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&image, hole, 0, 8 * MI).unwrap();
    assert!(allocated_bytes(&image).unwrap() <= 8 * MI);
    (id, image)
}

#[test]
fn staging_takes_what_was_trimmed() {
    let bench = Bench::new();
    let (id, image) = trimmed(&bench);
    bench.stage(id, "a", &block(SingleNodeWriter)).unwrap();
    assert!(allocated_bytes(&image).unwrap() >= 16 * MI);
}

#[test]
fn without_room_for_it_nothing_is_changed() {
    let mut bench = Bench::new();
    let (id, image) = trimmed(&bench);
    // The reserve keeps all free space.
    bench.restart_with(Reserve::Bytes(u64::MAX / 4));
    let before = bench.record(id);
    bench.kernel.take_effects();
    let refused = bench.stage(id, "a", &block(SingleNodeWriter)).unwrap_err();
    assert_eq!(Status::from(refused).code(), Code::ResourceExhausted);
    assert_eq!(bench.record(id), before);
    assert!(allocated_bytes(&image).unwrap() <= 8 * MI);
    assert_eq!(bench.kernel.take_effects(), [] as [&str; 0]);

    bench.restart_with(Reserve::Bytes(0));
    bench.stage(id, "a", &block(SingleNodeWriter)).unwrap();
    assert!(allocated_bytes(&image).unwrap() >= 16 * MI);
}
