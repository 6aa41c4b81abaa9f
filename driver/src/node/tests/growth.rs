//! Growth of an ext4 by a driver without CAP_SYS_RESOURCE.

use super::Rig;
use crate::kernel::{Error as KernelError, FsType, Mounts};
use crate::node::Error;
use crate::storage::{Access, Capability, NewVolume, Provisioning, Source, VolumeId};
use crate::testkit::*;

const GI: u64 = 1 << 30;

/// A volume of 8 MiB with an image of this size, as an older version left it. The driver lacks
/// CAP_SYS_RESOURCE.
fn enlarged(bytes: u64) -> (Rig, VolumeId) {
    let rig = Rig::new();
    rig.kernel.withhold_growth(true);
    let id = rig.volume(ext4(), 8 * MI);
    rig.node.pools.expand_volume(&id, bytes).unwrap();
    rig.kernel.take_effects();
    (rig, id)
}

#[test]
fn an_ext4_beyond_its_limit_is_mounted_as_it_is() {
    let (rig, id) = enlarged(20 * GI);
    let cap = mount("ext4");
    for _ in 0..2 {
        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.ext4_bytes(id), 8 * MI);
        assert_eq!(rig.reasons(id), ["FilesystemSmaller"]);
        // After any other code, kubelet would not start the pod.
        let Err(Error::FailedPrecondition(why)) = rig.expand(id, &rig.staging("a"), 20 * GI) else {
            panic!("it can't grow");
        };
        assert!(why.contains("8 GiB (8589934592 bytes) at most"), "{why}");
        rig.publish(id, "a", "p", &cap, false).unwrap();
        rig.unpublish(id, "p").unwrap();
        rig.unstage(id, "a").unwrap();
    }
    let effects = rig.kernel.take_effects();
    assert!(
        !effects.contains(&"grow") && !effects.contains(&"check-whole"),
        "{effects:?}"
    );

    // With the right, it grows.
    rig.kernel.withhold_growth(false);
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.ext4_bytes(id), 20 * GI);
    assert_eq!(rig.reasons(id), [] as [&str; 0]);
}

#[test]
fn an_ext4_within_its_limit_grows_before_it_is_mounted() {
    let (rig, id) = enlarged(8 * GI);
    let cap = mount("ext4");
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.ext4_bytes(id), 8 * GI);
    let effects = rig.kernel.take_effects();
    let order = ["check-whole", "grow", "loop.flush", "mount"].map(|op| {
        effects
            .iter()
            .position(|e| *e == op)
            .unwrap_or_else(|| panic!("no {op}: {effects:?}"))
    });
    assert!(order.is_sorted(), "{effects:?}");
    assert_eq!(rig.record(id).growth, None);
    rig.unstage(id, "a").unwrap();
    // Only a growth costs a check.
    rig.stage(id, "a", &cap).unwrap();
    assert!(!rig.kernel.take_effects().contains(&"check-whole"));

    // In use, it waits for the next staging, and health says so meanwhile.
    rig.node.pools.expand_volume(&id, 9 * GI).unwrap();
    refused!(
        rig.expand(id, &rig.staging("a"), 9 * GI),
        Error::FailedPrecondition(_)
    );
    assert_eq!(rig.reasons(id), ["FilesystemSmaller"]);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.reasons(id), [] as [&str; 0]);
    assert_eq!(rig.ext4_bytes(id), 9 * GI);
}

/// With these options, not even a mount changes anything.
#[test]
fn an_ext4_that_is_mounted_read_only_is_not_grown() {
    let (rig, id) = enlarged(GI);
    rig.stage(id, "a", &with_flags(mount("ext4"), &["ro", "noload"]))
        .unwrap();
    let effects = rig.kernel.take_effects();
    assert!(
        !effects.contains(&"grow") && !effects.contains(&"check-whole"),
        "{effects:?}"
    );
    assert_eq!(rig.ext4_bytes(id), 8 * MI);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.ext4_bytes(id), GI);
}

/// A failed growth leaves a filesystem that only the driver can repair.
#[test]
fn a_growth_that_fails_is_mended_and_the_volume_is_mounted() {
    for (op, afterwards) in [
        ("check-whole", false),
        ("grow", false),
        ("grow", true),
        ("loop.flush", false),
    ] {
        let what = format!("{op}, afterwards: {afterwards}");
        let (rig, id) = enlarged(GI);
        let cap = mount("ext4");
        if afterwards {
            rig.kernel.fail_afterwards(op, 1, libc::EIO);
        } else {
            rig.kernel.fail(op, 1, libc::EIO);
        }
        rig.stage(id, "a", &cap)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(rig.record(id).growth, None, "{what}");
        if op != "loop.flush" {
            assert!(rig.ext4_bytes(id) < GI, "{what}");
            assert_eq!(rig.reasons(id), ["FilesystemSmaller"], "{what}");
        }
        rig.unstage(id, "a").unwrap();
        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.ext4_bytes(id), GI, "{what}");
        assert_eq!(rig.reasons(id), [] as [&str; 0], "{what}");
        rig.unstage(id, "a").unwrap();
        rig.assert_clean_after(id, &what);
    }
}

