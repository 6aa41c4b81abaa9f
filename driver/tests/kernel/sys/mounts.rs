//! Mounts.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostloop_driver::kernel::FsType::{Btrfs, Ext4, Xfs};
use hostloop_driver::kernel::linux::{Linux, MountQueries};
use hostloop_driver::kernel::{BindFlags, Error, FsType, MountEntry, MountSpec, Mounts};
use rstest::rstest;

use super::scratch::{Scratch, mount, size};
use crate::testkit::{mount_spec, while_busy};
use crate::tools::{arg, own_namespace, run};

const READ_ONLY: BindFlags = BindFlags {
    read_only: true,
    nosuid: false,
    nodev: false,
    noexec: false,
};

fn entry(s: &Scratch, at: &Path) -> MountEntry {
    let at = std::fs::canonicalize(at).unwrap();
    s.kernel.mounts().unwrap().at(&at).unwrap().clone()
}

#[test]
fn a_read_only_bind_is_never_writable() {
    let s = Scratch::new();
    let (_image, _device, stage) = s.volume(Ext4);
    let pod = s.dir("pod");
    let victim = pod.join("written");
    let (done, wrote) = (AtomicBool::new(false), AtomicBool::new(false));
    let binds = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // One who uses the mount without a pause keeps it from being unmounted.
                if !binds.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    continue;
                }
                // Before and after the bind, this path is another directory, which takes writes.
                if File::create(&victim).is_ok() && stage.join("written").exists() {
                    wrote.store(true, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..300 {
            binds.store(true, Ordering::Relaxed);
            s.kernel.bind(&stage, &pod, READ_ONLY).unwrap();
            assert!(entry(&s, &pod).read_only());
            binds.store(false, Ordering::Relaxed);
            while s.kernel.unmount(&pod).is_err() {}
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!wrote.load(Ordering::Relaxed));
    assert!(!entry(&s, &stage).read_only());
    File::create(stage.join("still writable")).unwrap();
}

/// On each kind of kernel, and with nothing followed.
fn kernels() -> Vec<Linux> {
    let queries = [
        MountQueries::Table,
        MountQueries::ById,
        MountQueries::Counted,
    ];
    let following = queries.map(Linux::following);
    [Linux::new()].into_iter().chain(following).collect()
}

#[test]
fn only_the_mount_that_was_seen_is_unmounted() {
    let s = Scratch::new();
    let at = s.dir("at").canonicalize().unwrap();
    let tmpfs = |name: &str| drop(run("mount", &["-t", "tmpfs", name, arg(&at)]));
    let top = |kernel: &Linux| kernel.known_mounts().unwrap().at(&at).unwrap().clone();
    for kernel in kernels() {
        tmpfs("ours");
        let ours = top(&kernel);
        tmpfs("foreign");
        refused!(kernel.unmount_exactly(&ours), Error::Covered { .. });
        assert_eq!(&*top(&kernel).source, "foreign");
        run("umount", &[arg(&at)]);
        // The next mount at the path may even have the same ID.
        run("umount", &[arg(&at)]);
        tmpfs("another");
        let answer = kernel.unmount_exactly(&ours);
        if ours.unique_id.is_some() {
            refused!(answer, Error::NotFound { .. });
            assert_eq!(&*top(&kernel).source, "another");
        }
        let _ = kernel.unmount(&at);
        refused!(kernel.unmount_exactly(&ours), Error::NotFound { .. });
    }
}

/// Another program mounts something at the same path, sooner or later than the unmount.
#[test]
fn a_mount_that_comes_during_an_unmount_stays() {
    let s = Scratch::new();
    let at = s.dir("at").canonicalize().unwrap();
    let mount = |fs| {
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("none"), &at, Some(fs), flags, None::<&str>).unwrap();
    };
    let is_there = |fs: &str| {
        let table = s.kernel.mounts().unwrap();
        table
            .entries
            .iter()
            .find(|e| e.mount_point == at && *e.fs_type == *fs)
            .cloned()
    };
    let mut covered = 0;
    for _ in 0..300 {
        mount("ramfs");
        let ours = is_there("ramfs").unwrap();
        let answer = std::thread::scope(|scope| {
            scope.spawn(|| mount("tmpfs"));
            s.kernel.unmount_exactly(&ours)
        });
        let theirs = is_there("tmpfs").expect("only its owner unmounts it");
        s.kernel.unmount_exactly(&theirs).unwrap();
        if let Err(error) = answer {
            assert!(
                matches!(error, Error::Covered { .. } | Error::Busy { .. }),
                "{error}"
            );
            covered += 1;
            s.kernel.unmount_exactly(&ours).unwrap();
        }
        assert!(s.kernel.mounts().unwrap().at(&at).is_none());
    }
    println!("{covered} of 300 mounts were in the way");
}

/// True if it is met in one of ten attempts: on a busy machine, what ends soon may end late.
fn some_time(mut is_met: impl FnMut() -> bool) -> bool {
    (0..10).any(|_| is_met())
}

