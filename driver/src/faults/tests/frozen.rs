//! The fault `frozen`: a filesystem is frozen until the fault ends, or something must not wait for it.

use std::sync::atomic::{AtomicBool, Ordering};

use hostloop_fault_disk::limits::Limits;
use parking_lot::Mutex;

use super::*;
use crate::storage::{FaultDiskRecord, Reserve, SnapshotId};

#[test]
fn a_frozen_filesystem_is_thawed_by_all_that_must_not_wait() {
    let (rig, id) = staged(FsType::Ext4);
    let minor = rig.device(id).minor;
    let is_frozen = |rig: &Rig| rig.kernel.is_frozen(minor);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    assert!(is_frozen(&rig));
    assert_eq!(reasons(&rig, id), ["FaultInjected"], "not left by a copy");
    let taken = rig
        .node
        .pools
        .create_snapshot(&id, "s", &Default::default());
    let taken: SnapshotId = taken.unwrap().id;
    assert!(!is_frozen(&rig));
    rig.node.pools.delete_snapshot(&taken).unwrap();
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    assert!(is_frozen(&rig), "the next look freezes it again");
    let rig = rig.restarted();
    assert!(!is_frozen(&rig));
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    assert!(is_frozen(&rig));
    unblock_each(&rig);
    assert!(!is_frozen(&rig), "the process ends");
    assert_eq!(rig.record(id).freeze, None);
    assert!(rig.record(id).fault.is_some());
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    assert!(is_frozen(&rig));
    age(&rig, id);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Expired);
    assert!(!is_frozen(&rig));
    assert_eq!(rig.record(id).freeze, None);
}

/// A freeze waits for writes under way, and pods decide how long these take.
#[test]
fn freezes_that_wait_leave_threads_for_other_faults() {
    let (rig, id) = staged(FsType::Ext4);
    let pools = Arc::clone(&rig.node.pools);
    let most = pools.fault_freezes().available_permits();
    let seen = Arc::new(Mutex::new(None));
    let (during, at) = (Arc::clone(&seen), Arc::clone(&pools));
    rig.kernel.hook("freeze", move |_| {
        *during.lock() = Some(at.fault_freezes().available_permits());
        Ok(())
    });
    let others = u32::try_from(most).unwrap();
    let places = pools.fault_freezes().try_acquire_many(others).unwrap();
    let requested = ClaimFault::parse("frozen").unwrap();
    let refused = reconcile(&pools, &id.to_string(), Some(&requested)).unwrap_err();
    assert!(refused.to_string().contains("try again"), "{refused}");
    assert!(!rig.kernel.is_frozen(rig.device(id).minor));
    assert_eq!(*seen.lock(), None);
    drop(places);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    assert_eq!(*seen.lock(), Some(most - 1));
    assert_eq!(pools.fault_freezes().available_permits(), most);
    // Its time would otherwise end late, after ever longer waits.
    let places = pools.fault_freezes().try_acquire_many(others).unwrap();
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    drop(places);
    // The hook has the pools.
    rig.kernel.behave();
}

/// Otherwise it would be of several points in time.
#[test]
fn a_process_that_ends_leaves_a_copy_its_freeze() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    let (pools, kernel) = (Arc::clone(&rig.node.pools), Arc::clone(&rig.kernel));
    let meanwhile = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&meanwhile);
    rig.kernel.hook("freeze", move |_| {
        kernel.take_effects();
        let volume = pools.faulty_volumes().remove(0);
        let is_frozen = volume.is_frozen_by_fault();
        unblock(&pools, volume);
        *seen.lock() = Some((is_frozen, kernel.take_effects()));
        Ok(())
    });
    let pools = &rig.node.pools;
    pools
        .create_snapshot(&id, "s", &Default::default())
        .unwrap();
    assert_eq!(*meanwhile.lock(), Some((true, Vec::new())));
    // The hook has the pools.
    rig.kernel.behave();
    assert_eq!(rig.record(id).freeze, None);
}

