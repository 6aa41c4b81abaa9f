//! The leak checker can fail: each kind of leak is made, and must be found and named.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hostloop_test::client::new_volume;
use hostloop_test::driver::DriverSpec;
use hostloop_test::leaks::{Leak, Leaks};
use hostloop_test::loops;
use hostloop_test::machine::{self, text};
use hostloop_test::pools::{GIB, MIB, PoolFixture, PoolKind, sparse_loop};
use hostloop_test::scratch::Scratch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use hostloop_test::requests::{delete, id_of};

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_leak_is_found() {
    machine::require();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, PoolKind::Xfs, 4 * GIB);
    let driver = DriverSpec::new(&scratch, &[&pool]).start();
    let leaks = Leaks::before(&scratch, &[&pool], &driver);
    let found = || leaks.now(&[&pool], &driver);
    assert_eq!(found(), [], "nothing has happened yet");

    let csi = driver.csi().await;
    let id = id_of(csi.ok(new_volume("pvc-left", 32 * MIB)).await);
    let left = found();
    assert!(matches!(&left[..], [Leak::File(path)] if path.ends_with(&id)), "{left:?}");
    csi.ok(delete(&id)).await;
    leaks.assert_none(&[&pool], &driver);

    let device = sparse_loop(&scratch.path().join("left.img"), 64 * MIB);
    let left = found();
    assert!(
        matches!(&left[..], [Leak::Loop { backing, .. }] if backing.ends_with("left.img")),
        "{left:?}"
    );
    machine::run("losetup", &["--detach", text(&device)]);

    let mount = scratch.dir("left mount");
    machine::run("mount", &["-t", "tmpfs", "left", text(&mount)]);
    assert_eq!(found()[0], Leak::Mount(mount.clone()));
    machine::run("umount", &[text(&mount)]);

    let mut child =
        Command::new("sleep").arg("60").arg0(scratch.path()).spawn().expect("sleep starts");
    let left = found();
    assert!(matches!(&left[..], [Leak::Process { pid, .. }] if *pid == child.id()), "{left:?}");
    child.kill().expect("it was alive");
    child.wait().expect("it is our child");

    let mount = pool.mount().expect("an XFS pool is mounted by the test");
    let heavy = mount.join("not-in-the-pool");
    let file = File::create(&heavy).expect("a file can be made");
    let bytes = vec![1; 64 << 20];
    std::io::Write::write_all(&mut &file, &bytes).expect("it can be written");
    let left = found();
    assert!(matches!(&left[..], [Leak::Bytes { .. }]), "{left:?}");
    std::fs::remove_file(&heavy).expect("it can be removed");
    drop(file);
    leaks.assert_none(&[&pool], &driver);
    driver.stop();
}

/// `scripts/demo --local` with Ctrl-C in the middle.
#[test]
fn an_interrupted_walkthrough_leaves_nothing() {
    machine::require();
    let scratch = Scratch::new();
    let mut walkthrough = Command::new(env!("CARGO_BIN_EXE_walkthrough"))
        .env("TMPDIR", scratch.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("the walkthrough starts");
    let deadline = Instant::now() + Duration::from_secs(120);
    // The pool's loop device, and that of a staged volume.
    while loops::beneath(scratch.path()).len() < 2 {
        assert!(Instant::now() < deadline, "nothing is staged");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = i32::try_from(walkthrough.id()).expect("a PID");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("it runs");
    let status = walkthrough.wait().expect("it is our child");
    assert_eq!(status.code(), Some(130));
    assert_eq!(loops::beneath(scratch.path()), []);
    let left = std::fs::read_dir(scratch.path()).expect("the directory is there");
    assert_eq!(left.count(), 0, "files are left");
}
