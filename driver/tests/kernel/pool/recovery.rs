//! Recovery after a process's death, on the real kernel.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{FsType, Mounts};
use hostloop_driver::storage::{About, Access, VolumeId};

use crate::testkit::*;

type Rig = crate::testkit::Rig<Linux>;

/// Starts the next process; the description of its only problem, or an empty one.
fn problem(rig: &mut Rig, id: VolumeId) -> String {
    rig.restart();
    let mut noted = rig.node.pools.noted_problems();
    assert!(noted.len() < 2, "{noted:?}");
    let problem = noted.pop();
    assert!(problem.iter().all(|f| f.about == About::Volume(id)));
    problem.map(|f| f.problem.to_string()).unwrap_or_default()
}

#[test]
fn idle_devices_are_detached_and_stagings_without_a_mount_end() {
    for staged in [false, true] {
        let mut rig = Rig::new();
        let id = rig.volume(ext4(), 16 * MI);
        let minor = rig.attach_file(&rig.open_image(id)).minor;
        if staged {
            let stage = stage_at(rig.staging("a"), mounted(), Some(minor));
            rig.update(id, |r| r.stage = Some(stage));
        }
        assert_eq!(problem(&mut rig, id), "");
        rig.assert_clean(id);
    }
}

#[test]
fn devices_in_use_and_foreign_ones_stay() {
    let mut rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let at = rig.root().join("somewhere");
    std::fs::create_dir(&at).unwrap();
    let device = rig.attach_file(&rig.open_image(id));
    make_fs(&*rig.kernel, &device, FsType::Ext4);
    mount_fs(&*rig.kernel, &device, &at, FsType::Ext4);
    drop(device);
    let foreign = crate::tools::sparse(&rig.root().join("foreign"), MI);
    drop(rig.attach_file(&foreign));
    let problem = problem(&mut rig, id);
    assert!(problem.contains(at.to_str().unwrap()), "{problem}");
    rig.device(id);
    assert_eq!(rig.loops_over(&foreign), 1);
}

#[test]
fn a_raw_block_target_gets_its_device_back_at_its_minor() {
    let mut rig = Rig::new();
    let id = rig.staged(Access::Block, "a", &block());
    rig.publish(id, "a", "p", &block(), false).unwrap();
    let target = File::options().write(true).open(rig.target("p")).unwrap();
    target.write_all_at(&pattern(1, 4096), 8192).unwrap();
    drop(target);
    let lost = rig.device(id);
    rig.die();
    // A bind of its node does not hold it. Another program may take the minor at any moment: the
    // device can't be attached there then, and recovery must report that.
    rig.release(&lost);
    let problem = problem(&mut rig, id);
    if rig.loops(id).is_empty() {
        assert!(
            problem.contains("now holds another file: unpublish them"),
            "{problem}"
        );
        return;
    }
    assert_eq!(problem, "");
    assert_eq!(rig.device(id).minor, lost.minor);
    let mut read = [0; 4096];
    File::open(rig.target("p"))
        .unwrap()
        .read_exact_at(&mut read, 8192)
        .unwrap();
    assert!(read[..] == pattern(1, 4096));
}

#[test]
fn a_frozen_filesystem_is_thawed() {
    for fs in FsType::ALL {
        for unmounted in [false, true] {
            let mut rig = Rig::new();
            let id = rig.volume(on(fs), 16 * MI);
            rig.stage(id, "a", &mount(fs)).unwrap();
            rig.freeze(id, "a");
            if unmounted {
                rig.kernel.unmount(&rig.staging("a")).unwrap();
            }
            assert_eq!(problem(&mut rig, id), "", "{fs}, unmounted {unmounted}");
            assert_eq!(rig.record(id).freeze, None, "{fs}");
            if unmounted {
                // Recovery detached the unused device; a frozen filesystem would hold it.
                rig.assert_clean(id);
            } else {
                std::fs::write(rig.staging("a").join("written"), "again").unwrap();
                assert!(rig.record(id).stage.is_some());
            }
        }
    }
}
