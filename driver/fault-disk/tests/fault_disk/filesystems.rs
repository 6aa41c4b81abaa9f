//! Filesystems on fault disks.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Write};
use std::time::Instant;

use hostloop_fault_disk::power_cut::{Loss, PowerCutReport};
use hostloop_fault_disk::rules::{DiskError, Effect, Operation, Rule};
use hostloop_fault_disk::{FaultDisk, Settings, cut_power};
use hostloop_kernel::{Filesystems, FsType, LoopDevices, MkfsSpec, MountEntry, Mounts};
use rstest::rstest;

use crate::rig::{Block, PATIENCE, Rig, SIZE, name};

const CACHE: usize = 16 << 20;

/// Cuts the power of a disk.
fn cut(disk: &FaultDisk, loss: Loss, seed: u64) -> PowerCutReport {
    let until = Instant::now() + PATIENCE;
    let mut reports = cut_power(std::slice::from_ref(disk), until, loss, seed).unwrap();
    reports.remove(0)
}

/// A rule that makes operations fail.
fn fails(
    operations: &[Operation],
    bytes: Option<std::ops::Range<u64>>,
    error: DiskError,
) -> Settings {
    Settings {
        rules: vec![Rule {
            operations: operations.to_vec(),
            bytes: bytes.map(|bytes| vec![bytes]),
            share: 1.0,
            effect: Effect::Fail(error),
        }],
        ..Settings::default()
    }
}

#[rstest]
fn a_fault_disk_is_like_its_image(
    #[values(FsType::Ext4, FsType::Xfs, FsType::Btrfs)] fs: FsType,
    #[values(0, CACHE)] cache_bytes: usize,
) {
    let rig = Rig::new();
    let data: Vec<u8> = (0..20 << 20).map(|n: u32| (n / 512 % 251) as u8).collect();
    let attached = rig.serve(cache_bytes, Settings::default());
    rig.mkfs(&attached.device, fs);
    let mounted = rig.mount(&attached.device, fs);
    fs::write(rig.mounted_at().join("file"), &data).unwrap();

    let info = rig.linux.loop_info(attached.device.minor).unwrap().unwrap();
    assert_eq!(info.backing_path, format!("/{}", attached.disk.name()));
    let is_fuse = |mount: &MountEntry| mount.source.contains("hostloop-fault-disk");
    let table = rig.linux.mounts().unwrap();
    assert!(
        !table.entries.iter().any(is_fuse),
        "it is in no mount table"
    );

    drop(mounted);
    attached.end();
    // The image alone has everything.
    let device = rig.attach(&rig.image());
    let state = rig.linux.fs_state(&device.path(), fs).unwrap();
    assert!(!state.unreplayed, "it was unmounted");
    let _mounted = rig.mount(&device, fs);
    assert!(fs::read(rig.mounted_at().join("file")).unwrap() == data);
}

#[rstest]
fn a_power_cut_keeps_what_was_synced(
    #[values(FsType::Ext4, FsType::Xfs, FsType::Btrfs)] fs: FsType,
    #[values(Loss::All, Loss::Some, Loss::TornBlocks, Loss::TornSectors)] loss: Loss,
) {
    let rig = Rig::new();
    let attached = rig.serve(CACHE, Settings::default());
    rig.mkfs(&attached.device, fs);
    let mounted = rig.mount(&attached.device, fs);
    let at = rig.mounted_at();
    for number in 0..20 {
        let mut file = File::create(at.join(format!("synced-{number}"))).unwrap();
        file.write_all(&[number; 10_000]).unwrap();
        file.sync_all().unwrap();
        // More than one filesystem flushes at a time.
        File::create(at.join(format!("more-{number}")))
            .unwrap()
            .write_all(&[1; 50_000])
            .unwrap();
    }
    File::open(&at).unwrap().sync_all().unwrap();
    let report = cut(&attached.disk, loss, 11);
    assert_eq!(report.name, attached.disk.name());
    assert!(attached.disk.is_cut());
    let failed = File::create(at.join("later")).and_then(|file| {
        file.sync_all()?;
        File::open(&at)?.sync_all()
    });
    assert!(failed.is_err(), "a disk without power fails");
    drop(mounted);
    attached.end();

    let device = rig.attach(&rig.image());
    let _mounted = rig.mount(&device, fs);
    for number in 0..20 {
        let found = fs::read(at.join(format!("synced-{number}"))).unwrap();
        assert!(found == [number; 10_000], "{number}");
    }
}

