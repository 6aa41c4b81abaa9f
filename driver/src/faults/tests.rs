//! Faults of volumes over the fake kernel: what they do, and what is left when they end.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_fake_kernel::{Model, Stamps};
use rstest::rstest;

use super::*;
use crate::blocking::{BlockingWork, Executor};
use crate::fault_disks::testing::serve_idle_disk;
use crate::kernel::{Filesystems, FsType, MountEntry, Mounts, failpoint};
use crate::record::Access;
use crate::storage::{NewVolume, Reach, VolumeId};
use crate::testkit::*;

mod frozen;
mod full;

type Rig = crate::testkit::Rig<Model>;

const LONG_AGO: u64 = 1;

/// What happens once before an effect, by the effect's name.
type Meanwhile = (&'static str, Box<dyn FnOnce()>);

thread_local! {
    static MEANWHILE: RefCell<Option<Meanwhile>> = const { RefCell::new(None) };
}

/// Acts once, before the next effect of this name in this thread.
fn before_effect(name: &'static str, act: impl FnOnce() + 'static) {
    failpoint::watch(|name| {
        let due = MEANWHILE.with_borrow_mut(|meanwhile| meanwhile.take_if(|(at, _)| *at == name));
        if let Some((_, act)) = due {
            act();
        }
        Ok(())
    });
    MEANWHILE.set(Some((name, Box::new(act))));
}

/// Begins a fault. Returns what the record has of it before the next effect of this name.
fn recorded_before(effect: &'static str, rig: &Rig, id: VolumeId, annotation: &str) -> FaultRecord {
    let (pools, handle) = (Arc::clone(&rig.node.pools), VolumeHandle::Id(id));
    let (tell, recorded) = channel();
    before_effect(effect, move || {
        let record = pools.volume(&handle).unwrap();
        tell.send(record.fault.clone().unwrap()).unwrap();
    });
    assert_eq!(state(rig, id, Some(annotation)), FaultState::Active);
    assert!(!rig.record(id).fault.clone().unwrap().under_way);
    *recorded.try_recv().expect("the effect")
}

/// Reconciles a volume with an annotation.
fn ask(rig: &Rig, id: VolumeId, annotation: Option<&str>) -> FaultReport {
    let requested = annotation.map(|text| ClaimFault::parse(text).unwrap());
    reconcile(&rig.node.pools, &id.to_string(), requested.as_ref()).unwrap()
}

fn state(rig: &Rig, id: VolumeId, annotation: Option<&str>) -> FaultState {
    ask(rig, id, annotation).state
}

/// The reasons of the conditions of a volume, as CSI reports them.
fn reasons(rig: &Rig, id: VolumeId) -> Vec<String> {
    let health = rig.node_health(&id.to_string()).unwrap();
    health.into_iter().map(|(_, reason)| reason).collect()
}

fn limit(rig: &Rig, id: VolumeId) -> u64 {
    rig.device(id).size_limit
}

/// A rig with a volume of this filesystem, staged at "a".
fn staged(fs: FsType) -> (Rig, VolumeId) {
    let rig = Rig::new();
    let id = rig.volume(on(fs), 512 * MI);
    rig.stage(id, "a", &mount(fs)).unwrap();
    (rig, id)
}

/// The mount of the volume that is staged at "a".
fn mount_of(rig: &Rig) -> MountEntry {
    let at = rig.staging("a").canonicalize().unwrap();
    rig.kernel.mounts().unwrap().at(&at).unwrap().clone()
}

/// Does for each volume what the end of the process does.
fn unblock_each(rig: &Rig) {
    for volume in rig.node.pools.faulty_volumes() {
        unblock(&rig.node.pools, volume);
    }
}

/// Counts the threads that work would take, and does it at once.
struct Counted(Arc<AtomicUsize>);

impl Executor for Counted {
    fn run(&self, _: &'static str, work: BlockingWork) -> BoxFuture<'static, ()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        work();
        std::future::ready(()).boxed()
    }
}

/// Memory for the threads of all others could be lacking.
#[tokio::test]
async fn a_process_that_ends_has_threads_for_volumes_that_block_others() {
    let rig = Rig::new();
    let ids = ["a", "b", "c"].map(|at| rig.staged(ext4(), at, &mount("ext4")));
    for (id, fault) in ids.into_iter().zip(["frozen", "gone", "full"]) {
        assert_eq!(state(&rig, id, Some(fault)), FaultState::Active);
    }
    let threads = Arc::new(AtomicUsize::new(0));
    let blocking = Blocking::on(Counted(Arc::clone(&threads)));
    unblock_all(&rig.node.pools, &blocking).await;
    assert_eq!(threads.load(Ordering::SeqCst), 1);
    assert!(!rig.kernel.is_frozen(rig.device(ids[0]).minor));
}

/// Moves the beginning of a volume's fault into the past.
fn age(rig: &Rig, id: VolumeId) {
    rig.update(id, |record| {
        record.fault.as_mut().unwrap().since_ns = LONG_AGO;
    });
}

#[rstest]
#[case::gone("gone", 4096)]
#[case::from_an_offset("eio-from=8Mi", 8 * MI)]
fn a_limited_device_heals_in_place(#[case] fault: &str, #[case] bytes: u64) {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some(fault)), FaultState::Active);
    assert_eq!(limit(&rig, id), bytes);
    assert_eq!(
        reasons(&rig, id),
        ["FaultInjected"],
        "not changed by a user"
    );
    rig.kernel.take_effects();
    assert_eq!(state(&rig, id, Some(fault)), FaultState::Active);
    assert!(rig.kernel.take_effects().is_empty(), "it is there already");
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert_eq!(limit(&rig, id), 0);
    assert_eq!(rig.record(id).fault, None);
    assert!(reasons(&rig, id).is_empty());
    assert_eq!(state(&rig, id, None), FaultState::Absent);
}

/// Otherwise each call for another volume would read all devices of the node again.
#[test]
fn a_look_at_a_limited_device_forgets_no_others() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    rig.kernel
        .hook("forget_loops", |_| panic!("nothing has changed"));
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    rig.kernel.behave();
}

