//! The fault `full`: a file takes the room of a filesystem.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::SystemTime;

use super::*;
use crate::kernel;

/// A rig with a volume that is staged at "a", and the path of the file that would fill it.
fn staged_with_file() -> (Rig, VolumeId, PathBuf) {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    let file = rig.staging("a").join("hostloop-fault-full");
    (rig, id, file)
}

#[test]
fn a_visible_file_takes_the_free_room() {
    let (rig, id, file) = staged_with_file();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    assert_eq!(file.metadata().unwrap().len(), 16 * MI);
    assert_eq!(reasons(&rig, id), ["FaultInjected"]);
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    rig.unstage(id, "a").unwrap();
    let waits = ask(&rig, id, None);
    assert_eq!(
        (waits.state, waits.again),
        (FaultState::Waiting, Some(LOOK))
    );
    assert!(rig.record(id).fault.is_some());
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert!(!file.exists());
    assert_eq!(rig.record(id).fault, None);
}

/// A filesystem keeps some of its free room for itself.
#[test]
fn a_filesystem_is_filled_in_ever_smaller_parts() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    rig.kernel.fail("allocate", 1, libc::ENOSPC);
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    let file = rig.staging("a").join("hostloop-fault-full");
    assert_eq!(file.metadata().unwrap().len(), 16 * MI);
    assert_eq!(state(&rig, id, None), FaultState::Healed);
}

/// The smallest part was all that was free, and then users free the rest.
#[test]
fn users_who_free_room_meanwhile_keep_nothing_busy() {
    /// From 16 MiB to a block.
    const HALVES: u64 = 12;
    let (rig, id, file) = staged_with_file();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    rig.kernel.hook("allocate", move |path| {
        if counted.fetch_add(1, Ordering::SeqCst) < HALVES {
            return Err(kernel::Error::errno("fallocate", path, libc::ENOSPC));
        }
        Ok(())
    });
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    let taken = file.metadata().unwrap().len();
    assert!((4096..16 * MI).contains(&taken), "{taken}");
    let calls = calls.load(Ordering::SeqCst);
    assert!((HALVES + 1..1000).contains(&calls), "{calls}");
}

#[test]
fn a_file_of_users_is_neither_used_nor_removed() {
    let (rig, id, file) = staged_with_file();
    std::fs::write(&file, "theirs").unwrap();
    let refused = ask(&rig, id, Some("full"));
    assert_eq!(refused.state, FaultState::Refused);
    assert!(
        refused.message.contains("its users have a file"),
        "{}",
        refused.message
    );
    std::fs::remove_file(&file).unwrap();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    // Its inode stays in use, so that the next file has another one.
    std::fs::rename(&file, rig.staging("a").join("moved")).unwrap();
    std::fs::write(&file, "theirs").unwrap();
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "theirs");
}

/// Users may have removed the file, and any new one can have its inode number.
#[test]
fn a_file_with_data_of_users_stays() {
    let (rig, id, file) = staged_with_file();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    std::fs::write(&file, "theirs").unwrap();
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "theirs");
}

/// The pool may be too full for a longer record. And a process that ends then leaves no file either:
/// the directory does not change before the record.
#[test]
fn a_file_that_the_record_does_not_take_is_never_there() {
    let (rig, id, file) = staged_with_file();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    // As it was before the file was made.
    std::fs::remove_file(&file).unwrap();
    rig.update(id, |record| record.fault.as_mut().unwrap().file = None);
    let entry = rig.root().join("pool/volumes").join(id.to_string());
    std::fs::rename(entry.join("volume.json"), entry.join("kept")).unwrap();
    std::fs::create_dir(entry.join("volume.json")).unwrap();
    let root = std::fs::File::open(rig.staging("a")).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    root.set_modified(long_ago).unwrap();
    let requested = ClaimFault::parse("full").unwrap();
    let failed = reconcile(&rig.node.pools, &id.to_string(), Some(&requested));
    assert!(matches!(failed, Err(FaultError::Pool(_))), "{failed:?}");
    assert_eq!(root.metadata().unwrap().modified().unwrap(), long_ago);
    assert!(!file.exists());
    std::fs::remove_dir(entry.join("volume.json")).unwrap();
    std::fs::rename(entry.join("kept"), entry.join("volume.json")).unwrap();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert!(!file.exists());
}

