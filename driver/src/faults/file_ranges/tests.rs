//! Faults of files over the fake kernel: what users may not name.

use std::fs;
use std::os::unix::fs::symlink;

use hostloop_controllers::api::claim_fault::ClaimFault;
use hostloop_controllers::claim_faults::FaultState;
use hostloop_fake_kernel::Model;
use rstest::rstest;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::leads_nowhere;
use crate::faults::reconcile;
use crate::kernel::{self, FsType};
use crate::record::Access;
use crate::storage::VolumeId;
use crate::testkit::*;

type Rig = crate::testkit::Rig<Model>;

/// Makes a volume one that is on a fault disk. It needs no server, because nothing of it changes.
fn put_on_fault_disk(rig: &Rig, id: VolumeId) {
    rig.update(id, |record| record.fault_disk = Some(Box::default()));
}

/// Why the fault is refused for this file.
fn refused(rig: &Rig, id: VolumeId, file: &str) -> String {
    let requested = ClaimFault::parse(&format!("eio,file={file}")).unwrap();
    let report = reconcile(&rig.node.pools, &id.to_string(), Some(&requested)).unwrap();
    let message = report.message;
    assert_eq!(report.state, FaultState::Refused, "{file}: {message}");
    assert_eq!(rig.record(id).fault, None);
    message
}

#[test]
fn only_regular_files_of_the_volume_are_named() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    put_on_fault_disk(&rig, id);
    let at = rig.staging("a");
    fs::create_dir(at.join("dir")).unwrap();
    fs::write(at.join("file"), "content").unwrap();
    symlink("file", at.join("link")).unwrap();
    symlink("/proc/self/exe", at.join("out")).unwrap();
    symlink("..", at.join("up")).unwrap();
    mknodat(CWD, at.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for file in [
        "missing",
        "dir",
        "dir/missing",
        "file/more",
        "link",
        "out",
        "up/a/file",
        "pipe",
    ] {
        let why = refused(&rig, id, file);
        assert!(why.contains("no regular file"), "{why}");
        assert!(why.contains(&format!("{file:?}")), "{why}");
    }
}

#[test]
fn a_part_without_blocks_is_refused() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    put_on_fault_disk(&rig, id);
    fs::write(rig.staging("a").join("empty"), "").unwrap();
    fs::write(rig.staging("a").join("short"), "content").unwrap();
    for file in ["empty", "short,range=4Ki-8Ki"] {
        let why = refused(&rig, id, file);
        assert!(why.contains("has no blocks"), "{why}");
    }
}

#[test]
fn a_volume_without_addresses_of_files_is_refused_by_name() {
    let rig = Rig::new();
    let btrfs = rig.volume(on(FsType::Btrfs), 512 * MI);
    rig.stage(btrfs, "a", &mount("btrfs")).unwrap();
    let raw = rig.staged(Access::Block, "b", &block());
    for (id, expected) in [(btrfs, "a btrfs"), (raw, "a raw block device")] {
        put_on_fault_disk(&rig, id);
        let why = refused(&rig, id, "file");
        assert!(why.contains(expected), "{why}");
    }
}

#[rstest]
#[case::nothing(libc::ENOENT, true)]
#[case::a_symlink(libc::ELOOP, true)]
#[case::a_mount(libc::EXDEV, true)]
#[case::no_directory(libc::ENOTDIR, true)]
#[case::a_long_name(libc::ENAMETOOLONG, true)]
#[case::a_failing_disk(libc::EIO, false)]
#[case::memory(libc::ENOMEM, false)]
fn paths_that_lead_nowhere(#[case] number: i32, #[case] expected: bool) {
    let error = kernel::Error::errno("open", "file", number);
    assert_eq!(leads_nowhere(&error), expected, "{error}");
}
