//! Pods can leave a pool with a dead filesystem, and volumes with devices or mounts held elsewhere.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hostloop_driver::kernel::{FsType, Kernel};
use hostloop_driver::node::Error;
use hostloop_driver::storage::{self, Access};

use super::Rig;
use crate::testkit::*;

/// How a pool's filesystem fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    /// It answers every request with EIO.
    ShutDown,
    /// It takes no writes.
    ReadOnly,
}

fn fail(rig: &Rig, failure: Failure) {
    let at = rig.root().join("pool");
    match failure {
        Failure::ShutDown => {
            let done = Command::new("xfs_io")
                .args(["-x", "-c", "shutdown"])
                .arg(&at)
                .output();
            let done = done.expect("these tests need xfs_io (package xfsprogs)");
            assert!(done.status.success(), "{done:?}");
        }
        // ext4 itself does this after an error. A manual remount is refused while loop devices
        // write to it.
        Failure::ReadOnly => {
            let remount = ["-o", "remount,errors=remount-ro"];
            let done = Command::new("mount").args(remount).arg(&at).status();
            assert!(done.unwrap().success());
            let table = rig.kernel.mounts().unwrap();
            let minor = table.at(&at).unwrap().loop_minor().unwrap();
            let trigger = format!("/sys/fs/ext4/loop{minor}/trigger_fs_error");
            std::fs::write(trigger, "a test").unwrap();
            assert!(std::fs::write(at.join("written"), "").is_err());
        }
    }
}

#[test]
fn a_pod_leaves_a_pool_that_failed() {
    for (fs, failure) in [
        (FsType::Xfs, Failure::ShutDown),
        (FsType::Ext4, Failure::ShutDown),
        (FsType::Ext4, Failure::ReadOnly),
    ] {
        let rig = Rig::on(fs, 400 * MI);
        let id = rig.volume(on(FsType::Ext4), 16 * MI);
        let raw = rig.volume(Access::Block, 8 * MI);
        let (cap, cap_raw) = (mount(FsType::Ext4), block());
        rig.stage(id, "a", &cap).unwrap();
        rig.publish(id, "a", "p", &cap, false).unwrap();
        rig.stage(raw, "b", &cap_raw).unwrap();
        rig.publish(raw, "b", "q", &cap_raw, false).unwrap();
        rig.publish(raw, "b", "r", &cap_raw, true).unwrap();
        let before = [rig.loops(id), rig.loops(raw)].concat();
        fail(&rig, failure);
        // Other pools are not affected.
        let other = Rig::new();
        let theirs = other.volume(on(FsType::Ext4), 16 * MI);
        other.stage(theirs, "a", &cap).unwrap();
        other.unstage(theirs, "a").unwrap();
        other.assert_clean(theirs);

        for _ in 0..2 {
            for (id, target) in [(id, "p"), (raw, "q"), (raw, "r")] {
                let left = rig.unpublish(id, target);
                left.unwrap_or_else(|e| panic!("{fs} {failure:?}: unpublish {target}: {e}"));
                assert!(!rig.target(target).exists());
            }
            for (id, at) in [(id, "a"), (raw, "b")] {
                let left = rig.unstage(id, at);
                left.unwrap_or_else(|e| panic!("{fs} {failure:?}: unstage {at}: {e}"));
                assert_eq!(rig.record(id).stage, None, "as far as the driver knows");
            }
        }
        assert_eq!(rig.mounted(), Vec::<std::path::PathBuf>::new());
        let still = || {
            let loops = rig.kernel.loops().unwrap();
            let mut loops = loops.iter();
            loops.any(|l| before.iter().any(|b| l.is_same(b)))
        };
        let gone = (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            !still()
        });
        assert!(gone, "{fs} {failure:?}: a device is left");
    }
}

/// The driver restarts, but the pool stays missing.
#[test]
fn a_pod_leaves_a_pool_that_is_missing() {
    let rig = Rig::on(FsType::Xfs, 400 * MI);
    let [id, raw] = rig.both_in_use();
    fail(&rig, Failure::ShutDown);
    let rig = rig.restarted_without_pool();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    refused!(rig.unstage(raw, "b"), Error::FailedPrecondition(_));
    rig.unpublish(id, "p").unwrap();
    rig.unpublish(raw, "q").unwrap();
    rig.unstage(id, "a").unwrap();
    rig.unstage(raw, "b").unwrap();
    assert_eq!(rig.mounted(), Vec::<std::path::PathBuf>::new());
    let ours = |l: &hostloop_driver::kernel::LoopInfo| {
        l.may_hold(&id.to_string()) || l.may_hold(&raw.to_string())
    };
    assert!(!rig.kernel.loops().unwrap().iter().any(ours));
}

/// A process with a copy of all mounts, like a container that starts while they exist.
struct Copied(Child);

impl Copied {
    fn new() -> Copied {
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sleep", "600"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let namespace = |pid: &str| std::fs::read_link(Path::new("/proc").join(pid).join("ns/mnt"));
        let own = namespace("self").unwrap();
        let pid = child.id().to_string();
        let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        while namespace(&pid).unwrap() == own || name().trim() != "sleep" {
            std::thread::sleep(Duration::from_millis(5));
        }
        Copied(child)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_copy_of_the_mount_in_a_container_does_not_keep_a_volume() {
    let rig = Rig::new();
    let cap = mount(FsType::Ext4);
    let id = rig.staged(on(FsType::Ext4), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let copied = Copied::new();
    rig.unpublish(id, "p").unwrap();
    rig.unstage(id, "a").unwrap();
    let device = rig.loops(id).remove(0);
    let pools = &rig.node.pools;
    // Without reflinks, the snapshot is refused; with them, a clone is taken.
    match pools.create_snapshot(&id, "s", &Default::default()) {
        Err(storage::Error::CannotFreeze(why)) => {
            assert!(why.contains("another mount namespace"), "{why}");
            assert!(!why.contains("raw block"), "{why}");
        }
        taken => drop(taken.unwrap()),
    }
    pools.delete_volume(&id).unwrap();
    let same = || {
        let loops = rig.kernel.loops().unwrap();
        loops.into_iter().find(|l| l.is_same(&device))
    };
    assert!(same().unwrap().autoclear, "it detaches with the last mount");
    drop(copied);
    let gone = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        same().is_none()
    });
    assert!(gone);
}
