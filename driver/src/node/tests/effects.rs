//! The order of what calls change, and how often they look at the kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_proto::csi;
use parking_lot::Mutex;
use rstest::rstest;
use rustix::fs::{FallocateFlags, fallocate};

use super::Rig;
use crate::kernel::foreground::{self, Foreground};
use crate::storage::Provisioning;
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

/// Counts the looks at the loop devices, and those at the mounts.
struct Looks([Arc<AtomicUsize>; 2]);

impl Looks {
    fn count(rig: &Rig) -> Looks {
        Looks(["loops", "mounts"].map(|op| {
            let looks = Arc::new(AtomicUsize::new(0));
            let counted = looks.clone();
            rig.kernel.shared_hook(op, move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            looks
        }))
    }

    /// How many there were since the last call of this.
    fn take(&self) -> [usize; 2] {
        self.0
            .each_ref()
            .map(|looks| looks.swap(0, Ordering::SeqCst))
    }

    /// Checks how many there were since the last check.
    #[track_caller]
    fn expect(&self, what: &str, expected: [usize; 2]) {
        assert_eq!(self.take(), expected, "{what}");
    }
}

/// A look may open a device, which waits while others attach or detach it. A look at the mounts
/// reads a table that grows with the number of pods. So each call looks once, and again only after
/// it has changed something itself, or has waited for the disk: the first staging writes the
/// durable record.
#[rstest]
#[case::mounted(mount("ext4"))]
#[case::block(block())]
fn a_call_looks_once_at_loop_devices_and_mounts(#[case] cap: csi::VolumeCapability) {
    let rig = Rig::new();
    let looks = Looks::count(&rig);
    let mut request = create_request("one");
    request.volume_capabilities = vec![cap.clone()];
    let id = rig.created(request);
    looks.expect("create", [0, 0]);
    for (what, expected) in [("stage", [2, 2]), ("stage again", [1, 1])] {
        rig.stage(&id, "a", &cap).unwrap();
        looks.expect(what, expected);
    }
    for what in ["publish", "publish again"] {
        rig.publish(&id, "a", "p", &cap, false).unwrap();
        looks.expect(what, [1, 1]);
    }
    let target = rig.target("p");
    rig.stats(&id, &target).unwrap();
    looks.expect("stats", [1, 1]);
    rig.node_health(&id).unwrap();
    // The health of its pool needs the mounts, too.
    let of_pool_and_volume = looks.take();
    assert_eq!(of_pool_and_volume[0], 1, "health");
    rig.reasons_at(&id, &target);
    looks.expect("health at a path", of_pool_and_volume);
    rig.grow(&id, range(16 << 20, 0)).unwrap();
    looks.expect("the controller's half of expand", [0, 0]);
    rig.expand(&id, &target, 16 * MI).unwrap();
    looks.expect("expand", [1, 1]);
    rig.publish(&id, "a", "r", &cap, true).unwrap();
    looks.expect("publish read-only", [1, 1]);
    for (what, at) in [("unpublish", "p"), ("unpublish read-only", "r")] {
        rig.unpublish(&id, at).unwrap();
        looks.expect(&format!("{what}: also after the unmount"), [1, 2]);
    }
    for what in ["unstage", "stage a second time", "unstage a second time"] {
        match what {
            "stage a second time" => rig.stage(&id, "a", &cap).unwrap(),
            _ => rig.unstage(&id, "a").unwrap(),
        }
        looks.expect(what, [1, 1]);
    }
    rig.delete(&id).unwrap();
    looks.expect("delete", [1, 0]);
}

#[test]
fn a_call_looks_once_for_an_inline_volume() {
    let rig = Rig::new();
    let looks = Looks::count(&rig);
    for (what, expected) in [("publish", [2, 2]), ("publish again", [1, 1])] {
        rig.publish_inline(1, "p", &[], false).unwrap();
        looks.expect(what, expected);
    }
    rig.unpublish(inline(1), "p").unwrap();
    looks.expect("unpublish: also before the deletion", [2, 1]);
    rig.unpublish(inline(1), "p").unwrap();
    looks.expect("unpublish again", [0, 1]);
}

/// Copies pause for the mount of a thick volume as for any other. They go on while it gets the
/// blocks again that its user has discarded, which may take minutes.
#[test]
fn a_call_leaves_the_foreground_while_it_allocates() {
    let rig = Rig::new();
    let mut new = new_volume(ext4(), 16 * MI);
    new.settings.provisioning = Provisioning::Thick;
    let id = rig.create(new);
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(rig.open_image(id), hole, 8 * MI, 8 * MI).unwrap();
    let pool = Arc::new(Foreground::default());
    let pauses = Arc::new(Mutex::new(Vec::new()));
    for op in ["allocate", "loop.attach"] {
        let (pool, pauses) = (pool.clone(), pauses.clone());
        rig.kernel.shared_hook(op, move |_| {
            let is_busy = foreground::behind(vec![pool.clone()], foreground::is_busy);
            pauses.lock().push((op, is_busy));
            Ok(())
        });
    }
    foreground::in_front(&[pool], || rig.stage(id, "a", &mount("ext4"))).unwrap();
    assert_eq!(*pauses.lock(), [("allocate", false), ("loop.attach", true)]);
}
