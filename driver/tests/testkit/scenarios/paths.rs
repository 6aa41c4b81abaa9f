//! Paths of requests, and what is mounted there.

use std::os::unix::fs::symlink;
use std::path::Path;

use hostloop_driver::kernel::FsType;
use hostloop_driver::node::Error;
use hostloop_driver::storage::Access;
use hostloop_proto::csi::volume_capability::access_mode::Mode::SingleNodeWriter;
use nix::mount::MsFlags;

use super::*;

pub(crate) fn a_second_path_or_another_use_is_refused<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount_as("ext4", SingleNodeWriter);
    let id = rig.staged(ext4(), "a", &cap);
    refused!(rig.stage(id, "b", &cap), Error::FailedPrecondition(_));
    for other in [
        mount("ext4"),
        mount_as("xfs", SingleNodeWriter),
        block_as(SingleNodeWriter),
    ] {
        refused!(rig.stage(id, "a", &other), Error::AlreadyExists(_));
        refused!(rig.stage(id, "b", &other), Error::FailedPrecondition(_));
    }
    // The volume is not staged there: the call succeeds and leaves the other staging alone.
    rig.unstage(id, "b").unwrap();
    assert_eq!(rig.mounted(), [rig.staging("a")]);
    let block = block_as(SingleNodeWriter);
    let raw = rig.staged(Access::Block, "c", &block);
    for (id, at, cap) in [(id, "a", &cap), (raw, "c", &block)] {
        rig.publish(id, at, "p", cap, false).unwrap();
        refused!(
            rig.publish(id, at, "q", cap, false),
            Error::FailedPrecondition(_)
        );
        assert!(!rig.target("q").exists());
        rig.unpublish(id, "p").unwrap();
    }
}

/// Mounts of other programs at "p" and "b", and of another volume at "q" and "c".
pub(crate) fn other_mounts_are_not_touched<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    let other = rig.staged(ext4(), "c", &cap);
    rig.publish(other, "c", "q", &cap, false).unwrap();
    for at in [rig.target("p"), rig.staging("b")] {
        std::fs::create_dir_all(&at).unwrap();
        new_filesystem(&*rig.kernel, &at, FsType::Ext4, 16 * MI);
    }
    let before = rig.mounted();
    for target in ["p", "q"] {
        let answer = rig.publish(id, "a", target, &cap, false);
        refused!(answer, Error::Path { .. }, "{target}");
        refused!(rig.unpublish(id, target), Error::Path { .. }, "{target}");
        refused!(rig.unpublish("unknown", target), Error::Path { .. });
    }
    let over_staging = rig.publish(id, "a", "../stage/a", &cap, false);
    refused!(over_staging, Error::Invalid(_));
    for at in ["a", "b", "c"] {
        let answer = rig.unpublish_at(id, &rig.staging(at));
        refused!(answer, Error::Path { .. }, "{at}");
        refused!(rig.unstage("unknown", at), Error::Path { .. }, "{at}");
    }
    for at in ["b", "c"] {
        refused!(rig.unstage(id, at), Error::Path { .. }, "{at}");
    }
    assert_eq!(rig.mounted(), before);
    rig.unstage(id, "a").unwrap();
    for at in ["b", "c"] {
        refused!(rig.stage(id, at, &cap), Error::Path { .. }, "{at}");
        refused!(rig.unstage(id, at), Error::Path { .. }, "{at}");
    }
    rig.assert_detached(id);
    assert_eq!(rig.mounted(), before[1..]);
}

/// A filesystem of another program is between two mounts of the volume at one path.
pub(crate) fn mounts_of_others_between_those_of_a_volume_stay<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    make_private(&rig.staging("a"));
    make_private(&rig.target("p"));
    for (at, from) in [
        (rig.staging("a"), rig.target("p")),
        (rig.target("p"), rig.staging("a")),
    ] {
        new_filesystem(&*rig.kernel, &at, FsType::Ext4, 16 * MI);
        rig.kernel.bind(&from, &at, Default::default()).unwrap();
    }
    let foreign = |rig: &Rig<K>| {
        let table = rig.kernel.mounts().unwrap();
        let own = rig.device(id).minor;
        let ours = table
            .entries
            .iter()
            .filter(|m| m.mount_point.starts_with(rig.root()));
        ours.filter(|m| !m.is_on_loop(own))
            .map(|m| m.mount_point.to_path_buf())
            .collect::<Vec<_>>()
    };
    let before = foreign(&rig);
    assert_eq!(before, [rig.staging("a"), rig.target("p")]);
    for _ in 0..2 {
        refused!(rig.unpublish(id, "p"), Error::Path { .. });
        assert_eq!(foreign(&rig), before);
    }
    rig.kernel.unmount(&rig.target("p")).unwrap();
    rig.unpublish(id, "p").unwrap();
    std::fs::remove_file(rig.target("p").with_extension("img")).unwrap();
    for _ in 0..2 {
        rig.unstage(id, "a").unwrap_err();
        assert_eq!(foreign(&rig), [rig.staging("a")]);
    }
    rig.kernel.unmount(&rig.staging("a")).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// Where mounts are shared, what is mounted over one of a volume's mounts comes over the others,
/// too. The model has no shared mounts.
fn make_private(at: &Path) {
    let flags = MsFlags::MS_PRIVATE;
    let _ = nix::mount::mount(None::<&str>, at, None::<&str>, flags, None::<&str>);
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
