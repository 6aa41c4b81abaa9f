//! Pods can leave a pool with a dead filesystem, and volumes with devices or mounts held elsewhere.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use hostloop_driver::kernel::linux::{Linux, LoopNotices};
use hostloop_driver::kernel::{FsType, LoopDevices, Mounts};
use hostloop_driver::node::Error;
use hostloop_driver::storage::{self, Source};

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, own_namespace, run, shut_down, until};

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
        Failure::ShutDown => shut_down(&at),
        // ext4 itself does this after an error. A manual remount is refused while loop devices
        // write to it.
        Failure::ReadOnly => {
            run("mount", &["-o", "remount,errors=remount-ro", arg(&at)]);
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
        let ids = rig.both_in_use();
        fail(&rig, failure);
        // Other pools are not affected. mkfs.btrfs would look up the images of mounted volumes.
        let other = Rig::new();
        for fs in FsType::ALL {
            let theirs = other.volume(on(fs), 32 * MI);
            other.stage(theirs, "a", &mount(fs)).unwrap();
            other.unstage(theirs, "a").unwrap();
            other.assert_clean(theirs);
        }

        let what = format!("{fs} {failure:?}");
        rig.end_use(ids, &what);
        for id in ids {
            rig.assert_clean_after(id, &what);
        }
    }
}

/// The driver restarts, but the pool stays missing.
#[test]
fn a_pod_leaves_a_pool_that_is_missing() {
    let mut rig = Rig::on(FsType::Xfs, 400 * MI);
    let [id, raw] = rig.both_in_use();
    fail(&rig, Failure::ShutDown);
    rig.restart();
    rig.node.pools.complete().unwrap_err();
    refused!(rig.unstage(id, "a"), Error::FailedPrecondition(_));
    refused!(rig.unstage(raw, "b"), Error::FailedPrecondition(_));
    rig.end_use([id, raw], "a missing pool");
}

/// A mount namespace with copies of a rig's mounts, like that of a container that starts while they
/// exist. It ends with this.
struct Copied {
    /// Files to write in the namespace, with their text.
    orders: Option<Sender<(PathBuf, &'static str)>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Copied {
    fn new(rig: &Rig) -> Copied {
        let kept = rig.root().to_path_buf();
        let (orders, order) = channel::<(PathBuf, &'static str)>();
        let (tell, done) = channel();
        let thread = std::thread::spawn(move || {
            own_namespace(&Linux::new(), &kept);
            tell.send(()).unwrap();
            for (path, text) in order {
                std::fs::write(path, text).unwrap();
                tell.send(()).unwrap();
            }
        });
        done.recv().unwrap();
        Copied {
            orders: Some(orders),
            done,
            thread: Some(thread),
        }
    }

    fn write(&self, path: PathBuf, text: &'static str) {
        self.orders.as_ref().unwrap().send((path, text)).unwrap();
        self.done.recv().unwrap();
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_copy_of_the_mount_in_a_container_does_not_keep_a_volume() {
    let rig = Rig::new();
    let cap = mount("ext4");
    let id = rig.staged(ext4(), "a", &cap);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    let copied = Copied::new(&rig);
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
    let notices = LoopNotices::open().unwrap();
    let (free, freed) = std::sync::mpsc::channel();
    pools.freed().listen(move |what| free.send(what).unwrap());
    pools.delete_volume(&id).unwrap();
    let same = || {
        let loops = rig.kernel.loops().unwrap();
        loops.into_iter().find(|l| l.is_same(&device))
    };
    assert!(same().unwrap().autoclear, "it detaches with the last mount");
    drop(copied);
    until("it detaches", || same().is_none());
    // No call tells that the space is free, but the kernel does.
    // Its notice may come after those of other programs' devices.
    let mut announced = Vec::new();
    while announced.is_empty() {
        pools.announce_detached(notices.changed().unwrap().as_deref());
        announced.extend(freed.try_iter());
    }
    assert_eq!(announced, [storage::Freed::Room]);
    assert!(!pools.freed().awaits_devices());
}

/// An unmount writes nothing back while a container has a copy of the mount.
#[test]
fn a_copy_of_a_volume_that_a_container_still_has_mounted_is_complete() {
    let rig = Rig::on(FsType::Xfs, 4096 * MI);
    for fs in FsType::ALL {
        let (id, cap) = (rig.volume(on(fs), 32 * MI), mount(fs));
        rig.stage(id, "a", &cap).unwrap();
        let copied = Copied::new(&rig);
        write(&rig.staging("a").join("before"), 3, 3 << 20);
        rig.unstage(id, "a").unwrap();
        // The disk has it all: the power may fail now.
        let bytes = rig.record(id).capacity_bytes;
        run(
            "cp",
            &[
                "--sparse=always",
                arg(&rig.path(format!("volumes/{id}/image"))),
                arg(&rig.path("cut")),
            ],
        );
        copied.write(rig.staging("a").join("after"), "late\n");
        let copy = rig.create(copy_of(Source::Volume(id), on(fs), bytes));
        drop(copied);
        rig.assert_detached(id);

        let cut = rig.volume(on(fs), bytes);
        run(
            "cp",
            &[
                "--sparse=always",
                arg(&rig.path("cut")),
                arg(&rig.path(format!("volumes/{cut}/image"))),
            ],
        );
        for (id, late) in [(copy, true), (cut, false)] {
            rig.stage(id, "b", &cap).unwrap();
            assert_written(&rig.staging("b").join("before"), 3, 3 << 20);
            let after = std::fs::read_to_string(rig.staging("b").join("after"));
            assert_eq!(after.is_ok_and(|text| text == "late\n"), late, "{fs}");
            rig.unstage(id, "b").unwrap();
        }
    }
}
