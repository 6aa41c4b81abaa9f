//! Publishing and unpublishing.

use std::path::{Path, PathBuf};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode::{self, *};

use super::Rig;
use crate::kernel::{FsType, Kernel, MountSpec};
use crate::node::Error;
use crate::storage::Access;
use crate::testkit::*;

fn staged(access: Access, cap: &csi::VolumeCapability) -> (Rig, crate::storage::VolumeId) {
    let rig = Rig::new();
    let id = rig.volume(access, 16 * MI);
    rig.stage(id, "a", cap).unwrap();
    (rig, id)
}

fn is_read_only(rig: &Rig, at: &Path) -> bool {
    let mounts = rig.kernel.mounts().unwrap();
    mounts.at(at).expect("is mounted").read_only()
}

#[test]
fn publishes_once_and_again_and_undoes_it() {
    let cap = mount_as("ext4", SingleNodeWriter);
    let (rig, id) = staged(ext4(), &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    assert_eq!(rig.mounted(), [rig.staging("a"), rig.target("p")]);
    let before = rig.kernel.effects().len();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    assert_eq!(rig.kernel.effects().len(), before, "nothing is done twice");
    refused!(
        rig.publish(id, "a", "p", &cap, true),
        Error::AlreadyExists(_)
    );
    refused!(
        rig.publish(id, "a", "p", &block_as(SingleNodeWriter), false),
        Error::AlreadyExists(_)
    );
    refused!(
        rig.publish(id, "a", "q", &cap, false),
        Error::FailedPrecondition(_)
    );
    assert!(!rig.target("q").exists());
    rig.unpublish(id, "p").unwrap();
    assert!(!rig.target("p").exists());
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "undone");
}

#[test]
fn how_many_targets_the_mode_says() {
    let many: [(Mode, bool); 7] = [
        (SingleNodeWriter, false),
        (SingleNodeSingleWriter, false),
        (SingleNodeReaderOnly, false),
        (SingleNodeMultiWriter, true),
        (MultiNodeReaderOnly, true),
        (MultiNodeSingleWriter, true),
        (MultiNodeMultiWriter, true),
    ];
    for (mode, many) in many {
        for (access, cap) in [
            (ext4(), mount_as("ext4", mode)),
            (Access::Block, block_as(mode)),
        ] {
            let (rig, id) = staged(access, &cap);
            rig.publish(id, "a", "p", &cap, false).unwrap();
            let second = rig.publish(id, "a", "q", &cap, false);
            assert_eq!(second.is_ok(), many, "{mode:?}: {second:?}");
            let read_only = matches!(mode, SingleNodeReaderOnly | MultiNodeReaderOnly);
            assert_eq!(is_read_only(&rig, &rig.target("p")), read_only, "{mode:?}");
            rig.unpublish(id, "p").unwrap();
            rig.unpublish(id, "q").unwrap();
            rig.unstage(id, "a").unwrap();
            rig.assert_all_clean(id, "undone");
        }
    }
}

#[test]
fn a_publication_stands_on_its_staging() {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let cap = mount_as("ext4", SingleNodeWriter);
    let refused = |got: crate::node::Result<()>, what: &str| {
        assert!(
            matches!(got, Err(Error::FailedPrecondition(_))),
            "{what}: {got:?}"
        );
        assert!(!rig.target("p").exists(), "{what}");
    };
    refused(rig.publish(id, "a", "p", &cap, false), "not staged");
    rig.stage(id, "a", &cap).unwrap();
    refused(rig.publish(id, "b", "p", &cap, false), "staged elsewhere");
    let no_path = csi::NodePublishVolumeRequest {
        volume_id: id.to_string(),
        target_path: text(&rig.target("p")),
        volume_capability: Some(cap.clone()),
        ..Default::default()
    };
    refused(
        rig.node.node_publish_volume(no_path).map(drop),
        "no staging path",
    );
    let as_block = block_as(SingleNodeWriter);
    refused(
        rig.publish(id, "a", "p", &as_block, false),
        "as a block device",
    );
    rig.kernel.reboot();
    refused(rig.publish(id, "a", "p", &cap, false), "no longer mounted");
}

