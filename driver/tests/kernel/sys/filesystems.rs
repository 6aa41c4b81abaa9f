//! Making, checking, growing, freezing the three filesystems.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use hostloop_driver::kernel::linux::Linux;
use hostloop_driver::kernel::{
    BLOCK_SIZE, Error, Freeze, FsType, Kernel, MkfsSpec, Probe, file, file_id,
};
use rstest::rstest;

use super::scratch::{Scratch, is_detached};

const MIB: u64 = 1 << 20;

#[rstest]
#[case(FsType::Ext4)]
#[case(FsType::Xfs)]
#[case(FsType::Btrfs)]
fn made_at_its_smallest_with_the_uuid_asked_for(#[case] fs: FsType) {
    let s = Scratch::new();
    let wanted = uuid::Uuid::new_v4().to_string();
    let image = s.image("image", fs.minimum_bytes());
    let device = s.attach(&image);
    let path = device.path();
    assert_eq!(s.kernel.probe(&path).unwrap(), Probe::Blank);
    let make = |force| {
        s.kernel.mkfs(&MkfsSpec {
            device: &path,
            fs,
            options: &[],
            discard: true,
            uuid: Some(&wanted),
            force,
        })
    };
    make(false).unwrap();
    let uuid = wanted.clone();
    assert_eq!(
        s.kernel.probe(&path).unwrap(),
        Probe::Filesystem { fs, uuid }
    );
    if fs != FsType::Ext4 {
        let message = make(false).unwrap_err().to_string();
        assert!(message.contains(&format!("mkfs.{fs}")), "{message}");
    }
    make(true).unwrap();
    s.kernel.check(&path, fs).unwrap();
    let at = s.dir("at");
    s.mount(&device, fs, &at);
    File::create(at.join("file"))
        .unwrap()
        .write_all(b"x")
        .unwrap();
    let size = s.kernel.fs_size(&at, &path, fs).unwrap();
    assert_eq!(size, fs.minimum_bytes());
}

/// A second mkfs over a half-made filesystem may be cut short too. One that ends before it has
/// written anything leaves what was there.
#[test]
fn a_forced_mkfs_that_fails_leaves_the_half_made_filesystem() {
    let s = Scratch::new();
    let image = s.image("image", FsType::Xfs.minimum_bytes());
    let device = s.attach(&image);
    s.mkfs(&device, FsType::Xfs);
    let half_made = |in_progress: u8| {
        image.write_all_at(&[in_progress], 126).unwrap();
        s.kernel.loop_flush(&device).unwrap();
        s.kernel.probe(&device.path()).unwrap()
    };
    let before = half_made(1);
    assert!(matches!(before, Probe::Unfinished { .. }), "{before:?}");
    let too_many = ["-d", "agcount=1000000"].map(str::to_owned);
    let failed = s.kernel.mkfs(&MkfsSpec {
        device: &device.path(),
        fs: FsType::Xfs,
        options: &too_many,
        discard: false,
        uuid: None,
        force: true,
    });
    failed.unwrap_err();
    assert_eq!(s.kernel.probe(&device.path()).unwrap(), before);
}

#[rstest]
#[case(FsType::Ext4, 32)]
#[case(FsType::Xfs, 320)]
#[case(FsType::Btrfs, 128)]
fn grows(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let (image, device, at) = s.mounted("image", fs, mib * MIB);
    let path = device.path();
    let size = || s.kernel.fs_size(&at, &path, fs).unwrap();
    let before = (size(), s.kernel.usage(&at).unwrap());
    assert_eq!(before.0, mib * MIB);
    s.kernel.grow(&path, &at, fs).unwrap();
    assert_eq!(size(), mib * MIB, "nothing to do");
    file::set_len(&image, 4 * mib * MIB).unwrap();
    s.kernel.loop_grow(&device).unwrap();
    match s.kernel.grow(&path, &at, fs) {
        // Many machines withhold this capability from root.
        Err(e) if !s.kernel.grows_mounted(fs) => {
            assert!(e.to_string().contains("CAP_SYS_RESOURCE"), "{e}");
            assert_eq!(size(), mib * MIB);
            s.kernel.unmount(&at).unwrap();
            s.kernel.grow_unmounted(&path, fs).unwrap();
            s.mount(&device, fs, &at);
        }
        answer => answer.unwrap(),
    }
    assert_eq!(size(), 4 * mib * MIB);
    let after = s.kernel.usage(&at).unwrap();
    assert!(after.total_bytes > 3 * before.1.total_bytes, "{after:?}");
    assert!(after.free_bytes >= after.available_bytes && after.free_bytes > 0);
    assert_eq!(after.total_inodes == 0, fs == FsType::Btrfs);
    assert_eq!(s.kernel.fs_errors(&at, device.minor, fs).unwrap(), None);
}

