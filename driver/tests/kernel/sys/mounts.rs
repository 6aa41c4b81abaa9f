//! Mounts.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_driver::kernel::{
    BindFlags, Error, FsType, Kernel, LoopDevice, MountEntry, MountSpec,
};
use rstest::rstest;

use super::scratch::Scratch;

const MIB: u64 = 1 << 20;
const READ_ONLY: BindFlags = BindFlags {
    read_only: true,
    nosuid: false,
    nodev: false,
};

fn mount(
    s: &Scratch,
    device: &LoopDevice,
    fs: FsType,
    at: &Path,
    options: &[&str],
) -> Result<(), Error> {
    let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
    s.kernel.mount(&MountSpec {
        device: &device.path(),
        target: at,
        fs,
        read_only: false,
        options: &options,
    })
}

fn entry(s: &Scratch, at: &Path) -> MountEntry {
    let at = std::fs::canonicalize(at).unwrap();
    s.kernel.mounts().unwrap().at(&at).unwrap().clone()
}

#[test]
fn a_read_only_bind_is_never_writable() {
    let s = Scratch::new();
    let (_image, _device, stage) = s.mounted("image", FsType::Ext4, 16 * MIB);
    let pod = s.dir("pod");
    let victim = pod.join("written");
    let (done, wrote) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // Before the bind and after it, this is another directory, and may be written.
                if File::create(&victim).is_ok() && stage.join("written").exists() {
                    wrote.store(true, Ordering::Relaxed);
                }
            }
        });
        for _ in 0..300 {
            s.kernel.bind(&stage, &pod, READ_ONLY).unwrap();
            assert!(entry(&s, &pod).read_only());
            while s.kernel.unmount(&pod).is_err() {}
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(!wrote.load(Ordering::Relaxed));
    assert!(!entry(&s, &stage).read_only());
    File::create(stage.join("still writable")).unwrap();
}

#[test]
fn options_arrive() {
    let s = Scratch::new();
    let image = s.image("image", 16 * MIB);
    let device = s.attach(&image);
    s.mkfs(&device, FsType::Ext4);
    let at = s.dir("at");
    let options = [
        "noatime",
        "nosuid,nodev",
        "lazytime",
        "data=journal",
        "x-mine",
        "discard",
    ];
    mount(&s, &device, FsType::Ext4, &at, &options).unwrap();
    let entry = entry(&s, &at);
    for option in ["rw", "noatime", "nosuid", "nodev"] {
        assert!(
            entry.options.iter().any(|o| o == option),
            "{option}: {entry:?}"
        );
    }
    for option in ["lazytime", "data=journal", "discard"] {
        assert!(
            entry.super_options.iter().any(|o| o == option),
            "{option}: {entry:?}"
        );
    }
}

#[rstest]
#[case(FsType::Ext4, 16)]
#[case(FsType::Xfs, 300)]
#[case(FsType::Btrfs, 128)]
fn a_bad_option_is_named(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let image = s.image("image", mib * MIB);
    let device = s.attach(&image);
    s.mkfs(&device, fs);
    let at = s.dir("at");
    let message = mount(&s, &device, fs, &at, &["noatime", "rubbish"])
        .unwrap_err()
        .to_string();
    assert!(message.contains("rubbish"), "{message}");
    assert!(message.contains(at.to_str().unwrap()), "{message}");
}

#[test]
fn xfs_does_not_wait_for_ever() {
    let s = Scratch::new();
    let (_image, device, _at) = s.mounted("image", FsType::Xfs, 300 * MIB);
    for kind in ["EIO", "ENOSPC", "default"] {
        for attribute in ["max_retries", "retry_timeout_seconds"] {
            let path = format!(
                "/sys/fs/xfs/loop{}/error/metadata/{kind}/{attribute}",
                device.minor
            );
            let value: i64 = std::fs::read_to_string(path)
                .unwrap()
                .trim()
                .parse()
                .unwrap();
            assert!(value > 0, "{kind} {attribute}: {value}");
        }
    }
}

#[rstest]
#[case(FsType::Ext4, 16)]
#[case(FsType::Xfs, 300)]
#[case(FsType::Btrfs, 128)]
fn discard_changes_alone(#[case] fs: FsType, #[case] mib: u64) {
    let s = Scratch::new();
    let image = s.image("image", mib * MIB);
    let device = s.attach(&image);
    s.mkfs(&device, fs);
    let at = s.dir("at");
    mount(&s, &device, fs, &at, &["noatime", "nosuid", "nodiscard"]).unwrap();
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
            Err(Error::Unsupported { .. }) if fs == FsType::Xfs => {
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

#[test]
fn btrfs_is_found_by_its_loop() {
    let s = Scratch::new();
    let (_image, device, at) = s.mounted("image", FsType::Btrfs, 128 * MIB);
    let table = s.kernel.mounts().unwrap();
    let found: Vec<_> = table.of_loop(device.minor).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].device.0, 0, "anonymous: {:?}", found[0]);
    assert_eq!(found[0].mount_point, std::fs::canonicalize(at).unwrap());
}

#[test]
fn in_use_is_busy() {
    let s = Scratch::new();
    let (_image, _device, at) = s.mounted("image", FsType::Ext4, 16 * MIB);
    let file = File::create(at.join("file")).unwrap();
    assert!(matches!(s.kernel.unmount(&at), Err(Error::Busy { .. })));
    drop(file);
    s.kernel.unmount(&at).unwrap();
}

#[test]
fn read_only_from_the_start() {
    let s = Scratch::new();
    for (fs, mib) in [(FsType::Ext4, 16), (FsType::Xfs, 300), (FsType::Btrfs, 128)] {
        let (_image, device, at) = s.mounted(fs.as_str(), fs, mib * MIB);
        s.kernel.unmount(&at).unwrap();
        s.kernel
            .mount(&MountSpec {
                device: &device.path(),
                target: &at,
                fs,
                read_only: true,
                options: &["rw".to_owned()],
            })
            .unwrap();
        assert!(entry(&s, &at).read_only());
        assert!(s.kernel.usage(&at).unwrap().read_only);
        assert!(File::create(at.join("x")).is_err());
    }
}
