//! Growing volumes on the node.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hostloop_driver::kernel::{FsType, loop_path};
use hostloop_driver::node::Error;
use hostloop_driver::storage::{Access, VolumeId};

use super::*;

/// Online if the kernel lets this process do it; offline in any case.
pub(crate) fn filesystems_grow_online_and_offline<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for fs in FsType::ALL {
        let id = rig.volume(on(fs), 200 * MI);
        let cap = mount(fs);
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "rw", &cap, false).unwrap();
        rig.publish(id, "a", "ro", &cap, true).unwrap();
        keep(&rig, &rig.target("rw"), 1);
        if rig.kernel.grows_mounted(fs) {
            grows_online(&rig, id, fs);
        } else {
            is_refused_online(&rig, id);
        }
        assert_kept(&rig, &rig.target("rw"), 1);
        rig.unpublish(id, "rw").unwrap();
        rig.unpublish(id, "ro").unwrap();
        rig.unstage(id, "a").unwrap();

        let bytes = rig.record(id).capacity_bytes + 64 * MI;
        refused!(rig.expand(id, &rig.staging("a"), bytes), Error::NotFound(_));
        rig.node.pools.expand_volume(&id, bytes).unwrap();
        rig.stage(id, "a", &cap).unwrap();
        let node = loop_path(rig.device(id).minor);
        let size = rig.kernel.fs_size(&rig.staging("a"), &node, fs).unwrap();
        assert!(size >= bytes - 16 * MI, "{fs}: {size} when it is staged");
        assert_eq!(rig.expand(id, &rig.staging("a"), bytes).unwrap(), bytes);
        assert_kept(&rig, &rig.staging("a"), 1);
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}

fn grows_online<K: TestKernel>(rig: &Rig<K>, id: VolumeId, fs: FsType) {
    let start = rig.record(id).capacity_bytes;
    let total = || rig.kernel.usage(&rig.staging("a")).unwrap().total_bytes;
    let mut before = total();
    let mut assert_grown = || {
        assert!(total() >= before + 56 * MI, "{fs}: {before} to {}", total());
        before = total();
    };
    // The controller's half first; by the target, by a read-only target, by the staging path.
    let paths = [rig.target("rw"), rig.target("ro"), rig.staging("a")];
    for (step, path) in paths.iter().enumerate() {
        let bytes = start + (step as u64 + 1) * 64 * MI;
        rig.node.pools.expand_volume(&id, bytes).unwrap();
        for _ in 0..2 {
            assert_eq!(rig.expand(id, path, bytes).unwrap(), bytes, "{fs}");
        }
        assert_grown();
    }
    // A repeated NodeStageVolume grows it as well.
    rig.node.pools.expand_volume(&id, start + 256 * MI).unwrap();
    rig.stage(id, "a", &mount(fs)).unwrap();
    assert_grown();
    // Without a controller's half, and never back.
    let bytes = start + 320 * MI;
    assert_eq!(rig.expand(id, &paths[0], bytes).unwrap(), bytes, "{fs}");
    assert_grown();
    assert_eq!(rig.expand(id, &paths[0], start).unwrap(), bytes, "{fs}");
}

/// FAILED_PRECONDITION makes the orchestrator continue with the present size.
fn is_refused_online<K: TestKernel>(rig: &Rig<K>, id: VolumeId) {
    use std::io::Write;
    // Not by `eprintln`, which the test runner hides when the test passes.
    let line = "not run: growing a mounted ext4: this machine withholds CAP_SYS_RESOURCE\n";
    #[expect(clippy::disallowed_methods, reason = "a test's own words")]
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    let bytes = rig.record(id).capacity_bytes + 64 * MI;
    rig.node.pools.expand_volume(&id, bytes).unwrap();
    let Err(Error::FailedPrecondition(why)) = rig.expand(id, &rig.target("rw"), bytes) else {
        panic!("a mounted ext4 can't grow");
    };
    assert!(why.contains("CAP_SYS_RESOURCE"), "{why}");
    rig.stage(id, "a", &mount(FsType::Ext4)).unwrap();
}

/// Btrfs grows to 256 MiB at least, even a smaller one. So a request for less gets that.
pub(crate) fn btrfs_does_not_grow_to_less_than_its_minimum<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let fs = FsType::Btrfs;
    let (id, cap) = (rig.volume(on(fs), 128 * MI), mount(fs));
    let at = rig.staging("a");
    rig.stage(id, "a", &cap).unwrap();
    rig.node.pools.expand_volume(&id, 192 * MI).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.expand(id, &at, 200 * MI).unwrap(), 256 * MI);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

pub(crate) fn block_devices_grow_the_read_only_ones_too<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "rw", &cap, false).unwrap();
    rig.publish(id, "a", "ro", &cap, true).unwrap();
    let paths = [rig.target("rw"), rig.target("ro"), rig.staging("a")];
    for (step, path) in paths.iter().enumerate() {
        let bytes = (step as u64 + 2) * 16 * MI;
        rig.node.pools.expand_volume(&id, bytes).unwrap();
        assert_eq!(rig.expand(id, path, bytes).unwrap(), bytes);
        for target in &paths[..2] {
            assert_eq!(rig.stats(id, target).unwrap()[0].total, bytes as i64);
            if K::SHARED {
                let mut last = [1; 4096];
                let raw = File::open(target).unwrap();
                raw.read_exact_at(&mut last, bytes - 4096).unwrap();
                assert!(last.iter().all(|b| *b == 0));
            }
        }
    }
}