#[rstest]
#[case(FsType::Ext4, 32)]
#[case(FsType::Xfs, 320)]
#[case(FsType::Btrfs, 128)]
fn grows_before_or_after_the_mount(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let (image, device, at) = s.mounted("image", fs, mib * MIB);
    let path = device.path();
    std::fs::write(at.join("file"), "kept").unwrap();
    s.kernel.unmount(&at).unwrap();
    file::set_len(&image, 3 * mib * MIB).unwrap();
    s.kernel.loop_grow(&device).unwrap();
    s.kernel.check(&path, fs).unwrap();
    s.kernel.grow_unmounted(&path, fs).unwrap();
    s.kernel.grow_unmounted(&path, fs).unwrap();
    s.mount(&device, fs, &at);
    s.kernel.grow(&path, &at, fs).unwrap();
    assert_eq!(s.kernel.fs_size(&at, &path, fs).unwrap(), 3 * mib * MIB);
    assert_eq!(std::fs::read(at.join("file")).unwrap(), b"kept");
}

#[test]
fn a_small_btrfs_says_why_it_stays_small() {
    let s = Scratch::new();
    let (image, device, at) = s.mounted("image", FsType::Btrfs, 128 * MIB);
    file::set_len(&image, 200 * MIB).unwrap();
    s.kernel.loop_grow(&device).unwrap();
    let answer = s.kernel.grow(&device.path(), &at, FsType::Btrfs);
    let message = answer.unwrap_err().to_string();
    assert!(message.contains("268435456 bytes or more"), "{message}");
}

#[rstest]
#[case(FsType::Ext4, 64)]
#[case(FsType::Xfs, 300)]
#[case(FsType::Btrfs, 128)]
fn gives_space_back(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let (image, _device, at) = s.mounted("image", fs, mib * MIB);
    let empty = file::allocated_bytes(&image).unwrap();
    // XFS writes its whole log once, of 64 MiB.
    assert!(empty < 72 * MIB, "thin: {empty}");
    let data = at.join("data");
    std::fs::write(&data, vec![7; 24 << 20]).unwrap();
    let synced = || rustix::fs::syncfs(File::open(&at).unwrap()).unwrap();
    synced();
    assert!(file::allocated_bytes(&image).unwrap() > empty + 20 * MIB);
    std::fs::remove_file(&data).unwrap();
    // XFS frees a deleted file's blocks somewhat later.
    let freed = (0..50).any(|_| {
        synced();
        let trimmed = std::process::Command::new("fstrim").arg(&at).status();
        assert!(trimmed.expect("fstrim is needed").success());
        std::thread::sleep(Duration::from_millis(100));
        file::allocated_bytes(&image).unwrap() < empty + 8 * MIB
    });
    assert!(freed);
}

#[rstest]
#[case(FsType::Ext4, 64)]
#[case(FsType::Xfs, 300)]
#[case(FsType::Btrfs, 128)]
fn thick_stays_allocated(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let image = s.image("image", mib * MIB);
    file::allocate(&image, mib * MIB).unwrap();
    let device = s.attach(&image);
    // A user's own extended options must not undo it.
    let options = ["-E", "root_owner=0:0"].map(str::to_owned);
    s.kernel
        .mkfs(&MkfsSpec {
            device: &device.path(),
            fs,
            options: if fs == FsType::Ext4 { &options } else { &[] },
            discard: false,
            uuid: None,
            force: false,
        })
        .unwrap();
    assert!(file::allocated_bytes(&image).unwrap() >= mib * MIB);
}

