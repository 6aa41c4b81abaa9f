//! Clocks that disagree. The clock of one process cannot be set apart from the machine's, so the
//! other side's is: leases of a holder whose times are far off. What counts is how long a lease
//! has been seen unchanged.

use hostloop_test::fleet::Binding;
use tokio::time::Instant;

use crate::ghost::{LEASE, haunted, renews, until_led};
use crate::{beside_others, ends};

const AHEAD: &str = "2099-01-01T00:00:00.000000Z";
const BEHIND: &str = "1999-01-01T00:00:00.000000Z";

/// A holder that is gone, and whose clock was decades ahead, or behind: nobody waits decades, and
/// nobody takes the lease at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_silent_loses_its_lease() {
    let _turn = beside_others().await;
    for (name, renewed) in [("ahead", AHEAD), ("behind", BEHIND)] {
        let fleet = haunted(name, 2, renewed).await;
        // The controllers have seen nothing yet, but they have begun a moment ago.
        let began = Instant::now();
        until_led(&fleet).await;
        let waited = began.elapsed();
        assert!(
            waited >= LEASE * 9 / 10,
            "{name}: it was taken after {waited:?}"
        );
        fleet.storm(Binding::Immediate, 0..10).await;
        ends(fleet, 10).await;
    }
}

/// A holder that is alive, and whose clock is decades behind or ahead, keeps it until it is silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_renews_keeps_its_lease() {
    let _turn = beside_others().await;
    for (name, began) in [("slow", BEHIND), ("fast", AHEAD)] {
        let fleet = haunted(name, 2, began).await;
        // It fails if another takes it.
        let kept = tokio::time::timeout(4 * LEASE, renews(&fleet, began)).await;
        assert!(kept.is_err(), "it goes on for ever");
        until_led(&fleet).await;
        fleet.storm(Binding::Immediate, 0..10).await;
        ends(fleet, 10).await;
    }
}
