//! The disk under a pool: what it has left, and what happens if the pool's image is lost.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop_driver::health;
use hostloop_driver::inspect::fsck::{PROBLEMS, ProblemKind, examine};
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{FsType, LoopDevices};
use hostloop_driver::storage::{Error, Provisioning, VolumeId, VolumeRecord};
use rstest::rstest;

use super::support::*;
use crate::testkit::{Configs, assert_soon, ext4, mount, new_filesystem, on};
use crate::tools::{fill, shut_down};

type Rig = crate::testkit::Rig<Linux>;

/// Takes all free space of a filesystem until it is dropped.
struct Full(std::path::PathBuf);

impl Full {
    fn new(at: &Path) -> Full {
        let path = at.join("filler");
        fill(&File::create_new(&path).unwrap(), 0);
        // What is smaller than the filesystem's unit of allocation.
        if let Ok(mut last) = File::create(at.join("filler.last")) {
            while last.write_all(&[1; 4096]).is_ok() {}
            let _ = last.sync_all();
        }
        Full(path)
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        for path in [self.0.clone(), self.0.with_extension("last")] {
            // A child of another test can have it open until its exec: a removal alone frees nothing.
            if let Ok(file) = File::options().write(true).open(&path) {
                // A full btrfs may refuse it.
                let _ = file.set_len(0);
                std::fs::remove_file(path).unwrap();
            }
        }
    }
}

/// Writes every block of a volume's image, as its user does.
fn overwrite(world: &World, volume: &VolumeRecord) -> std::io::Result<()> {
    let image = world.pools().open_image(volume, true).unwrap();
    for at in (0..volume.capacity_bytes).step_by(MI as usize) {
        image.write_all_at(&[9; MI as usize], at)?;
    }
    image.sync_all()
}

