//! Making and checking the three filesystems.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::channel;
use std::time::Duration;

use hostloop_driver::kernel::FsType::{Btrfs, Ext4, Xfs};
use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{
    BLOCK_SIZE, Error, Filesystems, FsState, FsType, LoopDevices, MkfsSpec, Mounts, Probe, file,
};
use rstest::rstest;

use super::scratch::{Scratch, is_detached, size};
use crate::testkit::{MI, PATIENCE, mount_fs};
use crate::tools::{arg, command, run, until, until_unclaimed};

#[rstest]
fn made_at_its_smallest_with_the_uuid_asked_for(#[values(Ext4, Xfs, Btrfs)] fs: FsType) {
    let s = Scratch::new();
    let wanted = uuid::Uuid::new_v4().to_string();
    let image = s.image("image", fs.minimum_bytes());
    let device = s.attach(&image);
    let path = device.path();
    assert_eq!(s.kernel.probe(&path).unwrap(), Probe::Blank);
    let make = |force| {
        s.kernel.mkfs(&MkfsSpec {
            uuid: Some(&wanted),
            force,
            ..MkfsSpec::new(&path, fs)
        })
    };
    make(false).unwrap();
    let uuid = wanted.clone();
    let probe = s.kernel.probe(&path).unwrap();
    assert_eq!(probe, Probe::Filesystem { fs, uuid });
    if fs != Ext4 {
        let message = make(false).unwrap_err().to_string();
        assert!(message.contains(&format!("mkfs.{fs}")), "{message}");
    }
    make(true).unwrap();
    s.kernel.check(&path, fs).unwrap();
    let at = s.dir("at");
    mount_fs(&s.kernel, &device, &at, fs);
    std::fs::write(at.join("file"), "x").unwrap();
    let size = s.kernel.fs_size(&at, &path, fs).unwrap();
    assert_eq!(size, fs.minimum_bytes());
}

/// A second mkfs over a half-made filesystem may be interrupted, too. If it ends before its first
/// write, the half-made filesystem is unchanged.
#[test]
fn a_forced_mkfs_that_fails_leaves_the_half_made_filesystem() {
    let s = Scratch::new();
    let (image, device) = s.made("image", Xfs, Xfs.minimum_bytes());
    let half_made = |in_progress: u8| {
        image.write_all_at(&[in_progress], 126).unwrap();
        s.kernel.loop_flush(&device).unwrap();
        s.kernel.probe(&device.path()).unwrap()
    };
    let before = half_made(1);
    assert!(matches!(before, Probe::Unfinished { .. }), "{before:?}");
    let too_many = ["-d", "agcount=1000000"].map(str::to_owned);
    let failed = s.kernel.mkfs(&MkfsSpec {
        options: &too_many,
        discard: false,
        force: true,
        ..MkfsSpec::new(&device.path(), Xfs)
    });
    failed.unwrap_err();
    assert_eq!(s.kernel.probe(&device.path()).unwrap(), before);
}

#[rstest]
fn gives_space_back(#[values(Ext4, Xfs, Btrfs)] fs: FsType) {
    let s = Scratch::new();
    let (image, _device, at) = s.volume(fs);
    let empty = file::allocated_bytes(&image).unwrap();
    // XFS writes its whole log once, of 64 MiB.
    assert!(empty < 72 * MI, "thin: {empty}");
    let data = at.join("data");
    std::fs::write(&data, vec![7; 24 << 20]).unwrap();
    let synced = || rustix::fs::syncfs(File::open(&at).unwrap()).unwrap();
    synced();
    assert!(file::allocated_bytes(&image).unwrap() > empty + 20 * MI);
    std::fs::remove_file(&data).unwrap();
    // XFS frees a deleted file's blocks somewhat later.
    until("the blocks are freed", || {
        synced();
        run("fstrim", &[arg(&at)]);
        std::thread::sleep(Duration::from_millis(100));
        file::allocated_bytes(&image).unwrap() < empty + 8 * MI
    });
}

