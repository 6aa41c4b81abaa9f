//! Loop devices without a reported backing file: its filesystem is dead or hangs, or a user of the
//! device caused it.

use std::fs::File;

use hostloop_driver::kernel::{
    BindFlags, LoopDevices, LoopInfo, LoopSpec, Mounts, file_id, loops_holding, loops_of,
};
use rustix::fs::{Mode, OFlags};

use super::fuse::Hanging;
use super::scratch::{Scratch, is_detached, lasting};
use crate::testkit::{MI, loop_spec};
use crate::tools::{arg, open_rw, run, until};

fn find(s: &Scratch, minor: u32) -> LoopInfo {
    let loops = s.kernel.loops().unwrap();
    loops.into_iter().find(|l| l.minor == minor).unwrap()
}

#[test]
fn a_device_that_hangs_does_not_block_the_others() {
    let s = Scratch::new();
    let at = s.dir("hanging");
    let server = Hanging::mount(&at);
    let image = open_rw(&at.join("image"));
    let device = s.kernel.loop_attach(&lasting(&image)).unwrap();
    let before = find(&s, device.minor);
    assert!(before.backing.is_some());
    server.hang();
    for _ in 0..3 {
        let healthy = s.image("healthy", MI);
        let other = s.attach(&healthy);
        let id = file_id(&healthy).unwrap();
        assert_eq!(loops_of(&s.kernel, id).unwrap()[0].minor, other.minor);
        let hung = find(&s, device.minor);
        assert_eq!(hung.backing, None);
        assert_eq!(hung.backing_path, before.backing_path);
        drop(other);
        assert!(is_detached(&s.kernel, &healthy));
        std::fs::remove_file(s.path().join("healthy")).unwrap();
    }
    let minor = device.minor;
    drop(device);
    let hung = find(&s, minor);
    s.kernel.loop_release(&hung).unwrap();
    drop(server);
    let gone = || s.kernel.loops().unwrap().iter().all(|l| !l.is_same(&hung));
    until("it detaches when it is released", gone);
}

/// A process that may write to a device can attach a file with a path longer than the kernel shows.
#[test]
fn a_path_that_is_too_long_is_no_reason_to_list_nothing() {
    let s = Scratch::new();
    let name = "x".repeat(200);
    let mut dir = rustix::fs::open(s.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..25 {
        rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let flags = OFlags::CREATE | OFlags::RDWR;
    let image: File = rustix::fs::openat(&dir, "image", flags, Mode::RUSR)
        .unwrap()
        .into();
    image.set_len(MI).unwrap();
    let device = s.attach(&image);
    let info = find(&s, device.minor);
    assert_eq!(info.backing, Some(file_id(&image).unwrap()));
    assert_eq!(info.backing_path, "");
}

#[test]
fn a_device_that_is_not_as_the_driver_attaches_it_says_so() {
    let s = Scratch::new();
    s.image("image", MI);
    let path = s.path().join("image");
    let attach = |more: &[&str]| {
        let name = run(
            "losetup",
            &[&["--find", "--show"], more, &[arg(&path)]].concat(),
        );
        find(&s, name.strip_prefix("/dev/loop").unwrap().parse().unwrap())
    };
    for (more, offset, size_limit) in [
        (&["--sector-size=4096"] as &[&str], 0, 0),
        (&["--sector-size=512"], 0, 0),
        (&["--sector-size=4096", "--offset=4096"], 4096, 0),
        (&["--sector-size=4096", "--sizelimit=8192"], 0, 8192),
    ] {
        let info = attach(more);
        assert_eq!((info.offset, info.size_limit), (offset, size_limit));
        assert_eq!(info.tampered().is_some(), more != ["--sector-size=4096"]);
        s.kernel.loop_release(&info).unwrap();
    }
}

/// A pod may make device nodes by default, on its host's filesystem or on a tmpfs, and have kubelet
/// bind them. A tenant could keep the device of another tenant's volume in use that way.
#[test]
fn a_node_that_was_made_elsewhere_is_no_device_in_use() {
    let s = Scratch::new();
    let image = s.image("image", MI);
    let device = s.attach(&image);
    let name = format!("loop{}", device.minor);
    let memory = s.dir("memory");
    run("mount", &["-t", "tmpfs", "none", arg(&memory)]);
    for dir in [s.dir("disk"), memory] {
        let (made, at) = (dir.join(&name), s.path().join("target"));
        let kind = rustix::fs::FileType::BlockDevice;
        let number = rustix::fs::makedev(7, device.minor);
        rustix::fs::mknodat(rustix::fs::CWD, &made, kind, Mode::RUSR, number).unwrap();
        File::create(&at).unwrap();
        s.kernel.bind(&made, &at, BindFlags::default()).unwrap();
        let table = s.kernel.mounts().unwrap();
        assert!(table.at(&at).is_some());
        let bound: Vec<_> = table.of_loop_node(device.minor).collect();
        assert!(bound.is_empty(), "{bound:?}");
        s.kernel.unmount(&at).unwrap();
        s.kernel
            .bind(&device.path(), &at, BindFlags::default())
            .unwrap();
        let table = s.kernel.mounts().unwrap();
        assert_eq!(table.of_loop_node(device.minor).count(), 1);
        s.kernel.unmount(&at).unwrap();
    }
}

/// A reader of a read-only device can put a file of its own behind it, with another volume's name
/// in the file's path, and have that file's filesystem hang.
#[test]
fn a_read_only_device_does_not_block_an_image() {
    const LOOP_CHANGE_FD: libc::Ioctl = 0x4c06;
    let s = Scratch::new();
    let at = s.dir("vol-x");
    let server = Hanging::mount(&at);
    let (own, victims) = (s.image("own", MI), s.image("victims", MI));
    let reader = LoopSpec {
        read_only: true,
        direct_io: false,
        ..loop_spec(&own)
    };
    let device = s.kernel.loop_attach(&reader).unwrap();
    let theirs = File::open(at.join("image")).unwrap();
    let number = |file: &File| std::os::fd::AsRawFd::as_raw_fd(file);
    // SAFETY: this request takes the number of an open file, and no memory.
    #[expect(unsafe_code, reason = "no crate has a function for this request")]
    let changed = unsafe { libc::ioctl(number(&device.file), LOOP_CHANGE_FD, number(&theirs)) };
    assert_eq!(changed, 0, "{}", std::io::Error::last_os_error());
    server.hang();
    let silent = find(&s, device.minor);
    assert_eq!(silent.backing, None);
    assert!(silent.read_only && silent.backing_path.contains("/vol-x/"));
    assert!(!silent.may_hold("vol-x"));
    let holding = loops_holding(&s.kernel, file_id(&victims).unwrap(), "vol-x");
    assert_eq!(holding.unwrap(), []);
    drop(device);
    s.kernel.loop_release(&silent).unwrap();
    drop(server);
}
