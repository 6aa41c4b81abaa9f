//! What faults do to pools over the fake kernel, and what is shown of them.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use hostloop_fake_kernel::Model;
use hostloop_proto::csi::StorageHealthErrorType;
use rstest::rstest;

use super::*;
use crate::fault_disks::testing::serve_idle_disk;
use crate::health;
use crate::record::{FaultRecord, FreezeIntent};
use crate::storage::{Error, VolumeHandle};
use crate::testkit::{PATIENCE, Site, assert_soon, ext4, mount};

/// The faults of two pools, `a` and `b`, in one process.
struct Rig {
    faults: Arc<PoolFaults>,
    site: Site,
}

impl Rig {
    fn new(is_enabled: bool) -> Rig {
        Rig::of(Site::fake(&["a", "b"]), is_enabled)
    }

    fn of(site: Site, is_enabled: bool) -> Rig {
        let faults = Arc::new(PoolFaults::new(site.pools().clone(), is_enabled));
        Rig { faults, site }
    }

    /// Asks for a fault of the pool `a`, and looks at it as often as it may need.
    fn ask(&self, fault: Option<&str>) -> Option<PoolFaultNow> {
        let files = FaultFiles::at(&self.site.options.state_dir);
        let request = fault.map(|fault| PoolFaultRequest {
            fault: fault.to_owned(),
            requested_ns: now_ns(),
        });
        files.request("a", request).unwrap();
        self.faults.tend(0);
        self.faults.tend(0);
        self.now()
    }

    fn now(&self) -> Option<PoolFaultNow> {
        let shown = FaultFiles::at(&self.site.options.state_dir).shown();
        shown.unwrap().unwrap().pools[0].now.clone()
    }

    fn state(&self, fault: Option<&str>) -> Option<PoolFaultState> {
        self.ask(fault).map(|now| now.state)
    }

    /// The conditions of the pools.
    fn conditions(&self) -> Vec<(String, StorageHealthErrorType, &'static str)> {
        let conditions = health::storage(self.site.pools()).into_iter();
        conditions
            .map(|found| (found.pool, found.status, found.reason))
            .collect()
    }
}

/// The condition of the pool `a` with a fault.
fn injected(status: StorageHealthErrorType) -> Vec<(String, StorageHealthErrorType, &'static str)> {
    vec![("a".to_owned(), status, "FaultInjected")]
}

/// Ends the faults of the process.
fn end(rig: &Rig) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime
        .unwrap()
        .block_on(rig.faults.end_all(&Blocking::default()));
}

#[test]
fn a_missing_pool_answers_nothing_until_it_is_back() {
    let rig = Rig::new(true);
    let id = rig.site.make("one").id;
    let volume = || rig.site.pools().volume(&VolumeHandle::Id(id)).map(drop);
    assert_eq!(rig.state(Some("missing")), Some(PoolFaultState::Active));
    let error = volume().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("missing,for=600s"), "{error}");
    // Neither is it opened again, nor does the other pool suffer.
    rig.site.tend();
    assert!(volume().is_err());
    rig.site.named("b");
    let expected = injected(StorageHealthErrorType::StorageUnreachable);
    assert_eq!(rig.conditions(), expected);
    assert_eq!(rig.state(None), None);
    volume().unwrap();
    assert!(rig.conditions().is_empty());
}

/// No recovery follows the end of the fault.
#[test]
fn what_ends_while_a_pool_is_missing_has_ended_afterwards() {
    let rig = crate::testkit::Rig::<Model>::new();
    let id = rig.staged(ext4(), "a", &mount("ext4"));
    let pools = &rig.node.pools;
    rig.update(id, |record| {
        record.freeze = Some(FreezeIntent { since_ns: 1 });
    });
    pools.set_aside(0, "it is missing".to_owned()).unwrap();
    // A copy ends, and so does the last pod.
    pools
        .clear_in_volume(&id, |record| record.freeze = None)
        .unwrap();
    rig.unstage(id, "a").unwrap();
    pools.bring_back(0);
    rig.assert_detached(id);
    let record = rig.record(id);
    assert!(record.stage.is_none() && record.freeze.is_none());
    assert!(rig.node_health(&id.to_string()).unwrap().is_empty());
}