/// The freeze may wait for a disk until after the end. The next start has to know of it.
#[test]
fn a_freeze_that_outlasts_the_process_stays_recorded() {
    let (rig, id) = staged(FsType::Ext4);
    let minor = rig.device(id).minor;
    let pools = Arc::clone(&rig.node.pools);
    rig.kernel.hook("freeze", move |_| {
        unblock(&pools, pools.faulty_volumes().remove(0));
        Ok(())
    });
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    // The hook has the pools.
    rig.kernel.behave();
    assert!(rig.kernel.is_frozen(minor));
    assert!(rig.record(id).freeze.is_some());
    let rig = rig.restarted();
    assert!(!rig.kernel.is_frozen(minor));
    assert_eq!(rig.record(id).freeze, None);
}

/// The end of the process may thaw right before the next look freezes.
#[test]
fn a_freeze_after_the_thaw_at_the_end_is_recorded_again() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    let pools = Arc::clone(&rig.node.pools);
    let is_first = AtomicBool::new(true);
    rig.kernel.shared_hook("mounts", move |_| {
        if is_first.swap(false, Ordering::SeqCst) {
            unblock(&pools, pools.faulty_volumes().remove(0));
        }
        Ok(())
    });
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    // The hook has the pools.
    rig.kernel.behave();
    assert!(rig.kernel.is_frozen(rig.device(id).minor));
    assert!(rig.record(id).freeze.is_some());
}

#[test]
fn a_process_that_ends_waits_for_a_freeze_that_is_soon_done() {
    let (rig, id) = staged(FsType::Ext4);
    let (begin, begun) = channel();
    rig.kernel.hook("freeze", move |_| {
        begin.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    });
    let pools = Arc::clone(&rig.node.pools);
    let ending = std::thread::spawn(move || {
        begun.recv().unwrap();
        unblock(&pools, pools.faulty_volumes().remove(0));
    });
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    ending.join().unwrap();
    assert!(!rig.kernel.is_frozen(rig.device(id).minor));
    assert_eq!(rig.record(id).freeze, None);
}

/// The end of the process may find the record of a freeze that is about to find the other one.
#[test]
fn a_process_that_ends_leaves_another_program_its_freeze() {
    let (rig, id) = staged(FsType::Ext4);
    let root = rig.kernel.open_mount(&mount_of(&rig)).unwrap();
    rig.kernel.freeze(&root).unwrap();
    let (begin, begun) = channel();
    let pools = Arc::clone(&rig.node.pools);
    rig.kernel.hook("freeze", move |_| {
        begin.send(pools.faulty_volumes().remove(0)).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        Ok(())
    });
    let pools = Arc::clone(&rig.node.pools);
    let ending = std::thread::spawn(move || {
        let volume = begun.recv().unwrap();
        assert!(volume.is_frozen_by_fault());
        unblock(&pools, volume);
    });
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Refused);
    ending.join().unwrap();
    // The hook has the pools.
    rig.kernel.behave();
    assert!(rig.kernel.is_frozen(rig.device(id).minor));
}

/// A frozen filesystem blocks sync(2) of the node, whatever has become of its image.
#[test]
fn a_frozen_filesystem_is_thawed_without_its_image() {
    let (rig, id) = staged(FsType::Ext4);
    let minor = rig.device(id).minor;
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    let entry = rig.root().join("pool/volumes").join(id.to_string());
    std::fs::rename(entry.join("image"), entry.join("moved")).unwrap();
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert!(!rig.kernel.is_frozen(minor));
    assert_eq!(rig.record(id).freeze, None);
}

/// A call that waits for a frozen filesystem would keep the fault from ending.
#[test]
fn a_publication_that_writes_to_a_frozen_filesystem_thaws_it() {
    let rig = Rig::new();
    let cap = with_group(mount("ext4"), "4711");
    let id = rig.staged(ext4(), "a", &cap);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    rig.publish(id, "a", "p", &cap, false).unwrap();
    assert!(!rig.kernel.is_frozen(rig.device(id).minor));
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
}