#[rstest]
#[case("eio,op=read")]
#[case("enospc")]
#[case("slow=20ms,share=0.5")]
#[case("powercut,loss=some")]
fn a_fault_of_fault_disks_is_refused_elsewhere(#[case] fault: &str) {
    let (rig, id) = staged(FsType::Ext4);
    let report = ask(&rig, id, Some(fault));
    assert_eq!(report.state, FaultState::Refused);
    assert!(report.message.contains("faultDisk"), "{}", report.message);
    assert_eq!(rig.record(id).fault, None);
}

#[test]
fn a_fault_ends_in_time_and_is_not_repeated() {
    let (rig, id) = staged(FsType::Ext4);
    let report = ask(&rig, id, Some("gone,for=10s"));
    assert_eq!(
        (report.state, report.again),
        (FaultState::Active, Some(LOOK))
    );
    age(&rig, id);
    assert_eq!(state(&rig, id, Some("gone,for=10s")), FaultState::Expired);
    assert_eq!(limit(&rig, id), 0);
    assert_eq!(state(&rig, id, Some("gone,for=10s")), FaultState::Over);
    assert_eq!(limit(&rig, id), 0);
    assert!(reasons(&rig, id).is_empty());
    let again = "gone,for=10s,seed=1";
    assert_eq!(state(&rig, id, Some(again)), FaultState::Active);
    assert_eq!(limit(&rig, id), 4096);
}

