//! The leak checker can fail: each kind of leak is made, and must be found and named.

use std::fmt::Debug;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use hostloop_test::PATIENCE;
use hostloop_test::child::{self, Program};
use hostloop_test::client::new_volume;
use hostloop_test::data;
use hostloop_test::driver::{DriverSpec, binary};
use hostloop_test::leaks::{Leaks, mount_points, mountinfo};
use hostloop_test::loop_devices::{self, Loop};
use hostloop_test::machine::{self, text};
use hostloop_test::namespace::Namespace;
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind, sparse_loop};
use hostloop_test::scratch::Scratch;
use nix::sys::signal::Signal;

use hostloop_test::requests::{delete, id_of};

/// Waits until a list is empty. A child of another test has a copy of each open file until its
/// exec, and a program that lists devices may have one open for a moment.
fn until_none<T: Debug>(list: impl Fn() -> Vec<T>) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = list();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "still there: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_leak_is_found() {
    machine::require();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 4 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let leaks = Leaks::before(&scratch, &[&pool], &driver);
    let found = || leaks.now(&[&pool], &driver);
    let only = |begin: &str, end: &str| {
        let found = found();
        let is_it = |leak: &String| leak.starts_with(begin) && leak.ends_with(end);
        assert!(
            matches!(&found[..], [leak] if is_it(leak)),
            "{begin}…{end}: {found:?}"
        );
    };
    assert!(
        found().is_empty(),
        "nothing has happened yet: {:?}",
        found()
    );

    let csi = driver.csi().await;
    let id = id_of(csi.ok(new_volume("pvc-left", 32 * MIB)).await);
    only("file ", &id);
    csi.ok(delete(&id)).await;
    leaks.assert_none(&[&pool], &driver);

    let (device, open) = sparse_loop(&scratch.path().join("left.img"), 64 * MIB);
    only("loop device /dev/loop", "left.img");
    drop(open);
    machine::run("losetup", &["--detach", text(&device)]);
    until_none(found);

    let mount = scratch.dir("left mount");
    machine::run("mount", &["-t", "tmpfs", "left", text(&mount)]);
    assert_eq!(found()[0], format!("mount at {}", mount.display()));
    machine::run("umount", &[text(&mount)]);

    let sleep = child::command("sleep")
        .arg("60")
        .arg0(scratch.path())
        .spawn();
    let sleep = Program::new(sleep.expect("sleep starts"));
    only(&format!("process {}: ", sleep.pid()), "");
    drop(sleep);

    let mount = pool.mount().expect("an XFS pool is mounted by the test");
    let heavy = mount.join("not-in-the-pool");
    let file = File::create(&heavy).expect("a file can be made");
    let bytes = vec![1; 64 << 20];
    std::io::Write::write_all(&mut &file, &bytes).expect("it can be written");
    only("pool default: ", " at the beginning");
    std::fs::remove_file(&heavy).expect("it can be removed");
    drop(file);
    leaks.assert_none(&[&pool], &driver);
    driver.stop();
}

#[test]
#[should_panic(expected = "/proc/0/mountinfo")]
fn an_unreadable_mount_table_is_not_clean() {
    mountinfo(0);
}

/// Otherwise the mounts of a killed driver would survive it, and the crash test would show less.
#[test]
fn mounts_of_a_namespace_are_seen_through_it_alone() {
    machine::require();
    let scratch = Scratch::new();
    let inside = scratch.dir("inside");
    let namespace = Namespace::new(&scratch);
    let handle = format!("--mount={}", text(&namespace.handle()));
    machine::run(
        "nsenter",
        &[&handle, "--", "mount", "-t", "tmpfs", "t", text(&inside)],
    );
    let view = namespace.view(&inside.join("file"));
    let sum = data::write(&view, 7);
    assert_eq!(data::read(&view), sum);
    assert!(!inside.join("file").exists(), "it is not seen outside");
    let mounts = mount_points(&namespace.mountinfo(), scratch.path());
    assert_eq!(mounts, [inside]);
}

/// Calls a function of the scripts for a device.
fn call_of_scripts(function: &str, device: &Loop) {
    let script = format!(". scripts/lib.sh; . scripts/cluster-lib/clean.sh; {function} \"$@\"");
    let row = [
        format!("/dev/loop{}", device.minor),
        device.backing_device.clone(),
        device.backing_inode.to_string(),
    ];
    let mut bash = child::command("bash");
    bash.current_dir(machine::root())
        .args(["-euo", "pipefail", "-c", &script, "bash"]);
    assert!(bash.args(row).status().is_ok_and(|status| status.success()));
}

/// A device's number may pass to another file between a look and the detachment.
#[test]
fn a_device_that_another_file_has_taken_stays_attached() {
    fn by_scripts(devices: &[Loop]) {
        for device in devices {
            call_of_scripts("detach", device);
        }
    }
    machine::require();
    let scratch = Scratch::new();
    let image = scratch.path().join("pool.img");
    sparse_loop(&image, MIB);
    for detach in [loop_devices::detach as fn(&[Loop]), by_scripts] {
        let attached = || loop_devices::beneath(scratch.path());
        let listed = attached();
        assert_eq!(listed.len(), 1);
        let other = Loop {
            backing_inode: listed[0].backing_inode + 1,
            ..listed[0].clone()
        };
        detach(&[other]);
        assert_eq!(attached(), listed);
        detach(&listed);
        until_none(attached);
        loop_devices::attach(&image, &[]);
    }
}

