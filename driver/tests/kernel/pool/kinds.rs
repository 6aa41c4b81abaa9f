//! Directories, devices and images: which become a pool, which are rejected, which are found again.

use std::os::unix::fs::MetadataExt;

use hostloop_driver::storage::{About, Error, PoolKind, Pools, Provisioning};

use super::support::*;

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
        let kind = (world.pool().kind(), world.pool().reflinks());
        assert_eq!(kind, (PoolKind::Directory, reflinks), "{fs}");
        let made = world.create(thin("one", 64 * MI));
        let snapshot = world.snapshot(&made, "s");
        if fs == "btrfs" {
            for image in [
                ground.at.join(format!("volumes/{}/image", made.id)),
                ground.at.join(format!("snapshots/{}/image", snapshot.id)),
            ] {
                let flags = run("lsattr", &[arg(&image)]);
                assert!(
                    flags.split_whitespace().next().unwrap().contains('C'),
                    "{flags}"
                );
            }
        }
        open_sound(&mut world, fs);
        assert_eq!(world.pools().volumes().len(), 1, "{fs}");
    }
}

#[test]
fn a_blank_device_becomes_a_pool_once() {
    let disk = Disk::new(GI);
    let mut world = World::at("disk", &disk.device);
    world.open();
    let kind = (world.pool().kind(), world.pool().reflinks());
    assert_eq!(kind, (PoolKind::Device, true));
    let first = uuid(&disk.device);
    let made = world.create(thin("one", MI));
    let available = world.available(Provisioning::Thin);
    assert!(available > GI * 8 / 10, "{available}");

    // The mount outlives the process and is used again. If it is gone, it is created again.
    assert_eq!(world.open().volumes()[0].id, made.id);
    world.unmount();
    assert_eq!(world.open().volumes()[0].id, made.id);
    assert_eq!(uuid(&disk.device), first);

    // The same holds on a node without an entry for the pool.
    world.unmount();
    std::fs::remove_file(world.options.state_dir.join("pools.json")).unwrap();
    assert_eq!(world.open().volumes()[0].id, made.id);
}

#[test]
fn a_device_with_content_is_refused() {
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
        // The option `wipe` applies to unknown bytes only: a known signature has an owner.
        for option in ["", ",wipe"] {
            let spec = format!("disk={}{option}", arg(&disk.device));
            let refused = refusal(&World::new(&[&spec]), &[carries]);
            assert!(matches!(refused, Error::Refused(_)), "{refused}");
            assert_eq!(uuid(&disk.device), before);
        }
    }
}

#[test]
fn a_mounted_device_is_refused() {
    let ground = Ground::new("xfs", GI, &[]);
    let device = run("findmnt", &["-n", "-o", "SOURCE", arg(&ground.at)]);
    refusal(&World::at("disk", device.as_ref()), &["is mounted at"]);
}

/// A device that something else has: the error names it, and what ends it.
#[test]
fn a_device_in_use_is_refused_by_what_has_it() {
    let below = Disk::new(GI);
    run("mkfs.xfs", &["-q", "-f", arg(&below.device)]);
    let over = Loop::attach(&below.device);
    let detach = format!("losetup -d {}", arg(&over.device));
    refusal(
        &World::at("disk", &below.device),
        &["that is not a pool", "in use", &detach],
    );
    drop(over);

    let swap = Disk::new(64 * MI);
    run("mkswap", &[arg(&swap.device)]);
    let on = command("swapon").arg(&swap.device).output().unwrap();
    if !on.status.success() {
        let why = String::from_utf8_lossy(&on.stderr).trim().to_owned();
        return not_run("swap on the device of a pool", &why);
    }
    let on = SwapOn(&swap);
    let off = format!("swapoff {}", arg(&on.0.device));
    refusal(
        &World::at("disk", &swap.device),
        &["carries swap", "in use: swap is on it", &off],
    );
}

/// A disk that the kernel swaps to. Dropping it ends that.
struct SwapOn<'a>(&'a Disk);

impl Drop for SwapOn<'_> {
    fn drop(&mut self) {
        release("swapoff", &[arg(&self.0.device)]);
    }
}

#[test]
fn a_pool_below_device_mapper_names_the_mapping() {
    if !std::path::Path::new("/dev/mapper/control").exists() {
        return not_run(
            "a pool's device under device mapper",
            "this kernel has no device mapper",
        );
    }
    let disk = Disk::new(GI);
    let mut world = World::at("disk", &disk.device);
    world.open();
    world.close();
    world.unmount();
    let name = format!("hostloop-test-pool-{}", std::process::id());
    let table = format!("0 {} linear {} 0", GI / 512, arg(&disk.device));
    run(
        "dmsetup",
        &["create", "--noudevsync", &name, "--table", &table],
    );
    assert_missing(&mut world, &format!("dmsetup remove {name}"));
    world.close();
    run("dmsetup", &["remove", "--noudevsync", &name]);
    world.open();
    world.pool();
}

#[test]
fn a_known_device_that_was_wiped_is_missing() {
    let disk = Disk::new(GI);
    let mut world = World::at("disk", &disk.device);
    world.open();
    world.unmount();
    run("wipefs", &["-q", "-a", arg(&disk.device)]);
    assert_missing(&mut world, "not the pool that was there");
    assert_eq!(run("wipefs", &[arg(&disk.device)]), "", "it was written to");
}

