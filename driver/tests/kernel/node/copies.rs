//! Volumes next to their copies, and volumes that were copied.

use hostloop_driver::kernel::{FsType, Kernel};
use hostloop_driver::storage::Source;

use super::Rig;
use crate::testkit::*;

/// The block-size trap: a reflinked image comes up with 4096-byte sectors, so it must have had
/// them from its first mkfs on. And it keeps direct I/O.
fn snapshot_and_stage_again(pool: FsType) {
    let rig = Rig::on(pool, 4096 * MI);
    for fs in FsType::ALL {
        let id = rig.volume(on(fs), 32 * MI);
        let cap = mount(fs);
        rig.stage(id, "a", &cap).unwrap();
        assert!(rig.loops(id)[0].direct_io, "{fs} on {pool}");
        write(&rig.staging("a").join("data"), 3, 300_000);
        let snapshot = rig.node.pools.create_snapshot(&id, "s", &Default::default());
        let snapshot = snapshot.unwrap();
        write(&rig.staging("a").join("later"), 4, 1000);
        rig.unstage(id, "a").unwrap();

        rig.stage(id, "a", &cap).unwrap();
        assert!(rig.loops(id)[0].direct_io, "{fs} on {pool}, after a snapshot");
        assert_written(&rig.staging("a").join("data"), 3, 300_000);
        assert_written(&rig.staging("a").join("later"), 4, 1000);

        // The restored one next to it, larger, with the same UUID.
        let larger = rig.record(id).capacity_bytes + 160 * MI;
        let restored = rig.create(copy_of(Source::Snapshot(snapshot.id), on(fs), larger));
        rig.stage(restored, "b", &cap).unwrap();
        assert!(rig.loops(restored)[0].direct_io, "{fs} on {pool}, restored");
        assert_written(&rig.staging("b").join("data"), 3, 300_000);
        assert!(!rig.staging("b").join("later").exists());
        let total = rig.kernel.usage(&rig.staging("b")).unwrap().total_bytes;
        let before = rig.kernel.usage(&rig.staging("a")).unwrap().total_bytes;
        assert!(total > before + 32 * MI, "{fs} on {pool}: grown to {total}");
        rig.unstage(restored, "b").unwrap();
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
        rig.assert_clean(restored);
        rig.node.pools.delete_snapshot(&snapshot.id).unwrap();
    }
}

#[test]
fn a_snapshot_leaves_the_original_mountable() {
    snapshot_and_stage_again(FsType::Xfs);
    snapshot_and_stage_again(FsType::Btrfs);
}

#[test]
fn a_clone_is_mounted_next_to_its_source() {
    let rig = Rig::new();
    for fs in FsType::ALL {
        let id = rig.volume(on(fs), 32 * MI);
        let cap = mount(fs);
        rig.stage(id, "a", &cap).unwrap();
        write(&rig.staging("a").join("data"), 5, 10_000);
        let bytes = rig.record(id).capacity_bytes;
        let clone = rig.create(copy_of(Source::Volume(id), on(fs), bytes));
        rig.stage(clone, "b", &cap).unwrap();
        assert_written(&rig.staging("b").join("data"), 5, 10_000);
        write(&rig.staging("b").join("data"), 6, 10_000);
        write(&rig.staging("a").join("more"), 7, 10_000);
        rig.unstage(id, "a").unwrap();
        rig.unstage(clone, "b").unwrap();
        rig.stage(id, "a", &cap).unwrap();
        assert_written(&rig.staging("a").join("data"), 5, 10_000);
        assert_written(&rig.staging("a").join("more"), 7, 10_000);
        rig.unstage(id, "a").unwrap();
    }
}
