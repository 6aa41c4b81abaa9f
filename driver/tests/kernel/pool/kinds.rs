//! Directories, devices and images: which become a pool, which are rejected, which are found again.

use std::os::unix::fs::MetadataExt;

use hostloop_driver::storage::{About, Error, PoolKind, Pools, Provisioning};

use super::support::*;

const GI: u64 = 1 << 30;

/// UUID and filesystem as blkid sees them.
pub(crate) fn uuid(device: &std::path::Path) -> String {
    run("blkid", &["-p", "-s", "UUID", "-o", "value", arg(device)])
}

#[test]
fn directories_on_every_filesystem() {
    for (fs, reflinks) in [("ext4", false), ("xfs", true), ("btrfs", true)] {
        let ground = Ground::new(fs, GI, &[]);
        let mut world = World::at("p", &ground.at);
        world.open();
        let pool = world.pool();
        assert_eq!(
            (pool.kind(), pool.reflinks()),
            (PoolKind::Directory, reflinks),
            "{fs}"
        );
        let made = world
            .pools()
            .create_volume(&pool, new("one", 64 * MI, Provisioning::Thin))
            .unwrap();
        let snapshot = world
            .pools()
            .create_snapshot(&made.id, "s", &Default::default())
            .unwrap();
        if fs == "btrfs" {
            for image in [
                ground.at.join(format!("volumes/{}/image", made.id)),
                ground.at.join(format!("snapshots/{}/image", snapshot.id)),
            ] {
                let flags = run("lsattr", &[arg(&image)]);
                let flags = flags.split_whitespace().next().unwrap().to_owned();
                assert!(flags.contains('C'), "{flags}");
            }
        }
        drop(pool);
        let again = world.open();
        assert_eq!(again.volumes().len(), 1, "{fs}");
        assert!(again.findings().is_empty(), "{fs}: {:?}", again.findings());
        world.close();
    }
}

#[test]
fn a_blank_device_becomes_a_pool_once() {
    let disk = Disk::new(GI);
    let mut world = World::at("disk", &disk.device);
    world.open();
    let pool = world.pool();
    assert_eq!((pool.kind(), pool.reflinks()), (PoolKind::Device, true));
    let first = uuid(&disk.device);
    let made = world
        .pools()
        .create_volume(&pool, new("one", MI, Provisioning::Thin))
        .unwrap();
    let capacity = pool.capacity(Provisioning::Thin).unwrap();
    assert!(capacity.available > GI * 8 / 10, "{capacity:?}");
    drop(pool);

    // The mount outlives the process and is used again. If it is gone, it is created again.
    assert_eq!(world.open().volumes()[0].id, made.id);
    let at = world.pool().root().to_path_buf();
    world.close();
    run("umount", &[arg(&at)]);
    assert_eq!(world.open().volumes()[0].id, made.id);
    assert_eq!(uuid(&disk.device), first);

    // The same holds on a node without an entry for the pool.
    world.close();
    run("umount", &[arg(&at)]);
    std::fs::remove_file(world.options.state_dir.join("pools.json")).unwrap();
    assert_eq!(world.open().volumes()[0].id, made.id);
    world.pools().close().unwrap();
    assert!(world.pools().named(None).is_err());
}

#[test]
fn a_device_that_carries_anything_is_refused() {
    let ext4 = Disk::new(64 * MI).mkfs("ext4", &[]);
    let xfs = Disk::new(GI).mkfs("xfs", &[]);
    let swap = Disk::new(64 * MI);
    run("mkswap", &[arg(&swap.device)]);
    for (disk, carries) in [
        (&ext4, "an ext4 filesystem with UUID"),
        (&xfs, "an xfs filesystem with UUID"),
        (&swap, "swap"),
    ] {
        let before = uuid(&disk.device);
        let world = World::at("disk", &disk.device);
        let refused = world.try_open().map(drop).unwrap_err();
        assert!(
            matches!(&refused, Error::Refused(why) if why.contains(carries)),
            "{carries}: {refused}"
        );
        assert_eq!(uuid(&disk.device), before);
        let world = World::at("disk", &disk.device);
        std::fs::create_dir_all(&world.options.state_dir).unwrap();
    }
}

#[test]
fn a_mounted_device_is_refused() {
    let ground = Ground::new("xfs", GI, &[]);
    let device = run("findmnt", &["-n", "-o", "SOURCE", arg(&ground.at)]);
    let refused = World::at("disk", device.as_ref())
        .try_open()
        .map(drop)
        .unwrap_err();
    assert!(refused.to_string().contains("is mounted at"), "{refused}");
}

#[test]
fn a_known_device_that_was_wiped_is_missing() {
    let disk = Disk::new(GI);
    let mut world = World::at("disk", &disk.device);
    world.open().close().unwrap();
    world.close();
    run("wipefs", &["-q", "-a", arg(&disk.device)]);
    world.open();
    let why = world.why_missing();
    assert!(why.contains("not the pool that was there"), "{why}");
    assert_eq!(
        run("wipefs", &[arg(&disk.device)]),
        "",
        "nothing was written"
    );
}