#[test]
fn a_target_with_something_in_it_is_never_removed() {
    let cap = mount_as("ext4", SingleNodeWriter);
    let (rig, id) = staged(ext4(), &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    std::fs::write(rig.target("p").join("data"), "x").unwrap();
    refused!(rig.unpublish(id, "p"), Error::Path { .. });
    assert_eq!(std::fs::read(rig.target("p").join("data")).unwrap(), b"x");
    refused!(
        rig.publish(id, "a", "none/p", &cap, false),
        Error::Path { .. }
    );
}

#[test]
fn neither_the_staging_path_nor_another_volume_is_a_target() {
    let cap = mount_as("ext4", SingleNodeWriter);
    let (rig, id) = staged(ext4(), &cap);
    let other = rig.volume(ext4(), 16 * MI);
    rig.stage(other, "b", &cap).unwrap();
    rig.publish(other, "b", "q", &cap, false).unwrap();
    let req = |path: PathBuf| csi::NodeUnpublishVolumeRequest {
        volume_id: id.to_string(),
        target_path: text(&path),
    };
    for path in [rig.staging("a"), rig.staging("b"), rig.target("q")] {
        refused!(
            rig.node.node_unpublish_volume(req(path.clone())),
            Error::Path { .. },
            "{path:?}"
        );
    }
    refused!(rig.publish(id, "a", "q", &cap, false), Error::Path { .. });
    refused!(
        rig.publish(id, "a", "../stage/a", &cap, false),
        Error::Invalid(_)
    );
    assert_eq!(rig.mounted().len(), 3);
}

#[test]
fn a_directory_where_a_volume_is_staged_is_kubelets() {
    let cap = block_as(SingleNodeWriter);
    let (rig, id) = staged(Access::Block, &cap);
    let other = rig.volume(ext4(), 16 * MI);
    let unpublish = |volume_id: String| {
        let req = csi::NodeUnpublishVolumeRequest {
            volume_id,
            target_path: text(&rig.staging("a")),
        };
        rig.node.node_unpublish_volume(req)
    };
    unpublish(other.to_string()).unwrap();
    rig.node.pools.delete_volume(&other).unwrap();
    unpublish(other.to_string()).unwrap();
    refused!(unpublish(id.to_string()), Error::Path { .. });
    assert!(rig.root().join("stage/a").is_dir());
}

#[test]
fn unpublish_needs_no_record() {
    let cap = mount_as("ext4", SingleNodeWriter);
    let (rig, id) = staged(ext4(), &cap);
    let unpublish = |volume_id: &str, target: &str| {
        let req = csi::NodeUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            target_path: text(&rig.target(target)),
        };
        rig.node.node_unpublish_volume(req)
    };
    unpublish("unknown", "none").unwrap();
    std::fs::create_dir(rig.target("empty")).unwrap();
    unpublish(&id.to_string(), "empty").unwrap();
    assert!(!rig.target("empty").exists());
    rig.publish(id, "a", "p", &cap, false).unwrap();
    refused!(unpublish("unknown", "p"), Error::Path { .. });
}

#[test]
fn a_read_only_attachment_is_published_read_only() {
    let cap = mount_as("ext4", SingleNodeMultiWriter);
    let (rig, id) = staged(ext4(), &cap);
    let publication = crate::storage::Publication {
        capability: rig.record(id).capabilities[0].clone(),
        readonly: true,
    };
    let published = |r: &mut crate::storage::VolumeRecord| {
        r.publications.insert("n1".to_owned(), publication);
    };
    rig.node.pools.update_volume(&id, published).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    assert!(is_read_only(&rig, &rig.target("p")));
}

