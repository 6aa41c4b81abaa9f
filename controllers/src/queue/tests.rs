use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use tokio::time::{advance, timeout};

use super::*;

const START: Duration = Duration::from_secs(1);
const MAX: Duration = Duration::from_secs(300);

impl QueueKey for &'static str {
    /// The text before a slash.
    fn namespace(&self) -> &str {
        self.split_once('/').map_or("", |(namespace, _)| namespace)
    }
}

impl QueueKey for usize {}

fn queue() -> Queue<&'static str> {
    Queue::new(Backoff {
        start: START,
        max: MAX,
    })
}

/// The key that is ready now, without waiting for more than a step of other tasks.
async fn now(queue: &Queue<&'static str>) -> Option<HeldKey<&'static str>> {
    let mut next = pin!(queue.next(usize::MAX));
    for _ in 0..3 {
        if let Poll::Ready(item) = futures::poll!(&mut next) {
            return item;
        }
        yield_now().await;
    }
    None
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
    let state = queue.state.lock();
    assert!(state.places.is_empty() && state.held.is_empty());
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
    assert!(
        queue.state.lock().waiting.is_empty(),
        "it does not come twice"
    );
    item.end(Outcome::Failed);
    assert_eq!(queue.failures(&"a"), 2);

    // A change during the work takes precedence over the backoff.
    advance(2 * START).await;
    let item = now(&queue).await.unwrap();
    queue.add("a");
    item.end(Outcome::Failed);
    assert_eq!(key_now(&queue).await, Some("a"));
}

#[tokio::test(start_paused = true)]
async fn a_wake_brings_a_key_forward_and_forgets_its_failures() {
    let queue = queue();
    queue.add("a");
    for seconds in [1, 2, 4, 8] {
        now(&queue).await.unwrap().end(Outcome::Failed);
        advance(Duration::from_secs(seconds)).await;
    }
    now(&queue).await.unwrap().end(Outcome::Failed);
    queue.wake("a");
    now(&queue).await.unwrap().end(Outcome::Failed);
    assert_eq!(queue.failures(&"a"), 1);
    advance(START).await;
    // A wake during the work is not lost: the answer may be older than it.
    let item = now(&queue).await.unwrap();
    queue.wake("a");
    item.end(Outcome::Failed);
    assert_eq!(key_now(&queue).await, Some("a"));
    assert_eq!(key_now(&queue).await, None);
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
        .end(Outcome::RequeueAfter(Duration::from_secs(60)));
    assert_eq!(queue.failures(&"a"), 0);
    advance(Duration::from_secs(60)).await;
    now(&queue).await.unwrap().end(Outcome::RetryAfter(MAX));
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

    // A delayed add during the work takes effect after the work is done.
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
            tokio::spawn(async move { queue.next(usize::MAX).await.map(|item| *item.key()) })
        })
        .collect();
    tokio::task::yield_now().await;
    // Three keys become due at once. The workers must not depend on one wake-up for each.
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
async fn closing_ends_the_work_when_what_is_under_way_is_done() {
    let queue = queue();
    let done = Arc::new(AtomicUsize::new(0));
    let (worked_on, count) = (queue.clone(), done.clone());
    let work = tokio::spawn(async move {
        let on = |_, _| {
            let count = count.clone();
            async move {
                tokio::time::sleep(START).await;
                count.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        };
        worked_on.work(4, on).await;
    });
    queue.add("a");
    queue.add("b");
    queue.add_after("c", START / 2);
    tokio::time::sleep(START / 4).await;
    queue.close();
    timeout(START, work).await.unwrap().unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_closed_queue_has_no_work() {
    let queue = queue();
    queue.add("a");
    queue.add_after("b", START / 2);
    queue.close();
    tokio::time::sleep(START).await;
    assert_eq!(queue.depth(), 0);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "a worker's")]
async fn a_panic_at_work_is_not_swallowed() {
    let queue = queue();
    queue.add("a");
    queue.work(2, |_, _| async { panic!("a worker's") }).await;
}

/// Many keys, several workers, random failures: every key ends done, no key runs twice at once, and
/// the limit of workers holds.
#[tokio::test(start_paused = true)]
async fn everything_gets_done() {
    const KEYS: usize = 50;
    let queue = Queue::new(Backoff {
        start: START,
        max: 8 * START,
    });
    let running: Arc<Vec<AtomicUsize>> = Arc::new((0..KEYS).map(|_| 0.into()).collect());
    let (left, round) = (Arc::new(AtomicUsize::new(KEYS)), AtomicUsize::new(0));
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for key in 0..KEYS {
        queue.add(key);
    }
    let work = queue.work(7, |key: usize, _| {
        let round = round.fetch_add(1, Ordering::SeqCst);
        let (queue, running, left) = (queue.clone(), running.clone(), left.clone());
        let (at_once, most) = (at_once.clone(), most.clone());
        async move {
            assert_eq!(running[key].fetch_add(1, Ordering::SeqCst), 0);
            most.fetch_max(at_once.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(10)).await;
            at_once.fetch_sub(1, Ordering::SeqCst);
            running[key].fetch_sub(1, Ordering::SeqCst);
            if round % 3 == 0 {
                return Outcome::Failed;
            }
            if left.fetch_sub(1, Ordering::SeqCst) == 1 {
                queue.close();
            }
            Outcome::Done
        }
    });
    work.await;
    assert_eq!(left.load(Ordering::SeqCst), 0);
    assert_eq!(
        most.load(Ordering::SeqCst),
        5,
        "it leaves workers for other namespaces"
    );
}

#[tokio::test(start_paused = true)]
async fn an_item_has_the_time_since_its_key_is_ready() {
    let queue = queue();
    queue.add("a");
    queue.add_after("b", START);
    advance(START).await;
    assert_eq!(now(&queue).await.unwrap().queued, START);
    advance(2 * START).await;
    assert_eq!(now(&queue).await.unwrap().queued, 2 * START);
}

/// However many keys a namespace has, another one's key is worked on after at most one more of them.
#[tokio::test(start_paused = true)]
async fn a_key_waits_for_one_of_each_other_namespace() {
    for many in [1, 10, 10_000] {
        let queue = Queue::new(Backoff {
            start: START,
            max: MAX,
        });
        queue
            .add_each((0..many).map(|number| ("a".to_owned(), number.to_string())))
            .await;
        let (worked, order) = (queue.clone(), Arc::new(Mutex::new(Vec::new())));
        let on = |(namespace, _): (String, String), _| {
            order.lock().push(namespace);
            async { Outcome::Done }
        };
        queue.add(("b".to_owned(), "one".to_owned()));
        queue.add_after(("c".to_owned(), "due".to_owned()), Duration::ZERO);
        let until_done = async {
            while queue.stats().ready > 0 {
                tokio::time::sleep(START).await;
            }
            queue.close();
        };
        tokio::join!(worked.work(1, on), until_done);
        let order = order.lock();
        let first = |namespace| order.iter().position(|one| one == namespace);
        assert_eq!(
            (first("a"), first("b"), first("c")),
            (Some(0), Some(1), Some(2)),
            "{many}"
        );
        assert_eq!(order.len(), many + 2);
    }
}

/// Slow or hanging work of some namespaces leaves a worker for the next one.
#[tokio::test(start_paused = true)]
async fn slow_work_does_not_take_all_workers() {
    const LARGE: [&str; 3] = ["a", "b", "c"];
    for (workers, held) in [
        (1, &[1][..]),
        (2, &[1]),
        (4, &[3]),
        (10, &[7, 2]),
        (100, &[75, 18, 5]),
    ] {
        let queue = Queue::new(Backoff {
            start: START,
            max: MAX,
        });
        let running: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let (worked, counted) = (queue.clone(), running.clone());
        let work = tokio::spawn(async move {
            let on = |(namespace, _): (String, String), _| {
                *counted.lock().entry(namespace).or_default() += 1;
                std::future::pending()
            };
            worked.work(workers, on).await;
        });
        for (namespace, held) in LARGE.into_iter().zip(held) {
            queue.add_all((0..1000).map(|number| (namespace.to_owned(), number.to_string())));
            tokio::time::sleep(START).await;
            assert_eq!(
                running.lock().get(namespace),
                Some(held),
                "{namespace} of {workers}"
            );
        }
        if workers > 1 {
            queue.add(("small".to_owned(), "one".to_owned()));
            tokio::time::sleep(START).await;
            assert_eq!(
                running.lock().get("small"),
                Some(&1),
                "of {workers} workers"
            );
        }
        work.abort();
    }
}

/// While other tasks keep the process busy, a namespace has one worker, and another one's key finds
/// one at once.
#[tokio::test]
async fn a_busy_process_gives_a_namespace_few_workers() {
    const BUSY: Duration = Duration::from_millis(1);
    let queue = Queue::new(Backoff {
        start: START,
        max: MAX,
    });
    queue.add_all((0..1000).map(|number| ("a".to_owned(), number.to_string())));
    let busy = tokio::spawn(async {
        loop {
            std::thread::sleep(BUSY);
            yield_now().await;
        }
    });
    yield_now().await;
    // Before the first: this thread may be interrupted after it.
    let begun = Instant::now();
    let first = queue.next(100).await.unwrap();
    let second = queue.next(100).await.unwrap();
    assert!(begun.elapsed() >= PATIENCE, "after {:?}", begun.elapsed());
    queue.add(("b".to_owned(), "one".to_owned()));
    let other = queue.next(100).await.unwrap();
    assert_eq!(
        [first, second, other].map(|item| item.key().0.clone()),
        ["a", "a", "b"]
    );
    busy.abort();
}

#[test]
fn when_a_namespace_may_take_more() {
    let now = Instant::now();
    let ago = |millis| WorkerPace::Busy(now - Duration::from_millis(millis));
    let micros = Duration::from_micros;
    for (pace, took, next) in [
        (WorkerPace::Unknown, micros(1), WorkerPace::More),
        (WorkerPace::Unknown, micros(100), WorkerPace::More),
        (WorkerPace::Unknown, micros(101), WorkerPace::Busy(now)),
        (WorkerPace::Unknown, PATIENCE, WorkerPace::More),
        (ago(1), micros(1), WorkerPace::More),
        (ago(1), micros(200), ago(1)),
        (ago(5), micros(200), WorkerPace::More),
    ] {
        assert_eq!(pace.next(now, took), next, "{pace:?}, {took:?}");
    }
}

#[test]
fn workers_that_a_namespace_may_take() {
    for (held, free, may) in [
        (0, 0, false),
        (0, 1, true),
        (1, 1, false),
        (1, 2, true),
        (2, 2, true),
        (3, 2, false),
        (74, 26, true),
        (75, 25, false),
        (9, usize::MAX, true),
    ] {
        assert_eq!(may_take(held, free), may, "{held} held, {free} free");
    }
}

#[test]
fn when_a_key_comes_back() {
    let queue = queue();
    for (outcome, next) in [
        (Outcome::Done, Next::Never),
        (Outcome::RequeueAfter(MAX), Next::Again(MAX)),
        (Outcome::Failed, Next::Retry(START)),
        (Outcome::RetryAfter(MAX), Next::Retry(MAX)),
    ] {
        assert_eq!(queue.next_try(&"a", outcome), next, "{outcome:?}");
    }
    queue.state.lock().failures.insert("a", 2);
    assert_eq!(
        queue.next_try(&"a", Outcome::Failed),
        Next::Retry(4 * START)
    );
}

#[test]
fn retries_within_a_time() {
    let queue = queue();
    let ten = Duration::from_secs(10);
    for (failures, outcome, expected) in [
        (0, Outcome::Failed, Outcome::Failed),
        (3, Outcome::Failed, Outcome::Failed),
        (4, Outcome::Failed, Outcome::RetryAfter(ten)),
        (4, Outcome::RetryAfter(MAX), Outcome::RetryAfter(MAX)),
        (4, Outcome::RequeueAfter(MAX), Outcome::RequeueAfter(MAX)),
        (4, Outcome::Done, Outcome::Done),
    ] {
        queue.state.lock().failures.insert("a", failures);
        assert_eq!(
            queue.retried_within(&"a", outcome, ten),
            expected,
            "{failures} {outcome:?}"
        );
    }
}
