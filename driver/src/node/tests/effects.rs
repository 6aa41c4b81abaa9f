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
    assert_eq!(
        rig.kernel.take_effects(),
        ["mkfs"],
        "CreateVolume makes the filesystem"
    );
    rig.stage(id, "a", &cap).unwrap();
    let expected = [
        "loop.attach",
        "loop.read-ahead",
        "mkfs",
        "loop.flush",
        "mount",
    ];
    assert_eq!(rig.kernel.take_effects(), expected);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &cap).unwrap();
    let expected = ["unmount", "loop.attach", "loop.read-ahead", "mount"];
    assert_eq!(rig.kernel.take_effects(), expected);
}

/// A look may open a device, which waits while others attach or detach it. A look at the mounts
/// reads a table that grows with the number of pods.
#[test]
fn a_call_looks_at_loop_devices_and_mounts_as_often_as_it_must() {
    for (cap, block_only) in [(mount("ext4"), 0), (block(), 1)] {
        let rig = Rig::new();
        let [loops, mounts] = ["loops", "mounts"].map(|op| {
            let looks = Arc::new(AtomicUsize::new(0));
            let counted = looks.clone();
            rig.kernel.shared_hook(op, move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            looks
        });
        // Looks at the loop devices, and at the mounts.
        let looks_of = |what: &str, expected: (usize, usize)| {
            let looks = [&loops, &mounts].map(|looks| looks.swap(0, Ordering::SeqCst));
            assert_eq!((looks[0], looks[1]), expected, "{what}, {cap:?}");
        };
        let mut request = create_request("one");
        request.volume_capabilities = vec![cap.clone()];
        let id = rig.created(request);
        looks_of("create", (0, 0));
        rig.stage(&id, "a", &cap).unwrap();
        looks_of("stage: first, and before the attach", (2, 1));
        rig.stage(&id, "a", &cap).unwrap();
        looks_of(
            "stage again; a block volume also looks before the attach",
            (1 + block_only, 1),
        );
        for what in ["publish", "publish again"] {
            rig.publish(&id, "a", "p", &cap, false).unwrap();
            looks_of(what, (1, 1));
        }
        let target = rig.target("p");
        rig.stats(&id, &target).unwrap();
        looks_of("stats", (1, 1));
        rig.grow(&id, range(16 << 20, 0)).unwrap();
        looks_of("the controller's half of expand", (0, 0));
        rig.expand(&id, &target, 16 * MI).unwrap();
        looks_of("expand: at the path, and before the growth", (2, 2));
        rig.publish(&id, "a", "r", &cap, true).unwrap();
        looks_of("publish read-only", (1, 1));
        rig.unpublish(&id, "p").unwrap();
        looks_of("unpublish: before and after the unmount", (1, 2));
        rig.unpublish(&id, "r").unwrap();
        let expected = (1 + block_only, 2 + block_only);
        looks_of(
            "unpublish read-only; a block volume also looks before the detach",
            expected,
        );
        rig.unstage(&id, "a").unwrap();
        looks_of("unstage", (1, 1));
        rig.delete(&id).unwrap();
        looks_of("delete", (1, 0));
    }
}
