//! Publishing and unpublishing.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::AccessType;
use hostloop_proto::csi::volume_capability::access_mode::Mode::{self, *};

use super::bench::*;
use crate::node::Error;
use crate::pool::Access;
use crate::sys::{BindFlags, FsType, Kernel, LoopSpec, MountSpec, loop_path};

fn staged(access: Access, cap: &csi::VolumeCapability) -> (Bench, crate::pool::VolumeId) {
    let bench = Bench::new();
    let id = bench.volume(access);
    bench.stage(id, "a", cap).unwrap();
    (bench, id)
}

fn is_read_only(bench: &Bench, at: &Path) -> bool {
    let mounts = bench.kernel.mounts().unwrap();
    mounts.at(at).expect("is mounted").read_only()
}

#[test]
fn publishes_once_and_again_and_undoes_it() {
    let cap = mount("ext4", SingleNodeWriter);
    let (bench, id) = staged(ext4(), &cap);
    bench.publish(id, "a", "p", &cap, false).unwrap();
    assert_eq!(bench.mounted(), [bench.staging("a"), bench.target("p")]);
    let before = bench.kernel.effects().len();
    bench.publish(id, "a", "p", &cap, false).unwrap();
    assert_eq!(
        bench.kernel.effects().len(),
        before,
        "nothing is done twice"
    );
    let other = bench.publish(id, "a", "p", &cap, true);
    assert!(matches!(other, Err(Error::AlreadyExists(_))), "{other:?}");
    let other = bench.publish(id, "a", "p", &block(SingleNodeWriter), false);
    assert!(matches!(other, Err(Error::AlreadyExists(_))), "{other:?}");
    let second = bench.publish(id, "a", "q", &cap, false);
    assert!(
        matches!(second, Err(Error::FailedPrecondition(_))),
        "{second:?}"
    );
    assert!(!bench.target("q").exists());
    bench.unpublish(id, "p").unwrap();
    assert!(!bench.target("p").exists());
    bench.unpublish(id, "p").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
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
        for (access, cap) in [(ext4(), mount("ext4", mode)), (Access::Block, block(mode))] {
            let (bench, id) = staged(access, &cap);
            bench.publish(id, "a", "p", &cap, false).unwrap();
            let second = bench.publish(id, "a", "q", &cap, false);
            assert_eq!(second.is_ok(), many, "{mode:?}: {second:?}");
            let read_only = matches!(mode, SingleNodeReaderOnly | MultiNodeReaderOnly);
            assert_eq!(
                is_read_only(&bench, &bench.target("p")),
                read_only,
                "{mode:?}"
            );
            bench.unpublish(id, "p").unwrap();
            bench.unpublish(id, "q").unwrap();
            bench.unstage(id, "a").unwrap();
            bench.assert_clean(id, "undone");
        }
    }
}

#[test]
fn a_publication_stands_on_its_staging() {
    let bench = Bench::new();
    let id = bench.volume(ext4());
    let cap = mount("ext4", SingleNodeWriter);
    let refused = |got: crate::node::Result<()>, what: &str| {
        assert!(
            matches!(got, Err(Error::FailedPrecondition(_))),
            "{what}: {got:?}"
        );
        assert!(!bench.target("p").exists(), "{what}");
    };
    refused(bench.publish(id, "a", "p", &cap, false), "not staged");
    bench.stage(id, "a", &cap).unwrap();
    refused(bench.publish(id, "b", "p", &cap, false), "staged elsewhere");
    let no_path = csi::NodePublishVolumeRequest {
        volume_id: id.to_string(),
        target_path: text(&bench.target("p")),
        volume_capability: Some(cap.clone()),
        ..Default::default()
    };
    refused(
        bench.node.node_publish_volume(no_path).map(drop),
        "no staging path",
    );
    let as_block = block(SingleNodeWriter);
    refused(
        bench.publish(id, "a", "p", &as_block, false),
        "as a block device",
    );
    bench.kernel.reboot();
    refused(
        bench.publish(id, "a", "p", &cap, false),
        "no longer mounted",
    );
}