/// Then it is not what the ended test left, and others may have it in use.
#[test]
fn what_stands_on_a_device_that_another_file_has_taken_stays_attached() {
    machine::require();
    let scratch = Scratch::new();
    let (path, _) = sparse_loop(&scratch.path().join("pool.img"), MIB);
    loop_devices::attach(&path, &[]);
    let attached = || loop_devices::beneath(scratch.path());
    let listed = attached();
    let lower = listed.iter().find(|device| device.over.is_none());
    let lower = lower.expect("it is over an image");
    let other = Loop {
        backing_inode: lower.backing_inode + 1,
        ..lower.clone()
    };
    call_of_scripts("detach_above", &other);
    assert_eq!((attached(), listed.len()), (listed.clone(), 2));
    call_of_scripts("detach_above", lower);
    until_none(|| Vec::from_iter(attached().into_iter().filter(|l| l.over.is_some())));
    loop_devices::detach(&attached());
    until_none(attached);
}

/// `scripts/test` begins with this script.
#[test]
fn remains_of_ended_tests_are_swept() {
    machine::require();
    let ended = {
        let mut program = child::command("true").spawn().expect("true starts");
        program.wait().expect("true ends");
        program.id()
    };
    let folder = |pid: u32| std::env::temp_dir().join(format!("hostloop-test-{pid}-swept"));
    let (left, own) = (folder(ended), folder(std::process::id()));
    for folder in [&left, &own] {
        let mount = folder.join("mount");
        std::fs::create_dir_all(&mount).expect("it can be made");
        machine::run("mount", &["-t", "tmpfs", "left", text(&mount)]);
        std::fs::write(mount.join("left"), "left").expect("it can be written");
        sparse_loop(&folder.join("left.img"), MIB);
    }
    pool_in_an_ended_namespace(&left);
    assert_eq!(loop_devices::beneath(&left).len(), 4);
    machine::run(text(&machine::root().join("scripts/sweep")), &[]);
    assert!(!left.exists());
    until_none(|| loop_devices::beneath(&left));
    assert_eq!(loop_devices::beneath(&own).len(), 1);
    assert!(own.join("mount/left").exists());
    loop_devices::detach(&loop_devices::beneath(&own));
    machine::run("umount", &[text(&own.join("mount"))]);
    std::fs::remove_dir_all(&own).expect("it can be removed");
}

/// Attaches a device to a device to a file in a filesystem on a device, as a read-only block volume
/// of a pool in an image is. No mount and no path leads to that filesystem afterwards.
fn pool_in_an_ended_namespace(folder: &Path) {
    let (pool, device) = sparse_loop(&folder.join("pool.img"), 8 * MIB);
    machine::run("mkfs.ext4", &["-q", text(&pool)]);
    let script = "mkdir \"$2\"; mount \"$1\" \"$2\"; truncate --size 1M \"$2/image\"
        losetup --find --read-only \"$(losetup --find --show \"$2/image\")\"";
    let at = folder.join("pool.mnt");
    let inside = ["--mount", "bash", "-euc", script, "bash"];
    machine::run(
        "unshare",
        &[&inside[..], &[text(&pool), text(&at)]].concat(),
    );
    drop(device);
}

/// `scripts/demo --local` with Ctrl-C in the middle.
#[test]
fn an_interrupted_walkthrough_leaves_nothing() {
    machine::require();
    // On a busy machine, one may be over before it is interrupted.
    assert!((0..5).any(|_| is_interrupted_and_leaves_nothing()));
}

/// False if the walkthrough ended by itself.
fn is_interrupted_and_leaves_nothing() -> bool {
    let scratch = Scratch::new();
    let walkthrough = child::command(env!("CARGO_BIN_EXE_walkthrough"))
        .env("HOSTLOOP_BIN", binary())
        .env("TMPDIR", scratch.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("the walkthrough starts");
    let mut walkthrough = Program::new(walkthrough);
    let deadline = Instant::now() + PATIENCE;
    // The pool's loop device, and that of a staged volume.
    while loop_devices::beneath(scratch.path()).len() < 2 {
        assert!(Instant::now() < deadline, "nothing is staged");
        if let Some(status) = walkthrough.ended() {
            assert!(status.success(), "the walkthrough ended with {status}");
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    walkthrough.signal(Signal::SIGINT);
    let status = walkthrough.wait(PATIENCE).expect("the walkthrough ends");
    if status.success() {
        return false;
    }
    assert_eq!(status.code(), Some(130));
    until_none(|| loop_devices::beneath(scratch.path()));
    let left = std::fs::read_dir(scratch.path()).expect("the directory is there");
    assert_eq!(left.count(), 0, "files are left");
    true
}
