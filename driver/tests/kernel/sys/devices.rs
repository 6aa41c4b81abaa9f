//! The driver's environment: a static `/dev`, and the end of a killed driver's mkfs.

use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{
    Filesystems, FsType, LoopDevices, MkfsSpec, Probe, file_id, loop_path,
};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::scratch::Scratch;
use crate::testkit::{MI, PATIENCE};
use crate::tools::{arg, command, own_namespace, run, script};

/// Gives this thread its own mount namespace, with a `/dev` that creates no device nodes.
fn static_dev() {
    own_namespace(&Linux::default(), Path::new("/nothing"));
    mount(
        None::<&str>,
        "/dev",
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    for (path, major, minor) in [("/dev/null", 1, 3), ("/dev/loop-control", 10, 237)] {
        mknod(
            path,
            SFlag::S_IFCHR,
            Mode::S_IRUSR | Mode::S_IWUSR,
            makedev(major, minor),
        )
        .unwrap();
    }
}

fn loop_nodes() -> Vec<u32> {
    let minor = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let is_device = entry.file_type().unwrap().is_block_device();
        name.to_str()?
            .strip_prefix("loop")?
            .parse()
            .ok()
            .filter(|_| is_device)
    };
    std::fs::read_dir("/dev")
        .unwrap()
        .filter_map(minor)
        .collect()
}

#[test]
fn a_static_dev_gets_the_nodes_it_needs() {
    std::thread::spawn(|| {
        static_dev();
        let s = Scratch::new();
        assert_eq!(loop_nodes(), [0; 0]);
        let (image, device, at) = s.volume(FsType::Ext4);
        let nodes = loop_nodes();
        assert!(nodes.contains(&device.minor));
        assert!(nodes.len() > 16, "a node and 16 spares: {nodes:?}");
        std::fs::write(at.join("file"), "x").unwrap();
        // What kubelet does with a published block volume. Other processes may have taken the
        // spares; kubelet retries, and the driver makes new ones with each device.
        let mut held = Vec::new();
        let kubelets = (0..10).find_map(|n| {
            let path = device.path();
            let find = ["--find", "--show", arg(&path)];
            let output = command("losetup").args(find).output().unwrap();
            if output.status.success() {
                return Some(String::from_utf8(output.stdout).unwrap().trim().to_owned());
            }
            eprintln!("{}", String::from_utf8_lossy(&output.stderr));
            // Held, so that the next round finds a spare node and not the node of this device.
            held.push(s.attach(&s.image(&format!("next-{n}"), MI)));
            None
        });
        run("losetup", &["-d", &kubelets.expect("a spare node")]);
        // A device that was attached from elsewhere has no node here yet.
        std::fs::remove_file(device.path()).unwrap();
        let info = s.kernel.loop_info(device.minor).unwrap().unwrap();
        assert_eq!(info.backing, Some(file_id(&image).unwrap()));
        assert!(device.path().exists());
        let probe = s.kernel.probe(&loop_path(device.minor)).unwrap();
        let fs = FsType::Ext4;
        assert!(matches!(probe, Probe::Filesystem { fs: found, .. } if found == fs));
    })
    .join()
    .unwrap();
}

#[test]
fn a_node_that_is_something_else_is_refused() {
    std::thread::spawn(|| {
        static_dev();
        let s = Scratch::new();
        let image = s.image("image", MI);
        let device = s.attach(&image);
        let minor = device.minor;
        std::fs::remove_file(loop_path(minor)).unwrap();
        File::create(loop_path(minor)).unwrap();
        let info = s.kernel.loop_info(minor).unwrap().unwrap();
        assert_eq!(info.backing, None, "it can't be queried");
        let refused = s.kernel.loop_release(&info);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("not the loop device"), "{message}");
        std::fs::remove_file(loop_path(minor)).unwrap();
    })
    .join()
    .unwrap();
}

/// The variable that makes a process of this program the driver of the test below. Its value is the
/// device of the mkfs.
const PLAYS_DRIVER: &str = "HOSTLOOP_TEST_PLAYS_DRIVER";

#[test]
fn a_killed_driver_takes_its_mkfs_along() {
    if let Some(device) = std::env::var_os(PLAYS_DRIVER) {
        let made = Linux::new().mkfs(&MkfsSpec::new(Path::new(&device), FsType::Ext4));
        panic!("mkfs came back: {made:?}");
    }
    let t = tempfile::tempdir().unwrap();
    // An mkfs that takes its time, first in PATH.
    let (tool, note) = (t.path().join("mkfs.ext4"), t.path().join("pid"));
    script(
        &tool,
        &format!("#!/bin/sh\necho $$ > {}\nexec sleep 600\n", note.display()),
    );
    let path = format!("{}:{}", t.path().display(), std::env::var("PATH").unwrap());
    let mut driver = command(std::env::current_exe().unwrap().to_str().unwrap())
        .args([
            "--exact",
            "sys::devices::a_killed_driver_takes_its_mkfs_along",
        ])
        .env(PLAYS_DRIVER, "/dev/null")
        .env("PATH", path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let running = until(|| {
        let pid: u32 = std::fs::read_to_string(&note).ok()?.trim().parse().ok()?;
        Some(PathBuf::from(format!("/proc/{pid}")))
    });
    driver.kill().unwrap();
    driver.wait().unwrap();
    let running = running.unwrap();
    let ended = until(|| {
        // A zombie has ended, too; its new parent may not have reaped it yet.
        let stat = std::fs::read_to_string(running.join("stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    assert!(ended.is_some(), "mkfs outlived its driver");
}

fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(seen) = look() {
            return Some(seen);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
