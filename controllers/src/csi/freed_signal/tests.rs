use tokio::time::{Instant, sleep};

use super::*;

/// The hundreds of a number are its namespace.
impl QueueKey for u32 {
    fn namespace(&self) -> &str {
        ["a", "b", "c"][(self / 100) as usize]
    }
}

/// Long enough for a first wake.
const MOMENT: Duration = Duration::from_millis(1);

/// A signal that wakes the keys that wait for room, and the keys that it woke.
struct Fixture {
    signal: FreedSignal,
    waiters: Waiters<u32>,
    woken: Arc<Mutex<Vec<u32>>>,
}

fn fixture() -> Fixture {
    fixture_of(FreedSignal::default())
}

fn fixture_of(signal: FreedSignal) -> Fixture {
    let woken = Arc::new(Mutex::new(Vec::new()));
    let to = woken.clone();
    let waiters = Waiters::new(&signal, move |key| to.lock().push(*key));
    tokio::spawn(signal.clone().pace(CancellationToken::new()));
    Fixture {
        signal,
        waiters,
        woken,
    }
}

impl Fixture {
    /// The keys woken since the last look, after this time.
    async fn after(&self, time: Duration) -> Vec<u32> {
        sleep(time).await;
        std::mem::take(&mut self.woken.lock())
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_wakes_who_waits_for_it_and_no_other() {
    let fixture = fixture();
    let volume = |handle: &str| Freed::Volume(handle.to_owned());
    fixture.waiters.enter(&1, volume("a"));
    fixture.waiters.enter(&2, volume("b"));
    fixture.waiters.enter(&3, Freed::Room);
    fixture.waiters.enter(&4, volume("a"));
    fixture.waiters.leave(&4);
    fixture.signal.announce(&volume("a"));
    fixture.signal.announce(&volume("c"));
    assert_eq!(fixture.after(Duration::ZERO).await, [1]);
    fixture.signal.announce(&volume("a"));
    assert!(fixture.after(PACE).await.is_empty(), "a wait ends once");
    fixture.waiters.enter(&1, volume("a"));
    fixture.signal.announce(&volume("a"));
    assert_eq!(fixture.after(Duration::ZERO).await, [1], "it waits again");
    for key in 1..=4 {
        fixture.waiters.leave(&key);
    }
    assert_eq!(fixture.waiters.len(), 0);
    assert!(fixture.signal.0.waiting.lock().by_freed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn room_wakes_one_after_another_in_order() {
    let fixture = fixture();
    for key in [3, 1, 2] {
        fixture.waiters.enter(&key, Freed::Room);
    }
    // It keeps its place.
    fixture.waiters.enter(&3, Freed::Room);
    let begun = Instant::now();
    for _ in 0..100 {
        fixture.signal.announce(&Freed::Room);
    }
    assert_eq!(fixture.after(MOMENT).await, [3]);
    // After an attempt without success, a key has its next turn after the others.
    fixture.waiters.enter(&3, Freed::Room);
    assert_eq!(fixture.after(PACE).await, [1]);
    assert_eq!(fixture.after(PACE).await, [2]);
    assert_eq!(begun.elapsed(), MOMENT + 2 * PACE);
    // The announcements during that round are one more round.
    fixture.signal.announce(&Freed::Room);
    assert_eq!(fixture.after(PACE).await, [3]);
    assert!(
        fixture.after(100 * PACE).await.is_empty(),
        "one announcement is one round"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_is_announced_once() {
    for (signal, woken) in [
        (FreedSignal::default(), &[1][..]),
        (FreedSignal::with_driver(), &[][..]),
    ] {
        let fixture = fixture_of(signal);
        fixture.waiters.enter(&1, Freed::Room);
        fixture.signal.announce_by_call(&Freed::Room);
        assert_eq!(fixture.after(MOMENT).await, woken);
        // The driver's own announcement, or another one.
        fixture.waiters.enter(&1, Freed::Room);
        fixture.signal.announce(&Freed::Room);
        assert_eq!(fixture.after(PACE).await, [1]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_announcement_without_waiters_is_not_kept_for_later_ones() {
    let fixture = fixture();
    fixture.signal.announce(&Freed::Room);
    assert!(fixture.after(PACE).await.is_empty());
    fixture.waiters.enter(&1, Freed::Room);
    assert!(fixture.after(100 * PACE).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_lost_between_an_attempt_and_its_wait() {
    let fixture = fixture();
    // The room is freed during the attempt, which began to wait before.
    fixture.waiters.enter(&1, Freed::Room);
    fixture.signal.announce(&Freed::Room);
    assert_eq!(fixture.after(PACE).await, [1]);
}

/// However many keys of a namespace wait for room, one of another namespace is the second.
#[tokio::test(start_paused = true)]
async fn namespaces_take_turns_for_room() {
    let fixture = fixture();
    for key in (0..50).chain([100, 101, 200]) {
        fixture.waiters.enter(&key, Freed::Room);
    }
    fixture.waiters.leave(&200);
    fixture.signal.announce(&Freed::Room);
    let first = fixture.after(3 * PACE + MOMENT).await;
    assert_eq!(first, [0, 100, 1, 101]);
    // One that waits again, or begins to, has its turn at the next announcement.
    fixture.waiters.enter(&100, Freed::Room);
    assert_eq!(fixture.after(100 * PACE).await, (2..50).collect::<Vec<_>>());
    fixture.signal.announce(&Freed::Room);
    assert_eq!(fixture.after(MOMENT).await, [100]);
}