#[rstest]
#[case(FsType::Ext4, 32)]
#[case(FsType::Xfs, 300)]
#[case(FsType::Btrfs, 128)]
fn freezes_and_thaws(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let (_image, _device, at) = s.mounted("image", fs, mib * MIB);
    let root = File::open(&at).unwrap();
    assert_eq!(s.kernel.freeze(&root).unwrap(), Freeze::Frozen);
    assert_eq!(s.kernel.freeze(&root).unwrap(), Freeze::AlreadyFrozen);
    let (wrote, written) = channel();
    let path = at.join("file");
    let writer = std::thread::spawn(move || {
        let answer = std::fs::write(path, "x");
        wrote.send(()).unwrap();
        answer
    });
    let waited = written.recv_timeout(Duration::from_millis(300));
    assert_eq!(waited, Err(RecvTimeoutError::Timeout));
    s.kernel.thaw(&root).unwrap();
    written.recv_timeout(Duration::from_secs(60)).unwrap();
    writer.join().unwrap().unwrap();
    s.kernel.thaw(&root).unwrap();
}

#[rstest]
#[case(FsType::Ext4, 32)]
#[case(FsType::Xfs, 300)]
#[case(FsType::Btrfs, 128)]
fn frozen_and_unmounted_is_cured_by_mounting_again(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let (image, device, at) = s.mounted("image", fs, mib * MIB);
    let minor = device.minor;
    drop(device);
    s.kernel.freeze(&File::open(&at).unwrap()).unwrap();
    s.kernel.unmount(&at).unwrap();
    let id = file_id(&image).unwrap();
    assert_eq!(s.kernel.loops_of(id).unwrap().len(), 1);
    let device = s.kernel.loop_open(minor, id).unwrap();
    s.mount(&device, fs, &at);
    drop(device);
    s.kernel.thaw(&File::open(&at).unwrap()).unwrap();
    std::fs::write(at.join("file"), "x").unwrap();
    super::scratch::unmount(&s.kernel, &at);
    assert!(is_detached(&s.kernel, &image));
}

#[test]
fn a_device_node_does_not_freeze() {
    let s = Scratch::new();
    let image = s.image("image", MIB);
    let device = s.attach(&image);
    refused!(s.kernel.freeze(&device.file), Error::Unsupported { .. });
}

#[test]
fn ext4_is_repaired_or_reported() {
    let s = Scratch::new();
    let (image, device, at) = s.mounted("image", FsType::Ext4, 32 * MIB);
    std::fs::write(at.join("file"), "x").unwrap();
    s.kernel.unmount(&at).unwrap();
    s.kernel.check(&device.path(), FsType::Ext4).unwrap();
    s.kernel.loop_flush(&device).unwrap();
    drop(device);
    assert!(is_detached(&s.kernel, &image));
    // The root directory's inode and all of its neighbours, and no journal to bring them back.
    let output = std::process::Command::new("debugfs")
        .args(["-R", "imap <2>"])
        .arg(s.path().join("image"))
        .output()
        .unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    let block: u64 = words
        .split("located at block ")
        .nth(1)
        .and_then(|rest| rest.split(',').next()?.trim().parse().ok())
        .unwrap();
    image
        .write_all_at(&[0xff; BLOCK_SIZE as usize], block * u64::from(BLOCK_SIZE))
        .unwrap();
    image.write_all_at(&[0xff; 2], 1024 + 0x3a).unwrap();
    let device = s.attach(&image);
    let message = s
        .kernel
        .check(&device.path(), FsType::Ext4)
        .unwrap_err()
        .to_string();
    assert!(message.starts_with("e2fsck /dev/loop"), "{message}");
}

