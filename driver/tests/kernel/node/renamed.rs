//! A btrfs is found by its device, whatever the path in its mount source says.

use std::path::Path;

use hostloop_driver::kernel::linux::{Linux, MountQueries};
use hostloop_driver::kernel::{FsType, LoopDevices, MountTable, Mounts, loop_path};
use hostloop_driver::node::Error;
use hostloop_driver::storage::{self, Source};
use rstest::rstest;

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, command, run, scan_as};

/// The source of the topmost mount at this path.
fn source(table: &MountTable, at: &Path) -> String {
    table.at(at).unwrap().source.to_string()
}

/// Any container with `/dev/btrfs-control` can do this, even by the name that another device has
/// outside of it.
#[rstest]
fn a_btrfs_whose_device_has_another_name_stays_the_volumes(
    #[values(false, true)] name_of_another_volume: bool,
) {
    let mut rig = Rig::new();
    let cap = mount("btrfs");
    let id = rig.staged(on(FsType::Btrfs), "a", &cap);
    let other = rig.staged(ext4(), "b", &mount("ext4"));
    rig.publish(id, "a", "p", &cap, false).unwrap();
    write(&rig.staging("a").join("data"), 1, 100_000);
    let minor = rig.device(id).minor;
    let name = if name_of_another_volume {
        loop_path(rig.device(other).minor)
    } else {
        rig.root().join("node")
    };
    scan_as(minor, &name);
    let table = rig.kernel.mounts().unwrap();
    assert_eq!(
        source(&table, &rig.target("p")),
        arg(&name),
        "the test changes the source"
    );
    let staged = rig.staging("a");
    for table in [
        table,
        rig.kernel.known_mounts().unwrap(),
        Linux::new().mounts().unwrap(),
    ] {
        assert_eq!(table.at(&staged).unwrap().loop_minor(), Some(minor));
        assert_eq!(table.of_loop(minor).count(), 2);
    }

    rig.stage(id, "a", &cap).unwrap();
    rig.publish(id, "a", "p", &cap, false).unwrap();
    rig.stats(id, &rig.target("p")).unwrap();
    // A pool without reflinks copies only what is frozen.
    rig.snapshot("frozen", &id.to_string()).unwrap();
    assert_eq!(rig.health(&id.to_string()).unwrap(), []);
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    rig.restart();
    assert_eq!(rig.node.pools.noted_problems(), []);
    assert!(rig.record(id).stage.is_some());
    rig.update(id, |record| record.stage = None);
    let deleted = rig.node.pools.delete_volume(&id);
    refused!(deleted, storage::Error::Attached { .. });
    rig.restart();
    let noted = rig.node.pools.noted_problems();
    assert!(
        noted[0]
            .problem
            .to_string()
            .contains("though it is not staged"),
        "{noted:?}"
    );
    rig.stage(id, "a", &cap).unwrap();

    rig.unpublish(other, "p").unwrap_err();
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    rig.unstage(other, "b").unwrap();
    rig.stage(id, "a", &cap).unwrap();
    assert_written(&rig.staging("a").join("data"), 1, 100_000);
    rig.unstage(id, "a").unwrap();
    rig.delete(&id.to_string()).unwrap();
}

/// A mount is asked only where its path leads to it.
#[test]
fn a_btrfs_that_was_hidden_is_found_once_it_can_be_reached() {
    let rig = Rig::new();
    let cap = mount("btrfs");
    let id = rig.staged(on(FsType::Btrfs), "a", &cap);
    let minor = rig.device(id).minor;
    let (staged, kernel) = (rig.staging("a"), Linux::following(MountQueries::default()));
    run("mount", &["-t", "tmpfs", "foreign", arg(&staged)]);
    assert_eq!(kernel.known_mounts().unwrap().of_loop(minor).count(), 0);
    assert_eq!(kernel.mounts().unwrap().of_loop(minor).count(), 0);
    assert!(kernel.is_claimed(&loop_path(minor)).unwrap());
    refused!(rig.unstage(id, "a"), Error::Path { .. });
    run("umount", &[arg(&staged)]);
    assert_eq!(kernel.known_mounts().unwrap().of_loop(minor).count(), 1);
    // A file of it, bound elsewhere, is on the same device.
    let (file, bound) = (staged.join("file"), rig.root().join("bound"));
    for path in [&file, &bound] {
        std::fs::write(path, "").unwrap();
    }
    run("mount", &["--bind", arg(&file), arg(&bound)]);
    run("umount", &["-l", arg(&staged)]);
    for table in [
        Linux::following(MountQueries::default()).known_mounts(),
        Linux::new().mounts(),
    ] {
        let found: Vec<_> = table
            .unwrap()
            .of_loop(minor)
            .map(|m| m.mount_point.to_path_buf())
            .collect();
        assert_eq!(found, std::slice::from_ref(&bound));
    }
    run("umount", &[arg(&bound)]);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

/// The user of a raw block volume can give it the filesystem ID of another one and a later state,
/// and udev has the kernel scan it. Linux 6.7 and later mount the device that is named, or none.
#[test]
fn a_btrfs_is_mounted_from_its_own_device_or_not_at_all() {
    let rig = Rig::new();
    let cap = mount("btrfs");
    let id = rig.staged(on(FsType::Btrfs), "a", &cap);
    let data = rig.staging("a").join("data");
    write(&data, 1, 100_000);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    let bytes = rig.record(id).capacity_bytes;
    let twin = rig.create(copy_of(Source::Volume(id), on(FsType::Btrfs), bytes));
    rig.stage(twin, "b", &cap).unwrap();
    write(&rig.staging("b").join("data"), 2, 100_000);
    rig.unstage(twin, "b").unwrap();
    rig.assert_detached(twin);

    let device = rig.attach_file(&rig.open_image(twin));
    let path = device.path();
    run("btrfs", &["device", "scan", arg(&path)]);
    let staged = rig.stage(id, "a", &cap);
    let table = rig.kernel.mounts().unwrap();
    let mounted = table.at(&rig.staging("a"));
    match staged {
        Ok(()) => {
            let own = rig.device(id).minor;
            assert_eq!(mounted.unwrap().btrfs_loops, Some(vec![own]));
            assert_written(&data, 1, 100_000);
            rig.unstage(id, "a").unwrap();
        }
        Err(error) => {
            assert!(error.to_string().contains("--forget"), "{error}");
            assert_eq!(mounted, None);
            assert_eq!(rig.record(id).stage, None);
        }
    }
    rig.assert_detached(id);

    // Fails if the kernel has forgotten it already.
    let forget = ["device", "scan", "--forget", arg(&path)];
    let _ = command("btrfs").args(forget).status();
    let minor = device.minor;
    drop(device);
    rig.kernel.loop_detach(minor, rig.image(twin)).unwrap();
    rig.stage(id, "a", &cap).unwrap();
    assert_written(&data, 1, 100_000);
    rig.unstage(id, "a").unwrap();
}
