//! The order of what calls change, and how often they look at the kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Rig;
use crate::testkit::*;

#[test]
fn the_order_is_attach_format_mount() {
    let rig = Rig::new();
    let cap = mount("");
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

/// A look may open a device, which waits while others attach or detach it.
#[test]
fn a_call_looks_at_the_loop_devices_as_often_as_it_must() {
    let cap = mount("ext4");
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI);
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    rig.kernel.shared_hook("loops", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let looks_of = |what: &str, expected: usize| {
        assert_eq!(looks.swap(0, Ordering::SeqCst), expected, "{what}");
    };
    rig.stage(id, "a", &cap).unwrap();
    looks_of("stage: first, and before the attach", 2);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    looks_of("publish", 1);
    rig.unpublish(id, "p").unwrap();
    looks_of("unpublish", 1);
    rig.unstage(id, "a").unwrap();
    looks_of("unstage", 1);
}