#[test]
fn several_pvs_share_one_staging() {
    let writers = mount_as("ext4", MultiNodeMultiWriter);
    let readers = mount_as("ext4", MultiNodeReaderOnly);
    let (rig, id) = staged(ext4(), &writers);
    rig.publish(id, "a", "p", &writers, false).unwrap();
    rig.publish(id, "a", "q", &readers, false).unwrap();
    rig.publish(id, "a", "q", &readers, false).unwrap();
    assert!(is_read_only(&rig, &rig.target("q")));
    // A block volume is staged under the name of one PV, and published under another as well.
    let blocks = block_as(MultiNodeMultiWriter);
    let raw = rig.volume(Access::Block, 16 * MI);
    rig.stage(raw, "pv1", &blocks).unwrap();
    rig.publish(raw, "pv1", "r", &blocks, false).unwrap();
    rig.publish(raw, "pv2", "s", &blocks, false).unwrap();
    assert_eq!(rig.attached(), 2);
    for (id, target) in [(id, "p"), (id, "q"), (raw, "r"), (raw, "s")] {
        rig.unpublish(id, target).unwrap();
    }
    rig.unstage(id, "a").unwrap();
    rig.unstage(raw, "pv1").unwrap();
    rig.assert_all_clean(id, "undone");
}

#[test]
fn a_lost_device_is_unpublished_and_not_published() {
    let cap = block_as(SingleNodeMultiWriter);
    let (rig, id) = staged(Access::Block, &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    // An administrator can do this: no process holds the device open.
    let lost = rig.kernel.loops().unwrap().remove(0);
    rig.kernel.loop_release(&lost).unwrap();
    refused!(rig.publish(id, "a", "p", &cap, false), Error::Path { .. });
    refused!(
        rig.publish(id, "a", "q", &cap, false),
        Error::FailedPrecondition(_)
    );
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_all_clean(id, "undone");
}

/// Device nodes and set-user-ID bits have no effect in a volume unless its class allows them.
#[test]
fn mounts_are_safe_unless_the_class_says_otherwise() {
    for (flags, shown) in [
        (&[][..], &["nosuid", "nodev"][..]),
        (&["noexec"], &["nosuid", "nodev", "noexec"]),
        (&["dev"], &["nosuid"]),
        (&["suid"], &["nodev"]),
        (&["suid,dev"], &[]),
        (&["suid", "nosuid"], &["nosuid", "nodev"]),
    ] {
        let cap = with_flags(mount_as("ext4", SingleNodeWriter), flags);
        let (rig, id) = staged(ext4(), &cap);
        rig.publish(id, "a", "pod", &cap, false).unwrap();
        let expected = [&["rw"], shown, &["relatime"]].concat();
        for entry in rig.kernel.mounts().unwrap().entries {
            if entry.mount_point.starts_with(rig.root()) {
                assert_eq!(entry.options, expected, "{flags:?} {entry:?}");
                let says = entry
                    .super_options
                    .contains(&"errors=remount-ro".to_owned());
                assert!(says, "{entry:?}");
            }
        }
    }
}

/// An older version mounted the volume without these flags at its staging path.
#[test]
fn a_publication_has_flags_of_its_own() {
    let cap = mount_as("ext4", SingleNodeWriter);
    let (rig, id) = staged(ext4(), &cap);
    let staging = rig.staging("a");
    let device = rig
        .kernel
        .mounts()
        .unwrap()
        .at(&staging)
        .unwrap()
        .source
        .clone();
    let held = rig
        .kernel
        .loop_open(rig.kernel.loops().unwrap()[0].minor, rig.image(id));
    rig.kernel.unmount(&staging).unwrap();
    let plain = MountSpec {
        device: Path::new(&device),
        target: &staging,
        fs: FsType::Ext4,
        read_only: false,
        options: &[],
    };
    rig.kernel.mount(&plain).unwrap();
    drop(held);
    for (target, readonly, first) in [("pod", false, "rw"), ("reader", true, "ro")] {
        rig.publish(id, "a", target, &cap, readonly).unwrap();
        let options = rig.mount_at(target).options;
        assert_eq!(options, [first, "nosuid", "nodev", "relatime"]);
        rig.unpublish(id, target).unwrap();
    }
}

#[test]
fn an_error_policy_that_panics_is_refused() {
    for flag in ["errors=panic", "noatime,errors=panic", "fatal_errors=panic"] {
        let cap = with_flags(mount_as("ext4", SingleNodeWriter), &[flag]);
        let rig = Rig::new();
        let id = rig.volume(ext4(), 16 * MI);
        refused!(rig.stage(id, "a", &cap), Error::Invalid(_), "{flag}");
        assert_eq!(rig.kernel.effects(), []);
    }
}