#[test]
fn only_the_last_component_may_not_be_a_symlink() {
    let cap = mount("ext4", SingleNodeWriter);
    let (bench, id) = staged(ext4(), &cap);
    let pods = bench.dir.path().join("pods");
    std::fs::create_dir(bench.dir.path().join("elsewhere")).unwrap();
    symlink(bench.dir.path().join("elsewhere"), pods.join("link")).unwrap();
    let refused = bench.publish(id, "a", "link", &cap, false);
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    bench.publish(id, "a", "link/p", &cap, false).unwrap();
    let real = bench.dir.path().join("elsewhere/p");
    assert!(bench.mounted().contains(&real), "{:?}", bench.mounted());
    bench.publish(id, "a", "link/p", &cap, false).unwrap();
    bench.unpublish(id, "link/p").unwrap();
    assert!(!real.exists());
    let refused = bench.unpublish(id, "link");
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    assert!(pods.join("link").is_symlink());
}

#[test]
fn a_target_with_something_in_it_is_never_removed() {
    let cap = mount("ext4", SingleNodeWriter);
    let (bench, id) = staged(ext4(), &cap);
    bench.publish(id, "a", "p", &cap, false).unwrap();
    std::fs::write(bench.target("p").join("data"), "x").unwrap();
    let refused = bench.unpublish(id, "p");
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    assert_eq!(std::fs::read(bench.target("p").join("data")).unwrap(), b"x");
    let parentless = bench.publish(id, "a", "none/p", &cap, false);
    assert!(
        matches!(parentless, Err(Error::Path { .. })),
        "{parentless:?}"
    );
}

#[test]
fn neither_the_staging_path_nor_another_volume_is_a_target() {
    let cap = mount("ext4", SingleNodeWriter);
    let (bench, id) = staged(ext4(), &cap);
    let other = bench.volume(ext4());
    bench.stage(other, "b", &cap).unwrap();
    bench.publish(other, "b", "q", &cap, false).unwrap();
    let req = |path: PathBuf| csi::NodeUnpublishVolumeRequest {
        volume_id: id.to_string(),
        target_path: text(&path),
    };
    for path in [bench.staging("a"), bench.staging("b"), bench.target("q")] {
        let refused = bench.node.node_unpublish_volume(req(path.clone()));
        assert!(
            matches!(refused, Err(Error::Path { .. })),
            "{path:?}: {refused:?}"
        );
    }
    let refused = bench.publish(id, "a", "q", &cap, false);
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    let refused = bench.publish(id, "a", "../stage/a", &cap, false);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert_eq!(bench.mounted().len(), 3);
}

#[test]
fn a_directory_where_a_volume_is_staged_is_kubelets() {
    let cap = block(SingleNodeWriter);
    let (bench, id) = staged(Access::Block, &cap);
    let other = bench.volume(ext4());
    let unpublish = |volume_id: String| {
        let req = csi::NodeUnpublishVolumeRequest {
            volume_id,
            target_path: text(&bench.staging("a")),
        };
        bench.node.node_unpublish_volume(req)
    };
    unpublish(other.to_string()).unwrap();
    bench.node.pools.delete_volume(&other).unwrap();
    unpublish(other.to_string()).unwrap();
    let refused = unpublish(id.to_string());
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    assert!(bench.dir.path().join("stage/a").is_dir());
}

#[test]
fn unpublish_needs_no_record() {
    let cap = mount("ext4", SingleNodeWriter);
    let (bench, id) = staged(ext4(), &cap);
    let unpublish = |volume_id: &str, target: &str| {
        let req = csi::NodeUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            target_path: text(&bench.target(target)),
        };
        bench.node.node_unpublish_volume(req)
    };
    unpublish("unknown", "none").unwrap();
    std::fs::create_dir(bench.target("empty")).unwrap();
    unpublish(&id.to_string(), "empty").unwrap();
    assert!(!bench.target("empty").exists());
    bench.publish(id, "a", "p", &cap, false).unwrap();
    let refused = unpublish("unknown", "p");
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
}

