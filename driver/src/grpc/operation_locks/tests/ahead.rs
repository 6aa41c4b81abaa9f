//! What goes ahead of work that waits for a thread.

use super::*;

/// A copy waits for a thread as long as others copy. Kubelet's calls for its source go first, so
/// that no pod waits for copies of others, and the copy begins only after them.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_has_not_begun_keeps_no_pod_waiting() {
    let (locks, done, one) = (OperationLocks::new(), Order::default(), threads(1));
    let held = one.acquire("").await;
    let copies: Vec<_> = (1..=2)
        .map(|number| {
            let holds = [volume(&format!("new {number}")), copied("v")].concat();
            let (locks, one, done) = (locks.clone(), one.clone(), done.clone());
            let copy = operation(A, holds, number, PATIENT);
            let work = move || {
                done.lock().push(number);
                Ok::<u32, Status>(7)
            };
            tokio::spawn(async move { locks.run(one, copy, work).await })
        })
        .collect();
    while locks.in_flight() < 2 || one.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    // One after another, and the last of them still runs when the thread is free.
    for number in 3..5 {
        assert_eq!(
            run(&locks, B, mounted("v"), number, || Ok(3))
                .await
                .unwrap(),
            3
        );
    }
    let gate = Gate::default();
    let mount = begin(&locks, &gate, mounted("v"), 5).await;
    drop(held);
    // The thread serves others meanwhile.
    let other = operation(B, volume("w"), 6, PATIENT);
    assert_eq!(
        locks
            .run(one.clone(), other, || Ok::<u32, Status>(6))
            .await
            .unwrap(),
        6
    );
    assert!(done.lock().is_empty());
    gate.open();
    mount.await.unwrap().unwrap();
    for copy in copies {
        assert_eq!(copy.await.unwrap().unwrap(), 7);
    }
    let mut done = done.lock().clone();
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
    assert!(locks.table.lock().queues.is_empty());
}

/// An allocation waits for a thread as long as others allocate. A pod of its volume starts, ends
/// and is moved meanwhile, and other changes are ABORTED.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_for_a_thread_keeps_no_pod_waiting() {
    let (locks, done, one) = (OperationLocks::new(), Order::default(), threads(1));
    let held = one.acquire("").await;
    let expand = Operation {
        long: true,
        ..operation(A, volume("v"), 1, PATIENT)
    };
    let (theirs, threads, ours) = (locks.clone(), one.clone(), done.clone());
    let work = move || {
        ours.lock().push(1);
        Ok::<u32, Status>(1)
    };
    let expand = tokio::spawn(async move { theirs.run(threads, expand, work).await });
    while one.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let record = Key::volume_record("v");
    for (number, holds) in [(2, record.clone()), (3, mounted("v")), (4, mounted("v"))] {
        assert_eq!(run(&locks, B, holds, number, || Ok(3)).await.unwrap(), 3);
    }
    assert_eq!(
        refused(&locks, B, volume("v"), 5).await.code(),
        Code::Aborted
    );
    // It begins after the last of them, which still runs when the thread is free.
    let gate = Gate::default();
    let mount = begin(&locks, &gate, mounted("v"), 6).await;
    assert_eq!(refused(&locks, B, record, 7).await.code(), Code::Aborted);
    drop(held);
    let other = operation(B, volume("w"), 8, PATIENT);
    assert_eq!(
        locks
            .run(one.clone(), other, || Ok::<u32, Status>(8))
            .await
            .unwrap(),
        8
    );
    assert!(done.lock().is_empty());
    gate.open();
    mount.await.unwrap().unwrap();
    assert_eq!(expand.await.unwrap().unwrap(), 1);
    assert!(locks.table.lock().queues.is_empty());
}

#[rstest]
#[case::of_a_copy(Usage::Copy, Usage::Mount, [true, true])]
#[case::of_a_change(Usage::Change, Usage::Mount, [false, true])]
#[case::an_attachment(Usage::Change, Usage::Record, [false, true])]
#[case::a_change_waits_for_a_copy(Usage::Copy, Usage::Change, [false, false])]
#[case::changes(Usage::Change, Usage::Change, [false, false])]
#[case::a_copy(Usage::Change, Usage::Copy, [false, false])]
#[case::mounts(Usage::Mount, Usage::Mount, [false, false])]
fn what_goes_ahead(#[case] earlier: Usage, #[case] later: Usage, #[case] expected: [bool; 2]) {
    assert_eq!(
        [false, true].map(|long| goes_ahead(earlier, long, later)),
        expected
    );
}

/// A deletion came later than the copy, so it waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_waits_for_a_copy_that_has_not_begun() {
    let (locks, done, one) = (OperationLocks::new(), Order::default(), threads(1));
    let held = one.acquire("").await;
    let (theirs, threads, ours) = (locks.clone(), one.clone(), done.clone());
    let work = move || {
        ours.lock().push(1);
        Ok::<u32, Status>(1)
    };
    let copy = operation(A, copied("v"), 1, PATIENT);
    let copy = tokio::spawn(async move { theirs.run(threads, copy, work).await });
    while one.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    let deletion = queue(&locks, volume("v"), 2, &done).await;
    drop(held);
    copy.await.unwrap().unwrap();
    deletion.await.unwrap().unwrap();
    assert_eq!(*done.lock(), [1, 2]);
}
