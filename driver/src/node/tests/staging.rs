//! Staging and unstaging.

use hostloop_proto::csi::volume_capability::access_mode::Mode::*;
use hostloop_proto::csi::{self, volume_capability::AccessType};

use super::Rig;
use crate::kernel::{FsType, Kernel, LoopSpec};
use crate::node::Error;
use crate::storage::Format;
use crate::testkit::*;

#[test]
fn stages_once_and_again_and_undoes_it() {
    let rig = Rig::new();
    let cap = mount_as("ext4", SingleNodeWriter);
    let id = rig.staged(ext4(), "a", &cap);
    assert_eq!(rig.mounted(), [rig.staging("a")]);
    let record = rig.record(id);
    assert_eq!(record.format, Format::Done(FsType::Ext4));
    let stage = record.stage.as_ref().expect("is recorded");
    assert_eq!(stage.path, rig.staging("a"));
    let device = &rig.kernel.loops().unwrap()[0];
    assert!(device.autoclear && device.direct_io && !device.read_only);

    let before = rig.kernel.effects().len();
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.kernel.effects().len(), before, "nothing is done twice");

    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "unstaged");
    rig.unstage(id, "a").unwrap();
    assert!(rig.staging("a").is_dir(), "kubelet's directory stays");
    rig.stage(id, "a", &cap).unwrap();
    let made = rig.kernel.effects();
    let made = made.iter().filter(|e| e.op == "mkfs").count();
    assert_eq!(made, 1, "what was formatted is not formatted again");
}

#[test]
fn what_was_staged_once_is_not_fresh_any_more() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    assert!(rig.record(id).fresh);
    rig.stage(id, "a", &mount_as("", SingleNodeWriter)).unwrap();
    rig.unstage(id, "a").unwrap();
    assert!(!rig.record(id).fresh);
}

#[test]
fn the_order_is_attach_format_mount() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    rig.stage(id, "a", &mount_as("", SingleNodeWriter)).unwrap();
    let expected = [
        "loop.attach",
        "loop.read-ahead",
        "mkfs",
        "loop.flush",
        "mount",
    ];
    assert_eq!(rig.kernel.take_effects(), expected);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount_as("", SingleNodeWriter)).unwrap();
    let expected = [
        "unmount",
        "loop.attach",
        "loop.read-ahead",
        "check",
        "mount",
    ];
    assert_eq!(rig.kernel.take_effects(), expected);
}

#[test]
fn a_second_path_or_another_use_is_refused() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    rig.stage(id, "a", &mount_as("ext4", SingleNodeWriter))
        .unwrap();
    refused!(
        rig.stage(id, "b", &mount_as("ext4", SingleNodeWriter)),
        Error::FailedPrecondition(_)
    );
    refused!(
        rig.stage(id, "a", &mount_as("ext4", SingleNodeMultiWriter)),
        Error::AlreadyExists(_)
    );
    for other in [
        mount_as("xfs", SingleNodeWriter),
        block_as(SingleNodeWriter),
    ] {
        refused!(rig.stage(id, "a", &other), Error::AlreadyExists(_));
        let elsewhere = rig.stage(id, "b", &other);
        assert!(
            matches!(elsewhere, Err(Error::FailedPrecondition(_))),
            "{elsewhere:?}"
        );
    }
    // The volume is not staged there: the call succeeds and leaves the other staging alone.
    rig.unstage(id, "b").unwrap();
    assert_eq!(rig.mounted(), [rig.staging("a")]);
}

#[test]
fn an_unknown_volume_is_not_found_and_unstaged_already() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    rig.node.pools.delete_volume(&id).unwrap();
    let cap = mount_as("ext4", SingleNodeWriter);
    refused!(rig.stage(id, "a", &cap), Error::NotFound(_));
    for id in [id.to_string(), "none".to_owned(), "../../etc".to_owned()] {
        let stage = csi::NodeStageVolumeRequest {
            volume_id: id.clone(),
            staging_target_path: text(&rig.staging("a")),
            volume_capability: Some(cap.clone()),
            ..Default::default()
        };
        refused!(rig.node.node_stage_volume(stage), Error::NotFound(_));
        let unstage = csi::NodeUnstageVolumeRequest {
            volume_id: id,
            staging_target_path: text(&rig.staging("a")),
        };
        rig.node.node_unstage_volume(unstage).unwrap();
    }
}

#[test]
fn somebody_elses_mount_is_left_alone() {
    let rig = Rig::new();
    let (mine, other) = (rig.volume(ext4(), 16 * MI), rig.volume(ext4(), 16 * MI));
    let cap = mount_as("ext4", SingleNodeWriter);
    rig.stage(other, "a", &cap).unwrap();
    refused!(rig.unstage(mine, "a"), Error::Path { .. });
    refused!(
        rig.node.node_unstage_volume(csi::NodeUnstageVolumeRequest {
            volume_id: "unknown".to_owned(),
            staging_target_path: text(&rig.staging("a")),
        }),
        Error::Path { .. }
    );
    assert_eq!(rig.mounted(), [rig.staging("a")]);
}

