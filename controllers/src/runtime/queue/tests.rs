use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::{advance, timeout};

use super::*;

const START: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(300);

fn queue() -> Queue<&'static str> {
    Queue::new(Backoff {
        start: START,
        max: MAX,
    })
}

/// The key that is there now, without waiting.
async fn now(queue: &Queue<&'static str>) -> Option<Item<&'static str>> {
    timeout(Duration::ZERO, queue.next()).await.ok().flatten()
}

async fn key_now(queue: &Queue<&'static str>) -> Option<&'static str> {
    let item = now(queue).await?;
    let key = *item.key();
    item.end(Outcome::Done);
    Some(key)
}

#[test]
fn backoff_doubles_up_to_its_limit() {
    let backoff = Backoff {
        start: START,
        max: MAX,
    };
    for (failures, seconds) in [
        (0, 1),
        (1, 1),
        (2, 2),
        (3, 4),
        (9, 256),
        (10, 300),
        (33, 300),
        (u32::MAX, 300),
    ] {
        assert_eq!(
            backoff.delay(failures),
            Duration::from_secs(seconds),
            "{failures}"
        );
    }
    let large = Backoff {
        start: Duration::MAX,
        max: Duration::MAX,
    };
    assert_eq!(large.delay(2), Duration::MAX);
    let upside_down = Backoff {
        start: MAX,
        max: START,
    };
    assert_eq!(upside_down.delay(1), START);
}

#[tokio::test(start_paused = true)]
async fn keys_come_in_order_and_once() {
    let queue = queue();
    for key in ["a", "b", "a", "c", "b"] {
        queue.add(key);
    }
    assert_eq!(queue.depth(), 3);
    for key in ["a", "b", "c"] {
        assert_eq!(key_now(&queue).await, Some(key));
    }
    assert_eq!(key_now(&queue).await, None);
    assert!(queue.lock().places.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_is_never_in_two_hands_and_comes_back_if_added_meanwhile() {
    let queue = queue();
    queue.add("a");
    let item = now(&queue).await.unwrap();
    queue.add("a");
    queue.add("a");
    assert!(now(&queue).await.is_none(), "it is being worked on");
    item.end(Outcome::Done);
    assert_eq!(key_now(&queue).await, Some("a"));
    assert_eq!(key_now(&queue).await, None, "once is enough");
}

#[tokio::test(start_paused = true)]
async fn failures_wait_longer_and_longer_and_success_forgets_them() {
    let queue = queue();
    queue.add("a");
    for seconds in [1, 2, 4, 8] {
        now(&queue).await.unwrap().end(Outcome::Failed);
        advance(Duration::from_secs(seconds) - Duration::from_millis(1)).await;
        assert!(now(&queue).await.is_none(), "before {seconds} s");
        advance(Duration::from_millis(1)).await;
    }
    assert_eq!(queue.failures(&"a"), 4);
    now(&queue).await.unwrap().end(Outcome::Done);
    assert_eq!(queue.failures(&"a"), 0);

    queue.add("a");
    now(&queue).await.unwrap().end(Outcome::Failed);
    advance(START).await;
    assert_eq!(key_now(&queue).await, Some("a"));
}

#[tokio::test(start_paused = true)]
async fn news_bring_a_failed_key_forward_but_its_failures_count_on() {
    let queue = queue();
    queue.add("a");
    now(&queue).await.unwrap().end(Outcome::Failed);
    queue.add("a");
    let item = now(&queue).await.unwrap();
    assert!(queue.lock().waiting.is_empty(), "it does not come twice");
    item.end(Outcome::Failed);
    assert_eq!(queue.failures(&"a"), 2);

    // And news during the work outrun the backoff.
    advance(2 * START).await;
    let item = now(&queue).await.unwrap();
    queue.add("a");
    item.end(Outcome::Failed);
    assert_eq!(key_now(&queue).await, Some("a"));
}

#[tokio::test(start_paused = true)]
async fn outcomes_say_when_to_come_back() {
    let queue = queue();
    queue.add("a");
    now(&queue).await.unwrap().end(Outcome::Failed);
    advance(START).await;
    now(&queue)
        .await
        .unwrap()
        .end(Outcome::Again(Duration::from_secs(60)));
    assert_eq!(queue.failures(&"a"), 0);
    advance(Duration::from_secs(60)).await;
    now(&queue).await.unwrap().end(Outcome::FailedFor(MAX));
    assert_eq!(queue.failures(&"a"), 1);
    advance(MAX - START).await;
    assert!(now(&queue).await.is_none());
    advance(START).await;
    assert_eq!(key_now(&queue).await, Some("a"));
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_two_times_counts() {
    let queue = queue();
    queue.add_after("a", 10 * START);
    queue.add_after("a", 5 * START);
    queue.add_after("a", 20 * START);
    advance(5 * START).await;
    assert_eq!(key_now(&queue).await, Some("a"));
    advance(20 * START).await;
    assert_eq!(key_now(&queue).await, None);

    // Asked for while it is worked on: not before the work is done, nor forgotten.
    queue.add("a");
    let item = now(&queue).await.unwrap();
    queue.add_after("a", START);
    advance(5 * START).await;
    assert!(now(&queue).await.is_none());
    item.end(Outcome::Done);
    assert_eq!(key_now(&queue).await, Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_item_has_failed() {
    let queue = queue();
    queue.add("a");
    drop(now(&queue).await);
    assert_eq!(queue.failures(&"a"), 1);
    advance(START).await;
    assert_eq!(key_now(&queue).await, Some("a"));
}

#[tokio::test(start_paused = true)]
async fn workers_wake_for_what_is_due() {
    let queue = queue();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await.map(|item| *item.key()) })
        })
        .collect();
    tokio::task::yield_now().await;
    // Three keys due at once, and one wake-up each must not be relied upon.
    for key in ["a", "b", "c"] {
        queue.add_after(key, 5 * START);
    }
    let begun = Instant::now();
    let mut keys = Vec::new();
    for worker in waiting {
        keys.push(worker.await.unwrap().unwrap());
    }
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b", "c"]);
    assert_eq!(begun.elapsed(), 5 * START);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_every_worker() {
    let queue = queue();
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.work(|_| async { Outcome::Done }).await })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.add_after("a", START);
    queue.close();
    for worker in workers {
        timeout(START, worker).await.unwrap().unwrap();
    }
}

/// Many keys, several workers, random failures: every key ends done, and never runs twice at once.
#[tokio::test(start_paused = true)]
async fn everything_gets_done() {
    const KEYS: usize = 50;
    let queue = Queue::new(Backoff {
        start: START,
        max: 8 * START,
    });
    let running: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| 0.into()).collect());
    let left = Arc::new(AtomicUsize::new(KEYS));
    for worker in 0..7 {
        let (queue, running, left) = (queue.clone(), running.clone(), left.clone());
        tokio::spawn(async move {
            let mut round = worker;
            queue
                .clone()
                .work(|key: usize| {
                    round += 1;
                    let (round, running) = (round, running.clone());
                    let (queue, left) = (queue.clone(), left.clone());
                    async move {
                        assert_eq!(running[key].fetch_add(1, Ordering::SeqCst), 0);
                        tokio::time::sleep(Duration::from_millis(10)).await;
                        running[key].fetch_sub(1, Ordering::SeqCst);
                        if round % 3 == 0 {
                            return Outcome::Failed;
                        }
                        if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                            queue.close();
                        }
                        Outcome::Done
                    }
                })
                .await;
        });
    }
    for key in 0..KEYS {
        queue.add(key);
    }
    while left.load(Ordering::SeqCst) > 0 {
        advance(START).await;
        tokio::task::yield_now().await;
    }
}
