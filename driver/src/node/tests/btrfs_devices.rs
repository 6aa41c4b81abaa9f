//! A btrfs that is mounted from other devices, or does not say on which devices it is.

use std::path::PathBuf;

use hostloop_proto::csi;
use rstest::rstest;

use super::Rig;
use crate::kernel::{BindFlags, Error as KernelError, FsType, Mounts};
use crate::node::Error;
use crate::storage::{Access, Capability, VolumeId};
use crate::testkit::*;

/// Before Linux 6.7, the kernel mounts the devices that it has scanned with this filesystem ID,
/// whichever one is named.
#[test]
fn a_btrfs_of_another_device_is_neither_grown_nor_handed_out() {
    let rig = Rig::new();
    let (other, cap) = (rig.staged(Access::Block, "b", &block()), mount("btrfs"));
    let theirs = rig.device(other).minor;
    let id = rig.staged(on(FsType::Btrfs), "a", &cap);
    let ours = rig.device(id).minor;
    rig.unstage(id, "a").unwrap();
    let larger = rig.record(id).capacity_bytes + 256 * MI;
    rig.node.pools.expand_volume(&id, larger).unwrap();
    for scanned in [&[theirs][..], &[ours, theirs], &[]] {
        rig.kernel.set_scanned(Some(scanned));
        rig.kernel.take_effects();
        let Err(Error::FailedPrecondition(why)) = rig.stage(id, "a", &cap) else {
            panic!("{scanned:?} are mounted");
        };
        assert!(why.contains("btrfs device scan --forget"), "{why}");
        let effects = rig.kernel.take_effects();
        assert!(!effects.contains(&"grow"), "{scanned:?}: {effects:?}");
        assert_eq!(rig.mounted(), [] as [PathBuf; 0], "{scanned:?}");
        assert_eq!(rig.record(id).stage, None, "{scanned:?}");
        assert_eq!(rig.devices().len(), 1, "{scanned:?}");
    }
    rig.kernel.set_scanned(None);
    rig.stage(id, "a", &cap).unwrap();
    assert!(rig.kernel.take_effects().contains(&"grow"));
    rig.unstage(id, "a").unwrap();
}