#[rstest]
fn thick_stays_allocated(#[values(Ext4, Xfs, Btrfs)] fs: FsType) {
    let s = Scratch::new();
    let image = s.image("image", size(fs));
    file::allocate(&image, 0..size(fs)).unwrap();
    let device = s.attach(&image);
    // A user's own extended options must not undo it.
    let options = ["-E", "root_owner=0:0"].map(str::to_owned);
    let path = device.path();
    let thick = MkfsSpec {
        options: if fs == Ext4 { &options } else { &[] },
        discard: false,
        ..MkfsSpec::new(&path, fs)
    };
    s.kernel.mkfs(&thick).unwrap();
    assert!(file::allocated_bytes(&image).unwrap() >= size(fs));
}

#[test]
fn ext4_is_repaired_or_reported() {
    let s = Scratch::new();
    let (image, device, at) = s.volume(Ext4);
    std::fs::write(at.join("file"), "x").unwrap();
    s.kernel.unmount(&at).unwrap();
    s.kernel.check(&device.path(), Ext4).unwrap();
    s.kernel.loop_flush(&device).unwrap();
    drop(device);
    assert!(is_detached(&s.kernel, &image));
    // The root directory's inode and all of its neighbours, and no journal to bring them back.
    let path = s.path().join("image");
    let words = run("debugfs", &["-R", "imap <2>", arg(&path)]);
    let block: u64 = words
        .split("located at block ")
        .nth(1)
        .and_then(|rest| rest.split(',').next()?.trim().parse().ok())
        .unwrap();
    image
        .write_all_at(&[0xff; BLOCK_SIZE as usize], block * u64::from(BLOCK_SIZE))
        .unwrap();
    // As the kernel notes an error. Without it, e2fsck takes the filesystem for clean.
    run(
        "debugfs",
        &["-w", "-R", "set_super_value state 2", arg(&path)],
    );
    let device = s.attach(&image);
    let damaged = s.kernel.check(&device.path(), Ext4);
    let message = damaged.unwrap_err().to_string();
    // Later, the device's number may be another volume's.
    assert!(
        message.starts_with(&format!("e2fsck {}: ", arg(&path))),
        "{message}"
    );
    assert!(!message.contains("/dev/loop"), "{message}");
    // The automatic repair gave up. A person decides, with what the message says, word for word.
    let advice = message.split("and run: ").nth(1).unwrap_or_default();
    assert_eq!(advice, format!("e2fsck -fy {}", arg(&path)), "{message}");
    drop(device);
    assert!(is_detached(&s.kernel, &image));
    let mut words = advice.split(' ');
    let repaired = command(words.next().unwrap()).args(words).output().unwrap();
    // 1: errors were corrected.
    assert_eq!(repaired.status.code(), Some(1), "{repaired:?}");
    let device = s.attach(&image);
    s.kernel.check(&device.path(), Ext4).unwrap();
}

#[rstest]
fn a_superblock_shows_what_a_probe_shows(#[values(Ext4, Xfs, Btrfs)] fs: FsType) {
    let s = Scratch::new();
    let (_image, device, at) = s.volume(fs);
    let found = || s.kernel.superblock(&device.path(), fs).unwrap().unwrap();
    // As after a crash, the mount must replay the journal of an ext4.
    let state = || s.kernel.fs_state(&device.path(), fs).unwrap();
    assert_eq!(
        state(),
        FsState {
            unreplayed: fs == Ext4,
            needs_check: false
        }
    );
    s.kernel.unmount(&at).unwrap();
    until_unclaimed(&s.kernel, &device.path());
    assert_eq!(state(), FsState::default());
    let uuid = found().uuid;
    assert_eq!(
        s.kernel.probe(&device.path()).unwrap(),
        Probe::Filesystem { fs, uuid }
    );
}

