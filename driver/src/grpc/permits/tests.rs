use rstest::rstest;
use tokio::task::JoinHandle;

use super::*;

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
