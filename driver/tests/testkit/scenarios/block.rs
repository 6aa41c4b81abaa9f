//! Raw block volumes.

use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use hostloop_driver::kernel::{LoopInfo, LoopSpec, file_id, loop_path};
use hostloop_driver::node::Error;
use hostloop_driver::storage::{Access, Format};

use super::*;

/// Writes 8 KiB to the device at a target, after its first block.
fn write_device(at: &Path, seed: u8) -> std::io::Result<()> {
    let device = File::options().read(true).write(true).open(at)?;
    device.write_all_at(&pattern(seed, 8192), 4096)?;
    device.sync_all()
}

#[track_caller]
fn assert_device(at: &Path, seed: u8) {
    let mut read = vec![0; 8192];
    let device = File::open(at).unwrap();
    device.read_exact_at(&mut read, 4096).unwrap();
    assert!(read == pattern(seed, 8192), "{} changed", at.display());
}

pub(crate) fn a_block_volume_lives<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    assert!(rig.mounted().is_empty());
    let device = rig.device(id);
    assert!(device.direct_io && !device.autoclear);
    let record = rig.record(id);
    assert_eq!(record.format, Format::Raw);
    assert_eq!(record.stage.as_ref().unwrap().minor, Some(device.minor));
    rig.stage(id, "a", &cap).unwrap();
    assert_eq!(rig.device(id), device);
    refused!(rig.stage(id, "b", &cap), Error::FailedPrecondition(_));

    let target = rig.target("p");
    for _ in 0..2 {
        rig.publish(id, "a", "p", &cap, false).unwrap();
        assert_eq!(rig.mount_at("p").loop_node, Some(device.minor));
    }
    if K::SHARED {
        let kind = std::fs::metadata(&target).unwrap().file_type();
        assert!(kind.is_block_device());
        write_device(&target, 1).unwrap();
    }
    for path in [&target, &rig.staging("a")] {
        let usage = rig.stats(id, path).unwrap();
        assert_eq!((usage.len(), usage[0].total), (1, (16 * MI) as i64));
    }
    refused!(
        rig.publish(id, "a", "p", &cap, true),
        Error::AlreadyExists(_)
    );
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    for _ in 0..2 {
        rig.unpublish(id, "p").unwrap();
    }
    std::fs::create_dir(rig.target("dir")).unwrap();
    refused!(rig.publish(id, "a", "dir", &cap, false), Error::Path { .. });
    std::fs::remove_dir(rig.target("dir")).unwrap();

    // An open device can neither be unstaged nor staged again.
    let held = rig.kernel.loop_reopen(&device).unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    assert!(rig.record(id).stage.is_some());
    refused!(rig.stage(id, "a", &cap), Error::FailedPrecondition(_));
    drop(held);
    for _ in 0..2 {
        rig.unstage_patiently(id, "a");
    }
    rig.assert_clean(id);

    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    if K::SHARED {
        assert_device(&target, 1);
    }
}

/// A device node that is bound read-only would still take writes.
pub(crate) fn a_read_only_block_volume_is_a_device_of_its_own<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "rw", &cap, false).unwrap();
    for _ in 0..2 {
        rig.publish(id, "a", "ro", &cap, true).unwrap();
    }
    assert!(!rig.device(id).read_only);
    let over = rig.devices_over(id);
    assert_eq!(over.len(), 1);
    assert!(over[0].read_only && !over[0].autoclear);
    assert_eq!(rig.mount_at("ro").loop_node, Some(over[0].minor));
    let recorded = |id| rig.record(id).stage.clone().unwrap().read_only_loops;
    assert_eq!(recorded(id).get(&rig.target("ro")), Some(&over[0].minor));
    if K::SHARED {
        write_device(&rig.target("rw"), 2).unwrap();
        assert_device(&rig.target("ro"), 2);
        write_device(&rig.target("ro"), 3).unwrap_err();
        assert_device(&rig.target("rw"), 2);
    }
    rig.unpublish(id, "rw").unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.unpublish(id, "ro").unwrap();
    assert!(rig.devices_over(id).is_empty() && recorded(id).is_empty());
    rig.unstage_patiently(id, "a");
    rig.assert_clean(id);
}

