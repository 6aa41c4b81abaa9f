//! A holder of the nodes' lease that is not a process and does none of a leader's work.

use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::fleet::Fleet;
use hostloop_test::fleet::patience::in_time;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::{cluster, steady};

/// The lease duration of [`steady`].
pub(crate) const LEASE: Duration = Duration::from_secs(30);

const NAME: &str = "ghost";

/// A fleet of `nodes` nodes that is not started; the ghost has held its lease since `since`.
pub(crate) async fn haunted(name: &str, nodes: usize, since: &str) -> Fleet {
    // Without a leader that labels objects, nodes look for unlabelled ones at this interval.
    let spec = steady(name, nodes).args(&["--resync-period=10s"]);
    let fleet = spec.up(&cluster().await.kubeconfig()).await;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": fleet.lease().name, "namespace": fleet.namespace},
        "spec": {
            "holderIdentity": NAME, "leaseDurationSeconds": LEASE.as_secs(),
            "acquireTime": since, "renewTime": since, "leaseTransitions": 1,
        },
    });
    fleet.objects.create(lease).await;
    fleet
}

/// Renews the lease for as long as this future is polled, with a clock that started at `began`.
/// Panics if another holder has taken the lease.
pub(crate) async fn renews(fleet: &Fleet, began: &str) {
    let mut clock: Timestamp = began.parse().expect("a time");
    loop {
        clock += LEASE / 6;
        let change = json!({"spec": {"renewTime": format!("{clock:.6}")}});
        let lease = fleet.objects.merge(&fleet.lease(), change).await;
        let holder = &lease["spec"]["holderIdentity"];
        assert_eq!(*holder, NAME, "another holder took it: {lease:#}");
        tokio::time::sleep(LEASE / 6).await;
    }
}

/// Waits until one of the nodes leads.
pub(crate) async fn until_led(fleet: &Fleet) {
    in_time("a leader that is a process", PATIENCE, async || {
        let leader = fleet.leader().await;
        leader.map(drop).ok_or_else(|| "none".to_owned())
    })
    .await;
}
