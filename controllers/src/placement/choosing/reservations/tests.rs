use super::*;

fn room(version: u64) -> NodeRoom {
    NodeRoom {
        available: 100,
        largest: None,
        version,
    }
}

fn sum(bytes: i64, claims: usize) -> Sum {
    Sum { bytes, claims }
}

#[tokio::test(start_paused = true)]
async fn a_claim_counts_until_its_node_publishes_newer_room() {
    let mut reservations = Reservations::default();
    let now = Instant::now();
    reservations.assign("u", "n1", 10, now);
    let old = room(7);
    assert_eq!(reservations.sum("n1", Some(&old), now), sum(10, 1));
    // The node updated its capacity object before the volume existed.
    assert_eq!(reservations.sum("n1", Some(&room(8)), now), sum(10, 1));
    reservations.made("u", 9, now);
    assert_eq!(reservations.sum("n1", Some(&room(8)), now), sum(10, 1));
    assert_eq!(reservations.sum("n1", Some(&room(10)), now), sum(0, 0));
    // Seeing the volume again changes nothing.
    reservations.made("u", 12, now);
    assert_eq!(reservations.sum("n1", Some(&room(10)), now), sum(0, 0));
    // The capacity object of another class is older than the volume.
    assert_eq!(reservations.sum("n1", Some(&old), now), sum(10, 1));
    assert!(reservations.has_reservations("n1"));
    let later = now + SETTLED;
    assert_eq!(reservations.sum("n1", Some(&old), later), sum(0, 0));
    reservations.settle(later);
    assert!(!reservations.has_reservations("n1"));
    assert_eq!(reservations.node("u"), None);
}

#[test]
fn a_claim_without_a_volume_stops_counting() {
    let mut reservations = Reservations::default();
    let now = Instant::now();
    reservations.assign("u", "n1", 10, now);
    // Further reconciles do not extend the time.
    reservations.assign("u", "n1", 10, now + HOPEFUL / 2);
    let long = now + HOPEFUL;
    assert_eq!(reservations.sum("n1", None, long - SETTLED), sum(10, 1));
    assert_eq!(reservations.sum("n1", None, long), sum(0, 0));
    // The claim gets its volume in the end.
    reservations.made("u", 9, long);
    assert_eq!(reservations.sum("n1", Some(&room(8)), long), sum(10, 1));
    assert_eq!(reservations.sum("n1", Some(&room(10)), long), sum(0, 0));
}

/// A user may ask for any size, and select a node by hand.
#[test]
fn a_claim_that_no_node_could_take_keeps_no_room() {
    let mut reservations = Reservations::default();
    let now = Instant::now();
    reservations.assign("u", "n1", 10, now);
    reservations.assign("huge", "n1", i64::MAX, now);
    assert_eq!(reservations.sum("n1", Some(&room(7)), now), sum(10, 1));
    // Its volume was made after all, so it is in no older object.
    reservations.made("huge", 9, now);
    assert_eq!(
        reservations.sum("n1", Some(&room(7)), now),
        sum(i64::MAX, 2)
    );
}

#[test]
fn a_claim_has_one_reservation() {
    let mut reservations = Reservations::default();
    let now = Instant::now();
    reservations.assign("u", "n1", 10, now);
    reservations.assign("v", "n1", 1, now);
    reservations.assign("u", "n1", 12, now);
    assert_eq!(reservations.sum("n1", None, now), sum(13, 2));
    reservations.assign("u", "n2", 12, now);
    assert_eq!(reservations.sum("n1", None, now), sum(1, 1));
    assert_eq!(reservations.sum("n2", None, now), sum(12, 1));
    reservations.forget("u");
    reservations.release("u");
    assert_eq!(reservations.sum("n2", None, now), sum(0, 0));
    assert_eq!(reservations.node("v"), Some("n1"));
}

#[test]
fn nodes_that_had_no_room() {
    let mut reservations = Reservations::default();
    let now = Instant::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    // A claim without a reservation was not rejected by any node.
    reservations.refused("u", 5, now);
    assert_eq!(reservations.passes_over("u", "n1", 5, now), None);
    reservations.assign("u", "n1", 10, now);
    reservations.refused("u", 5, now);
    assert_eq!(reservations.node("u"), None);
    for (version, seconds, left) in [
        (5, 0, Some(60)),
        (5, 59, Some(1)),
        (5, 60, None),
        // The capacity object has changed.
        (6, 0, Some(1)),
        (6, 1, None),
    ] {
        let found = reservations.passes_over("u", "n1", version, after(seconds));
        assert_eq!(found, left.map(Duration::from_secs), "{version} {seconds}");
    }
    assert_eq!(reservations.passes_over("u", "n2", 5, now), None);
    assert_eq!(reservations.passes_over("v", "n1", 5, now), None);
    // The time grows with each rejection, even if the capacity object changes.
    for _ in 0..4 {
        reservations.assign("u", "n1", 10, now);
        reservations.refused("u", 6, now);
    }
    let left = reservations.passes_over("u", "n1", 7, now);
    assert_eq!(left, Some(Duration::from_secs(16)));
    reservations.assign("u", "n1", 10, now);
    reservations.made("u", 8, now);
    assert_eq!(reservations.passes_over("u", "n1", 7, now), None);
}

#[test]
fn old_rejections_are_forgotten() {
    let mut reservations = Reservations::default();
    let now = Instant::now();
    for (node, seconds, known) in [("n1", 0, 1), ("n2", 300, 2), ("n3", 600, 2), ("n3", 900, 1)] {
        let at = now + Duration::from_secs(seconds);
        reservations.assign("u", node, 10, at);
        reservations.refused("u", 5, at);
        assert_eq!(reservations.refusals("u"), known, "{node} {seconds}");
    }
}