/// Kubelet binds the published node once more, and attaches its own loop device over it. A detach
/// by the driver would succeed without effect.
pub(crate) fn other_loop_devices_over_a_block_volume_keep_it_staged<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let own = rig.device(id);
    let map = rig.target("map");
    std::fs::write(&map, "").unwrap();
    rig.kernel
        .bind(&loop_path(own.minor), &map, Default::default())
        .unwrap();
    let below = rig.kernel.loop_reopen(&own).unwrap();
    let kubelets = attach(&*rig.kernel, &below.file, false).minor;
    drop(below);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.unpublish(id, "p").unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.kernel.unmount(&map).unwrap();
    std::fs::remove_file(map).unwrap();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    assert!(rig.record(id).stage.is_some());
    assert!(rig.device(id).is_same(&own));
    let left = rig.kernel.loop_info(kubelets).unwrap();
    let left = left.expect("the driver does not detach kubelet's device");
    rig.release(&left);
    rig.unstage_patiently(id, "a");
    rig.assert_clean(id);
}

/// A leftover bind of the device node would expose the image that is attached there next.
pub(crate) fn no_volume_comes_to_a_device_whose_node_is_bound<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let raw = rig.staged(Access::Block, "a", &block());
    rig.publish(raw, "a", "p", &block(), false).unwrap();
    let lost = rig.device(raw);
    // A user of the device can do this without any capability.
    rig.kernel.loop_release(&lost).unwrap();
    rig.assert_detached(raw);
    for i in 0..3 {
        let id = rig.staged(ext4(), &format!("mount-{i}"), &mount("ext4"));
        assert_ne!(rig.device(id).minor, lost.minor);
        let at = format!("block-{i}");
        let id = rig.staged(Access::Block, &at, &block());
        rig.publish(id, &at, &at, &block(), true).unwrap();
        assert_ne!(rig.device(id).minor, lost.minor);
        let over = rig.record(id).stage.clone().unwrap().read_only_loops;
        assert!(over.values().all(|m| *m != lost.minor));
    }
    // The volume gets its own device back, unless another program of this machine has it now.
    let staged = rig.stage(raw, "a", &block());
    let taken = K::SHARED && matches!(staged, Err(Error::FailedPrecondition(_)));
    if !taken {
        staged.unwrap();
        assert_eq!(rig.device(raw).minor, lost.minor);
    }
    rig.unpublish(raw, "p").unwrap();
    rig.unstage_patiently(raw, "a");
}

/// An administrator can detach a published device: no process holds it open. The volume needs the
/// same device again, which its targets are bound to.
pub(crate) fn a_lost_device_is_published_again_once_it_is_back<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    for _ in 0..10 {
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "p", &cap, false).unwrap();
        let lost = rig.device(id);
        rig.kernel.loop_release(&lost).unwrap();
        rig.assert_detached(id);
        refused!(rig.publish(id, "a", "p", &cap, false), Error::Path { .. });
        refused!(
            rig.publish(id, "a", "q", &cap, false),
            Error::FailedPrecondition(_)
        );
        let staged = rig.stage(id, "a", &cap);
        // Other programs on this machine attach devices too.
        let taken = K::SHARED && matches!(staged, Err(Error::FailedPrecondition(_)));
        if !taken {
            staged.unwrap();
            assert_eq!(rig.device(id).minor, lost.minor);
            rig.publish(id, "a", "p", &cap, false).unwrap();
            rig.kernel.loop_release(&rig.device(id)).unwrap();
        }
        rig.unpublish(id, "p").unwrap();
        rig.unstage_patiently(id, "a");
        rig.assert_clean(id);
        if !taken {
            return;
        }
    }
    panic!("other programs took the device every time");
}

