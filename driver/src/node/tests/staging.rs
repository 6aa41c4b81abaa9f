//! Staging and unstaging.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode::*;

use super::Rig;
use crate::kernel::{FsType, Kernel};
use crate::node::Error;
use crate::storage::Format;
use crate::testkit::*;

#[test]
fn the_order_is_attach_format_mount() {
    let rig = Rig::new();
    let cap = mount_as("", SingleNodeWriter);
    let id = rig.staged(ext4(), "a", &cap);
    let expected = ["loop.attach", "loop.read-ahead", "mkfs", "loop.flush", "mount"];
    assert_eq!(rig.kernel.take_effects(), expected);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &cap).unwrap();
    let expected = ["unmount", "loop.attach", "loop.read-ahead", "check", "mount"];
    assert_eq!(rig.kernel.take_effects(), expected);
}

#[test]
fn an_unknown_volume_is_not_found_and_unstaged_already() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    rig.node.pools.delete_volume(&id).unwrap();
    for id in [&id.to_string(), "none", "../../etc"] {
        let staged = rig.stage(id, "a", &mount("ext4"));
        refused!(staged, Error::NotFound(_), "{id}");
        rig.unstage(id, "a").unwrap();
    }
}

#[test]
fn an_interrupted_mkfs_is_repeated() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    rig.kernel.fail("loop.flush", 1, libc::EIO);
    rig.stage(id, "a", &mount("ext4")).unwrap_err();
    assert_eq!(rig.record(id).format, Format::Formatting(FsType::Ext4));
    rig.assert_clean(id);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.record(id).format, Format::Done(FsType::Ext4));
}

#[test]
fn after_a_reboot_it_is_staged_at_any_path() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount_as("ext4", SingleNodeWriter));
    rig.kernel.reboot();
    rig.stage(id, "b", &mount("ext4")).unwrap();
    assert_eq!(rig.mounted(), [rig.staging("b")]);
    rig.unstage(id, "b").unwrap();
    rig.assert_clean(id);
}

#[test]
fn a_device_that_is_attached_already_is_used_and_two_are_refused() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let attach = || rig.attach_file(&rig.open_image(id));
    rig.kernel.loop_set_direct_io(&attach(), false).unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert!(rig.device(id).direct_io, "as the volume's settings say");
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);

    attach();
    attach();
    let refused = rig.stage(id, "a", &mount("ext4"));
    refused!(refused, Error::FailedPrecondition(_));
}

/// Without an intent in the record, the driver must not end the freeze.
#[test]
fn a_foreign_freeze_stays() {
    let rig = Rig::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    let minor = rig.device(id).minor;
    let intent = rig.freeze(id, "a");
    for (freeze, stays) in [(None, true), (Some(intent), false)] {
        rig.update(id, |r| r.freeze = freeze);
        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.kernel.is_frozen(minor), stays);
    }
}

#[test]
fn invalid_requests_have_no_effect() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let whole = csi::NodeStageVolumeRequest {
        volume_id: id.to_string(),
        staging_target_path: text(&rig.staging("a")),
        volume_capability: Some(mount_as("ext4", SingleNodeWriter)),
        ..Default::default()
    };
    type Change = fn(&mut csi::NodeStageVolumeRequest);
    let table: [(&str, Change); 10] = [
        ("volume_id", |r| r.volume_id.clear()),
        ("staging_target_path", |r| r.staging_target_path.clear()),
        ("staging_target_path", |r| r.staging_target_path = "relative".into()),
        ("staging_target_path", |r| r.staging_target_path = "/a/../b".into()),
        ("volume_capability", |r| r.volume_capability = None),
        ("volume_capability.access_mode.mode", |r| {
            r.volume_capability = Some(mount_as("ext4", Unknown));
        }),
        ("volume_capability.mount.volume_mount_group", |r| {
            r.volume_capability = Some(with_group(mount("ext4"), "staff"));
        }),
        ("volume_capability.mount.mount_flags", |r| {
            r.volume_capability = Some(with_flags(mount("ext4"), &["errors=panic"]));
        }),
        ("volume_capability.mount.mount_flags", |r| {
            r.volume_capability = Some(with_flags(mount("ext4"), &["noatime,errors=panic"]));
        }),
        ("volume_capability.mount.mount_flags", |r| {
            r.volume_capability = Some(with_flags(mount("ext4"), &["fatal_errors=panic"]));
        }),
    ];
    for (field, change) in table {
        let mut req = whole.clone();
        change(&mut req);
        match rig.node.node_stage_volume(req.clone()) {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field, "{req:?}"),
            other => panic!("{field}: {other:?}"),
        }
        assert_eq!(rig.kernel.effects(), [], "{req:?}");
        rig.assert_clean_after(id, field);
    }
}

#[test]
fn with_the_lifecycle_checked_the_controller_comes_first() {
    let mut rig = Rig::new();
    rig.node.config.check_lifecycle = true;
    let id = rig.volume(ext4(), 16 * MI);
    let refused = rig.stage(id, "a", &mount("ext4"));
    refused!(refused, Error::FailedPrecondition(_));
    rig.publish_to_node(id, false);
    rig.stage(id, "a", &mount("ext4")).unwrap();
}