/// The process may end anywhere, and so may the use of the volume.
#[test]
fn a_fault_outlives_a_restart_and_a_staging() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    let rig = rig.restarted();
    assert_eq!(limit(&rig, id), 4096);
    assert_eq!(reasons(&rig, id), ["FaultInjected"]);
    assert_eq!(faulty(&rig.node.pools), [id.to_string()]);
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Waiting);
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert_eq!(limit(&rig, id), 0, "it is a new device");
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    assert_eq!(limit(&rig, id), 4096);
    rig.unstage(id, "a").unwrap();
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    rig.node.pools.delete_volume(&id).unwrap();
}

#[test]
fn a_faulty_volume_is_unstaged_and_deleted() {
    for fault in ["gone", "eio-from=1Mi", "powercut", "frozen", "readonly"] {
        let (rig, id) = staged(FsType::Ext4);
        assert_eq!(state(&rig, id, Some(fault)), FaultState::Active, "{fault}");
        rig.unstage(id, "a").unwrap();
        rig.assert_detached(id);
        rig.node.pools.delete_volume(&id).unwrap();
        assert_eq!(state(&rig, id, Some(fault)), FaultState::Absent, "{fault}");
    }
}

#[test]
fn a_power_cut_loses_what_is_not_synced_once() {
    let (rig, id) = staged(FsType::Ext4);
    let at = rig.staging("a");
    rig.kernel.write_stamp(&at, 1).unwrap();
    rig.kernel.sync_stamp(&at).unwrap();
    rig.kernel.write_stamp(&at, 2).unwrap();
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Active);
    assert!(rig.kernel.stamps_at(&at).is_err());
    assert_eq!(
        reasons(&rig, id),
        ["FaultInjected"],
        "not an error of the disk"
    );
    rig.kernel.take_effects();
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Over);
    assert!(rig.kernel.take_effects().is_empty());
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    let (_, stamps) = rig.kernel.stamps_at(&at).unwrap();
    let synced = Stamps {
        written: 1,
        synced: 1,
    };
    assert_eq!(stamps, synced);
    assert!(reasons(&rig, id).is_empty());
    assert_eq!(
        state(&rig, id, Some("powercut")),
        FaultState::Over,
        "there is one cut"
    );
    assert_eq!(state(&rig, id, Some("powercut,seed=1")), FaultState::Active);
    let left = ask(&rig, id, None);
    assert_eq!(left.state, FaultState::NeedsRestage);
    assert!(left.message.contains("delete the pods"), "{}", left.message);
}

/// The process may end after the cut and before its record.
#[test]
fn a_power_cut_that_was_not_recorded_is_not_repeated() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Active);
    rig.update(id, |record| record.fault.as_mut().unwrap().over = false);
    let rig = rig.restarted();
    assert_eq!(reasons(&rig, id), ["FaultInjected"], "no damage");
    rig.kernel.take_effects();
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Active);
    assert!(rig.kernel.take_effects().is_empty());
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Over);
}

/// A cut that the process has not recorded before it ended is not seen after another staging.
#[rstest]
#[case::ext4(FsType::Ext4, "shut-down")]
#[case::btrfs(FsType::Btrfs, "loop.limit")]
fn a_power_cut_that_was_not_recorded_is_not_repeated_by_a_staging(
    #[case] fs: FsType,
    #[case] cut: &'static str,
) {
    let (rig, id) = staged(fs);
    let before = recorded_before(cut, &rig, id, "powercut");
    assert!(before.under_way && !before.over);
    rig.update(id, |record| {
        let fault = record.fault.as_mut().unwrap();
        (fault.over, fault.under_way) = (false, true);
    });
    let rig = rig.restarted();
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount(fs)).unwrap();
    rig.kernel.take_effects();
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Over);
    assert!(rig.kernel.take_effects().is_empty());
    assert_eq!(limit(&rig, id), 0);
    assert!(reasons(&rig, id).is_empty());
    assert_eq!(state(&rig, id, Some("powercut,seed=1")), FaultState::Active);
}

