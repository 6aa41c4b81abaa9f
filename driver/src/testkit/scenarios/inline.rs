//! Inline ephemeral volumes.

use hostloop_driver::node::Error;
use hostloop_driver::storage::VolumeHandle;

use super::*;
use crate::testkit::inline;

#[track_caller]
fn assert_deleted<K: TestKernel>(rig: &Rig<K>, after: &str) {
    assert_eq!(rig.node.pools.volumes(), [], "{after}");
    rig.assert_nothing_left(after);
}

pub(crate) fn an_inline_volume_lives<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let target = rig.target("p");
    for token in ["1", "2"] {
        let attributes = [
            ("size", "24Mi"),
            ("pool", "default"),
            ("csi.storage.k8s.io/ephemeral", "true"),
            ("csi.storage.k8s.io/serviceAccount.tokens", token),
        ];
        rig.publish_inline(1, "p", &attributes, false).unwrap();
    }
    let entry = rig.mount_at("p");
    assert_eq!(entry.options, "rw,nosuid,nodev,relatime".into());
    let remounts = entry.super_options.iter().any(|o| o == "errors=remount-ro");
    assert!(remounts, "{entry:?}");
    let record = rig.node.pools.volume(&VolumeHandle::Inline(inline(1)));
    assert_eq!(record.unwrap().capacity_bytes, 24 * MI);
    keep(&rig, &target, 1);
    assert!(rig.stats(inline(1), &target).unwrap()[0].total > 0);
    let size = [("size", "24Mi")];
    refused!(rig.publish_inline(1, "p", &size, true), Error::AlreadyExists(_));
    let rig = rig.restarted();
    rig.publish_inline(1, "p", &[], false).unwrap();
    assert_kept(&rig, &target, 1);
    for _ in 0..2 {
        rig.unpublish(inline(1), "p").unwrap();
        assert_deleted(&rig, "unpublish");
    }
    for _ in 0..2 {
        rig.publish_inline(1, "p", &[], true).unwrap();
    }
    assert!(!target.join("data").exists(), "a new one");
    assert_read_only(&rig, &target);
    rig.unpublish(inline(1), "p").unwrap();
    assert_deleted(&rig, "unpublish of a read-only one");
}

/// A pod's author may request a size and a pool, and nothing else.
pub(crate) fn a_failed_inline_volume_leaves_nothing<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for (key, value) in [("size", "none"), ("pool", "other"), ("mkfsOptions", "-d etc")] {
        let refused = rig.publish_inline(1, "p", &[(key, value)], false);
        let Err(Error::Invalid(invalid)) = refused else {
            panic!("{key}={value}: {refused:?}");
        };
        assert_eq!(invalid.field, format!("volume_context[{key:?}]"));
        assert_deleted(&rig, value);
    }
    let too_large = rig.publish_inline(1, "p", &[("size", "2Gi")], false);
    refused!(too_large, Error::OutOfRange(_));
    assert_deleted(&rig, "a size above the limit");
    let suid = with_flags(mount("ext4"), &["suid"]);
    let suid = rig.publish(inline(1), "a", "p", &suid, false);
    refused!(suid, Error::Invalid(_));
    assert_deleted(&rig, "a mount flag");
    assert_eq!(rig.kernel.changes(), 0);
    std::fs::write(rig.target("p"), "in the way").unwrap();
    rig.publish_inline(1, "p", &[], false).unwrap_err();
    assert_eq!(rig.node.pools.volumes(), []);
}
