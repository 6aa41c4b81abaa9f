//! Scenarios of the node service that every kernel must pass, the fake and Linux. Files beneath a
//! mount are written and read on Linux only: the fake mounts nothing, so the files would stay in
//! the target directory.

use std::os::unix::fs::symlink;

use hostloop_driver::kernel::{FsType, Kernel, LoopSpec, loop_path};
use hostloop_driver::node::Error;
use hostloop_driver::storage::{Access, Format, FreezeIntent, VolumeId};

use super::*;

/// Defines a test for each scenario, on the kernel of the including rig.
macro_rules! scenarios {
    ($kernel:ty: $($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            $crate::testkit::scenarios::$name::<$kernel>();
        })+
    };
}
pub(crate) use scenarios;

/// Passes the names of all scenarios to a macro.
macro_rules! all_scenarios {
    ($kernel:ty) => {
        $crate::testkit::scenarios::scenarios!($kernel:
            a_block_volume_lives,
            a_read_only_block_volume_is_a_device_of_its_own,
            kubelets_own_devices_hold_a_block_volume,
            a_staged_volume_survives_a_restart,
            block_devices_survive_a_restart,
            a_freeze_that_a_copy_left_ends,
            lost_data_is_not_formatted,
            only_the_last_component_may_not_be_a_symlink,
            a_class_that_mounts_read_only_is_published_again,
            no_volume_comes_to_a_device_whose_node_is_bound,
        );
    };
}
pub(crate) use all_scenarios;

fn keep<K: TestKernel>(rig: &Rig<K>, at: &str, seed: u8) {
    if K::SHARED {
        write(&rig.target(at).join("data"), seed, 5000);
    }
}

#[track_caller]
fn assert_kept<K: TestKernel>(rig: &Rig<K>, at: &str, seed: u8) {
    if K::SHARED {
        assert_written(&rig.target(at).join("data"), seed, 5000);
    }
}

/// Loop devices over a volume's loop device.
fn devices_over<K: TestKernel>(
    rig: &Rig<K>,
    id: VolumeId,
) -> Vec<hostloop_driver::kernel::LoopInfo> {
    let own = rig.device(id);
    let mut loops = rig.kernel.loops().unwrap();
    loops.retain(|l| l.backing_rdev == rdev(own.minor));
    loops
}

pub(crate) fn a_block_volume_lives<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    assert!(rig.mounted().is_empty());
    let device = rig.device(id);
    assert!(device.direct_io && !device.autoclear);
    let record = rig.record(id);
    assert_eq!(record.format, Format::Raw);
    assert_eq!(record.stage.as_ref().unwrap().minor, Some(device.minor));
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.device(id), device);
    refused!(rig.stage(id, "b", &cap), Error::FailedPrecondition(_));

    for _ in 0..2 {
        rig.publish(id, "a", "p", &cap, false).unwrap();
        assert_eq!(rig.node_at("p"), Some(device.minor));
    }
    refused!(
        rig.publish(id, "a", "p", &cap, true),
        Error::AlreadyExists(_)
    );
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    for _ in 0..2 {
        rig.unpublish(id, "p").unwrap();
    }
    std::fs::create_dir(rig.target("dir")).unwrap();
    refused!(rig.publish(id, "a", "dir", &cap, false), Error::Path { .. });
    std::fs::remove_dir(rig.target("dir")).unwrap();

    // An open device can neither be unstaged nor staged again.
    let held = rig.kernel.loop_reopen(&device).unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    assert!(rig.record(id).stage.is_some());
    refused!(rig.stage(id, "a", &cap), Error::FailedPrecondition(_));
    drop(held);
    for _ in 0..2 {
        rig.unstage(id, "a").unwrap();
    }
    rig.assert_clean(id);
}

