//! Staging and unstaging.

use std::path::PathBuf;

use hostloop_proto::csi::volume_capability::access_mode::Mode::*;
use hostloop_proto::csi::{self, volume_capability::AccessType};

use super::bench::*;
use crate::node::Error;
use crate::pool::{Access, Format};
use crate::sys::{FsType, Kernel, LoopSpec};

#[test]
fn stages_once_and_again_and_undoes_it() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let cap = mount("ext4", SingleNodeWriter);
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(bench.mounted(), [bench.staging("a")]);
    let record = bench.record(id);
    assert_eq!(record.format, Format::Done(FsType::Ext4));
    let stage = record.stage.as_ref().expect("is recorded");
    assert_eq!(stage.path, bench.staging("a"));
    let device = &bench.kernel.loops().unwrap()[0];
    assert!(device.autoclear && device.direct_io && !device.read_only);

    let before = bench.kernel.effects().len();
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(
        bench.kernel.effects().len(),
        before,
        "nothing is done twice"
    );

    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "unstaged");
    bench.unstage(id, "a").unwrap();
    assert!(bench.staging("a").is_dir(), "kubelet's directory stays");
    bench.stage(id, "a", &cap).unwrap();
    let made = bench.kernel.effects();
    let made = made.iter().filter(|e| e.op == "mkfs").count();
    assert_eq!(made, 1, "what was formatted is not formatted again");
}

#[test]
fn what_was_staged_once_is_not_fresh_any_more() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    assert!(bench.record(id).fresh);
    bench.stage(id, "a", &mount("", SingleNodeWriter)).unwrap();
    bench.unstage(id, "a").unwrap();
    assert!(!bench.record(id).fresh);
}

#[test]
fn the_order_is_attach_format_mount() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    bench.stage(id, "a", &mount("", SingleNodeWriter)).unwrap();
    let expected = [
        "loop.attach",
        "loop.read-ahead",
        "mkfs",
        "loop.flush",
        "mount",
    ];
    assert_eq!(bench.kernel.take_effects(), expected);
    bench.unstage(id, "a").unwrap();
    bench.stage(id, "a", &mount("", SingleNodeWriter)).unwrap();
    let expected = [
        "unmount",
        "loop.attach",
        "loop.read-ahead",
        "check",
        "mount",
    ];
    assert_eq!(bench.kernel.take_effects(), expected);
}

#[test]
fn a_second_path_or_another_use_is_refused() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    bench
        .stage(id, "a", &mount("ext4", SingleNodeWriter))
        .unwrap();
    let other_path = bench.stage(id, "b", &mount("ext4", SingleNodeWriter));
    assert!(
        matches!(other_path, Err(Error::FailedPrecondition(_))),
        "{other_path:?}"
    );
    let other_mode = bench.stage(id, "a", &mount("ext4", SingleNodeMultiWriter));
    assert!(
        matches!(other_mode, Err(Error::AlreadyExists(_))),
        "{other_mode:?}"
    );
    for other in [mount("xfs", SingleNodeWriter), block(SingleNodeWriter)] {
        let refused = bench.stage(id, "a", &other);
        assert!(
            matches!(refused, Err(Error::AlreadyExists(_))),
            "{refused:?}"
        );
        let elsewhere = bench.stage(id, "b", &other);
        assert!(
            matches!(elsewhere, Err(Error::FailedPrecondition(_))),
            "{elsewhere:?}"
        );
    }
    // Not staged there: nothing to do, and nothing done to what is staged elsewhere.
    bench.unstage(id, "b").unwrap();
    assert_eq!(bench.mounted(), [bench.staging("a")]);
}

#[test]
fn an_unknown_volume_is_not_found_and_unstaged_already() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    bench.node.pools.delete_volume(&id).unwrap();
    let cap = mount("ext4", SingleNodeWriter);
    let missing = bench.stage(id, "a", &cap);
    assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
    for id in [id.to_string(), "none".to_owned(), "../../etc".to_owned()] {
        let stage = csi::NodeStageVolumeRequest {
            volume_id: id.clone(),
            staging_target_path: text(&bench.staging("a")),
            volume_capability: Some(cap.clone()),
            ..Default::default()
        };
        let missing = bench.node.node_stage_volume(stage);
        assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
        let unstage = csi::NodeUnstageVolumeRequest {
            volume_id: id,
            staging_target_path: text(&bench.staging("a")),
        };
        bench.node.node_unstage_volume(unstage).unwrap();
    }
}