#[test]
fn an_image_becomes_a_pool_and_is_found_again_by_its_loop_device() {
    let mut world = World::new(&["img=DIR/img,image=400Mi"]);
    let file = world.dir.path().join("img/img.pool");
    world.open();
    let pool = world.pool();
    assert_eq!((pool.kind(), pool.reflinks()), (PoolKind::Image, true));
    let made = world
        .pools()
        .create_volume(&pool, new("one", MI, Provisioning::Thin))
        .unwrap();
    assert_eq!(file.metadata().unwrap().len(), 400 * MI);
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    assert!(
        file.metadata().unwrap().blocks() * 512 < 100 * MI,
        "it is sparse"
    );
    let device = loop_of(&file);
    assert_eq!(device.len(), 1);
    let at = pool.root().to_path_buf();
    drop(pool);

    assert_eq!(world.open().volumes()[0].id, made.id);
    assert_eq!(loop_of(&file), device);

    // The pool's mount is gone, but an open file still holds the filesystem. This happens when a
    // container's mounts end with it while a pod has a volume attached.
    let hold = std::fs::File::open(world.pool().root().join("pool.json")).unwrap();
    world.close();
    run("umount", &["-l", arg(&at)]);
    assert_eq!(world.open().volumes()[0].id, made.id);
    assert_eq!(loop_of(&file), device, "no second device over one image");
    drop(hold);

    // Without a holder, the device detaches automatically.
    world.pools().close().unwrap();
    world.close();
    assert!(loop_of(&file).is_empty());
    assert_eq!(world.open().volumes()[0].id, made.id);
}

#[test]
fn an_image_grows_and_never_shrinks() {
    let mut world = World::new(&["img=DIR/img,image=400Mi"]);
    let file = world.dir.path().join("img/img.pool");
    world.open();
    let size = |world: &World| world.pool().usage().unwrap().total_bytes;
    let before = size(&world);
    world.close();
    world.specs[0].image_bytes = Some(600 * MI);
    assert!(world.open().findings().is_empty());
    let after = size(&world);
    assert!(after >= before + 190 * MI, "{before} {after}");
    assert_eq!(file.metadata().unwrap().len(), 600 * MI);
    world.close();
    world.specs[0].image_bytes = Some(400 * MI);
    let findings = world.open().findings();
    assert_eq!(
        (findings.len(), &findings[0].about),
        (1, &About::Pool),
        "{findings:?}"
    );
    assert_eq!(
        (size(&world), file.metadata().unwrap().len()),
        (after, 600 * MI)
    );
}

#[test]
fn an_image_can_have_its_space_at_once_or_not_at_all() {
    let mut world = World::new(&["img=DIR/img,image=300Mi,preallocate"]);
    let file = world.dir.path().join("img/img.pool");
    world.open();
    assert!(file.metadata().unwrap().blocks() * 512 >= 300 * MI);

    let ground = Ground::new("ext4", 100 * MI, &[]);
    let spec = format!("img={},image=300Mi,preallocate", arg(&ground.at));
    let mut full = World::new(&[&spec]);
    full.open();
    let why = full.why_missing();
    assert!(why.contains("no space left"), "{why}");
    assert!(!ground.at.join("img.pool").exists());
    full.close();
}

#[test]
fn a_known_image_that_is_gone_is_missing() {
    let mut world = World::new(&["img=DIR/img,image=300Mi"]);
    let file = world.dir.path().join("img/img.pool");
    world.open().close().unwrap();
    world.close();
    std::fs::remove_file(&file).unwrap();
    world.open();
    let why = world.why_missing();
    assert!(why.contains("is not there"), "{why}");
    assert!(!file.exists());
}

#[test]
fn an_image_on_two_devices_is_refused() {
    let mut world = World::new(&["img=DIR/img,image=300Mi"]);
    let file = world.dir.path().join("img/img.pool");
    world.open();
    let at = world.pool().root().to_path_buf();
    world.close();
    let second = Loop::attach(&file);
    world.open();
    // The pool is known, so this is no mistake in the configuration: other pools continue.
    let why = world.why_missing();
    assert!(why.contains("on several loop devices"), "{why}");
    drop(second);
    world.pools().retry_missing();
    assert_eq!(world.pool().root(), at);
}

#[test]
fn a_second_process_is_kept_out_of_every_kind() {
    let disk = Disk::new(GI);
    let device = format!("disk={}", arg(&disk.device));
    for spec in ["dir=DIR/dir", "img=DIR/img,image=300Mi", &device] {
        let mut world = World::new(&[spec]);
        world.open();
        let open = |state: &str| {
            let mut second = world.options.clone();
            second.state_dir = world.dir.path().join(state);
            Pools::open(&world.specs, second, world.kernel.clone())
        };
        // Another process has a separate state or shares this one. In both cases it cannot open the
        // pool.
        let error = open("other").map(drop).unwrap_err();
        assert!(matches!(error, Error::Locked { .. }), "{spec}: {error}");
        let why = open("state").unwrap().slots().remove(0).state.unwrap_err();
        assert!(why.contains("another process"), "{spec}: {why}");
        world.close();
    }
}
