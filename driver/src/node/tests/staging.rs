//! Staging and unstaging.

use std::path::Path;

use hostloop_proto::csi::volume_capability::access_mode::Mode::*;

use super::Rig;
use crate::kernel::Kernel;
use crate::node::Error;
use crate::testkit::*;

#[test]
fn the_order_is_attach_format_mount() {
    let rig = Rig::new();
    let cap = mount_as("", SingleNodeWriter);
    let id = rig.unformatted(new_volume(ext4(), 16 * MI));
    assert_eq!(rig.kernel.take_effects(), ["mkfs"], "CreateVolume makes the filesystem");
    rig.stage(id, "a", &cap).unwrap();
    let expected = ["loop.attach", "loop.read-ahead", "mkfs", "loop.flush", "mount"];
    assert_eq!(rig.kernel.take_effects(), expected);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &cap).unwrap();
    let expected = ["unmount", "loop.attach", "loop.read-ahead", "check", "mount"];
    assert_eq!(rig.kernel.take_effects(), expected);
}

#[test]
fn after_a_reboot_it_is_staged_at_any_path() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount_as("ext4", SingleNodeWriter));
    rig.kernel.reboot();
    let lost = rig.publish(id, "a", "p", &mount_as("ext4", SingleNodeWriter), false);
    refused!(lost, Error::FailedPrecondition(_));
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
fn invalid_requests_name_their_field_and_have_no_effect() {
    let rig = Rig::new();
    let id = &rig.volume(ext4(), 16 * MI).to_string();
    rig.kernel.take_effects();
    let good = mount("ext4");
    let group = with_group(mount("ext4"), "staff");
    let flags = "volume_capability.mount.mount_flags";
    // An error in the filesystem would panic the node.
    let [one, two, three] = ["errors=panic", "noatime,errors=panic", "fatal_errors=panic"]
        .map(|flag| with_flags(mount("ext4"), &[flag]));
    for (id, path, capability, field) in [
        ("", "/a", &good, "volume_id"),
        (id, "relative", &good, "staging_target_path"),
        (id, "/a", &group, "volume_capability.mount.volume_mount_group"),
        (id, "/a", &one, flags),
        (id, "/a", &two, flags),
        (id, "/a", &three, flags),
    ] {
        match rig.stage_at(id, Path::new(path), capability) {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{field}: {other:?}"),
        }
        assert_eq!(rig.kernel.effects(), [], "{field}");
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