#[test]
fn somebody_elses_mount_is_left_alone() {
    let bench = Bench::new();
    let (mine, other) = (bench.volume(ext4()), bench.volume(ext4()));
    let cap = mount("ext4", SingleNodeWriter);
    bench.stage(other, "a", &cap).unwrap();
    let refused = bench.unstage(mine, "a");
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    let refused = bench
        .node
        .node_unstage_volume(csi::NodeUnstageVolumeRequest {
            volume_id: "unknown".to_owned(),
            staging_target_path: text(&bench.staging("a")),
        });
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    assert_eq!(bench.mounted(), [bench.staging("a")]);
}

#[test]
fn a_killed_mkfs_is_made_again_and_lost_data_is_not() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let cap = mount("ext4", SingleNodeWriter);
    bench.kernel.fail("loop.flush", 1, libc::EIO);
    bench.stage(id, "a", &cap).unwrap_err();
    assert_eq!(bench.record(id).format, Format::Formatting(FsType::Ext4));
    bench.assert_clean(id, "failed");
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(bench.record(id).format, Format::Done(FsType::Ext4));
    bench.unstage(id, "a").unwrap();

    let image = bench
        .node
        .pools
        .open_image(&bench.record(id), true)
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[0; 4096], 0).unwrap();
    let lost = bench.stage(id, "a", &cap);
    assert!(matches!(lost, Err(Error::DataLoss(_))), "{lost:?}");
    bench.assert_clean(id, "refused");
}

#[test]
fn after_a_reboot_it_is_staged_anew_wherever_that_is_asked_for() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    bench
        .stage(id, "a", &mount("ext4", SingleNodeWriter))
        .unwrap();
    bench.kernel.reboot();
    bench
        .stage(id, "b", &mount("ext4", SingleNodeMultiWriter))
        .unwrap();
    assert_eq!(bench.mounted(), [bench.staging("b")]);
    bench.unstage(id, "b").unwrap();
    bench.assert_clean(id, "unstaged");
}

#[test]
fn a_device_that_is_attached_already_is_used_and_two_are_refused() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let record = bench.record(id);
    let image = bench.node.pools.open_image(&record, true).unwrap();
    let spec = |direct_io| LoopSpec {
        backing: &image,
        label: "left over",
        read_only: false,
        direct_io,
        autoclear: false,
        minor: None,
    };
    bench.kernel.loop_attach(&spec(false)).unwrap();
    let cap = mount("ext4", SingleNodeWriter);
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(bench.attached(), 1);
    assert!(
        bench.kernel.loops().unwrap()[0].direct_io,
        "as the volume's settings say"
    );
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "unstaged");

    bench.kernel.loop_attach(&spec(true)).unwrap();
    bench.kernel.loop_attach(&spec(true)).unwrap();
    let refused = bench.stage(id, "a", &cap);
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
}

#[test]
fn a_larger_image_is_grown_into() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let cap = mount("ext4", SingleNodeWriter);
    bench.stage(id, "a", &cap).unwrap();
    bench.unstage(id, "a").unwrap();
    bench.node.pools.expand_volume(&id, 64 * MI).unwrap();
    bench.stage(id, "a", &cap).unwrap();
    let usage = bench.kernel.usage(&bench.staging("a")).unwrap();
    assert_eq!(usage.total_bytes, 64 * MI);
    // In use: the repeated call finishes what the first could not know.
    bench.node.pools.expand_volume(&id, 96 * MI).unwrap();
    bench.stage(id, "a", &cap).unwrap();
    let usage = bench.kernel.usage(&bench.staging("a")).unwrap();
    assert_eq!(usage.total_bytes, 96 * MI);
}

#[test]
fn a_volume_is_not_unstaged_below_a_pod() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let cap = mount("ext4", SingleNodeWriter);
    bench.stage(id, "a", &cap).unwrap();
    bench.publish(id, "a", "p", &cap, false).unwrap();
    let refused = bench.unstage(id, "a");
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    assert_eq!(bench.mounted().len(), 2);
    bench.unpublish(id, "p").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "unstaged");
}

#[test]
fn what_a_copy_left_frozen_is_thawed() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let cap = mount("ext4", SingleNodeWriter);
    let intent = || {
        let since_ns = 1;
        let freeze = Some(crate::pool::FreezeIntent { since_ns });
        bench
            .node
            .pools
            .update_volume(&id, |r| r.freeze = freeze)
            .unwrap();
    };
    let freeze = || {
        let root = std::fs::File::open(bench.staging("a")).unwrap();
        bench.kernel.freeze(&root).unwrap();
    };
    bench.stage(id, "a", &cap).unwrap();
    intent();
    freeze();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "thawed and unstaged");
    assert_eq!(bench.record(id).freeze, None);

    // Unmounted while frozen, by somebody: it is mounted again to be thawed.
    bench.stage(id, "a", &cap).unwrap();
    intent();
    freeze();
    bench.kernel.unmount(&bench.staging("a")).unwrap();
    assert!(bench.is_frozen(id));
    bench.stage(id, "a", &cap).unwrap();
    assert!(!bench.is_frozen(id));
    intent();
    freeze();
    bench.kernel.unmount(&bench.staging("a")).unwrap();
    bench.unstage(id, "a").unwrap();
    assert!(!bench.is_frozen(id));
    bench.assert_clean(id, "thawed and unstaged");

    // Without an intent, a freeze is somebody else's, and is not ours to end.
    bench.stage(id, "a", &cap).unwrap();
    freeze();
    bench.stage(id, "a", &cap).unwrap();
    assert!(bench.is_frozen(id));
}