#[test]
fn a_busy_mount_is_unmounted_once_it_is_free() {
    let s = Scratch::new();
    let (_image, device, at) = s.volume(Ext4);
    let waits = some_time(|| {
        let unmounted = std::thread::scope(|scope| {
            let held = File::open(&at).unwrap();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(200));
                drop(held);
            });
            s.kernel.unmount(&at)
        });
        if unmounted.is_err() {
            while_busy(|| s.kernel.unmount(&at)).unwrap();
        }
        mount(&s.kernel, &device, Ext4, &at, &[]).unwrap();
        unmounted.is_ok()
    });
    assert!(waits);
    let _held = File::open(&at).unwrap();
    let busy = s.kernel.unmount(&at).unwrap_err();
    assert_eq!(busy.to_string(), format!("unmount {}: busy", at.display()));
}

/// A container that starts has copies of all mounts for a moment.
#[test]
fn a_filesystem_is_mounted_writable_once_its_read_only_copies_are_gone() {
    let s = Scratch::new();
    let (_image, device) = s.made("image", Xfs, size(Xfs));
    let (path, at) = (device.path(), s.dir("at"));
    let spec = mount_spec(&path, &at, Xfs);
    let waits = some_time(|| {
        let read_only = MountSpec {
            read_only: true,
            ..spec.clone()
        };
        while_busy(|| s.kernel.mount(&read_only)).unwrap();
        let mounted = std::thread::scope(|scope| {
            let (entered, has_entered) = std::sync::mpsc::channel();
            let at = &at;
            scope.spawn(move || {
                own_namespace(&Linux::default(), at);
                entered.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(200));
            });
            has_entered.recv().unwrap();
            while_busy(|| s.kernel.unmount(at)).unwrap();
            s.kernel.mount(&spec)
        });
        if mounted.is_ok() {
            assert!(!entry(&s, &at).fs_read_only());
            while_busy(|| s.kernel.unmount(&at)).unwrap();
        }
        mounted.is_ok()
    });
    assert!(waits);
}

/// Threads that look at mounts are used again, but none that was started in another namespace.
#[test]
fn a_btrfs_is_known_after_a_look_from_another_namespace() {
    let s = Scratch::new();
    let (_image, _device, old) = s.mounted("old", Btrfs, size(Btrfs));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            own_namespace(&Linux::default(), &old);
            Linux::default().mounts().unwrap();
        });
    });
    let (_image, device, new) = s.mounted("new", Btrfs, size(Btrfs));
    assert_eq!(entry(&s, &new).loop_minor(), Some(device.minor));
}

/// Others see what is mounted beneath a shared mount.
#[test]
fn a_shared_mount_is_told_from_others() {
    let s = Scratch::new();
    let at = s.dir("at");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let kernel = Linux::default();
            own_namespace(&kernel, s.path());
            run("mount", &["-t", "tmpfs", "none", arg(&at)]);
            let beneath = s.dir("at/beneath");
            for (how, expected) in [
                ("--make-private", false),
                ("--make-shared", true),
                ("--make-slave", false),
            ] {
                run("mount", &[how, arg(&at)]);
                for dir in [&at, &beneath] {
                    let found = kernel.is_shared(dir).unwrap();
                    assert_eq!(found, expected, "{how} {}", dir.display());
                }
            }
            run("umount", &[arg(&at)]);
        });
    });
}

#[rstest]
fn a_bad_option_is_named(#[values(Ext4, Xfs, Btrfs)] fs: FsType) {
    let s = Scratch::new();
    let (_image, device) = s.made("image", fs, size(fs));
    let at = s.dir("at");
    let message = mount(&s.kernel, &device, fs, &at, &["noatime", "rubbish"])
        .unwrap_err()
        .to_string();
    assert!(message.contains("rubbish"), "{message}");
    assert!(message.contains(at.to_str().unwrap()), "{message}");
}

#[test]
fn xfs_limits_its_retries() {
    let s = Scratch::new();
    let (_image, device, _at) = s.volume(Xfs);
    for kind in ["EIO", "ENOSPC", "default"] {
        for attribute in ["max_retries", "retry_timeout_seconds"] {
            let path = format!(
                "/sys/fs/xfs/loop{}/error/metadata/{kind}/{attribute}",
                device.minor
            );
            let value = std::fs::read_to_string(path).unwrap();
            let value: i64 = value.trim().parse().unwrap();
            assert!(value > 0, "{kind} {attribute}: {value}");
        }
    }
}

#[rstest]
fn discard_changes_alone(#[values(Ext4, Xfs, Btrfs)] fs: FsType) {
    let s = Scratch::new();
    let (_image, device) = s.made("image", fs, size(fs));
    let at = s.dir("at");
    mount(
        &s.kernel,
        &device,
        fs,
        &at,
        &["noatime", "nosuid", "nodiscard"],
    )
    .unwrap();
    let pod = s.dir("pod");
    s.kernel.bind(&at, &pod, READ_ONLY).unwrap();
    let _in_use = File::open(&at).unwrap();
    let before = entry(&s, &at);
    let discards = |entry: &MountEntry| {
        let mut options = entry.super_options.iter();
        options.any(|o| o == "discard" || o.starts_with("discard="))
    };
    assert!(!discards(&before), "{before:?}");
    for on in [true, true, false, false] {
        match s.kernel.remount_discard(&at, fs, on) {
            // XFS takes it at a mount only; then nothing may have changed.
            Err(Error::Unsupported { .. }) if fs == Xfs => {
                assert_eq!(entry(&s, &at), before);
            }
            answer => {
                answer.unwrap();
                let after = entry(&s, &at);
                assert_eq!(discards(&after), on, "{after:?}");
                assert_eq!(after.options, before.options);
            }
        }
        assert!(entry(&s, &pod).read_only());
    }
}