#[test]
fn ext4_counts_its_errors() {
    let s = Scratch::new();
    let (_image, device, at) = s.mounted("image", FsType::Ext4, 32 * MIB);
    let trigger = format!("/sys/fs/ext4/loop{}/trigger_fs_error", device.minor);
    std::fs::write(trigger, "a test").unwrap();
    // The kernel counts it when it next writes the superblock.
    let words = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        s.kernel.fs_errors(&at, device.minor, FsType::Ext4).unwrap()
    });
    let words = words.unwrap();
    assert!(words.starts_with("ext4 counts 1 errors"), "{words}");
}

#[test]
fn a_partition_table_is_something() {
    let s = Scratch::new();
    let image = s.image("image", 8 * MIB);
    // One Linux partition from the second sector on.
    let mut sector = [0; 512];
    sector[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 9, 0, 1, 0, 0, 0, 8, 0, 0, 0]);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    image.write_all_at(&sector, 0).unwrap();
    let device = s.attach(&image);
    let probe = s.kernel.probe(&device.path()).unwrap();
    assert_eq!(probe, Probe::Other("dos partition table".to_owned()));
}

#[test]
fn other_things_are_not_blank() {
    let s = Scratch::new();
    let image = s.image("swap", 8 * MIB);
    let device = s.attach(&image);
    let path = device.path();
    let made = std::process::Command::new("mkswap")
        .arg(&path)
        .output()
        .unwrap();
    assert!(made.status.success());
    assert_eq!(
        s.kernel.probe(&path).unwrap(),
        Probe::Other("swap".to_owned())
    );
    let missing = s.path().join("missing");
    assert!(matches!(
        s.kernel.probe(&missing),
        Err(Error::NotFound { .. })
    ));
    for size in [0, 1, 4096] {
        let image = s.image(&format!("image{size}"), size);
        drop(image);
        let path = s.path().join(format!("image{size}"));
        assert_eq!(s.kernel.probe(&path).unwrap(), Probe::Blank, "{size} bytes");
    }
}

#[test]
fn two_signatures_are_ambivalent() {
    let s = Scratch::new();
    let image = s.image("image", 300 * MIB);
    let device = s.attach(&image);
    s.mkfs(&device, FsType::Xfs);
    s.kernel.loop_flush(&device).unwrap();
    let other = s.image("other", 300 * MIB);
    let device = s.attach(&other);
    s.mkfs(&device, FsType::Ext4);
    s.kernel.loop_flush(&device).unwrap();
    drop(device);
    let mut superblock = [0; 1024];
    other.read_exact_at(&mut superblock, 1024).unwrap();
    image.write_all_at(&superblock, 1024).unwrap();
    let device = s.attach(&image);
    assert_eq!(s.kernel.probe(&device.path()).unwrap(), Probe::Ambivalent);
}

#[test]
fn all_are_offered_here() {
    let s = Scratch::new();
    for (fs, answer) in s.kernel.filesystems() {
        assert_eq!(answer, Ok(()), "{fs}");
    }
}

#[test]
fn an_xfs_on_a_full_pool_gives_up() {
    let s = Scratch::new();
    // A pool with less room than its volume.
    let pool = s.dir("pool");
    let nothing = nix::mount::MsFlags::empty();
    nix::mount::mount(
        None::<&str>,
        &pool,
        Some("tmpfs"),
        nothing,
        Some("size=96m"),
    )
    .unwrap();
    let (_image, device, at) = s.mounted("pool/image", FsType::Xfs, 300 * MIB);
    // The driver leaves limits alone that somebody has set; these make the test shorter.
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
    // Whatever it says, it comes back, and so does the mount's end.
    let thawed = answer.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(thawed.is_ok(), "{thawed:?}");
    freezer.join().unwrap();
    let errors = s.kernel.fs_errors(&at, device.minor, FsType::Xfs).unwrap();
    assert!(errors.unwrap().contains("shut down"));
    s.kernel.unmount(&at).unwrap();
}