/// The volume has never lost its power.
#[test]
fn a_power_cut_that_failed_is_done_after_the_next_staging() {
    let (rig, id) = staged(FsType::Ext4);
    let requested = ClaimFault::parse("powercut").unwrap();
    rig.kernel.fail("shut-down", 1, libc::EIO);
    let failed = reconcile(&rig.node.pools, &id.to_string(), Some(&requested));
    assert!(failed.is_err(), "{failed:?}");
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    rig.kernel.take_effects();
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Active);
    assert_eq!(rig.kernel.take_effects(), ["shut-down"]);
}

/// The kernel can't shut a btrfs down.
#[test]
fn a_power_cut_of_a_btrfs_cuts_its_device_off() {
    let (rig, id) = staged(FsType::Btrfs);
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Active);
    assert_eq!(limit(&rig, id), 4096);
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Over);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("btrfs")).unwrap();
    assert_eq!(limit(&rig, id), 0);
}

/// Such work holds the volume, so the fault could not end while the work waits for the disk.
#[test]
fn a_slow_disk_is_fast_for_all_that_must_not_wait() {
    let (rig, id) = staged(FsType::Ext4);
    rig.update(id, |record| record.fault_disk = Some(Box::default()));
    let settings = serve_idle_disk(&rig.options.state_dir);
    let is_slow = || !settings.lock().rules.is_empty();
    let slow_down = || {
        assert_eq!(state(&rig, id, Some("slow=5s")), FaultState::Active);
        assert!(is_slow());
    };
    slow_down();
    let pools = &rig.node.pools;
    pools
        .create_snapshot(&id, "s", &Default::default())
        .unwrap();
    assert!(!is_slow(), "a copy");
    slow_down();
    rig.expand(id, &rig.staging("a"), 600 * MI).unwrap();
    assert!(!is_slow(), "growth");
    slow_down();
    rig.modify(&id.to_string(), "readAheadKiB=256").unwrap();
    assert!(!is_slow(), "a change of attributes");
    slow_down();
    unblock_each(&rig);
    assert!(!is_slow(), "the process ends");
    slow_down();
    rig.unstage(id, "a").unwrap();
    assert!(!is_slow(), "an unstaging");
    assert!(rig.record(id).fault.is_some());
}

#[test]
fn an_ext4_becomes_read_only_until_it_is_staged_again() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("readonly")), FaultState::Active);
    assert!(mount_of(&rig).fs_read_only());
    assert_eq!(reasons(&rig, id), ["FaultInjected"]);
    assert_eq!(state(&rig, id, None), FaultState::NeedsRestage);
    assert_eq!(reasons(&rig, id), ["FaultInjected"]);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    assert!(reasons(&rig, id).is_empty());
}

/// Its claim has no annotation any more, and users still have to do something.
#[rstest]
#[case::until_the_pods_go(false)]
#[case::until_the_next_staging(true)]
fn a_fault_is_recorded_until_it_stops_nothing(#[case] is_staged_again: bool) {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("readonly")), FaultState::Active);
    assert_eq!(state(&rig, id, None), FaultState::NeedsRestage);
    let rig = rig.restarted();
    let left = ask(&rig, id, None);
    assert_eq!(left.state, FaultState::NeedsRestage);
    assert!(left.again.is_some(), "the end is found");
    assert_eq!(faulty(&rig.node.pools), [id.to_string()]);
    rig.unstage(id, "a").unwrap();
    if is_staged_again {
        rig.stage(id, "a", &mount("ext4")).unwrap();
        rig.kernel.turn_read_only(rig.device(id).minor);
        assert_eq!(reasons(&rig, id), ["FilesystemReadOnly"], "by itself");
    }
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert_eq!(rig.record(id).fault, None);
}