#[test]
fn a_file_that_users_make_meanwhile_is_theirs() {
    let (rig, id, file) = staged_with_file();
    let theirs = file.clone();
    before_effect("file.link", move || std::fs::write(theirs, "").unwrap());
    let report = ask(&rig, id, Some("full"));
    assert_eq!(report.state, FaultState::Refused);
    let why = "its users have a file";
    assert!(report.message.contains(why), "{}", report.message);
    assert_eq!(rig.record(id).fault, None);
    assert_eq!(file.metadata().unwrap().len(), 0);
}

/// The process may end after the record has the file, and before the file has its name.
#[test]
fn a_file_without_a_name_is_made_again() {
    let (rig, id, file) = staged_with_file();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    assert_eq!(file.metadata().unwrap().len(), 16 * MI);
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert!(!file.exists());
}

/// The process may end between two parts of the room.
#[rstest]
fn a_file_with_a_part_of_the_room_gets_the_rest(#[values(false, true)] in_parts: bool) {
    let (rig, id, file) = staged_with_file();
    let before = recorded_before("file.link", &rig, id, "full");
    assert!(before.under_way && before.file.is_some());
    let open = std::fs::File::options().write(true).open(&file).unwrap();
    open.set_len(4 * MI).unwrap();
    rig.update(id, |record| record.fault.as_mut().unwrap().under_way = true);
    let rig = rig.restarted();
    if in_parts {
        rig.kernel.fail("allocate", 1, libc::ENOSPC);
    }
    // Of the fake kernel's filesystem, all is free.
    for _ in 0..2 {
        assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
        assert_eq!(open.metadata().unwrap().len(), 20 * MI);
        assert!(!rig.record(id).fault.clone().unwrap().under_way);
    }
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert!(!file.exists());
}

/// What users free in a filesystem that was full already stays free, too.
#[test]
fn a_full_filesystem_is_not_filled_again() {
    let (rig, id, file) = staged_with_file();
    rig.kernel.hook("allocate", |path| {
        Err(kernel::Error::errno("fallocate", path, libc::ENOSPC))
    });
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    rig.kernel.behave();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert!(!file.exists());
}

/// An allocation may fail for another reason than the room, and the next look goes on.
#[test]
fn a_failed_allocation_is_tried_again() {
    let (rig, id, file) = staged_with_file();
    let requested = ClaimFault::parse("full").unwrap();
    rig.kernel.fail("allocate", 1, libc::EIO);
    let failed = reconcile(&rig.node.pools, &id.to_string(), Some(&requested));
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    assert_eq!(file.metadata().unwrap().len(), 16 * MI);
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert!(!file.exists());
}

/// The process may end after it has made the file.
#[test]
fn an_empty_file_is_filled() {
    let (rig, id, file) = staged_with_file();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    let open = std::fs::File::options().write(true).open(&file).unwrap();
    open.set_len(0).unwrap();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    assert_eq!(open.metadata().unwrap().len(), 16 * MI);
}

#[test]
fn a_read_only_filesystem_is_neither_filled_nor_emptied() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    rig.kernel.turn_read_only(rig.device(id).minor);
    let waits = ask(&rig, id, None);
    assert_eq!(waits.state, FaultState::Waiting);
    assert!(waits.message.contains("has stopped"), "{}", waits.message);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    rig.kernel.turn_read_only(rig.device(id).minor);
    let refused = ask(&rig, id, Some("full"));
    assert_eq!(refused.state, FaultState::Refused);
    assert!(refused.message.contains("read-only"), "{}", refused.message);
}

/// Otherwise a power cut brings the file back, and no record knows it.
#[test]
fn a_file_stays_removed_before_the_record_forgets_it() {
    let (rig, id, file) = staged_with_file();
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    let entry = rig.root().join("pool/volumes").join(id.to_string());
    let record = entry.join(".volume.json.new");
    let (tell, seen) = channel();
    let removed = file.clone();
    before_effect("file.unlink", move || {
        before_effect("file.sync", move || {
            tell.send((removed.exists(), record.exists())).unwrap();
        });
    });
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    let synced = seen.try_recv().expect("a sync");
    assert_eq!(
        synced,
        (false, false),
        "of the directory, not of the record"
    );
    assert!(!file.exists());
}
