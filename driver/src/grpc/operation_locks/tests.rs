use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use parking_lot::Condvar;
use rstest::rstest;

use super::*;
use crate::testkit::assert_soon;

mod ahead;
mod copies;
mod elsewhere;

const A: &str = "/csi.v1.Controller/CreateVolume";
const B: &str = "/csi.v1.Controller/DeleteVolume";

/// Longer than any test.
const PATIENT: Duration = Duration::from_secs(600);

fn volume(id: &str) -> Vec<Hold> {
    Key::volume(id)
}

fn mounted(id: &str) -> Vec<Hold> {
    Key::volume_mount(id)
}

fn snapshot(id: &str) -> Key {
    Key::Snapshot(id.to_owned())
}

fn threads(total: usize) -> Arc<Permits> {
    Permits::new(total, "copies")
}

fn many() -> Arc<Permits> {
    threads(64)
}

async fn one() -> Permit {
    many().acquire("").await.unwrap()
}

fn copied(id: &str) -> Vec<Hold> {
    vec![Key::Volume(id.into()).copied()]
}

fn operation(method: &'static str, holds: Vec<Hold>, number: u8, limit: Duration) -> Operation {
    Operation {
        method,
        holds,
        fingerprint: Fingerprint::of(&[number]),
        wait_limit: limit,
        namespace: String::new(),
        long: false,
        grace: None,
        then: None,
    }
}

/// Runs work on volumes.
async fn run(
    locks: &OperationLocks,
    method: &'static str,
    holds: Vec<Hold>,
    number: u8,
    work: impl FnOnce() -> Result<u32, Status> + Send + 'static,
) -> Result<u32, Status> {
    locks
        .run(many(), operation(method, holds, number, PATIENT), work)
        .await
}

/// Sends a request that must be refused, and returns its error.
async fn refused(
    locks: &OperationLocks,
    method: &'static str,
    holds: Vec<Hold>,
    number: u8,
) -> Status {
    run(locks, method, holds, number, never).await.unwrap_err()
}

/// Sends a request that is to join the work of an equal one.
fn join(locks: &OperationLocks, method: &'static str, holds: Vec<Hold>, number: u8) -> Work {
    let locks = locks.clone();
    tokio::spawn(async move { run(&locks, method, holds, number, never).await })
}