#[test]
fn calls_wait_for_a_hanging_pool_and_for_no_other() {
    let rig = Rig::new(true);
    assert_eq!(rig.state(Some("hanging")), Some(PoolFaultState::Active));
    let pool = rig.site.named("a");
    let (answered, answers) = channel();
    let thread = std::thread::spawn(move || answered.send(pool.usage().is_ok()).unwrap());
    let short = Duration::from_millis(50);
    assert_eq!(answers.recv_timeout(short), Err(RecvTimeoutError::Timeout));
    assert!(rig.site.named("b").usage().is_ok());
    let expected = injected(StorageHealthErrorType::StorageUnreachable);
    assert_eq!(rig.conditions(), expected);
    assert_eq!(rig.state(None), None);
    assert_eq!(answers.recv_timeout(PATIENCE), Ok(true));
    thread.join().unwrap();
    assert_soon(true, || rig.conditions().is_empty());
}

/// The directory of the pool is on the machine's own filesystem.
#[test]
fn a_pool_beside_other_files_is_not_filled() {
    let rig = Rig::new(true);
    let refused = rig.ask(Some("full")).unwrap();
    assert_eq!(refused.state, PoolFaultState::Refused);
    assert!(refused.message.contains("other files"), "{refused:?}");
    assert!(rig.conditions().is_empty());
}

/// The pool has a filesystem of its own, and the files have come since it was opened.
#[test]
fn a_pool_with_other_files_by_now_is_refused_in_the_same_words() {
    let mut site: Site = Site::new(&["a=DIR/a,image=300Mi"]);
    site.open();
    std::fs::write(site.pool().root().join("theirs"), "data").unwrap();
    let rig = Rig::of(site, true);
    let refused = rig.ask(Some("full")).unwrap();
    assert_eq!(refused.state, PoolFaultState::Refused);
    let why = PoolObstacle::Shared.to_string();
    assert!(refused.message.contains(&why), "{refused:?}");
}

#[test]
fn a_fault_with_a_mistake_is_refused_by_name() {
    let rig = Rig::new(true);
    let refused = rig.ask(Some("gone")).unwrap();
    assert_eq!(refused.state, PoolFaultState::Refused);
    let why = "unknown fault \"gone\"";
    assert!(refused.message.contains(why), "{refused:?}");
    rig.site.named("a");
    assert_eq!(rig.state(None), None);
}

#[test]
fn without_the_flag_no_pool_is_looked_after() {
    let rig = Rig::new(false);
    assert_eq!(rig.faults.slots(), 0..0);
    let files = FaultFiles::at(&rig.site.options.state_dir);
    let shown = files.shown().unwrap().unwrap();
    let pools = ["a", "b"].map(|pool| PoolWithFaults {
        pool: pool.to_owned(),
        ..PoolWithFaults::default()
    });
    let expected = NodeFaults {
        pools: pools.to_vec(),
        ..NodeFaults::default()
    };
    assert_eq!(shown, expected);
    end(&rig);
    assert_eq!(files.shown().unwrap(), Some(expected));
}

#[test]
fn a_fault_ends_in_time_and_is_not_repeated() {
    let rig = Rig::new(true);
    let begun = rig.state(Some("missing,for=10ms"));
    assert!(
        matches!(begun, Some(PoolFaultState::Active | PoolFaultState::Over)),
        "{begun:?}"
    );
    assert_soon(Some(PoolFaultState::Over), || {
        rig.faults.tend(0);
        rig.now().map(|now| now.state)
    });
    rig.site.named("a");
    rig.faults.tend(0);
    rig.site.named("a");
    assert_eq!(rig.state(Some("missing")), Some(PoolFaultState::Active));
    assert_eq!(rig.state(Some("hanging")), Some(PoolFaultState::Active));
    rig.site.named("a");
    let counts: Vec<_> = rig
        .faults
        .counts()
        .into_iter()
        .map(|count| (count.fault, count.state, count.times))
        .collect();
    assert_eq!(
        counts,
        [
            ("hanging", PoolFaultState::Active, 1),
            ("missing", PoolFaultState::Active, 2),
            ("missing", PoolFaultState::Over, 1),
        ]
    );
    assert_eq!(rig.state(None), None);
}