#[test]
fn a_killed_mkfs_is_made_again_and_lost_data_is_not() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let cap = mount_as("ext4", SingleNodeWriter);
    rig.kernel.fail("loop.flush", 1, libc::EIO);
    rig.stage(id, "a", &cap).unwrap_err();
    assert_eq!(rig.record(id).format, Format::Formatting(FsType::Ext4));
    rig.assert_all_clean(id, "failed");
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.record(id).format, Format::Done(FsType::Ext4));
    rig.unstage(id, "a").unwrap();

    let image = rig.node.pools.open_image(&rig.record(id), true).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[0; 4096], 0).unwrap();
    refused!(rig.stage(id, "a", &cap), Error::DataLoss(_));
    rig.assert_all_clean(id, "refused");
}

#[test]
fn after_a_reboot_it_is_staged_anew_wherever_that_is_asked_for() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    rig.stage(id, "a", &mount_as("ext4", SingleNodeWriter))
        .unwrap();
    rig.kernel.reboot();
    rig.stage(id, "b", &mount_as("ext4", SingleNodeMultiWriter))
        .unwrap();
    assert_eq!(rig.mounted(), [rig.staging("b")]);
    rig.unstage(id, "b").unwrap();
    rig.assert_all_clean(id, "unstaged");
}

#[test]
fn a_device_that_is_attached_already_is_used_and_two_are_refused() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let record = rig.record(id);
    let image = rig.node.pools.open_image(&record, true).unwrap();
    let spec = |direct_io| LoopSpec {
        backing: &image,
        label: "left over",
        read_only: false,
        direct_io,
        autoclear: false,
        minor: None,
    };
    rig.kernel.loop_attach(&spec(false)).unwrap();
    let cap = mount_as("ext4", SingleNodeWriter);
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.attached(), 1);
    assert!(
        rig.kernel.loops().unwrap()[0].direct_io,
        "as the volume's settings say"
    );
    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "unstaged");

    rig.kernel.loop_attach(&spec(true)).unwrap();
    rig.kernel.loop_attach(&spec(true)).unwrap();
    refused!(rig.stage(id, "a", &cap), Error::FailedPrecondition(_));
}

#[test]
fn a_larger_image_is_grown_into() {
    let rig = Rig::new();
    let cap = mount_as("ext4", SingleNodeWriter);
    let id = rig.staged(ext4(), "a", &cap);
    rig.unstage(id, "a").unwrap();
    rig.node.pools.expand_volume(&id, 64 * MI).unwrap();
    rig.stage(id, "a", &cap).unwrap();
    let usage = rig.kernel.usage(&rig.staging("a")).unwrap();
    assert_eq!(usage.total_bytes, 64 * MI);
    // In use: the repeated call finishes what the first could not know.
    rig.node.pools.expand_volume(&id, 96 * MI).unwrap();
    rig.stage(id, "a", &cap).unwrap();
    let usage = rig.kernel.usage(&rig.staging("a")).unwrap();
    assert_eq!(usage.total_bytes, 96 * MI);
}

/// Without an intent in the record, the driver must not end the freeze.
#[test]
fn a_foreign_freeze_stays() {
    let rig = Rig::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    let root = std::fs::File::open(rig.staging("a")).unwrap();
    rig.kernel.freeze(&root).unwrap();
    rig.stage(id, "a", &cap).unwrap();
    assert!(rig.is_frozen(id));
    let freeze = Some(crate::storage::FreezeIntent { since_ns: 1 });
    rig.node
        .pools
        .update_volume(&id, |r| r.freeze = freeze)
        .unwrap();
    rig.stage(id, "a", &cap).unwrap();
    assert!(!rig.is_frozen(id));
}

#[test]
fn requests_that_lack_something_are_invalid() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let whole = csi::NodeStageVolumeRequest {
        volume_id: id.to_string(),
        staging_target_path: text(&rig.staging("a")),
        volume_capability: Some(mount_as("ext4", SingleNodeWriter)),
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
            r.volume_capability = Some(mount_as("ext4", Unknown));
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
        match rig.node.node_stage_volume(req) {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{field}: {other:?}"),
        }
        rig.assert_all_clean(id, field);
    }
}

#[test]
fn with_the_lifecycle_checked_the_controller_comes_first() {
    let mut rig = Rig::new();
    rig.node.config.check_lifecycle = true;
    let id = rig.volume(ext4(), 16 * MI);
    let cap = mount_as("ext4", SingleNodeWriter);
    refused!(rig.stage(id, "a", &cap), Error::FailedPrecondition(_));
    let publication = crate::storage::Publication {
        capability: rig.record(id).capabilities[0].clone(),
        readonly: false,
    };
    let published = |r: &mut crate::storage::VolumeRecord| {
        r.publications.insert("n1".to_owned(), publication);
    };
    rig.node.pools.update_volume(&id, published).unwrap();
    rig.stage(id, "a", &cap).unwrap();
}