/// Only another fault that begins takes the place of one that has stopped the filesystem.
#[test]
fn a_fault_that_is_refused_hides_no_other() {
    let (rig, id) = staged(FsType::Ext4);
    let recorded = || rig.record(id).fault.clone().unwrap().fault;
    assert_eq!(state(&rig, id, Some("readonly")), FaultState::Active);
    let read_only = recorded();
    assert_eq!(state(&rig, id, Some("eio")), FaultState::Refused);
    assert_eq!(recorded(), read_only, "the volume has no fault disk");
    let root = rig.kernel.open_mount(&mount_of(&rig)).unwrap();
    rig.kernel.freeze(&root).unwrap();
    assert_eq!(state(&rig, id, Some("frozen")), FaultState::Refused);
    assert_eq!(recorded(), read_only, "another program has frozen it");
    assert_eq!(state(&rig, id, None), FaultState::NeedsRestage);
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    assert_ne!(recorded(), read_only);
}

/// Such a stop has another cause than the fault.
#[test]
fn what_stops_a_filesystem_after_the_next_staging_is_reported() {
    let (rig, id) = staged(FsType::Ext4);
    let fault = Some("readonly,for=1m");
    assert_eq!(state(&rig, id, fault), FaultState::Active);
    age(&rig, id);
    assert_eq!(state(&rig, id, fault), FaultState::NeedsRestage);
    assert_eq!(reasons(&rig, id), ["FaultInjected"]);
    rig.unstage(id, "a").unwrap();
    rig.stage(id, "a", &mount("ext4")).unwrap();
    rig.kernel.turn_read_only(rig.device(id).minor);
    assert_eq!(reasons(&rig, id), ["FilesystemReadOnly"]);
}

/// What users make after the end is theirs, and nothing waits for a pod.
#[test]
fn a_fault_that_has_expired_has_nothing_to_take_back() {
    let rig = Rig::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    assert_eq!(state(&rig, id, Some("full")), FaultState::Active);
    age(&rig, id);
    assert_eq!(state(&rig, id, Some("full")), FaultState::Expired);
    let fault = rig.record(id).fault.clone().unwrap();
    assert_eq!((fault.over, fault.limit, fault.file), (true, None, None));
    rig.unstage(id, "a").unwrap();
    assert_eq!(state(&rig, id, None), FaultState::Healed);
}

/// A container may keep the device after the unstaging.
#[test]
fn a_new_staging_sees_the_whole_device() {
    let (rig, id) = staged(FsType::Btrfs);
    assert_eq!(state(&rig, id, Some("powercut")), FaultState::Active);
    rig.unstage(id, "a").unwrap();
    let kept = rig.attach_file(&rig.open_image(id));
    rig.kernel.tamper(kept.minor, 0, 4096);
    rig.stage(id, "a", &mount("btrfs")).unwrap();
    assert_eq!(rig.device(id).minor, kept.minor);
    assert_eq!(limit(&rig, id), 0);
}

#[test]
fn a_shared_volume_gets_no_fault() {
    let rig = Rig::new();
    let id = rig.create(NewVolume {
        reach: Reach::Kernel,
        ..new_volume(ext4(), 16 * MI)
    });
    let (pools, id) = (&rig.node.pools, id.to_string());
    let gone = ClaimFault::parse("gone").unwrap();
    let report = at_rest(pools, &id, Some(&gone)).unwrap();
    assert_eq!(report.state, FaultState::Refused);
    assert!(
        report.message.contains("reach=kernel"),
        "{}",
        report.message
    );
    assert_eq!(at_rest(pools, &id, None).unwrap().state, FaultState::Absent);
}

/// A call for a volume that finds another one under way is aborted.
#[test]
fn a_volume_without_a_fault_is_not_locked() {
    let (rig, id) = staged(FsType::Ext4);
    let rest = |annotation: Option<&str>| {
        let requested = annotation.map(|text| ClaimFault::parse(text).unwrap());
        let report = at_rest(&rig.node.pools, &id.to_string(), requested.as_ref());
        report.map(|report| report.state)
    };
    rig.kernel.take_effects();
    assert_eq!(rest(None), Some(FaultState::Absent));
    assert_eq!(rest(Some("gone")), None);
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    assert_eq!((rest(None), rest(Some("gone"))), (None, None));
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    rig.unstage(id, "a").unwrap();
    assert_eq!(rest(Some("gone")), Some(FaultState::Waiting));
}