/// Any program may take the number of a lost device. No pod may get that program's device, and
/// pods must be able to leave.
pub(crate) fn a_device_number_that_another_program_took_is_never_served<K: TestKernel>() {
    let mut rig = Rig::<K>::new();
    let cap = block();
    let id = rig.staged(Access::Block, "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.publish(id, "a", "r", &cap, true).unwrap();
    let (own, over) = (rig.device(id), rig.devices_over(id).remove(0));
    let foreign = File::create_new(rig.root().join("foreign")).unwrap();
    foreign.set_len(MI).unwrap();
    let foreign = File::options()
        .read(true)
        .write(true)
        .open(rig.root().join("foreign"))
        .unwrap();
    let taken = [&over, &own].map(|lost| {
        rig.release(lost);
        let (minor, read_only) = (Some(lost.minor), lost.read_only);
        let spec = LoopSpec {
            minor,
            read_only,
            autoclear: false,
            ..loop_spec(&foreign)
        };
        // Yet another program may be faster, and then has the number.
        rig.kernel.loop_attach(&spec).is_ok()
    });
    let has_foreign = |rig: &Rig<K>| {
        let devices = [&over, &own].map(|lost| rig.kernel.loop_info(lost.minor).unwrap());
        let is_foreign = |info: &LoopInfo| info.backing == file_id(&foreign).ok();
        devices.map(|device| device.as_ref().is_some_and(is_foreign))
    };
    assert_eq!(has_foreign(&rig), taken);

    let target = rig.target("p");
    for read_only in [false, true] {
        let again = if read_only { "r" } else { "p" };
        refused!(
            rig.publish(id, "a", again, &cap, read_only),
            Error::Path { .. }
        );
        refused!(
            rig.publish(id, "a", "q", &cap, read_only),
            Error::FailedPrecondition(_)
        );
    }
    assert!(!rig.target("q").exists());
    refused!(rig.stats(id, &target), Error::NotFound(_));
    refused!(rig.expand(id, &target, 32 * MI), Error::NotFound(_));
    let staged = rig.stage(id, "a", &cap).unwrap_err().to_string();
    assert!(
        staged.contains("which has another image now: unpublish them"),
        "{staged}"
    );
    let reasons = |rig: &Rig<K>| rig.reasons_at(id, &target);
    assert_eq!(reasons(&rig), ["LoopDeviceLost", "DeviceLost"]);
    assert_eq!(has_foreign(&rig), taken, "they are another program's");

    rig.restart();
    let noted = rig.node.pools.noted_problems();
    assert!(
        noted[0]
            .problem
            .to_string()
            .contains("now holds another file: unpublish them"),
        "{noted:?}"
    );
    assert!(rig.record(id).stage.is_some());
    assert_eq!(
        reasons(&rig),
        ["LoopDeviceLost", "DeviceLost", "NeedsAttention"]
    );

    for target in ["p", "r"] {
        rig.unpublish(id, target).unwrap();
        assert!(!rig.target(target).exists());
    }
    assert_eq!(has_foreign(&rig), taken, "they are another program's");
    rig.stage(id, "a", &cap).unwrap();
    assert!(![own.minor, over.minor].contains(&rig.device(id).minor) || !K::SHARED);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.publish(id, "a", "r", &cap, true).unwrap();
    assert_eq!(rig.mount_at("p").loop_node, Some(rig.device(id).minor));
    assert_eq!(
        rig.mount_at("r").loop_node,
        Some(rig.devices_over(id)[0].minor)
    );
    for target in ["p", "r"] {
        rig.unpublish(id, target).unwrap();
    }
    rig.unstage_patiently(id, "a");
    rig.assert_detached(id);
    assert_eq!(has_foreign(&rig), taken, "they are another program's");
    for minor in [over.minor, own.minor] {
        rig.kernel
            .loop_detach(minor, file_id(&foreign).unwrap())
            .unwrap();
    }
}