#[test]
fn a_read_only_attachment_is_published_read_only() {
    let cap = mount("ext4", SingleNodeMultiWriter);
    let (bench, id) = staged(ext4(), &cap);
    let publication = crate::pool::Publication {
        capability: bench.record(id).capabilities[0].clone(),
        readonly: true,
    };
    let published = |r: &mut crate::pool::VolumeRecord| {
        r.publications.insert("n1".to_owned(), publication);
    };
    bench.node.pools.update_volume(&id, published).unwrap();
    bench.publish(id, "a", "p", &cap, false).unwrap();
    assert!(is_read_only(&bench, &bench.target("p")));
}

#[test]
fn several_pvs_share_one_staging() {
    let writers = mount("ext4", MultiNodeMultiWriter);
    let readers = mount("ext4", MultiNodeReaderOnly);
    let (bench, id) = staged(ext4(), &writers);
    bench.publish(id, "a", "p", &writers, false).unwrap();
    bench.publish(id, "a", "q", &readers, false).unwrap();
    bench.publish(id, "a", "q", &readers, false).unwrap();
    assert!(is_read_only(&bench, &bench.target("q")));
    // A block volume is staged below the name of one PV, and published by another as well.
    let blocks = block(MultiNodeMultiWriter);
    let raw = bench.volume(Access::Block);
    bench.stage(raw, "pv1", &blocks).unwrap();
    bench.publish(raw, "pv1", "r", &blocks, false).unwrap();
    bench.publish(raw, "pv2", "s", &blocks, false).unwrap();
    assert_eq!(bench.attached(), 2);
    for (id, target) in [(id, "p"), (id, "q"), (raw, "r"), (raw, "s")] {
        bench.unpublish(id, target).unwrap();
    }
    bench.unstage(id, "a").unwrap();
    bench.unstage(raw, "pv1").unwrap();
    bench.assert_clean(id, "undone");
}

#[test]
fn a_block_volume_is_bound_as_a_file() {
    let cap = block(SingleNodeWriter);
    let (bench, id) = staged(Access::Block, &cap);
    let minor = bench.kernel.loops().unwrap()[0].minor;
    bench.publish(id, "a", "p", &cap, false).unwrap();
    assert_eq!(bench.node_at("p"), Some(minor));
    bench.publish(id, "a", "p", &cap, false).unwrap();
    let other = bench.publish(id, "a", "p", &cap, true);
    assert!(matches!(other, Err(Error::AlreadyExists(_))), "{other:?}");
    let refused = bench.unstage(id, "a");
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    bench.unpublish(id, "p").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
    std::fs::create_dir(bench.target("dir")).unwrap();
    bench.stage(id, "a", &cap).unwrap();
    let refused = bench.publish(id, "a", "dir", &cap, false);
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
}

#[test]
fn a_read_only_block_volume_is_a_device_of_its_own() {
    let cap = block(SingleNodeMultiWriter);
    let (bench, id) = staged(Access::Block, &cap);
    bench.publish(id, "a", "rw", &cap, false).unwrap();
    bench.publish(id, "a", "ro", &cap, true).unwrap();
    bench.publish(id, "a", "ro", &cap, true).unwrap();
    let mut loops = bench.kernel.loops().unwrap();
    loops.sort_by_key(|l| l.read_only);
    assert_eq!(loops.len(), 2);
    assert!(!loops[0].read_only && loops[1].read_only && !loops[1].autoclear);
    let at = bench.node_at("ro");
    assert_eq!(at, Some(loops[1].minor));
    let record = bench.record(id);
    let recorded = &record.stage.as_ref().unwrap().read_only_loops;
    assert_eq!(recorded.get(&bench.target("ro")), Some(&loops[1].minor));
    bench.unpublish(id, "ro").unwrap();
    assert_eq!(bench.attached(), 1);
    assert!(
        bench
            .record(id)
            .stage
            .as_ref()
            .unwrap()
            .read_only_loops
            .is_empty()
    );
    bench.unpublish(id, "rw").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
}