#[test]
fn a_process_that_ends_ends_its_faults_and_the_next_one_has_none() {
    let rig = Rig::new(true);
    rig.ask(Some("missing"));
    end(&rig);
    rig.site.named("a");
    rig.faults.tend(0);
    rig.site.named("a");
    // The one that is asked for again as the process ends is forgotten, too.
    let next = PoolFaults::new(rig.site.pools().clone(), true);
    next.tend(0);
    rig.site.named("a");
    assert_eq!(rig.now(), None);
}

/// A pool that really hangs holds up the end of its own fault alone.
#[tokio::test]
async fn each_fault_ends_by_itself_when_the_process_ends() {
    let rig = Rig::new(true);
    let request = PoolFaultRequest {
        fault: "missing".to_owned(),
        requested_ns: now_ns(),
    };
    let files = FaultFiles::at(&rig.site.options.state_dir);
    files.request("b", Some(request)).unwrap();
    rig.faults.tend(1);
    let is_open = || rig.site.pools().slots()[1].state.is_ok();
    assert!(!is_open());
    let (locked, is_locked) = channel();
    let (release, released) = channel::<()>();
    let of_thread = Arc::clone(&rig.faults);
    let hanging = std::thread::spawn(move || {
        let _known = of_thread.known[0].lock();
        locked.send(()).unwrap();
        let _ = released.recv();
    });
    is_locked.recv().unwrap();
    let ended = tokio::spawn({
        let faults = Arc::clone(&rig.faults);
        async move { faults.end_all(&Blocking::default()).await }
    });
    tokio::task::yield_now().await;
    assert_soon(true, is_open);
    drop(release);
    hanging.join().unwrap();
    ended.await.unwrap();
}

/// It would block sync(2) of the node for as long as the fault lasts.
#[test]
fn a_pool_with_a_frozen_volume_is_neither_missing_nor_hanging() {
    let rig = Rig::new(true);
    let id = rig.site.make("one").id;
    let frozen = FaultRecord::of("frozen,for=30s");
    rig.site
        .pools()
        .update_volume(&id, |record| {
            record.fault = Some(Box::new(frozen));
            record.freeze = Some(FreezeIntent { since_ns: 1 });
        })
        .unwrap();
    for fault in ["missing", "hanging"] {
        let refused = rig.ask(Some(fault)).unwrap();
        assert_eq!(refused.state, PoolFaultState::Refused);
        assert!(refused.message.contains(&id.to_string()), "{refused:?}");
    }
    // As if the freeze had come between the look and the effect.
    let pools = rig.site.pools();
    let refused = pools.set_aside(0, "a test".to_owned());
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    let refused = pools.hold_up(0, PATIENCE);
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    pools.check_answers(id.pool()).unwrap();
}

/// The fault of the claim could not end meanwhile, and such a disk blocks sync(2) of the node, too.
#[rstest]
#[case::missing("missing")]
#[case::hanging("hanging")]
fn a_pool_that_is_away_has_no_slow_disks(#[case] fault: &str) {
    let rig = Rig::new(true);
    let slow = FaultRecord::of("slow=5s,for=30s");
    let volume = rig.site.update(rig.site.make("one").id, |record| {
        record.fault_disk = Some(Box::default());
        record.fault = Some(Box::new(slow));
    });
    let settings = serve_idle_disk(&rig.site.options.state_dir);
    *settings.lock() = volume.disk_settings();
    assert!(!settings.lock().rules.is_empty());
    assert_eq!(rig.state(Some(fault)), Some(PoolFaultState::Active));
    assert!(settings.lock().rules.is_empty());
    assert_eq!(rig.state(None), None);
}

#[test]
fn what_can_be_asked_for_is_shown() {
    let rig = Rig::new(true);
    let files = FaultFiles::at(&rig.site.options.state_dir);
    let shown = files.shown().unwrap().unwrap();
    assert!(shown.enabled);
    let pools: Vec<&str> = shown.pools.iter().map(|pool| pool.pool.as_str()).collect();
    assert_eq!(pools, ["a", "b"]);
    let offered = |faults: &[OfferedFault]| -> Vec<String> {
        let can = faults.iter().filter(|fault| fault.obstacle.is_none());
        can.map(|fault| fault.fault.clone()).collect()
    };
    assert_eq!(offered(&shown.pools[0].faults), ["missing", "hanging"]);
    assert!(offered(&shown.claims).contains(&"gone".to_owned()));
}