/// The process dies in the middle: nothing undoes the growth.
#[test]
fn an_interrupted_growth_is_completed_by_the_next_staging() {
    for killed in ["check-whole", "grow", "loop.flush"] {
        let (rig, id) = enlarged(GI);
        let cap = mount("ext4");
        rig.kernel.fail_afterwards(killed, 1, libc::EIO);
        rig.kernel.fail("mend", 1, libc::EIO);
        refused!(
            rig.stage(id, "a", &cap),
            Error::Kernel(KernelError::Io { .. })
        );
        let intent = rig.record(id).growth.clone().expect("an intent");
        assert_eq!(intent.begun, killed != "check-whole", "{killed}");
        let rig = rig.restarted();

        // A copy would not be mended.
        let source = Some(Source::Volume(id));
        let copy = NewVolume {
            source,
            ..new_volume(ext4(), GI)
        };
        let pool = rig.node.pools.named(None).unwrap();
        let refused = rig.node.pools.create_volume(&pool, copy).unwrap_err();
        assert!(refused.to_string().contains("was interrupted"), "{refused}");
        rig.node
            .pools
            .create_snapshot(&id, "s", &Default::default())
            .unwrap_err();

        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.ext4_bytes(id), GI, "{killed}");
        assert_eq!(rig.record(id).growth, None, "{killed}");
        assert_eq!(rig.reasons(id), [] as [&str; 0], "{killed}");
        rig.unstage(id, "a").unwrap();
        rig.assert_clean_after(id, killed);
    }
}

/// Its user could change the filesystem before the growth is mended.
#[test]
fn a_device_is_not_staged_while_a_growth_is_interrupted() {
    let rig = Rig::new();
    rig.kernel.withhold_growth(true);
    let mut new = new_volume(ext4(), 8 * MI);
    let mode = new.capabilities[0].mode;
    new.capabilities.push(Capability {
        access: Access::Block,
        mode,
    });
    let id = rig.create(new);
    rig.node.pools.expand_volume(&id, GI).unwrap();
    rig.kernel.fail_afterwards("grow", 1, libc::EIO);
    rig.kernel.fail("mend", 1, libc::EIO);
    rig.stage(id, "a", &mount("ext4")).unwrap_err();
    let rig = rig.restarted();
    let Err(Error::FailedPrecondition(why)) = rig.stage(id, "b", &block()) else {
        panic!("the filesystem is in between");
    };
    assert!(why.contains("was interrupted"), "{why}");
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(rig.ext4_bytes(id), GI);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "b", &block()).unwrap();
}

/// The image of a thick volume takes time to grow, in which others may unmount the filesystem. It
/// grows by another mount, and the filesystem beneath the first one does not.
#[test]
fn a_filesystem_is_grown_where_it_is_mounted_by_then() {
    let rig = Rig::new();
    let mut new = new_volume(on(FsType::Xfs), 400 * MI);
    new.settings.provisioning = Provisioning::Thick;
    let id = rig.create(new);
    let (cap, path) = (mount("xfs"), rig.staging("a"));
    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let (kernel, at) = (rig.kernel.clone(), path.clone());
    rig.kernel.hook("allocate", move |_| kernel.unmount(&at));
    assert_eq!(rig.expand(id, &path, GI).unwrap(), GI);
}

/// A growth that fails after the mount keeps no filesystem from its users.
#[test]
fn a_mounted_filesystem_that_fails_to_grow_stays_mounted() {
    for fs in FsType::ALL {
        let rig = Rig::new();
        let (id, cap) = (rig.volume(on(fs), 400 * MI), mount(fs));
        rig.node.pools.expand_volume(&id, GI).unwrap();
        rig.kernel.fail("grow", 1, libc::EIO);
        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.reasons(id), ["FilesystemSmaller"], "{fs}");
        // What may succeed later keeps its code.
        rig.kernel.fail("grow", 1, libc::EIO);
        refused!(
            rig.expand(id, &rig.staging("a"), GI),
            Error::Kernel(KernelError::Io { .. })
        );
        rig.stage(id, "a", &cap).unwrap();
        assert_eq!(rig.reasons(id), [] as [&str; 0], "{fs}");
        assert_eq!(rig.expand(id, &rig.staging("a"), GI).unwrap(), GI);
    }
}