#[rstest]
#[case::xfs(FsType::Xfs, "readonly", "an XFS shuts down")]
#[case::btrfs(FsType::Btrfs, "readonly", "a btrfs becomes read-only only after")]
#[case::beyond(FsType::Ext4, "eio-from=512Mi", "not within its 512 MiB")]
fn what_a_volume_cannot_have_is_refused(
    #[case] fs: FsType,
    #[case] fault: &str,
    #[case] why: &str,
) {
    let (rig, id) = staged(fs);
    rig.kernel.take_effects();
    let refused = ask(&rig, id, Some(fault));
    assert_eq!(refused.state, FaultState::Refused);
    assert!(refused.message.contains(why), "{}", refused.message);
    assert_eq!(rig.record(id).fault, None);
    assert!(rig.kernel.take_effects().is_empty());
}

#[test]
fn a_raw_block_volume_has_only_faults_of_devices() {
    let rig = Rig::new();
    let id = rig.staged(Access::Block, "b", &block());
    for fault in ["powercut", "frozen", "readonly", "full"] {
        let refused = ask(&rig, id, Some(fault));
        assert_eq!(refused.state, FaultState::Refused, "{fault}");
        assert!(refused.message.contains("raw block"), "{}", refused.message);
    }
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    rig.publish(id, "b", "q", &block(), false).unwrap();
    assert_eq!(state(&rig, id, Some("eio-from=1Mi")), FaultState::Active);
    assert_eq!(limit(&rig, id), MI);
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    assert_eq!(limit(&rig, id), 0);
}

/// A user of a raw block volume can limit its device, too.
#[test]
fn a_limit_of_a_user_is_no_fault() {
    let rig = Rig::new();
    let id = rig.staged(Access::Block, "b", &block());
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    rig.kernel.tamper(rig.device(id).minor, 0, 8192);
    let found = reasons(&rig, id);
    assert!(found.contains(&"DeviceChanged".to_owned()), "{found:?}");
    ask(&rig, id, None);
    assert_eq!(limit(&rig, id), 8192, "it is the user's");
}

#[test]
fn a_limited_filesystem_does_not_seem_to_grow() {
    let (rig, id) = staged(FsType::Ext4);
    assert_eq!(state(&rig, id, Some("gone")), FaultState::Active);
    let grown = rig.expand(id, &rig.staging("a"), 600 * MI);
    let why = grown.unwrap_err().to_string();
    assert!(why.contains("once the fault has ended"), "{why}");
    assert_eq!(state(&rig, id, None), FaultState::Healed);
    rig.expand(id, &rig.staging("a"), 600 * MI).unwrap();
}

/// Each step may fail, and the next look goes on from there.
#[rstest]
#[case::gone("gone", "loop.limit")]
#[case::powercut("powercut", "shut-down")]
#[case::frozen("frozen", "freeze")]
#[case::readonly("readonly", "trigger-error")]
fn a_fault_that_fails_is_tried_again(#[case] fault: &str, #[case] op: &'static str) {
    let (rig, id) = staged(FsType::Ext4);
    let requested = ClaimFault::parse(fault).unwrap();
    rig.kernel.fail(op, 1, libc::EIO);
    let failed = reconcile(&rig.node.pools, &id.to_string(), Some(&requested));
    assert!(failed.is_err(), "{failed:?}");
    assert!(rig.record(id).fault.is_some(), "it is recorded before");
    assert_eq!(state(&rig, id, Some(fault)), FaultState::Active);
    ask(&rig, id, None);
    rig.unstage(id, "a").unwrap();
    rig.assert_detached(id);
    ask(&rig, id, None);
    assert_eq!(rig.record(id).fault, None);
}
