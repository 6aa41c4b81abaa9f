//! Clocks that disagree. The clock of one process cannot be set apart from the machine's, so the
//! other side's is: leases of a holder whose times are far off. What counts is how long a lease
//! has been seen unchanged.

use std::time::Duration;

use hostloop_test::cluster::Cluster;
use hostloop_test::fleet::patience::in_time;
use hostloop_test::fleet::{Binding, Fleet};
use serde_json::json;
use tokio::time::Instant;

use crate::{HANDOVER, cluster, ends, patience, spec};

/// As the test's controllers have it.
const LEASE: Duration = Duration::from_secs(3);

const GHOST: &str = "ghost";

async fn with_ghost(name: &str, renewed: &str) -> (Fleet, &'static Cluster) {
    let cluster = cluster().await;
    let fleet = spec(name, 2).up(&cluster.kubeconfig()).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": fleet.lease().name, "namespace": fleet.namespace},
        "spec": {
            "holderIdentity": GHOST, "leaseDurationSeconds": LEASE.as_secs(),
            "acquireTime": renewed, "renewTime": renewed, "leaseTransitions": 1,
        },
    });
    fleet.objects.create(lease).await;
    fleet.start(Duration::ZERO).await;
    (fleet, cluster)
}

async fn until_led(fleet: &Fleet) {
    in_time("a leader of flesh and blood", HANDOVER, async || {
        let leader = fleet.leader().await;
        leader.map(drop).ok_or_else(|| "none".to_owned())
    })
    .await;
}

/// A holder that is gone, and whose clock was decades ahead, or behind: nobody waits decades, and
/// nobody takes the lease at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_silent_loses_its_lease() {
    for (name, renewed) in [
        ("ahead", "2099-01-01T00:00:00.000000Z"),
        ("behind", "1999-01-01T00:00:00.000000Z"),
    ] {
        let began = Instant::now();
        let (fleet, _) = with_ghost(name, renewed).await;
        until_led(&fleet).await;
        let waited = began.elapsed();
        assert!(waited >= LEASE, "{name}: it was taken after {waited:?}");
        fleet.storm(Binding::Immediate, 0..10).await;
        ends(fleet, 10).await;
    }
}

/// A holder that is alive, and whose clock is decades behind, keeps it; work that needs no leader
/// goes on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_renews_keeps_its_lease() {
    let (fleet, _) = with_ghost("slow-clock", "1999-01-01T00:00:00.000000Z").await;
    let renewing = async {
        let until = Instant::now() + 4 * LEASE;
        for second in 0.. {
            if Instant::now() > until {
                return;
            }
            let renewed = format!(
                "1999-01-01T00:{:02}:{:02}.000000Z",
                second / 60,
                second % 60
            );
            let change = json!({"spec": {"renewTime": renewed}});
            let lease = fleet.objects.merge(&fleet.lease(), change).await;
            assert_eq!(
                lease["spec"]["holderIdentity"], GHOST,
                "somebody took it: {lease:#}"
            );
            tokio::time::sleep(LEASE / 6).await;
        }
    };
    let working = async {
        fleet.storm(Binding::Wait, 0..10).await;
        fleet.bound(10, patience()).await;
    };
    tokio::join!(renewing, working);
    // Then it ends.
    until_led(&fleet).await;
    fleet.storm(Binding::Immediate, 0..10).await;
    ends(fleet, 20).await;
}
