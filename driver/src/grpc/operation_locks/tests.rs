use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, mpsc};
use std::time::Duration;

use super::*;

const A: &str = "/csi.v1.Controller/CreateVolume";
const B: &str = "/csi.v1.Controller/DeleteVolume";

fn volume(id: &str) -> Vec<Key> {
    vec![Key::Volume(id.to_owned())]
}

fn many() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(64))
}

async fn one() -> OwnedSemaphorePermit {
    many().acquire_owned().await.unwrap()
}

fn print(n: u8) -> Fingerprint {
    Fingerprint::of(&[n])
}

/// Runs work on volumes.
async fn run(
    locks: &OperationLocks,
    method: &'static str,
    keys: Vec<Key>,
    number: u8,
    work: impl FnOnce() -> Result<u32, Status> + Send + 'static,
) -> Result<u32, Status> {
    locks.run(many(), method, keys, print(number), work).await
}

/// Work that waits until the test opens the gate.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn wait(&self) {
        let mut open = self.0.0.lock().unwrap();
        while !*open {
            open = self.0.1.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

type Work = tokio::task::JoinHandle<Result<u32, Status>>;

/// Starts request 1 of method A on a volume. Its work has begun, and waits at the gate.
async fn busy(id: &str) -> (OperationLocks, Gate, Work) {
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (locks, gate, keys) = (OperationLocks::new(), Gate::default(), volume(id));
    let call = tokio::spawn({
        let (locks, gate) = (locks.clone(), gate.clone());
        let work = move || {
            let _ = begun.send(());
            gate.wait();
            Ok(7)
        };
        async move { run(&locks, A, keys, 1, work).await }
    });
    has_begun.await.unwrap();
    (locks, gate, call)
}

/// Waits until this many callers wait for the answer of the work on volume "v".
async fn joined_by(locks: &OperationLocks, callers: usize) {
    let job = lock(&locks.table).held[&volume("v")[0]].clone();
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
        let refused = run(&locks, method, volume("v"), number, never).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Aborted);
        assert_eq!(refused.message(), format!("an operation on volume v is in progress ({A})"));
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
    let refused = run(&locks, A, ab, 2, never).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
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
    assert!(lock(&locks.table).held.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_joins_and_gets_the_same_answer() {
    let (locks, gate, first) = busy("v").await;
    let joined: Vec<_> = (0..20)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move { run(&locks, A, volume("v"), 1, never).await })
        })
        .collect();
    joined_by(&locks, 21).await;
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

    let refused = run(&locks, B, volume("v"), 9, never).await;
    assert_eq!(refused.unwrap_err().code(), Code::Aborted);
    let retry = {
        let locks = locks.clone();
        tokio::spawn(async move { run(&locks, A, volume("v"), 1, never).await })
    };
    joined_by(&locks, 1).await;
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
    let failed = run(&locks, A, volume("v"), 1, || Err(Status::resource_exhausted("full")));
    let failed = failed.await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::ResourceExhausted, "full"));
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_refuses_new_work_and_waits_for_the_rest() {
    let (locks, gate, first) = busy("v").await;
    first.abort(); // no caller waits for the work now
    locks.close();
    assert_eq!(locks.in_flight(), 1);
    let late = run(&locks, A, volume("w"), 2, never).await;
    assert_eq!(late.unwrap_err().code(), Code::Unavailable);

    let waited = tokio::time::timeout(Duration::from_millis(50), locks.drained()).await;
    assert!(waited.is_err(), "it did not wait for the work");
    gate.open();
    locks.drained().await;
}

/// Sends many requests of one to three keys about few volumes. No two jobs ever hold the same key,
/// each caller gets its own answer, and no lock remains in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_key_is_ever_held_twice() {
    const VOLUMES: usize = 5;
    let locks = OperationLocks::new();
    let holders: Arc<Vec<AtomicUsize>> = Arc::new((0..VOLUMES).map(|_| 0.into()).collect());
    let (ran, aborted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));

    let callers: Vec<_> = (0..2000_usize)
        .map(|n| {
            let (locks, holders) = (locks.clone(), holders.clone());
            let (ran, aborted) = (ran.clone(), aborted.clone());
            tokio::spawn(async move {
                // Equal n % 40 means an equal request.
                let seed = n % 40;
                let touched: Vec<usize> = (0..=seed % 3).map(|k| (seed + k) % VOLUMES).collect();
                let keys = touched.iter().map(|v| Key::Volume(v.to_string())).collect();
                let work = {
                    let ran = ran.clone();
                    move || {
                        for v in &touched {
                            assert_eq!(holders[*v].fetch_add(1, Ordering::SeqCst), 0);
                        }
                        ran.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_micros(200));
                        for v in &touched {
                            holders[*v].fetch_sub(1, Ordering::SeqCst);
                        }
                        Ok::<_, Status>(seed)
                    }
                };
                match locks.run(many(), A, keys, print(seed as u8), work).await {
                    Ok(answer) => assert_eq!(answer, seed),
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
    assert!(ran.load(Ordering::SeqCst) > 0 && aborted.load(Ordering::SeqCst) > 0);
    assert!(lock(&locks.table).held.is_empty());
    locks.close();
    locks.drained().await;
}

#[test]
fn work_dropped_by_a_dying_runtime_releases_its_keys() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
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
        let locks = locks.clone();
        runtime.spawn(async move { run(&locks, A, volume("w"), 2, never).await });
    }
    while locks.in_flight() < 2 {
        std::thread::yield_now();
    }
    runtime.shutdown_background();
    gate.open();
    let emptied = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        lock(&locks.table).held.is_empty()
    });
    assert!(emptied);
}
