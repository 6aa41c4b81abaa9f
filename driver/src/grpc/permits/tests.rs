use futures::FutureExt;
use rstest::rstest;
use tokio::task::JoinHandle;

use super::*;

/// Of so many permits, how many a namespace takes if it alone asks, and how many the next ones take
/// after it. All is held until the end.
#[rstest]
#[case::a_question(1, &["a", "b"], &[1, 0])]
#[case::copies_of_bytes(3, &["a", "b", "c"], &[2, 1, 0])]
#[case::clones(4, &["a", "b", "c"], &[3, 1, 0])]
#[case::deletions(8, &["a", "b", "c", "d"], &[6, 1, 1, 0])]
#[case::changes(32, &["a", "b", "c", "d", "e"], &[24, 6, 1, 1, 0])]
#[case::unknown_namespaces(4, &["", "b"], &[4, 0])]
#[case::unknown_namespaces_after_another(4, &["a", "", "b"], &[3, 1, 0])]
fn no_namespace_takes_all(
    #[case] total: usize,
    #[case] namespaces: &[&str],
    #[case] expected: &[usize],
) {
    let permits = Permits::new(total, "copies");
    let mut held = Vec::new();
    let mut taken = Vec::new();
    for namespace in namespaces {
        let before = held.len();
        while let Some(Some(permit)) = permits.acquire(namespace).now_or_never() {
            held.push(permit);
        }
        taken.push(held.len() - before);
    }
    assert_eq!(taken, expected);
    assert_eq!((permits.in_use(), permits.waiting()), (held.len(), 0));
    drop(held);
    assert!(permits.state.lock().held.is_empty());
}

/// A permit that one namespace leaves free is for the next one, and a request that waits gets its
/// permit once its own namespace has fewer.
#[tokio::test]
async fn a_permit_is_left_for_another_namespace() {
    let (permits, order) = (Permits::new(4, "copies"), Order::default());
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(permits.acquire("many").await);
    }
    let waits = request(&permits, "many", 0, &order).await;
    let modest = permits.acquire("modest").now_or_never();
    assert!(modest.flatten().is_some(), "it begins at once");
    assert_eq!((permits.in_use(), permits.waiting()), (3, 1));
    drop(held.pop());
    waits.await.unwrap();
    assert_eq!(*order.lock(), [0]);
    drop(held);
    assert_eq!((permits.in_use(), permits.waiting()), (0, 0));
}

/// Sends a request that notes its number when its turn comes.
async fn request(permits: &Arc<Permits>, namespace: &str, number: usize, order: &Order) -> Waiting {
    let before = permits.waiting();
    let (theirs, namespace, order) = (permits.clone(), namespace.to_owned(), order.clone());
    let request = tokio::spawn(async move {
        let permit = theirs.acquire(&namespace).await;
        order.lock().push(number);
        drop(permit);
    });
    while permits.waiting() == before {
        tokio::task::yield_now().await;
    }
    request
}

type Waiting = JoinHandle<()>;
type Order = Arc<Mutex<Vec<usize>>>;

#[rstest]
#[case::one_caller(&["a", "a", "a"], &[0, 1, 2])]
#[case::a_late_one_has_the_next_turn_but_one(&["a", "a", "a", "b"], &[0, 3, 1, 2])]
#[case::three(&["a", "a", "b", "b", "c"], &[0, 2, 4, 1, 3])]
#[tokio::test]
async fn namespaces_take_turns(#[case] namespaces: &[&str], #[case] expected: &[usize]) {
    let (permits, order) = (Permits::new(1, "copies"), Order::default());
    let held = permits.acquire("x").await;
    let mut requests = Vec::new();
    for (number, namespace) in namespaces.iter().enumerate() {
        requests.push(request(&permits, namespace, number, &order).await);
    }
    assert_eq!((permits.in_use(), permits.waiting()), (1, namespaces.len()));
    drop(held);
    for request in requests {
        request.await.unwrap();
    }
    assert_eq!(*order.lock(), expected);
    assert_eq!((permits.in_use(), permits.waiting()), (0, 0));
}

#[tokio::test]
async fn those_that_stop_to_wait_hold_nobody_up() {
    let (permits, order) = (Permits::new(2, "copies"), Order::default());
    let held = [permits.acquire("x").await, permits.acquire("y").await];
    let mut requests = Vec::new();
    for number in 0..4 {
        requests.push(request(&permits, "a", number, &order).await);
    }
    for gone in [2, 0] {
        let request = requests.remove(gone);
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
    }
    assert_eq!(permits.waiting(), 2);
    drop(held);
    for request in requests {
        request.await.unwrap();
    }
    assert_eq!(*order.lock(), [1, 3]);
    assert_eq!(permits.in_use(), 0);
}