#[test]
fn ext4_counts_its_errors() {
    let s = Scratch::new();
    let (_image, device, at) = s.volume(Ext4);
    let trigger = format!("/sys/fs/ext4/loop{}/trigger_fs_error", device.minor);
    std::fs::write(trigger, "a test").unwrap();
    // The kernel counts it when it next writes the superblock.
    let errors = || s.kernel.fs_errors(&at, device.minor, Ext4).unwrap();
    until("the error is counted", || errors().is_some());
    let words = errors().unwrap();
    assert!(words.starts_with("ext4 counts 1 errors"), "{words}");
}

#[test]
fn other_content_is_not_blank() {
    let s = Scratch::new();
    let image = s.image("image", 8 * MI);
    // One Linux partition from the second sector on.
    let mut sector = [0; 512];
    sector[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 9, 0, 1, 0, 0, 0, 8, 0, 0, 0]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    image.write_all_at(&sector, 0).unwrap();
    let swap = s.image("swap", 8 * MI);
    let (image, swap) = (s.attach(&image), s.attach(&swap));
    run("mkswap", &[arg(&swap.path())]);
    for (device, content) in [(image, "dos partition table"), (swap, "swap")] {
        let probe = s.kernel.probe(&device.path()).unwrap();
        assert_eq!(probe, Probe::Other(content.to_owned()));
    }
    let missing = s.path().join("missing");
    refused!(s.kernel.probe(&missing), Error::NotFound { .. });
    for size in [0, 1, 4096] {
        let name = format!("image{size}");
        drop(s.image(&name, size));
        let probe = s.kernel.probe(&s.path().join(name)).unwrap();
        assert_eq!(probe, Probe::Blank, "{size} bytes");
    }
}

#[test]
fn two_signatures_are_ambivalent() {
    let s = Scratch::new();
    let (image, device) = s.made("image", Xfs, 300 * MI);
    let (other, above) = s.made("other", Ext4, 300 * MI);
    s.kernel.loop_flush(&device).unwrap();
    s.kernel.loop_flush(&above).unwrap();
    drop((device, above));
    let mut superblock = [0; 1024];
    other.read_exact_at(&mut superblock, 1024).unwrap();
    image.write_all_at(&superblock, 1024).unwrap();
    let device = s.attach(&image);
    assert_eq!(s.kernel.probe(&device.path()).unwrap(), Probe::Ambivalent);
}

#[test]
fn an_xfs_on_a_full_pool_gives_up() {
    let s = Scratch::new();
    // A pool with less room than its volume.
    let pool = s.dir("pool");
    run(
        "mount",
        &["-t", "tmpfs", "-o", "size=96m", "none", arg(&pool)],
    );
    let (_image, device, at) = s.mounted("pool/image", Xfs, 300 * MI);
    // The driver keeps limits that an operator has set; these make the test shorter.
    for kind in ["ENOSPC", "EIO", "default"] {
        let path = format!(
            "/sys/fs/xfs/loop{}/error/metadata/{kind}/max_retries",
            device.minor
        );
        std::fs::write(path, "10").unwrap();
    }
    let rest = s.kernel.usage(&pool).unwrap().free_bytes;
    // As much as fits.
    let _ = std::fs::write(pool.join("fill"), vec![1; usize::try_from(rest).unwrap()]);
    for i in 0..2000 {
        if File::create(at.join(format!("file{i}"))).is_err() {
            break;
        }
    }
    let (send, answer) = channel();
    let root = File::open(&at).unwrap();
    let freezer = std::thread::spawn(move || {
        let kernel = Linux::new();
        let _ = kernel.freeze(&root);
        let _ = send.send(kernel.thaw(&root));
    });
    // The freeze may fail, but it returns, and the unmount succeeds.
    let thawed = answer.recv_timeout(PATIENCE).unwrap();
    assert!(thawed.is_ok(), "{thawed:?}");
    freezer.join().unwrap();
    let errors = s.kernel.fs_errors(&at, device.minor, Xfs).unwrap();
    assert!(errors.unwrap().contains("shut down"));
    s.kernel.unmount(&at).unwrap();
}