/// Kubelet binds the published node once more, and puts a loop device of its own over it.
#[test]
fn kubelets_own_devices_hold_a_block_volume() {
    let cap = block(SingleNodeWriter);
    let (bench, id) = staged(Access::Block, &cap);
    bench.publish(id, "a", "p", &cap, false).unwrap();
    let own = bench.kernel.loops().unwrap().remove(0);
    std::fs::write(bench.target("map"), "").unwrap();
    let node = loop_path(own.minor);
    bench
        .kernel
        .bind(&node, &bench.target("map"), BindFlags::default())
        .unwrap();
    let below = bench.kernel.loop_reopen(&own).unwrap();
    let over = LoopSpec {
        backing: &below.file,
        label: "kubelet",
        read_only: false,
        direct_io: false,
        autoclear: false,
        minor: None,
    };
    let kubelets = bench.kernel.loop_attach(&over).unwrap().minor;
    drop(below);
    bench.publish(id, "a", "p", &cap, false).unwrap();
    bench.unpublish(id, "p").unwrap();
    let refused = bench.unstage(id, "a");
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    bench.kernel.unmount(&bench.target("map")).unwrap();
    std::fs::remove_file(bench.target("map")).unwrap();
    let refused = bench.unstage(id, "a");
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    let left = bench
        .kernel
        .loop_info(kubelets)
        .unwrap()
        .expect("is not ours to detach");
    bench.kernel.loop_release(&left).unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
}

#[test]
fn a_lost_device_is_unpublished_and_not_published() {
    let cap = block(SingleNodeMultiWriter);
    let (bench, id) = staged(Access::Block, &cap);
    bench.publish(id, "a", "p", &cap, false).unwrap();
    // As an administrator can: nothing holds it open.
    let lost = bench.kernel.loops().unwrap().remove(0);
    bench.kernel.loop_release(&lost).unwrap();
    let refused = bench.publish(id, "a", "p", &cap, false);
    assert!(matches!(refused, Err(Error::Path { .. })), "{refused:?}");
    let refused = bench.publish(id, "a", "q", &cap, false);
    assert!(
        matches!(refused, Err(Error::FailedPrecondition(_))),
        "{refused:?}"
    );
    bench.unpublish(id, "p").unwrap();
    bench.unstage(id, "a").unwrap();
    bench.assert_clean(id, "undone");
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
        let mut cap = mount("ext4", SingleNodeWriter);
        if let Some(AccessType::Mount(mount)) = &mut cap.access_type {
            mount.mount_flags = flags.iter().map(|f| (*f).to_owned()).collect();
        }
        let (bench, id) = staged(ext4(), &cap);
        bench.publish(id, "a", "pod", &cap, false).unwrap();
        let expected = [&["rw"], shown, &["relatime"]].concat();
        for entry in bench.kernel.mounts().unwrap().entries {
            if entry.mount_point.starts_with(bench.dir.path()) {
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
    let cap = mount("ext4", SingleNodeWriter);
    let (bench, id) = staged(ext4(), &cap);
    let staging = bench.staging("a");
    let device = bench
        .kernel
        .mounts()
        .unwrap()
        .at(&staging)
        .unwrap()
        .source
        .clone();
    let held = bench
        .kernel
        .loop_open(bench.kernel.loops().unwrap()[0].minor, bench.image(id));
    bench.kernel.unmount(&staging).unwrap();
    let plain = MountSpec {
        device: Path::new(&device),
        target: &staging,
        fs: FsType::Ext4,
        read_only: false,
        options: &[],
    };
    bench.kernel.mount(&plain).unwrap();
    drop(held);
    for (target, readonly, first) in [("pod", false, "rw"), ("reader", true, "ro")] {
        bench.publish(id, "a", target, &cap, readonly).unwrap();
        let options = bench.mount_at(target).options;
        assert_eq!(options, [first, "nosuid", "nodev", "relatime"]);
        bench.unpublish(id, target).unwrap();
    }
}

#[test]
fn an_error_policy_that_panics_is_refused() {
    for flag in ["errors=panic", "noatime,errors=panic", "fatal_errors=panic"] {
        let mut cap = mount("ext4", SingleNodeWriter);
        if let Some(AccessType::Mount(mount)) = &mut cap.access_type {
            mount.mount_flags = vec![flag.to_owned()];
        }
        let bench = Bench::new();
        let id = bench.volume(ext4());
        let refused = bench.stage(id, "a", &cap);
        assert!(
            matches!(refused, Err(Error::Invalid(_))),
            "{flag}: {refused:?}"
        );
        assert_eq!(bench.kernel.effects(), []);
    }
}
