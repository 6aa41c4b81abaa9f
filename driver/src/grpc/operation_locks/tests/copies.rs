//! Work that ends without callers, and what it leaves free meanwhile.

use super::*;

/// How long abandoned work goes on in these tests.
const GRACE: Duration = Duration::from_secs(100);

/// A copy that goes on while it has callers.
struct Copying {
    locks: OperationLocks,
    threads: Arc<Permits>,
    steps: Arc<AtomicUsize>,
    gate: Gate,
}

impl Copying {
    fn new() -> Copying {
        let (steps, gate) = <(Arc<AtomicUsize>, Gate)>::default();
        Copying {
            locks: OperationLocks::new(),
            threads: threads(1),
            steps,
            gate,
        }
    }

    /// Sends request `number` to copy volume "v", or joins it.
    fn call(&self, number: u8) -> Work {
        let holds = [volume(&format!("new {number}")), copied("v")].concat();
        let wait_limit = Duration::from_secs(9);
        let operation = Operation {
            grace: Some(GRACE),
            ..operation(A, holds, number, wait_limit)
        };
        let (locks, threads) = (self.locks.clone(), self.threads.clone());
        let (steps, gate) = (self.steps.clone(), self.gate.clone());
        let work = move || {
            steps.fetch_add(1, Ordering::SeqCst);
            let unwanted = || crate::kernel::wanted::check(&tempfile::tempfile().unwrap()).is_err();
            while !*gate.0.0.lock() {
                if unwanted() {
                    return Err(Status::aborted("stopped"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            crate::kernel::wanted::copied();
            Ok(7)
        };
        tokio::spawn(async move { locks.run(threads, operation, work).await })
    }

    /// Sends a request to copy another source, so only the thread is in its way.
    fn other(&self) -> Work {
        let operation = Operation {
            grace: Some(GRACE),
            ..operation(A, copied("w"), 9, Duration::from_secs(9))
        };
        let (locks, threads) = (self.locks.clone(), self.threads.clone());
        tokio::spawn(async move { locks.run(threads, operation, never).await })
    }

    async fn begun(&self, times: usize) {
        while self.steps.load(Ordering::SeqCst) < times {
            tokio::task::yield_now().await;
        }
    }

    fn ended(&self) -> bool {
        self.locks.in_flight() == 0
    }
}

/// Lets this time pass.
async fn pass(time: Duration) {
    tokio::task::yield_now().await;
    tokio::time::advance(time).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A client with a deadline of ten seconds retries until the copy is done, which begins only once.
#[tokio::test(start_paused = true)]
async fn a_copy_goes_on_while_its_caller_retries() {
    let copying = Copying::new();
    for _ in 0..50 {
        let call = copying.call(1);
        copying.begun(1).await;
        pass(Duration::from_secs(10)).await;
        call.abort();
        let _ = call.await;
        pass(GRACE - Duration::from_secs(15)).await;
    }
    let last = copying.call(1);
    pass(Duration::ZERO).await;
    copying.gate.open();
    assert_eq!(last.await.unwrap().unwrap(), 7);
    assert_eq!(copying.steps.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_copy_ends_once_no_caller_has_come_for_the_time_of_grace() {
    let copying = Copying::new();
    // The second one waits for the only thread, and ends without one.
    let calls = [copying.call(1), copying.call(2)];
    copying.begun(1).await;
    for call in calls {
        call.abort();
        let _ = call.await;
    }
    pass(GRACE - Duration::from_secs(1)).await;
    assert_eq!(copying.locks.in_flight(), 2);
    pass(Duration::from_secs(1)).await;
    while !copying.ended() {
        tokio::task::yield_now().await;
    }
    assert!(copying.locks.table.lock().queues.is_empty());
    assert_eq!(
        (
            copying.threads.in_use(),
            copying.steps.load(Ordering::SeqCst)
        ),
        (0, 1)
    );
    // A later call begins a new copy.
    copying.gate.open();
    assert_eq!(copying.call(1).await.unwrap().unwrap(), 7);
}

/// Otherwise a deletion that waits would be done even after its object came back from a backup.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_ends_once_no_caller_has_come_for_the_time_of_grace() {
    let grace = crate::grpc::operation_locks::GRACE;
    let copying = Copying::new();
    let copy = copying.call(1);
    copying.begun(1).await;
    let delete = operation(B, volume("v"), 2, Duration::from_secs(9));
    let locks = copying.locks.clone();
    let delete = tokio::spawn(async move { locks.run(many(), delete, never).await });
    pass(Duration::from_secs(9)).await;
    let refused = delete.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    pass(grace - Duration::from_secs(1)).await;
    assert_eq!(copying.locks.in_flight(), 2);
    pass(Duration::from_secs(2)).await;
    assert_eq!(copying.locks.in_flight(), 1);
    // The copy does not wait, and has a caller.
    copying.gate.open();
    assert_eq!(copy.await.unwrap().unwrap(), 7);
    assert!(copying.locks.table.lock().queues.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_process_ends_copies() {
    let copying = Copying::new();
    let call = copying.call(1);
    copying.begun(1).await;
    copying.locks.close();
    copying.locks.drained().await;
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_copies_says_so() {
    let copying = Copying::new();
    let first = copying.call(1);
    copying.begun(1).await;
    let waits = copying.other();
    pass(Duration::from_secs(9)).await;
    let refused = waits.await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    let says =
        "the call waits for the copies in its pool (1 run, 1 wait), and has not begun within 9 s";
    assert_eq!(refused.message(), says);
    copying.gate.open();
    first.await.unwrap().unwrap();
}

/// The source is free once it is copied, while the copy itself is still written to disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_free_once_it_is_copied() {
    let (locks, gate) = (OperationLocks::new(), Gate::default());
    let holds = [volume("new"), copied("v")].concat();
    let (theirs, waits) = (locks.clone(), gate.clone());
    let copy = tokio::spawn(async move {
        let work = move || {
            crate::kernel::wanted::copied();
            waits.wait();
            Ok(1)
        };
        run(&theirs, A, holds, 1, work).await
    });
    while locks.in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(run(&locks, B, volume("v"), 2, || Ok(2)).await.unwrap(), 2);
    let other = refused(&locks, B, volume("new"), 3).await;
    assert_eq!(other.code(), Code::Aborted);
    gate.open();
    copy.await.unwrap().unwrap();
}

/// A copy gives way to calls of others, but a pod that waits for its source does not wait for them,
/// too.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_hurries_while_a_pod_waits_for_its_source() {
    use crate::kernel::wanted::is_awaited;

    let (locks, done) = (OperationLocks::new(), Order::default());
    let (another, waited) = (Gate::default(), Gate::default());
    let (theirs, begins, looked) = (locks.clone(), another.clone(), waited.clone());
    let copy = tokio::spawn(async move {
        let work = move || {
            begins.wait();
            let at_first = is_awaited();
            looked.open();
            let soon = (0..30_000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                is_awaited()
            });
            assert_eq!((at_first, soon), (false, true));
            Ok(1)
        };
        run(&theirs, A, [volume("new"), copied("v")].concat(), 1, work).await
    });
    while locks.in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    // Another copy does not make it hurry.
    let again = queue(&locks, copied("v"), 2, &done).await;
    another.open();
    waited.wait();
    let mount = queue(&locks, mounted("v"), 3, &done).await;
    assert_eq!(copy.await.unwrap().unwrap(), 1);
    mount.await.unwrap().unwrap();
    again.await.unwrap().unwrap();
    assert_eq!(*done.lock(), [3, 2]);
}

/// One that only waits for a thread would otherwise begin once the first has ended.
#[tokio::test(start_paused = true)]
async fn no_copy_begins_at_the_end_of_the_process() {
    let copying = Copying::new();
    let first = copying.call(1);
    copying.begun(1).await;
    let waits = copying.other();
    while copying.threads.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    copying.locks.close();
    copying.locks.drained().await;
    assert_eq!(waits.await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert_eq!(first.await.unwrap().unwrap_err().code(), Code::Aborted);
}
