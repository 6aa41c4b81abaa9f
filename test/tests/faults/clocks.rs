//! Clocks that disagree. A process cannot have another clock than its machine, so the test changes
//! the other side: leases of a holder with times that are far off. Only the time for which a lease
//! has been seen unchanged counts.

use std::time::Duration;

use futures::future::join_all;
use hostloop_test::fleet::Binding;
use tokio::time::Instant;

use crate::ghost::{LEASE, haunted, renews, until_led};
use crate::{beside_others, ends};

const AHEAD: &str = "2099-01-01T00:00:00.000000Z";
const BEHIND: &str = "1999-01-01T00:00:00.000000Z";

/// A dead holder with a clock that was decades ahead or behind: no process waits for decades or
/// takes the lease at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_silent_loses_its_lease() {
    let _turn = beside_others().await;
    join_all(
        [("ahead", AHEAD), ("behind", BEHIND)].map(async |(name, renewed)| {
            let fleet = haunted(name, 2, renewed).await;
            let began = Instant::now();
            fleet.start(Duration::ZERO).await;
            until_led(&fleet).await;
            let waited = began.elapsed();
            let late = waited >= LEASE * 9 / 10;
            assert!(late, "{name}: it was taken after {waited:?}");
            fleet.storm(Binding::Immediate, 0..10).await;
            ends(fleet, 10).await;
        }),
    )
    .await;
}

/// A live holder with a clock that is decades behind or ahead keeps its lease until it stops
/// renewing.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_renews_keeps_its_lease() {
    let _turn = beside_others().await;
    join_all(
        [("slow", BEHIND), ("fast", AHEAD)].map(async |(name, began)| {
            let fleet = haunted(name, 2, began).await;
            fleet.start(Duration::ZERO).await;
            // Fails if another process takes the lease.
            let kept = tokio::time::timeout(2 * LEASE, renews(&fleet, began)).await;
            assert!(kept.is_err(), "it renews without end");
            until_led(&fleet).await;
            fleet.storm(Binding::Immediate, 0..10).await;
            ends(fleet, 10).await;
        }),
    )
    .await;
}
