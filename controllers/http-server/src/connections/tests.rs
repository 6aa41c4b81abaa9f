use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::{Instant, timeout};

use super::ConnectionState::{Kept, Served, Waiting};
use super::*;

/// The address of a peer with this number.
fn peer(number: u8) -> Option<IpAddr> {
    Some(IpAddr::from([10, 0, 0, number]))
}

#[test]
fn a_newcomer_displaces_who_has_most_and_asks_for_nothing() {
    type Case = (
        &'static str,
        &'static [(u8, ConnectionState)],
        u8,
        Option<u64>,
    );
    let cases: [Case; 9] = [
        ("none of none", &[], 1, None),
        (
            "the oldest that waits",
            &[(1, Served), (1, Waiting), (1, Waiting)],
            1,
            Some(1),
        ),
        (
            "the oldest, if none waits",
            &[(1, Served), (1, Served)],
            1,
            Some(0),
        ),
        (
            "of the peer with most",
            &[(2, Waiting), (1, Served), (1, Served)],
            3,
            Some(1),
        ),
        (
            "a probe is not displaced",
            &[(9, Waiting), (1, Waiting), (1, Waiting)],
            1,
            Some(1),
        ),
        (
            "the newcomer counts",
            &[(1, Waiting), (2, Waiting)],
            2,
            Some(1),
        ),
        (
            "among equals who waits",
            &[(1, Served), (2, Waiting)],
            3,
            Some(1),
        ),
        (
            "none that is kept",
            &[(1, Kept), (1, Kept), (2, Served)],
            1,
            Some(2),
        ),
        ("none, if all are kept", &[(1, Kept), (2, Kept)], 1, None),
    ];
    for (case, held, newcomer, expected) in cases {
        let held: Vec<_> = (0..)
            .zip(held)
            .map(|(id, (number, state))| (id, peer(*number), *state))
            .collect();
        assert_eq!(choose_displaced(&held, peer(newcomer)), expected, "{case}");
    }
}

#[tokio::test]
async fn there_are_no_more_places_than_said() {
    let slots = ConnectionSlots::new(2);
    let first = slots.admit(peer(1)).await.unwrap();
    let second = slots.admit(peer(1)).await.unwrap();
    first.keep();
    let mut third = Box::pin(slots.admit(peer(2)));
    // The newcomer waits until the displaced one has left.
    assert!(timeout(PAUSE, &mut third).await.is_err());
    assert!(second.displaced().is_cancelled() && !first.displaced().is_cancelled());
    drop(second);
    let third = third.await.unwrap();
    third.keep();
    assert!(slots.admit(peer(3)).await.is_none(), "both are kept");
    drop(first);
    assert!(slots.admit(peer(3)).await.is_some());
}

/// A listener that has no free descriptor, and counts how often it is asked.
#[derive(Default)]
struct Exhausted(Arc<AtomicUsize>);

impl Listener for Exhausted {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Option<IpAddr>)> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(rustix::io::Errno::MFILE.into())
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_descriptor_it_pauses_and_gives_one_back() {
    let slots = ConnectionSlots::new(4);
    let waiting = slots.admit(peer(1)).await.unwrap();
    let listener = Exhausted::default();
    let begin = Instant::now();
    assert!(
        timeout(10 * PAUSE, accept_admitted(&listener, &slots))
            .await
            .is_err()
    );
    assert_eq!(begin.elapsed(), 10 * PAUSE);
    assert!(listener.0.load(Ordering::Relaxed) <= 11, "{:?}", listener.0);
    assert!(waiting.displaced().is_cancelled());
}