#[test]
fn block_volumes_stay_attached_without_autoclear() {
    let bench = Bench::new();
    let id = bench.volume(Access::Block);
    let cap = block(SingleNodeWriter);
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(bench.mounted(), Vec::<PathBuf>::new());
    let device = bench.kernel.loops().unwrap().remove(0);
    assert!(!device.autoclear);
    let record = bench.record(id);
    assert_eq!(record.format, Format::Raw);
    assert_eq!(record.stage.as_ref().unwrap().minor, Some(device.minor));
    bench.stage(id, "a", &cap).unwrap();
    assert_eq!(bench.attached(), 1);
    let refused = bench.stage(id, "b", &cap);
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );

    // Somebody has it open: not unstaged until it is gone.
    let held = bench.kernel.loop_reopen(&device).unwrap();
    let refused = bench.unstage(id, "a");
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    assert!(bench.record(id).stage.is_some());
    let refused = bench.stage(id, "a", &cap);
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    drop(held);
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "unstaged");
}

#[test]
fn the_staging_path_must_be_a_directory_itself() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let stage = bench.dir.path().join("stage");
    std::fs::create_dir(stage.join("real")).unwrap();
    std::os::unix::fs::symlink(stage.join("real"), stage.join("link")).unwrap();
    std::fs::write(stage.join("file"), "").unwrap();
    for name in ["link", "file", "missing"] {
        let req = csi::NodeStageVolumeRequest {
            volume_id: id.to_string(),
            staging_target_path: text(&stage.join(name)),
            volume_capability: Some(mount("ext4", SingleNodeWriter)),
            ..Default::default()
        };
        let refused = bench.node.node_stage_volume(req);
        assert!(
            matches!(refused, Err(Error::Path { .. })),
            "{name}: {refused:?}"
        );
        bench.assert_clean(id, name);
    }
}

#[test]
fn requests_that_lack_something_are_invalid() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let whole = csi::NodeStageVolumeRequest {
        volume_id: id.to_string(),
        staging_target_path: text(&bench.staging("a")),
        volume_capability: Some(mount("ext4", SingleNodeWriter)),
        ..Default::default()
    };
    type Break = fn(&mut csi::NodeStageVolumeRequest);
    let table: [(&str, Break); 7] = [
        ("volume_id", |r| r.volume_id.clear()),
        ("staging_target_path", |r| r.staging_target_path.clear()),
        ("staging_target_path", |r| {
            r.staging_target_path = "relative".into()
        }),
        ("staging_target_path", |r| {
            r.staging_target_path = "/a/../b".into()
        }),
        ("volume_capability", |r| r.volume_capability = None),
        ("volume_capability.access_mode.mode", |r| {
            r.volume_capability = Some(mount("ext4", Unknown));
        }),
        ("volume_capability.mount.volume_mount_group", |r| {
            if let Some(AccessType::Mount(mount)) = r
                .volume_capability
                .as_mut()
                .and_then(|c| c.access_type.as_mut())
            {
                mount.volume_mount_group = "staff".into();
            }
        }),
    ];
    for (field, broken) in table {
        let mut req = whole.clone();
        broken(&mut req);
        match bench.node.node_stage_volume(req) {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{field}: {other:?}"),
        }
        bench.assert_clean(id, field);
    }
}

#[test]
fn with_the_lifecycle_checked_the_controller_comes_first() {
    let mut bench = Bench::new();
    bench.node.config.check_lifecycle = true;
    let id = bench.volume(ext4());
    let cap = mount("ext4", SingleNodeWriter);
    let refused = bench.stage(id, "a", &cap);
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    let publication = crate::pool::Publication {
        capability: bench.record(id).capabilities[0].clone(),
        readonly: false,
    };
    let published = |r: &mut crate::pool::VolumeRecord| {
        r.publications.insert("n1".to_owned(), publication);
    };
    bench.node.pools.update_volume(&id, published).unwrap();
    bench.stage(id, "a", &cap).unwrap();
}