/// Otherwise the fault could not end before the disk has written back, however long that takes.
#[test]
fn a_freeze_waits_for_no_limit_of_a_disk() {
    let (rig, id) = staged(FsType::Ext4);
    let limits = Limits {
        wbps: Some(MI),
        ..Limits::default()
    };
    rig.update(id, |record| {
        record.fault_disk = Some(Box::new(FaultDiskRecord {
            limits,
            ..FaultDiskRecord::default()
        }));
    });
    let settings = serve_idle_disk(&rig.options.state_dir);
    settings.lock().limits = limits;
    let of_disk = Arc::clone(&settings);
    rig.kernel.hook("freeze", move |_| {
        assert_eq!(of_disk.lock().limits, Limits::default());
        Ok(())
    });
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert_eq!(settings.lock().limits, limits);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    unblock_each(&rig);
    assert_eq!(settings.lock().limits, limits, "the process ends");
}

/// The fault of the pool has looked before the record had the freeze, which could not end before the
/// pool is back.
#[rstest]
fn a_pool_that_has_gone_meanwhile_gets_no_freeze(#[values(true, false)] hangs: bool) {
    /// The record is cleared once the pool is back.
    const HANGS: Duration = Duration::from_secs(2);
    let (rig, id) = staged(FsType::Ext4);
    let requested = ClaimFault::parse("frozen").unwrap();
    let fault = FaultRecord {
        since_ns: now_ns(),
        ..FaultRecord::of(&requested.to_string())
    };
    rig.update(id, |record| record.fault = Some(Box::new(fault)));
    let pools = Arc::clone(&rig.node.pools);
    before_effect("file.rename", move || {
        let gone = if hangs {
            pools.hold_up(0, HANGS)
        } else {
            pools.set_aside(0, "a test".to_owned())
        };
        gone.unwrap();
    });
    let failed = reconcile(&rig.node.pools, &id.to_string(), Some(&requested));
    assert!(
        matches!(
            failed,
            Err(FaultError::Pool(storage::Error::Unavailable { .. }))
        ),
        "{failed:?}"
    );
    rig.node.pools.release(0);
    rig.node.pools.bring_back(0);
    assert!(!rig.kernel.is_frozen(rig.device(id).minor));
    assert_eq!(rig.record(id).freeze, None);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
}

/// The program that has frozen it has to thaw it.
#[test]
fn a_filesystem_that_others_froze_is_left_to_them() {
    let (rig, id) = staged(FsType::Ext4);
    let root = rig.kernel.open_mount(&mount_of(&rig)).unwrap();
    rig.kernel.freeze(&root).unwrap();
    let refused = ask(&rig, id, Some("frozen"));
    assert_eq!(refused.state, FaultState::Refused);
    assert!(
        refused.message.contains("another program"),
        "{}",
        refused.message
    );
    assert!(rig.kernel.is_frozen(rig.device(id).minor));
    let record = rig.record(id);
    assert_eq!((&record.fault, record.freeze), (&None, None));
}

/// A freeze has to write back, which might not end there.
#[test]
fn a_filesystem_in_a_full_pool_is_not_frozen_again() {
    let (mut rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Active);
    rig.options.reserve = Reserve::Bytes(u64::MAX / 4);
    let rig = rig.restarted();
    let requested = ClaimFault::parse("frozen").unwrap();
    let failed = reconcile(&rig.node.pools, &id.to_string(), Some(&requested));
    assert!(
        matches!(
            failed,
            Err(FaultError::Impossible(Obstacle::PoolNearlyFull))
        ),
        "{failed:?}"
    );
    assert!(!rig.kernel.is_frozen(rig.device(id).minor));
    assert_eq!(rig.record(id).freeze, None);
}