#[rstest]
fn a_thick_volume_in_a_sparse_image_takes_all_its_writes_on_a_full_host(
    #[values("ext4", "xfs", "btrfs")] fs: &str,
    #[values("created", "modified", "grown")] how: &str,
) {
    let host = Ground::new(fs, 700 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=300Mi", arg(&host.at))]);
    world.open();
    let volume = match how {
        "created" => world.create(new("thick", 64 * MI, Provisioning::Thick)),
        "modified" => {
            let volume = world.create(thin("thin", 64 * MI));
            let mut settings = volume.settings.clone();
            settings.provisioning = Provisioning::Thick;
            world.pools().modify_volume(&volume.id, settings).unwrap()
        }
        _ => {
            let volume = world.create(new("thick", 16 * MI, Provisioning::Thick));
            world.pools().expand_volume(&volume.id, 64 * MI).unwrap()
        }
    };
    let _full = Full::new(&host.at);
    overwrite(&world, &volume).unwrap();
}

/// An image pool of 600 MiB on an ext4 with 500 MiB, which is the host's disk.
fn small_host() -> Rig {
    let mut site = Rig::site(&["default=DIR/pool,image=600Mi"]);
    new_filesystem(&*site.kernel, &site.path(""), FsType::Ext4, 500 * MI);
    site.options.overcommit = 1.0;
    Rig::over(site, Configs::default())
}

fn available(rig: &Rig, provisioning: Provisioning) -> u64 {
    rig.node
        .pools
        .named(None)
        .unwrap()
        .capacity(provisioning)
        .unwrap()
        .available
}

fn reasons(rig: &Rig, id: VolumeId) -> Vec<String> {
    rig.health(&id.to_string())
        .unwrap()
        .into_iter()
        .map(|(_, reason)| reason)
        .collect()
}

fn pool_problems(rig: &Rig) -> String {
    let problems = health::storage(&rig.node.pools);
    problems
        .iter()
        .map(|p| format!("{}: {}\n", p.reason, p.message))
        .collect()
}

/// Checks that a pool's problems include this one. On a busy machine, a pool that does not answer within
/// two seconds has another one for a moment.
#[track_caller]
fn assert_reason(rig: &Rig, id: VolumeId, reason: &str) {
    until(reason, || reasons(rig, id).iter().any(|one| one == reason));
}

/// Waits until the pool has no problem, and fsck finds none.
#[track_caller]
fn assert_no_problem(rig: &Rig) {
    assert_soon((String::new(), "[]".to_owned()), || {
        (pool_problems(rig), fsck(rig))
    });
}

/// The problems of the pool once one of them names all this.
#[track_caller]
fn problems_that_say(rig: &Rig, words: &[&str]) -> String {
    let mut problems = String::new();
    until(&format!("{words:?} in the problems"), || {
        problems = pool_problems(rig);
        words.iter().all(|word| problems.contains(word))
    });
    problems
}

/// What fsck says, with its advice, without loop devices of other tests.
fn fsck(rig: &Rig) -> String {
    let mut outcome = examine(&rig.specs, &rig.options, rig.kernel.clone(), false).unwrap();
    outcome
        .problems
        .retain(|problem| problem.kind != ProblemKind::LoopOfOtherPool);
    let text = format!("{:?}", outcome.problems);
    assert_eq!(
        outcome.code() == PROBLEMS,
        !outcome.problems.is_empty(),
        "{text}"
    );
    text
}

#[test]
fn a_full_host_under_an_empty_pool_is_said() {
    let rig = small_host();
    let id = rig.volume(ext4(), 64 * MI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_no_problem(&rig);

    let full = Full::new(&rig.path(""));
    let mut file = File::create(rig.staging("a").join("file")).unwrap();
    let written = file
        .write_all(&vec![7; 48 << 20])
        .and_then(|()| file.sync_all());
    written.unwrap_err();
    drop(file);
    let host = rig.path("");
    let host = host.to_str().unwrap();
    problems_that_say(&rig, &["PoolNearlyFull", host]);
    assert_reason(&rig, id, "PoolNearlyFull");
    let found = fsck(&rig);
    assert!(found.contains(host) && found.contains("free"), "{found}");
    assert_eq!(available(&rig, Provisioning::Thin), 0);
    let pool = rig.node.pools.named(None).unwrap();
    let more = rig.node.pools.create_volume(&pool, thin("more", MI));
    refused!(more, Error::NoRoom { .. });

    drop(full);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    std::fs::write(rig.staging("a").join("again"), "again").unwrap();
    assert_no_problem(&rig);
    assert_soon(Vec::new(), || reasons(&rig, id));
}

/// A thick volume needs the whole image on the host. Without space for that, it is refused before
/// anything changes.
#[test]
fn a_thick_volume_is_refused_if_the_host_cannot_hold_the_image() {
    let rig = small_host();
    assert_eq!(available(&rig, Provisioning::Thick), 0);
    let before = std::fs::metadata(rig.path("default.pool")).unwrap();
    let pool = rig.node.pools.named(None).unwrap();
    let volume = rig
        .node
        .pools
        .create_volume(&pool, new("v", MI, Provisioning::Thick));
    let why = volume.map(drop).unwrap_err().to_string();
    assert!(why.contains("default.pool"), "{why}");
    use std::os::unix::fs::MetadataExt;
    assert_eq!(
        std::fs::metadata(rig.path("default.pool"))
            .unwrap()
            .blocks(),
        before.blocks()
    );
}

#[rstest]
fn a_filesystem_that_stopped_by_itself_is_said_and_heals(
    #[values(FsType::Ext4, FsType::Xfs, FsType::Btrfs)] fs: FsType,
) {
    let rig = small_host();
    let id = rig.volume(on(fs), fs.minimum_bytes().max(16 * MI));
    rig.stage(id, "a", &mount(fs)).unwrap();
    let at = rig.staging("a");
    let reason = match fs {
        FsType::Ext4 => {
            let minor = rig.device(id).minor;
            std::fs::write(format!("/sys/fs/ext4/loop{minor}/trigger_fs_error"), "test").unwrap();
            "FilesystemReadOnly"
        }
        FsType::Xfs => {
            shut_down(&at);
            "FilesystemShutDown"
        }
        FsType::Btrfs => {
            let _full = Full::new(&rig.path(""));
            for n in 0..200 {
                if std::fs::write(at.join(n.to_string()), [1; 100 << 10]).is_err() {
                    break;
                }
                let _ = File::open(&at).unwrap().sync_all();
                let _ = rustix::fs::syncfs(File::open(&at).unwrap());
            }
            "FilesystemReadOnly"
        }
    };
    assert_reason(&rig, id, reason);
    let found = fsck(&rig);
    assert!(
        found.contains(reason) && found.contains(&id.to_string()),
        "{found}"
    );
    rig.unstage(id, "a").unwrap();
    // A namespace with copies of all mounts keeps the filesystem, which would be mounted as it is.
    rig.assert_detached(id);
    rig.stage(id, "a", &mount(fs)).unwrap();
    std::fs::write(at.join("again"), "again").unwrap();
    assert!(!reasons(&rig, id).contains(&reason.to_owned()));
}

/// What happens to a pool's image while the driver runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Harm {
    Deleted,
    Truncated,
    Replaced,
}

#[rstest]
fn a_lost_pool_image_is_said_and_takes_no_new_volume(
    #[values(Harm::Deleted, Harm::Truncated, Harm::Replaced)] harm: Harm,
) {
    let rig: Rig = Rig::over(
        Rig::site(&["default=DIR/pool,image=300Mi"]),
        Configs::default(),
    );
    let id = rig.volume(ext4(), 16 * MI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let image = rig.path("default.pool");
    let aside = rig.path("aside");
    match harm {
        Harm::Deleted => std::fs::remove_file(&image).unwrap(),
        Harm::Truncated => File::options()
            .write(true)
            .open(&image)
            .unwrap()
            .set_len(299 * MI)
            .unwrap(),
        Harm::Replaced => {
            std::fs::rename(&image, &aside).unwrap();
            sparse(&image, 300 * MI);
        }
    }
    let problems = problems_that_say(&rig, &["default.pool"]);
    let found = fsck(&rig);
    assert!(found.contains("default.pool"), "{found}");
    if harm != Harm::Truncated {
        assert!(
            problems.contains("/dev/loop") && found.contains("/dev/loop"),
            "{problems} {found}"
        );
    }
    assert_reason(&rig, id, "PoolImageLost");
    let pool = rig.node.pools.named(None).unwrap();
    let volume = rig.node.pools.create_volume(&pool, thin("more", MI));
    refused!(volume, Error::Unavailable { .. });
    let snapshot = rig
        .node
        .pools
        .create_snapshot(&id, "s", &Default::default());
    refused!(snapshot, Error::Unavailable { .. });
    assert_eq!(capacity(&rig), 0);
    // The pods can leave.
    rig.unstage(id, "a").unwrap();
    if harm == Harm::Replaced {
        std::fs::rename(&aside, &image).unwrap();
        assert_soon(String::new(), || pool_problems(&rig));
        rig.node
            .pools
            .create_volume(&pool, thin("more", MI))
            .unwrap();
    }
}

/// What GetCapacity answers.
fn capacity(rig: &Rig) -> i64 {
    rig.controller
        .get_capacity(Default::default())
        .unwrap()
        .available_capacity
}

/// The advice about a deleted image works as it is written, also after a restart of the driver.
#[test]
fn a_deleted_pool_image_is_saved_as_the_advice_says() {
    let mut rig: Rig = Rig::over(
        Rig::site(&["default=DIR/pool,image=300Mi"]),
        Configs::default(),
    );
    let id = rig.volume(ext4(), 16 * MI);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    crate::testkit::write(&rig.staging("a").join("file"), 3, 1 << 20);
    let image = rig.path("default.pool");
    std::fs::remove_file(&image).unwrap();
    let mut advice = String::new();
    for restart in [false, true] {
        if restart {
            rig.restart();
        }
        advice = problems_that_say(&rig, &["fsfreeze -f"]);
        assert!(!image.exists());
    }
    let (_, steps) = advice.split_once("with room: ").unwrap();
    let (steps, _) = steps.split_once(". Then").unwrap();
    let copy = rig.root().join("copy");
    run("sh", &["-ec", &steps.replace("COPY", arg(&copy))]);

    // A drain and a restart of the node.
    rig.die();
    run("umount", &[arg(&rig.staging("a"))]);
    for device in rig.devices() {
        let _ = rig.kernel.loop_release(&device);
    }
    let at = rig.options.state_dir.join("pools/default");
    run("umount", &[arg(&at)]);
    std::fs::rename(&copy, &image).unwrap();
    // While a namespace with copies of all mounts has the former one, this one's UUID is in use.
    assert_soon(String::new(), || {
        rig.restart();
        pool_problems(&rig)
    });
    rig.stage(id, "a", &mount("ext4")).unwrap();
    crate::testkit::assert_written(&rig.staging("a").join("file"), 3, 1 << 20);
}

/// The driver lengthens an image to its configured size, but not one that was cut off.
#[test]
fn a_pool_image_that_was_cut_off_is_not_lengthened() {
    let mut world = World::new(&["img=DIR/img,image=300Mi"]);
    world.open();
    world.unmount();
    let path = world.path("img.pool");
    let image = open_rw(&path);
    until("it is detached", || loops_of(&path).is_empty());
    image.set_len(299 * MI).unwrap();
    assert_missing(&mut world, "it was cut off");
    assert_eq!(image.metadata().unwrap().len(), 299 * MI);
    image.set_len(300 * MI).unwrap();
    open_sound(&mut world, "whole again");
}

/// A pool that exists opens, though the disk below lacks the space to preallocate its image.
#[test]
fn preallocation_without_room_keeps_the_pool() {
    let host = Ground::new("ext4", 400 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=600Mi", arg(&host.at))]);
    world.open();
    let made = world.create(thin("one", MI));
    world.specs[0].preallocate = true;
    let problems = world.open().noted_problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0]
            .problem
            .to_string()
            .contains("can't be preallocated"),
        "{problems:?}"
    );
    assert_eq!(world.volume(made.id), made);
}

/// The pool's filesystem is on a sparse file of another program: what the disk below has counts.
#[rstest]
fn the_room_below_a_sparse_loop_device_counts(#[values("ext4", "btrfs", "device")] kind: &str) {
    let host = Ground::new("ext4", 300 * MI, &[]);
    let file = host.at.join("disk");
    sparse(&file, GI);
    let device = Loop::attach(&file);
    let at = host.at.join("at");
    let mut mounted = None;
    let path = match kind {
        "device" => &device.device,
        fs => {
            mkfs(fs, &device.device, &[]);
            mounted = Some(Mount::new(fs, &device.device, &at, "defaults"));
            &at
        }
    };
    let mut world = World::at("p", path);
    world.open();
    let usage = rustix::fs::statvfs(&host.at).unwrap();
    let there = usage.f_bavail * usage.f_frsize;
    let promised = world.available(Provisioning::Thin);
    assert!(
        (there / 2..=there).contains(&promised),
        "{promised} of {there}"
    );
    let full = Full::new(&host.at);
    assert_soon(0, || world.available(Provisioning::Thin));
    until("the file is named", || {
        let problems = health::storage(world.pools());
        problems.len() == 1 && problems[0].message.contains(arg(&file))
    });
    drop(full);
    world.unmount();
    drop(mounted);
}

#[test]
fn a_pool_whose_path_leads_elsewhere_is_said_and_takes_no_new_volume() {
    let ground = Ground::new("xfs", 300 * MI, &[]);
    let other = Ground::new("xfs", 300 * MI, &[]);
    let mut world = World::at("p", &ground.at);
    world.open();
    let refused = || {
        let volume = world.pools().create_volume(&world.pool(), thin("v", MI));
        volume.map(drop).unwrap_err().to_string()
    };
    // Another filesystem is mounted over it.
    run("mount", &["--bind", arg(&other.at), arg(&ground.at)]);
    let over = refused();
    assert_soon(Some("PoolDirectoryLost"), || {
        let problems = health::storage(world.pools());
        problems.first().map(|problem| problem.reason)
    });
    run("umount", &[arg(&ground.at)]);
    assert!(over.contains("something else now"), "{over}");
    world.create(thin("v", MI));
    until("it has no problem", || {
        health::storage(world.pools()).is_empty()
    });
}