#[test]
fn direct_writes_without_a_flush_are_lost() {
    let rig = Rig::new();
    let attached = rig.serve(CACHE, Settings::default());
    let device = attached.open();
    Block::new(1).write(&device, 0).unwrap();
    device.sync_all().unwrap();
    Block::new(2).write(&device, 0).unwrap();
    Block::new(2).write(&device, 4096).unwrap();
    assert_eq!(Block::new(9).read(&device, 0).unwrap(), 2);
    let report = cut(&attached.disk, Loss::All, 0);
    assert_eq!((report.unflushed, report.lost), (2, 2));
    let refused = Block::new(9).read(&device, 0).unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    drop(device);
    attached.end();
    let image = rig.image();
    assert_eq!(Block::new(9).read(&image, 0).unwrap(), 1);
    assert_eq!(Block::new(9).read(&image, 4096).unwrap(), 0);
}

#[test]
fn a_rule_fails_the_operations_of_its_range() {
    let rig = Rig::new();
    let attached = rig.serve(0, Settings::default());
    let device = attached.open();
    let mut block = Block::new(7);
    for offset in [0, 4096, 8192] {
        block.write(&device, offset).unwrap();
    }
    let code = |done: std::io::Result<u8>| done.err().and_then(|e: Error| e.raw_os_error());
    let rule = fails(&[Operation::Read], Some(4096..8192), DiskError::Io);
    attached.disk.set(rule).unwrap();
    assert_eq!(code(block.read(&device, 0)), None);
    assert_eq!(code(block.read(&device, 4096)), Some(5));
    assert_eq!(code(block.read(&device, 8192)), None);
    Block::new(8).write(&device, 4096).unwrap();

    let rule = fails(&[Operation::Write], Some(4096..8192), DiskError::NoSpace);
    attached.disk.set(rule).unwrap();
    assert_eq!(block.read(&device, 4096).unwrap(), 8);
    let refused = block.write(&device, 4096).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    attached.disk.set(Settings::default()).unwrap();
    Block::new(9).write(&device, 4096).unwrap();
    assert_eq!(attached.disk.counts().failed, 2);
    drop(device);
    attached.end();
}

#[test]
fn discards_reach_the_image() {
    use std::os::unix::fs::MetadataExt;

    let rig = Rig::new();
    let attached = rig.serve(CACHE, Settings::default());
    rig.mkfs(&attached.device, FsType::Ext4);
    let mounted = rig.mount(&attached.device, FsType::Ext4);
    let file = rig.mounted_at().join("file");
    fs::write(&file, vec![7; 100 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    let full = fs::metadata(rig.image_path()).unwrap().blocks();
    fs::remove_file(&file).unwrap();
    drop(mounted);
    // The filesystem is made again, which discards all of it.
    let path = attached.device.path();
    let spec = MkfsSpec {
        force: true,
        ..MkfsSpec::new(&path, FsType::Ext4)
    };
    rig.linux.mkfs(&spec).unwrap();
    attached.end();
    let empty = fs::metadata(rig.image_path()).unwrap().blocks();
    assert!(empty < full / 4, "{empty} of {full} sectors");
}

#[test]
fn a_mounted_fault_disk_grows() {
    let rig = Rig::new();
    let attached = rig.serve(CACHE, Settings::default());
    rig.image().set_len(2 * SIZE).unwrap();
    attached.disk.grow().unwrap();
    rig.linux.loop_grow(&attached.device).unwrap();
    assert_eq!(rig.linux.loop_size(&attached.device).unwrap(), 2 * SIZE);
    let device = attached.open();
    Block::new(5).write(&device, 2 * SIZE - 4096).unwrap();
    assert_eq!(Block::new(9).read(&device, 2 * SIZE - 4096).unwrap(), 5);
    drop(device);
    attached.end();
}

#[test]
fn a_name_is_in_use_until_its_disk_has_ended() {
    let rig = Rig::new();
    let server = hostloop_fault_disk::server::Server::new(1 << 30);
    let name = name();
    let file = server
        .serve(String::new(), &name, rig.image(), 0, Settings::default())
        .unwrap();
    let again = server.serve(String::new(), &name, rig.image(), 0, Settings::default());
    assert!(again.unwrap_err().to_string().contains("exists"));
    drop(file);
    server.end(&name).unwrap();
    let file = server.serve(String::new(), &name, rig.image(), 0, Settings::default());
    drop(file.unwrap());
    server.end(&name).unwrap();
    server.end(&name).unwrap();
    assert!(server.list().is_empty());
}