/// Its answer may only be late, so that each staging would mount and unmount it again.
#[test]
fn a_btrfs_that_does_not_answer_stays_mounted_and_is_not_handed_out() {
    let rig = Rig::new();
    let cap = mount("btrfs");
    let id = rig.volume(on(FsType::Btrfs), 16 * MI);
    rig.kernel.set_unasked(true);
    for what in ["first", "again"] {
        let unknown = rig.stage(id, "a", &cap);
        refused!(
            unknown,
            Error::Kernel(KernelError::UnknownMount { .. }),
            "{what}"
        );
        assert_eq!(code(unknown), Err(tonic::Code::Unavailable));
        assert_eq!(rig.mounted(), [rig.staging("a")], "{what}");
        let published = rig.publish(id, "a", "p", &cap, false);
        refused!(published, Error::FailedPrecondition(_), "{what}");
    }
    // Neither another path nor the end of the staging takes it for another program's.
    for unknown in [rig.stage(id, "b", &cap), rig.unstage(id, "a")] {
        refused!(unknown, Error::Kernel(KernelError::UnknownMount { .. }));
    }
    let rig = rig.restarted();
    refused!(
        rig.stage(id, "a", &cap),
        Error::Kernel(KernelError::UnknownMount { .. })
    );
    rig.kernel.take_effects();
    rig.kernel.set_unasked(false);
    rig.stage(id, "a", &cap).unwrap();
    let effects = rig.kernel.take_effects();
    for op in ["mount", "unmount", "mkfs"] {
        assert!(!effects.contains(&op), "{effects:?}");
    }
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

#[test]
fn a_btrfs_that_did_not_answer_is_forgotten_with_its_staging() {
    let rig = Rig::new();
    let cap = mount("btrfs");
    let id = rig.volume(on(FsType::Btrfs), 16 * MI);
    rig.kernel.set_unasked(true);
    let unknown = rig.stage(id, "a", &cap);
    refused!(unknown, Error::Kernel(KernelError::UnknownMount { .. }));
    assert!(!rig.node.unknown_mounts.is_empty());
    rig.kernel.set_unasked(false);
    rig.unstage(id, "a").unwrap();
    assert!(rig.node.unknown_mounts.is_empty());
    rig.assert_clean(id);
}

/// A volume that is staged as a device is never formatted again, and none can be while a filesystem
/// may be mounted from it. So the record must not change first.
#[test]
fn a_volume_with_a_btrfs_that_does_not_answer_does_not_become_a_device() {
    let rig = Rig::new();
    let mut new = new_volume(on(FsType::Btrfs), 16 * MI);
    let mode = new.capabilities[0].mode;
    new.capabilities.push(Capability {
        access: Access::Block,
        mode,
    });
    let (id, cap) = (rig.create(new), mount("btrfs"));
    rig.kernel.set_unasked(true);
    let mounted = rig.stage(id, "a", &cap);
    refused!(mounted, Error::Kernel(KernelError::UnknownMount { .. }));
    let before = rig.record(id);
    let device = rig.stage(id, "b", &block());
    refused!(device, Error::Kernel(KernelError::UnknownMount { .. }));
    assert_eq!(rig.record(id), before);
    rig.kernel.set_unasked(false);
    rig.stage(id, "a", &cap).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

#[test]
fn a_btrfs_is_unmounted_once_it_says_that_it_is_on_another_device() {
    let rig = Rig::new();
    let (other, cap) = (rig.staged(Access::Block, "b", &block()), mount("btrfs"));
    let theirs = rig.device(other).minor;
    let id = rig.staged(on(FsType::Btrfs), "a", &cap);
    let ours = rig.device(id).minor;
    rig.unstage(id, "a").unwrap();
    rig.kernel.set_unasked(true);
    // The volume's device is unused then, so the answer is known.
    rig.kernel.set_scanned(Some(&[theirs]));
    refused!(rig.stage(id, "a", &cap), Error::FailedPrecondition(_));
    assert_eq!(rig.mounted(), [] as [PathBuf; 0]);
    rig.kernel.set_scanned(Some(&[ours, theirs]));
    let unknown = rig.stage(id, "a", &cap);
    refused!(unknown, Error::Kernel(KernelError::UnknownMount { .. }));
    assert_eq!(rig.mounted(), [rig.staging("a")]);
    rig.kernel.set_unasked(false);
    refused!(rig.stage(id, "a", &cap), Error::FailedPrecondition(_));
    assert_eq!(rig.mounted(), [] as [PathBuf; 0]);
    assert_mended(&rig, id, other);
}

#[test]
fn an_inline_btrfs_that_does_not_answer_waits_for_the_next_call() {
    let rig = Rig::new();
    let handle = inline(1);
    let request = csi::NodePublishVolumeRequest {
        volume_id: handle.clone(),
        target_path: text(&rig.target("p")),
        volume_capability: Some(mount("btrfs")),
        volume_context: map(&[("size", "256Mi")]),
        ..Default::default()
    };
    rig.kernel.set_unasked(true);
    let unknown = rig.node.node_publish_volume(request.clone());
    refused!(unknown, Error::Kernel(KernelError::UnknownMount { .. }));
    assert_eq!(rig.mounted(), [rig.target("p")]);
    rig.kernel.set_unasked(false);
    rig.kernel.take_effects();
    rig.node.node_publish_volume(request).unwrap();
    assert!(!rig.kernel.take_effects().contains(&"mkfs"));
    rig.unpublish(handle, "p").unwrap();
    rig.assert_nothing_left("unpublish");
}

/// Other codes than UNAVAILABLE mean to kubelet that nothing is mounted.
#[test]
fn a_published_btrfs_that_does_not_answer_is_not_taken_for_another() {
    let rig = Rig::new();
    let cap = mount("btrfs");
    let id = rig.staged(on(FsType::Btrfs), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.kernel.set_unasked(true);
    let (at, larger) = (rig.target("p"), rig.record(id).capacity_bytes + 256 * MI);
    for (what, unknown) in [
        ("expand", rig.expand(id, &at, larger).map(drop)),
        ("stats", rig.stats(id, &at).map(drop)),
        ("publish again", rig.publish(id, "a", "p", &cap, false)),
        ("publish elsewhere", rig.publish(id, "a", "q", &cap, false)),
        ("another use", rig.publish(id, "a", "p", &block(), false)),
        ("unpublish", rig.unpublish(id, "p")),
        ("unstage", rig.unstage(id, "a")),
    ] {
        assert_eq!(code(unknown), Err(tonic::Code::Unavailable), "{what}");
    }
    assert_eq!(rig.mounted(), [rig.staging("a"), at]);
    assert!(!rig.target("q").exists());
    rig.kernel.set_unasked(false);
    let another_use = rig.publish(id, "a", "p", &block(), false);
    refused!(another_use, Error::AlreadyExists(_));
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// A volume that is staged at "a" as a btrfs that the kernel mounts from the device of another one
/// alone, and that one, staged at "b". Nothing says so: the btrfs does not answer, and the first one's
/// device can't be opened.
fn left_wrong() -> (Rig, VolumeId, VolumeId) {
    let rig = Rig::new();
    let other = rig.staged(Access::Block, "b", &block());
    let id = rig.volume(on(FsType::Btrfs), 16 * MI);
    rig.kernel.set_scanned(Some(&[rig.device(other).minor]));
    rig.kernel.set_unasked(true);
    rig.kernel.hook("is_claimed", |device| {
        Err(KernelError::errno("open", device, libc::EMFILE))
    });
    let unknown = rig.stage(id, "a", &mount("btrfs"));
    refused!(unknown, Error::Kernel(KernelError::UnknownMount { .. }));
    assert_eq!(rig.mounted(), [rig.staging("a")]);
    rig.kernel.behave();
    rig.kernel.set_unasked(false);
    (rig, id, other)
}

/// Checks that a volume can be staged once the kernel mounts its own device, and ends both stagings.
fn assert_mended(rig: &Rig, id: VolumeId, other: VolumeId) {
    rig.kernel.set_scanned(None);
    rig.stage(id, "a", &mount("btrfs")).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.unstage(other, "b").unwrap();
    rig.assert_clean(id);
}

/// No mount of the volume is left to find it by: what the driver has mounted itself, it knows.
#[rstest]
#[case::by_staging_again("a")]
#[case::by_staging_elsewhere("c")]
#[case::by_unstaging("")]
fn a_btrfs_of_others_alone_does_not_stay_mounted(#[case] staged_next: &str) {
    let (rig, id, other) = left_wrong();
    let cap = mount("btrfs");
    if staged_next.is_empty() {
        rig.unstage(id, "a").unwrap();
    } else {
        let Err(Error::FailedPrecondition(why)) = rig.stage(id, staged_next, &cap) else {
            panic!("it is not refused");
        };
        assert!(why.contains("btrfs device scan --forget"), "{why}");
    }
    assert_eq!(rig.mounted(), [] as [PathBuf; 0]);
    assert_eq!(rig.record(id).stage, None);
    assert_mended(&rig, id, other);
}

#[test]
fn no_other_mount_is_taken_for_the_btrfs_that_was_left() {
    let (rig, id, other) = left_wrong();
    let cap = mount("btrfs");
    let at = rig.staging("a");
    rig.kernel
        .bind(&rig.root().join("pods"), &at, BindFlags::default())
        .unwrap();
    for covered in [rig.stage(id, "a", &cap), rig.unstage(id, "a")] {
        refused!(covered, Error::Path { .. });
    }
    assert_eq!(rig.mounted(), [at.clone(), at.clone()]);
    rig.kernel.unmount(&at).unwrap();
    // A new process does not know who mounted it, and says what to do.
    let rig = rig.restarted();
    for unclear in [rig.stage(id, "a", &cap), rig.unstage(id, "a")] {
        let Err(Error::Path { why, .. }) = unclear else {
            panic!("{unclear:?}");
        };
        assert!(why.contains("unmount it if nothing uses it"), "{why}");
    }
    assert_eq!(rig.mounted(), std::slice::from_ref(&at));
    rig.kernel.unmount(&at).unwrap();
    assert_mended(&rig, id, other);
}