#[test]
fn an_image_becomes_a_pool_and_is_found_again_by_its_loop_device() {
    let mut world = World::new(&["img=DIR/img,image=400Mi"]);
    let file = world.path("img.pool");
    world.open();
    let kind = (world.pool().kind(), world.pool().reflinks());
    assert_eq!(kind, (PoolKind::Image, true));
    let made = world.create(thin("one", MI));
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o777), (400 * MI, 0o600));
    assert!(metadata.blocks() * 512 < 100 * MI, "it is sparse");
    let device = loops_of(&file);
    assert_eq!(device.len(), 1);
    let at = world.pool().root().to_path_buf();

    assert_eq!(world.open().volumes()[0].id, made.id);
    assert_eq!(loops_of(&file), device);

    // The pool's mount is gone, but an open file still holds the filesystem. This happens when a
    // container's mounts end with it while a pod has a volume attached.
    let hold = std::fs::File::open(at.join("pool.json")).unwrap();
    world.close();
    run("umount", &["-l", arg(&at)]);
    assert_eq!(world.open().volumes()[0].id, made.id);
    assert_eq!(loops_of(&file), device, "no second device over one image");
    drop(hold);

    // Without a holder, the device detaches automatically.
    world.unmount();
    until("it is detached", || loops_of(&file).is_empty());
    assert_eq!(world.open().volumes()[0].id, made.id);
}

/// An installation with another directory of kubelet leaves its mount where the next one does not see
/// it, and has another state directory.
#[test]
fn an_image_that_is_mounted_out_of_sight_is_found_again() {
    let mut world = World::new(&["img=DIR/img,image=400Mi"]);
    let file = world.path("img.pool");
    world.open();
    let made = world.create(thin("one", MI));
    let at = world.pool().root().to_path_buf();
    let device = loops_of(&file);
    let hold = std::fs::File::open(at.join("pool.json")).unwrap();
    world.close();
    run("umount", &["-l", arg(&at)]);
    std::fs::remove_file(world.options.state_dir.join("pools.json")).unwrap();
    assert_eq!(world.open().volumes()[0].id, made.id);
    assert_eq!(loops_of(&file), device, "no second device over one image");
    drop(hold);

    // Another filesystem in its place is left as it is.
    world.unmount();
    until("it is detached", || loops_of(&file).is_empty());
    std::fs::remove_file(world.options.state_dir.join("pools.json")).unwrap();
    run("mkfs.xfs", &["-q", "-f", arg(&file)]);
    let elsewhere = world.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    run("mount", &["-o", "loop", arg(&file), arg(&elsewhere)]);
    let hold = std::fs::File::open(&elsewhere).unwrap();
    run("umount", &["-l", arg(&elsewhere)]);
    refusal(&world, &["an xfs filesystem", "that is not a pool"]);
    drop(hold);
}

#[test]
fn an_image_grows_and_never_shrinks() {
    let mut world = World::new(&["img=DIR/img,image=400Mi"]);
    let file = world.path("img.pool");
    let sizes = |world: &World| {
        let usage = world.pool().usage().unwrap();
        (usage.total_bytes, file.metadata().unwrap().len())
    };
    world.open();
    let (before, _) = sizes(&world);
    world.specs[0].image_bytes = Some(600 * MI);
    open_sound(&mut world, "grown");
    let (after, len) = sizes(&world);
    assert!(after >= before + 190 * MI, "{before} {after}");
    assert_eq!(len, 600 * MI);
    world.specs[0].image_bytes = Some(400 * MI);
    let noted = world.open().noted_problems();
    assert_eq!(noted.len(), 1, "{noted:?}");
    assert_eq!(noted[0].about, About::Pool);
    assert_eq!(sizes(&world), (after, len));
}

#[test]
fn the_space_of_an_image_is_allocated_at_once_or_not_at_all() {
    let mut world = World::new(&["img=DIR/img,image=300Mi,preallocate"]);
    world.open();
    let metadata = world.path("img.pool").metadata().unwrap();
    assert!(metadata.blocks() * 512 >= 300 * MI);

    let ground = Ground::new("ext4", 100 * MI, &[]);
    let spec = format!("img={},image=300Mi,preallocate", arg(&ground.at));
    let mut full = World::new(&[&spec]);
    assert_missing(&mut full, "no space left");
    assert!(!full.path("img.pool").exists());
}

#[test]
fn a_known_image_that_is_gone_is_missing() {
    let mut world = World::new(&["img=DIR/img,image=300Mi"]);
    let file = world.path("img.pool");
    world.open();
    world.unmount();
    until("it is detached", || loops_of(&file).is_empty());
    std::fs::remove_file(&file).unwrap();
    assert_missing(&mut world, "is not there");
    assert!(!file.exists());
}

#[test]
fn an_image_on_two_devices_is_refused() {
    let mut world = World::new(&["img=DIR/img,image=300Mi"]);
    world.open();
    let at = world.pool().root().to_path_buf();
    world.close();
    let file = world.path("img.pool");
    let second = Loop::attach(&file);
    // The pool is known, so the configuration is not wrong: other pools continue.
    assert_missing(&mut world, "on several loop devices");
    drop(second);
    until("the second one is detached", || loops_of(&file).len() == 1);
    world.tend();
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
    }
}