pub(crate) fn a_read_only_block_volume_is_a_device_of_its_own<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "rw", &cap, false).unwrap();
    for _ in 0..2 {
        rig.publish(id, "a", "ro", &cap, true).unwrap();
    }
    assert!(!rig.device(id).read_only);
    let over = devices_over(&rig, id);
    assert_eq!(over.len(), 1);
    assert!(over[0].read_only && !over[0].autoclear);
    assert_eq!(rig.node_at("ro"), Some(over[0].minor));
    let recorded = |id| rig.record(id).stage.clone().unwrap().read_only_loops;
    assert_eq!(recorded(id).get(&rig.target("ro")), Some(&over[0].minor));
    rig.unpublish(id, "rw").unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.unpublish(id, "ro").unwrap();
    assert!(devices_over(&rig, id).is_empty() && recorded(id).is_empty());
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// Kubelet binds the published node once more, and attaches its own loop device over it. A detach
/// by the driver would succeed without effect.
pub(crate) fn kubelets_own_devices_hold_a_block_volume<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let own = rig.device(id);
    let map = rig.target("map");
    std::fs::write(&map, "").unwrap();
    rig.kernel
        .bind(&loop_path(own.minor), &map, Default::default())
        .unwrap();
    let below = rig.kernel.loop_reopen(&own).unwrap();
    let over = LoopSpec {
        backing: &below.file,
        label: "kubelet",
        read_only: false,
        direct_io: false,
        autoclear: false,
        minor: None,
    };
    let kubelets = rig.kernel.loop_attach(&over).unwrap().minor;
    drop(below);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.unpublish(id, "p").unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.kernel.unmount(&map).unwrap();
    std::fs::remove_file(map).unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    assert!(rig.record(id).stage.is_some());
    assert!(rig.device(id).is_same(&own));
    let left = rig.kernel.loop_info(kubelets).unwrap();
    let left = left.expect("the driver does not detach kubelet's device");
    rig.kernel.loop_release(&left).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

pub(crate) fn a_staged_volume_survives_a_restart<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    keep(&rig, "p", 2);
    let before = rig.device(id);
    let rig = rig.restarted();
    assert_eq!(rig.device(id), before);
    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    assert_kept(&rig, "p", 2);
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    assert_eq!(rig.mounted().len(), 2);
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

pub(crate) fn block_devices_survive_a_restart<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "rw", &cap, false).unwrap();
    rig.publish(id, "a", "ro", &cap, true).unwrap();
    let before = (rig.device(id), devices_over(&rig, id));
    let rig = rig.restarted();
    assert_eq!((rig.device(id), devices_over(&rig, id)), before);
    rig.publish(id, "a", "ro", &cap, true).unwrap();
    rig.publish(id, "a", "other", &cap, false).unwrap();
    for target in ["rw", "ro", "other"] {
        rig.unpublish(id, target).unwrap();
    }
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

pub(crate) fn a_freeze_that_a_copy_left_ends<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for fs in FsType::ALL {
        let cap = mount(fs);
        let id = rig.volume(on(fs), 32 * MI);
        let freeze = || {
            let intent = Some(FreezeIntent { since_ns: 1 });
            let pools = &rig.node.pools;
            pools.update_volume(&id, |r| r.freeze = intent).unwrap();
            let root = std::fs::File::open(rig.staging("a")).unwrap();
            rig.kernel.freeze(&root).unwrap();
        };
        let thawed_and_clean = || {
            rig.unstage(id, "a").unwrap();
            rig.assert_clean(id);
            assert_eq!(rig.record(id).freeze, None, "{fs}");
        };
        let data = |name: &str| rig.staging("a").join(name);
        rig.stage(id, "a", &cap).unwrap();
        if K::SHARED {
            write(&data("data"), 1, 10_000);
        }
        freeze();
        thawed_and_clean();

        // The filesystem was unmounted while frozen: the kernel keeps the filesystem and its
        // device.
        for then_stage in [true, false] {
            rig.stage(id, "a", &cap).unwrap();
            freeze();
            rig.kernel.unmount(&rig.staging("a")).unwrap();
            assert_eq!(rig.loops(id).len(), 1, "{fs}: it stays attached");
            if then_stage {
                rig.stage(id, "a", &cap).unwrap();
                if K::SHARED {
                    write(&data("more"), 2, 10_000);
                }
            }
            thawed_and_clean();
        }
        rig.stage(id, "a", &cap).unwrap();
        if K::SHARED {
            assert_written(&data("data"), 1, 10_000);
            assert_written(&data("more"), 2, 10_000);
        }
        rig.unstage(id, "a").unwrap();
    }
}

