//! Faults that claims ask for: what a pod meets, and what is left when they end.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use hostloop_controllers::api::claim_fault::ClaimFault;
use hostloop_controllers::claim_faults::FaultState;
use hostloop_driver::faults;
use hostloop_driver::inspect::fsck::{ProblemKind, examine};
use hostloop_driver::kernel::{Filesystems, Freeze, FsType};
use hostloop_driver::storage::VolumeId;
use rustix::fs::{Advice, fadvise};

use super::Rig;
use crate::testkit::*;

/// Reconciles a volume with an annotation.
fn ask(rig: &Rig, id: VolumeId, annotation: Option<&str>) -> FaultState {
    let wanted = annotation.map(|text| ClaimFault::parse(text).unwrap());
    let report = faults::reconcile(&rig.node.pools, &id.to_string(), wanted.as_ref());
    report.unwrap().state
}

/// A rig with a volume of this filesystem, staged at "a".
fn staged(fs: FsType) -> (Rig, VolumeId) {
    let rig = Rig::new();
    let id = rig.volume(on(fs), 320 * MI);
    rig.stage(id, "a", &mount(fs)).unwrap();
    (rig, id)
}

/// Unstages the volume, and waits for the end of its filesystem: a namespace with copies of all mounts
/// keeps it for a moment, and it would be mounted again as it is.
fn unstage(rig: &Rig, id: VolumeId) {
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
}

/// Writes a file, and syncs it if asked to.
fn write(path: &Path, content: &str, sync: bool) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content.as_bytes())?;
    if sync { file.sync_all() } else { Ok(()) }
}

/// Reads a file from the disk.
fn read(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut content = String::new();
    file.read_to_string(&mut content)?;
    Ok(content)
}

fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

#[test]
fn a_disk_that_is_gone_fails_to_read_and_heals_in_place() {
    for fs in FsType::ALL {
        let (rig, id) = staged(fs);
        let file = rig.staging("a").join("file");
        let content = "data".repeat(4096);
        write(&file, &content, true).unwrap();
        assert_eq!(read(&file).unwrap(), content, "{fs}");
        assert_eq!(ask(&rig, id, Some("gone")), FaultState::Active, "{fs}");
        assert_eq!(errno(read(&file)), Some(libc::EIO), "{fs}");
        assert_eq!(ask(&rig, id, None), FaultState::Healed, "{fs}");
        assert_eq!(read(&file).unwrap(), content, "{fs}");
        write(&file, "new", true).unwrap();
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}

#[test]
fn fsck_knows_a_fault_and_so_does_a_restarted_driver() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(ask(&rig, id, Some("eio-from=64Mi")), FaultState::Active);
    let found = examine(&rig.specs, &rig.options, rig.kernel.clone(), false).unwrap();
    let mut own = found.problems;
    own.retain(|problem| problem.object.contains(&id.to_string()));
    let kinds: Vec<_> = own.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::Fault], "{own:?}");
    assert!(!own[0].counts(), "a fault is only noted: {own:?}");
    let rig = rig.restarted();
    assert_eq!(rig.device(id).size_limit, 64 * MI);
    assert_eq!(ask(&rig, id, Some("eio-from=64Mi")), FaultState::Active);
    assert_eq!(ask(&rig, id, None), FaultState::Healed);
    assert_eq!(rig.device(id).size_limit, 0);
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

#[test]
fn a_power_cut_loses_only_what_is_not_synced() {
    let is_lost = |fs: FsType| {
        let (rig, id) = staged(fs);
        let at = rig.staging("a");
        write(&at.join("synced"), "synced", true).unwrap();
        let dir = File::open(&at).unwrap();
        dir.sync_all().unwrap();
        drop(dir);
        write(&at.join("lost"), "lost", false).unwrap();
        assert_eq!(ask(&rig, id, Some("powercut")), FaultState::Active, "{fs}");
        assert!(write(&at.join("more"), "more", true).is_err(), "{fs}");
        // The process may end after the cut and before its record.
        rig.update(id, |record| record.fault.as_mut().unwrap().over = false);
        assert_eq!(ask(&rig, id, Some("powercut")), FaultState::Active, "{fs}");
        assert_eq!(ask(&rig, id, Some("powercut")), FaultState::Over, "{fs}");
        unstage(&rig, id);
        rig.stage(id, "a", &mount(fs)).unwrap();
        assert_eq!(read(&at.join("synced")).unwrap(), "synced", "{fs}");
        let found = fs::read_to_string(at.join("lost")).unwrap_or_default();
        write(&at.join("more"), "more", true).unwrap();
        assert_eq!(ask(&rig, id, None), FaultState::Healed, "{fs}");
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
        found != "lost"
    };
    for fs in FsType::ALL {
        // The kernel may write it back at any time, but not each time.
        assert!((0..5).any(|_| is_lost(fs)), "{fs}");
    }
}

#[test]
fn a_power_cut_is_left_by_unstaging() {
    for fs in [FsType::Ext4, FsType::Xfs] {
        let (rig, id) = staged(fs);
        assert_eq!(ask(&rig, id, Some("powercut")), FaultState::Active, "{fs}");
        assert_eq!(ask(&rig, id, None), FaultState::NeedsRestage, "{fs}");
        unstage(&rig, id);
        rig.stage(id, "a", &mount(fs)).unwrap();
        write(&rig.staging("a").join("file"), "new", true).unwrap();
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}

#[test]
fn a_frozen_filesystem_is_thawed() {
    for fs in FsType::ALL {
        let (rig, id) = staged(fs);
        assert_eq!(ask(&rig, id, Some("frozen")), FaultState::Active, "{fs}");
        let root = File::open(rig.staging("a")).unwrap();
        let again = rig.kernel.freeze(&root).unwrap();
        assert_eq!(again, Freeze::AlreadyFrozen, "{fs}");
        drop(root);
        assert_eq!(ask(&rig, id, None), FaultState::Healed, "{fs}");
        write(&rig.staging("a").join("file"), "new", true).unwrap();
        assert_eq!(ask(&rig, id, Some("frozen")), FaultState::Active, "{fs}");
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}

#[test]
fn an_ext4_becomes_read_only() {
    let (rig, id) = staged(FsType::Ext4);
    let file = rig.staging("a").join("file");
    write(&file, "old", true).unwrap();
    assert_eq!(ask(&rig, id, Some("readonly")), FaultState::Active);
    assert_eq!(errno(write(&file, "new", true)), Some(libc::EROFS));
    assert_eq!(read(&file).unwrap(), "old");
    assert_eq!(ask(&rig, id, None), FaultState::NeedsRestage);
    unstage(&rig, id);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    write(&file, "new", true).unwrap();
    rig.unstage(id, "a").unwrap();
    rig.assert_clean(id);
}

#[test]
fn a_full_filesystem_has_room_again() {
    for fs in FsType::ALL {
        let (rig, id) = staged(fs);
        let at = rig.staging("a");
        assert_eq!(ask(&rig, id, Some("full")), FaultState::Active, "{fs}");
        assert!(at.join("hostloop-fault-full").exists(), "{fs}");
        let large = "x".repeat(16 << 20);
        let refused = write(&at.join("large"), &large, true);
        let refused = refused.map_err(|error| error.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENOSPC)), "{fs}");
        assert_eq!(ask(&rig, id, None), FaultState::Healed, "{fs}");
        let written = write(&at.join("large"), &large, true);
        assert!(written.is_ok(), "{fs}: {written:?}");
        rig.unstage(id, "a").unwrap();
        rig.assert_clean(id);
    }
}