/// Work that waits until the test opens the gate.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn wait(&self) {
        let mut open = self.0.0.lock();
        while !*open {
            self.0.1.wait(&mut open);
        }
    }

    fn open(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

type Work = tokio::task::JoinHandle<Result<u32, Status>>;

/// Starts request 1 of method A on a volume. Its work has begun, and waits at the gate.
async fn busy(id: &str) -> (OperationLocks, Gate, Work) {
    let (locks, gate) = (OperationLocks::new(), Gate::default());
    let call = begin(&locks, &gate, volume(id), 1).await;
    (locks, gate, call)
}

/// Starts a request of method A. Its work has begun, and waits at the gate.
async fn begin(locks: &OperationLocks, gate: &Gate, holds: Vec<Hold>, number: u8) -> Work {
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (locks, gate) = (locks.clone(), gate.clone());
    let work = move || {
        let _ = begun.send(());
        gate.wait();
        Ok(7)
    };
    let call = tokio::spawn(async move { run(&locks, A, holds, number, work).await });
    has_begun.await.unwrap();
    call
}

/// Sends a request of method B, which has its place in the queue when this returns.
async fn queue(locks: &OperationLocks, holds: Vec<Hold>, number: u8, done: &Order) -> Work {
    let before = locks.in_flight();
    let (theirs, done) = (locks.clone(), done.clone());
    let work = move || {
        done.lock().push(number);
        Ok(number.into())
    };
    let call = tokio::spawn(async move { run(&theirs, B, holds, number, work).await });
    while locks.in_flight() == before {
        tokio::task::yield_now().await;
    }
    call
}

/// The numbers of the requests that ran, in this order.
type Order = Arc<Mutex<Vec<u8>>>;

/// Waits until this many callers wait for the answer of a job in the queue of volume "v".
async fn joined_by(locks: &OperationLocks, place: usize, callers: usize) {
    let job = locks.table.lock().queues[&volume("v")[0].key][place]
        .1
        .clone();
    while job.answer.receiver_count() < callers {
        tokio::task::yield_now().await;
    }
}

fn never() -> Result<u32, Status> {
    panic!("must not run");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_request_on_a_held_key_is_aborted_and_names_it() {
    let (locks, gate, first) = busy("v").await;
    for (method, number) in [(A, 2), (B, 1)] {
        let refused = refused(&locks, method, volume("v"), number).await;
        assert_eq!(refused.code(), Code::Aborted);
        assert_eq!(
            refused.message(),
            format!("an operation on volume v is in progress ({A})")
        );
    }
    // Another volume is not locked.
    let other = run(&locks, A, volume("w"), 1, || Ok(1));
    assert_eq!(other.await.unwrap(), 1);
    gate.open();
    assert_eq!(first.await.unwrap().unwrap(), 7);
    // The keys are released before the answer is sent.
    let next = run(&locks, B, volume("v"), 3, || Ok(2));
    assert_eq!(next.await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_taken_all_or_none() {
    let (locks, gate, first) = busy("b").await;
    let ab = [volume("a"), volume("b")].concat();
    assert_eq!(refused(&locks, A, ab, 2).await.code(), Code::Aborted);
    // The refused call holds no lock on "a".
    let a = run(&locks, A, volume("a"), 3, || Ok(1));
    assert_eq!(a.await.unwrap(), 1);
    gate.open();
    first.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_named_twice_is_taken_once_and_released() {
    let locks = OperationLocks::new();
    for _ in 0..2 {
        let keys = [volume("a"), volume("a")].concat();
        let done = run(&locks, A, keys, 1, || Ok(1)).await;
        assert_eq!(done.unwrap(), 1);
    }
    assert!(locks.table.lock().queues.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_joins_and_gets_the_same_answer() {
    let (locks, gate, first) = busy("v").await;
    let joined: Vec<_> = (0..20).map(|_| join(&locks, A, volume("v"), 1)).collect();
    joined_by(&locks, 0, 21).await;
    gate.open();
    assert_eq!(first.await.unwrap().unwrap(), 7);
    for call in joined {
        assert_eq!(call.await.unwrap().unwrap(), 7);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_when_the_caller_hangs_up_and_a_retry_joins_it() {
    let (locks, gate, first) = busy("v").await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());

    assert_eq!(
        refused(&locks, B, volume("v"), 9).await.code(),
        Code::Aborted
    );
    let retry = join(&locks, A, volume("v"), 1);
    joined_by(&locks, 0, 1).await;
    gate.open();
    assert_eq!(retry.await.unwrap().unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_internal_to_all_callers_and_releases_the_keys() {
    let locks = OperationLocks::new();
    let panicked = run(&locks, A, volume("v"), 1, || panic!("boom")).await;
    let panicked = panicked.unwrap_err();
    assert_eq!(panicked.code(), Code::Internal);
    assert!(!panicked.message().contains("boom"));
    let next = run(&locks, B, volume("v"), 2, || Ok(1));
    assert_eq!(next.await.unwrap(), 1);

    let read = locks.read(one().await, || -> Result<(), Status> { panic!("boom") });
    assert_eq!(read.await.unwrap_err().code(), Code::Internal);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_shared_like_answers() {
    let locks = OperationLocks::new();
    let failed = run(&locks, A, volume("v"), 1, || {
        Err(Status::resource_exhausted("full"))
    });
    let failed = failed.await.unwrap_err();
    assert_eq!(
        (failed.code(), failed.message()),
        (Code::ResourceExhausted, "full")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_refuses_new_work_and_waits_for_the_rest() {
    let (locks, gate, first) = busy("v").await;
    first.abort(); // no caller waits for the work now
    locks.close();
    assert_eq!(locks.in_flight(), 1);
    assert_eq!(
        refused(&locks, A, volume("w"), 2).await.code(),
        Code::Unavailable
    );

    let waited = tokio::time::timeout(Duration::from_millis(50), locks.drained()).await;
    assert!(waited.is_err(), "it did not wait for the work");
    gate.open();
    locks.drained().await;
}

#[rstest]
#[case::changes(Usage::Change, Usage::Change, Precedence::Abort, Precedence::Abort)]
#[case::copies(Usage::Copy, Usage::Copy, Precedence::After, Precedence::Beside)]
#[case::a_change_after_a_copy(Usage::Copy, Usage::Change, Precedence::After, Precedence::After)]
#[case::a_copy_after_a_change(Usage::Change, Usage::Copy, Precedence::After, Precedence::After)]
#[case::records(Usage::Record, Usage::Record, Precedence::Abort, Precedence::Abort)]
#[case::a_record_after_a_change(Usage::Change, Usage::Record, Precedence::Abort, Precedence::Abort)]
#[case::a_change_after_a_record(Usage::Record, Usage::Change, Precedence::Abort, Precedence::Abort)]
#[case::a_record_after_a_copy(Usage::Copy, Usage::Record, Precedence::Beside, Precedence::Beside)]
#[case::a_copy_after_a_record(Usage::Record, Usage::Copy, Precedence::Beside, Precedence::Beside)]
#[case::mounts(Usage::Mount, Usage::Mount, Precedence::Abort, Precedence::Abort)]
#[case::a_change_after_a_mount(Usage::Mount, Usage::Change, Precedence::Abort, Precedence::Abort)]
#[case::a_record_after_a_mount(Usage::Mount, Usage::Record, Precedence::Abort, Precedence::Abort)]
#[case::a_mount_after_a_copy(Usage::Copy, Usage::Mount, Precedence::After, Precedence::After)]
#[case::a_copy_after_a_mount(Usage::Mount, Usage::Copy, Precedence::After, Precedence::After)]
fn what_comes_first(
    #[case] earlier: Usage,
    #[case] later: Usage,
    #[case] volume: Precedence,
    #[case] snapshot: Precedence,
) {
    assert_eq!(precedence(&Key::Volume("v".into()), earlier, later), volume);
    assert_eq!(
        precedence(&Key::Snapshot("s".into()), earlier, later),
        snapshot
    );
    // Only volumes and snapshots are copied.
    let names = [
        Key::VolumeName,
        Key::SnapshotName,
        Key::GroupName,
        Key::Group,
    ];
    for key in names.map(|key| key("n".into())) {
        assert_eq!(
            precedence(&key, Usage::Change, Usage::Change),
            Precedence::Abort
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_snapshot_run_at_once_and_a_change_waits_for_them() {
    let (locks, gate, done) = (OperationLocks::new(), Gate::default(), Order::default());
    let copy = |n: u8| {
        [
            Key::VolumeName(n.to_string()).changed(),
            snapshot("s").copied(),
        ]
        .into()
    };
    let mut calls = Vec::new();
    for n in 0..24 {
        // This returns when the work has begun, while the gate holds all the others.
        calls.push(begin(&locks, &gate, copy(n), n).await);
    }
    let delete = queue(&locks, vec![snapshot("s").changed()], 100, &done).await;
    // A later copy waits for the deletion, and another snapshot is not affected.
    let late = queue(&locks, copy(101), 101, &done).await;
    let other = run(&locks, B, vec![snapshot("t").changed()], 102, || Ok(1));
    assert_eq!(other.await.unwrap(), 1);
    let second = refused(&locks, B, vec![snapshot("s").changed()], 103).await;
    assert_eq!(
        second.message(),
        format!("an operation on snapshot s is in progress ({B})")
    );
    assert!(done.lock().is_empty());

    gate.open();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 7);
    }
    delete.await.unwrap().unwrap();
    late.await.unwrap().unwrap();
    assert_eq!(*done.lock(), [100, 101]);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_a_volume_and_its_changes_run_in_the_order_of_their_arrival() {
    let (locks, gate, first) = busy("v").await;
    let done = Order::default();
    let mut calls = Vec::new();
    for number in 0..10 {
        calls.push(queue(&locks, copied("v"), number, &done).await);
    }
    // It waits only for the copies, but the change of the same volume is still under way.
    assert_eq!(
        refused(&locks, B, volume("v"), 99).await.code(),
        Code::Aborted
    );
    gate.open();
    first.await.unwrap().unwrap();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(*done.lock(), Vec::from_iter(0..10));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_too_long_is_aborted_and_its_retry_keeps_the_place() {
    let (locks, gate, first) = busy("v").await;
    let done = Order::default();
    let hasty = operation(B, copied("v"), 1, Duration::from_millis(250));
    let ours = done.clone();
    let work = move || {
        ours.lock().push(1);
        Ok::<u32, Status>(1)
    };
    let aborted = locks.run(many(), hasty, work).await.unwrap_err();
    assert_eq!(aborted.code(), Code::Aborted);
    let says = format!("an operation on volume v is in progress ({A}), and has not ended");
    assert_eq!(aborted.message(), format!("{says} within 0.25 s"));

    let other = queue(&locks, copied("v"), 2, &done).await;
    let retry = join(&locks, B, copied("v"), 1);
    joined_by(&locks, 1, 1).await;
    gate.open();
    first.await.unwrap().unwrap();
    assert_eq!(retry.await.unwrap().unwrap(), 1);
    assert_eq!(other.await.unwrap().unwrap(), 2);
    assert_eq!(*done.lock(), [1, 2]);
}

/// The limit is on the time to wait for others, not on the time of the work.
#[tokio::test(flavor = "multi_thread")]
async fn work_that_runs_is_never_aborted() {
    // On a busy machine, a thread can begin the work so late that the wait for it is too long.
    for limit in [10, 100, 1000, 10_000].map(Duration::from_millis) {
        let operation = operation(A, volume("v"), 1, limit);
        let work = move || {
            std::thread::sleep(limit + limit / 2);
            Ok::<u32, Status>(1)
        };
        let ended = OperationLocks::new().run(many(), operation, work).await;
        if ended.is_ok_and(|answer| answer == 1) {
            return;
        }
    }
    panic!("it is aborted each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_sends_those_that_wait_away() {
    let (locks, gate, first) = busy("v").await;
    let done = Order::default();
    let waiting = queue(&locks, copied("v"), 1, &done).await;
    locks.close();
    assert_eq!(
        waiting.await.unwrap().unwrap_err().code(),
        Code::Unavailable
    );
    gate.open();
    assert_eq!(first.await.unwrap().unwrap(), 7);
    locks.drained().await;
    assert!(done.lock().is_empty());
}

/// A job that waits holds no thread: the only one is free for other volumes.
#[tokio::test(flavor = "multi_thread")]
async fn those_that_wait_hold_no_thread() {
    let (locks, gate, first) = busy("v").await;
    let one = threads(1);
    let copy = operation(B, copied("v"), 1, PATIENT);
    let waiting = tokio::spawn({
        let (locks, one) = (locks.clone(), one.clone());
        async move { locks.run(one, copy, || Ok::<u32, Status>(1)).await }
    });
    while locks.in_flight() < 2 {
        tokio::task::yield_now().await;
    }
    let other = operation(B, volume("w"), 2, PATIENT);
    let other = locks.run(one, other, || Ok::<u32, Status>(2));
    assert_eq!(other.await.unwrap(), 2);
    gate.open();
    first.await.unwrap().unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), 1);
}

/// Sends many requests that change or copy one to three of few objects, or mount one, and that have
/// few threads. No object is changed while it is used otherwise, and no volume is copied twice at
/// once. Each caller gets its own answer, and no lock remains in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn only_copies_of_a_snapshot_share_it() {
    const OBJECTS: usize = 6;
    const ALONE: usize = 1000;
    let key = |n: usize| match n % 2 {
        0 => Key::Volume(n.to_string()),
        _ => Key::Snapshot(n.to_string()),
    };
    let locks = OperationLocks::new();
    let users: Arc<Vec<AtomicUsize>> = Arc::new((0..OBJECTS).map(|_| 0.into()).collect());
    let (ran, shared, aborted) = <[Arc<AtomicUsize>; 3]>::default().into();
    let few = threads(4);
    let all = async {
        // On a busy machine, the callers of a round may have met in none of these ways.
        let counts = [&ran, &shared, &aborted];
        while counts.iter().any(|count| count.load(Ordering::SeqCst) == 0) {
            let callers: Vec<_> = (0..2000_usize)
                .map(|n| {
                    let (locks, users, few) = (locks.clone(), users.clone(), few.clone());
                    let (ran, shared, aborted) = (ran.clone(), shared.clone(), aborted.clone());
                    tokio::spawn(async move {
                        // Equal n % 60 means an equal request.
                        let seed = n % 60;
                        let usage = |object: usize| match (seed / 6 + object) % 3 {
                            0 => Usage::Change,
                            1 if seed.is_multiple_of(3) && object.is_multiple_of(2) => Usage::Mount,
                            _ => Usage::Copy,
                        };
                        let holds: Vec<Hold> = (0..=seed % 3)
                            .map(|k| (seed + k) % OBJECTS)
                            .map(|object| Hold {
                                key: key(object),
                                usage: usage(object),
                            })
                            .collect();
                        // A user that must be alone counts for more than all the others together.
                        let used: Vec<(usize, usize)> = (0..=seed % 3)
                            .map(|k| (seed + k) % OBJECTS)
                            .map(|object| (object, usage(object) == Usage::Copy && object % 2 == 1))
                            .map(|(object, shares)| (object, if shares { 1 } else { ALONE }))
                            .collect();
                        let work = {
                            let ran = ran.clone();
                            move || {
                                for (object, weight) in &used {
                                    let others =
                                        users[*object].fetch_add(*weight, Ordering::SeqCst);
                                    assert!(others == 0 || *weight == 1 && others < ALONE);
                                    shared.fetch_add(others, Ordering::SeqCst);
                                }
                                ran.fetch_add(1, Ordering::SeqCst);
                                std::thread::sleep(Duration::from_micros(200));
                                for (object, weight) in &used {
                                    users[*object].fetch_sub(*weight, Ordering::SeqCst);
                                }
                                Ok::<u32, Status>(seed as u32)
                            }
                        };
                        let operation = Operation {
                            long: seed.is_multiple_of(5),
                            ..operation(A, holds, seed as u8, PATIENT)
                        };
                        match locks.run(few, operation, work).await {
                            Ok(answer) => assert_eq!(answer, seed as u32),
                            Err(status) => {
                                assert_eq!(status.code(), Code::Aborted, "{status:?}");
                                aborted.fetch_add(1, Ordering::SeqCst);
                            }
                        }
                    })
                })
                .collect();
            for caller in callers {
                caller.await.unwrap();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(300), all)
        .await
        .expect("no deadlock, and each way to meet");
    assert!(locks.table.lock().queues.is_empty());
    locks.close();
    locks.drained().await;
}

#[test]
fn work_dropped_by_a_dying_runtime_releases_its_keys() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let locks = OperationLocks::new();
    let (gate, (begun, has_begun)) = (Gate::default(), mpsc::channel());
    // The only thread is busy, so the second job never starts.
    {
        let (locks, gate) = (locks.clone(), gate.clone());
        runtime.spawn(async move {
            let work = move || {
                begun.send(()).unwrap();
                gate.wait();
                Ok(1)
            };
            run(&locks, A, volume("v"), 1, work).await
        });
    }
    has_begun.recv().unwrap();
    {
        let _entered = runtime.enter();
        drop(join(&locks, A, volume("w"), 2));
    }
    while locks.in_flight() < 2 {
        std::thread::yield_now();
    }
    runtime.shutdown_background();
    gate.open();
    assert_soon(true, || locks.table.lock().queues.is_empty());
}

/// A caller that hears of the end may ask for the same objects at once.
#[tokio::test]
async fn what_follows_a_success_finds_the_objects_free() {
    let locks = OperationLocks::new();
    let (hears, free) = std::sync::mpsc::channel();
    for (number, answer) in [(1, Ok(1)), (2, Err(Status::internal("failed")))] {
        let (table, hears) = (locks.table.clone(), hears.clone());
        let then: AfterSuccess =
            Box::new(move || hears.send(table.lock().queues.is_empty()).unwrap());
        let operation = operation("Unstage", copied("a"), number, PATIENT);
        let operation = Operation {
            then: Some(then),
            ..operation
        };
        let ended = locks.run(many(), operation, move || answer).await;
        assert_eq!(ended.is_ok(), number == 1);
    }
    assert_eq!(free.try_iter().collect::<Vec<_>>(), [true]);
}