pub(crate) fn lost_data_is_not_formatted<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.unstage(id, "a").unwrap();
    let image = rig.node.pools.open_image(&rig.record(id), true).unwrap();
    image.set_len(0).unwrap();
    image.set_len(16 * MI).unwrap();
    drop(image);
    refused!(rig.stage(id, "a", &cap), Error::DataLoss(_));
    rig.assert_clean(id);
}

pub(crate) fn only_the_last_component_may_not_be_a_symlink<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.volume(ext4(), 16 * MI);
    let elsewhere = rig.root().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let stage = rig.root().join("stage");
    symlink(&elsewhere, stage.join("link")).unwrap();
    symlink(&elsewhere, rig.target("link")).unwrap();
    std::fs::write(stage.join("file"), "").unwrap();
    for name in ["link", "file", "missing"] {
        let answer = rig.stage_at(id, &stage.join(name), &cap);
        refused!(answer, Error::Path { .. }, "{name}");
        rig.assert_detached(id);
        assert_eq!(rig.record(id).stage, None, "{name}");
    }
    rig.stage(id, "a", &cap).unwrap();
    refused!(
        rig.publish(id, "a", "link", &cap, false),
        Error::Path { .. }
    );
    for _ in 0..2 {
        rig.publish(id, "a", "link/p", &cap, false).unwrap();
        assert!(rig.mounted().contains(&elsewhere.join("p")));
    }
    rig.unpublish(id, "link/p").unwrap();
    assert!(!elsewhere.join("p").exists());
    refused!(rig.unpublish(id, "link"), Error::Path { .. });
    assert!(rig.target("link").is_symlink());
    rig.unstage(id, "a").unwrap();
}

pub(crate) fn a_class_that_mounts_read_only_is_published_again<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for cap in [mount("ext4"), with_group(mount("ext4"), "1000")] {
        let cap = with_flags(cap, &["ro"]);
        let id = rig.volume(ext4(), 16 * MI);
        for readonly in [false, true] {
            rig.stage(id, "a", &cap).unwrap();
            for again in [readonly, readonly, !readonly] {
                rig.publish(id, "a", "p", &cap, again).unwrap();
                rig.publish(id, "a", "q", &cap, again).unwrap();
            }
            if K::SHARED {
                assert!(std::fs::write(rig.target("p").join("x"), "").is_err());
            }
            rig.unpublish(id, "p").unwrap();
            rig.unpublish(id, "q").unwrap();
            rig.unstage(id, "a").unwrap();
        }
        rig.assert_clean(id);
    }
}

/// A leftover bind of the device node would expose whatever is attached there next.
pub(crate) fn no_volume_comes_to_a_device_whose_node_is_bound<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let raw = rig.staged(Access::Block, "a", &block());
    rig.publish(raw, "a", "p", &block(), false).unwrap();
    let lost = rig.device(raw);
    // A user of the device can do this without any capability.
    rig.kernel.loop_release(&lost).unwrap();
    rig.assert_detached(raw);
    for i in 0..3 {
        let id = rig.staged(ext4(), &format!("mount-{i}"), &mount("ext4"));
        assert_ne!(rig.device(id).minor, lost.minor);
        let at = format!("block-{i}");
        let id = rig.staged(Access::Block, &at, &block());
        rig.publish(id, &at, &at, &block(), true).unwrap();
        assert_ne!(rig.device(id).minor, lost.minor);
        let over = rig.record(id).stage.clone().unwrap().read_only_loops;
        assert!(over.values().all(|m| *m != lost.minor));
    }
    // The volume gets its own device back.
    rig.stage(raw, "a", &block()).unwrap();
    assert_eq!(rig.device(raw).minor, lost.minor);
    rig.unpublish(raw, "p").unwrap();
    rig.unstage(raw, "a").unwrap();
}
