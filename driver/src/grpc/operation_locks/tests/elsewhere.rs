//! Work that does not run on threads of the runtime.

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::*;
use crate::blocking::{self, Executor};

/// Runs work on the task that needs it, once the test lets it.
#[derive(Clone)]
struct Inline(Arc<Semaphore>);

impl Executor for Inline {
    fn run(&self, kind: &'static str, work: blocking::BlockingWork) -> BoxFuture<'static, ()> {
        assert_eq!(kind, "copies");
        let may = self.0.clone();
        async move {
            may.acquire().await.unwrap().forget();
            work();
        }
        .boxed()
    }
}

fn locks() -> (OperationLocks, Arc<Semaphore>) {
    let may = Arc::new(Semaphore::new(0));
    (
        OperationLocks::running_on(Blocking::on(Inline(may.clone()))),
        may,
    )
}

async fn until(done: impl Fn() -> bool) {
    while !done() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn work_elsewhere_holds_its_objects_and_its_permit_until_it_ends() {
    let ((locks, may), permits) = (locks(), threads(1));
    let here = std::thread::current().id();
    let request = |id, number| {
        let operation = operation(A, volume(id), number, PATIENT);
        locks.run(permits.clone(), operation, || {
            Ok::<_, Status>(std::thread::current().id())
        })
    };
    let (first, second, ()) = tokio::join!(request("a", 1), request("b", 2), async {
        until(|| (permits.in_use(), permits.waiting()) == (1, 1)).await;
        let refused = refused(&locks, B, volume("a"), 3).await;
        assert_eq!(refused.code(), Code::Aborted);
        may.add_permits(1);
        until(|| permits.waiting() == 0).await;
        may.add_permits(1);
    });
    assert_eq!((first.unwrap(), second.unwrap()), (here, here));
    until(|| permits.in_use() == 0).await;
}

#[tokio::test]
async fn dropped_locks_leave_no_task() {
    let (locks, may) = locks();
    let permits = threads(1);
    let call = locks.run(
        permits.clone(),
        operation(A, volume("a"), 1, PATIENT),
        never,
    );
    tokio::select! {
        _ = call => panic!("the work has run"),
        () = until(|| permits.in_use() == 1) => {}
    }
    drop(locks);
    until(|| Handle::current().metrics().num_alive_tasks() == 0).await;
    may.add_permits(1);
    assert_eq!((may.available_permits(), permits.in_use()), (1, 0));
}
