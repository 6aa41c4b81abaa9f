use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::metrics::Metrics;
use crate::testing::{FakeApi, Fault};

fn lease(holder: &str, renewed: u32, version: u32) -> Lease {
    crate::testing::read(json!({
        "metadata": {"name": "l", "resourceVersion": version.to_string()},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15,
            "renewTime": format!("2026-01-01T00:00:{renewed:02}.000000Z"),
        },
    }))
}

#[test]
fn names_as_upstream_makes_them() {
    for (name, made) in [
        ("hostloop.csi.dev", "hostloop-csi-dev"),
        ("a_b/c", "a-b-c"),
        ("ends.", "ends-X"),
        ("plain-1", "plain-1"),
    ] {
        assert_eq!(lease_name(name), made);
    }
}

#[tokio::test(start_paused = true)]
async fn what_to_do_about_a_lease() {
    let wait = Duration::from_secs(15);
    let begun = Instant::now();
    let later = begun + Duration::from_secs(15);
    let other = lease("other", 1, 7);
    let seen = step(Some(&other), None, "us", wait, begun).1;
    let renewed = lease("other", 2, 8);
    for (what, lease, seen, now, expected) in [
        ("none", None, None, begun, LeaseStep::Create),
        (
            "ours",
            Some(lease("us", 1, 7)),
            None,
            begun,
            LeaseStep::Renew,
        ),
        (
            "given up",
            Some(lease("", 1, 7)),
            None,
            begun,
            LeaseStep::Take,
        ),
        (
            "first seen",
            Some(other.clone()),
            None,
            later,
            LeaseStep::Wait,
        ),
        (
            "not long enough",
            Some(other.clone()),
            seen.clone(),
            later - Duration::from_millis(1),
            LeaseStep::Wait,
        ),
        (
            "long enough",
            Some(other.clone()),
            seen.clone(),
            later,
            LeaseStep::Take,
        ),
        (
            "renewed meanwhile",
            Some(renewed),
            seen,
            later,
            LeaseStep::Wait,
        ),
    ] {
        assert_eq!(
            step(lease.as_ref(), seen, "us", wait, now).0,
            expected,
            "{what}"
        );
    }
}

/// The path of the lease.
const LEASE: &str = "leases/l";

/// From now on, the API server does not answer.
fn hang(server: &FakeApi) {
    server.fault(&[], "leases", None, Fault::Hang);
}

/// From now on, the API server rejects requests.
fn forbid(server: &FakeApi) {
    server.fault(&[], "leases", None, Fault::Refuse(403));
}

/// Creates a lease that is never renewed.
fn put_dead(server: &FakeApi) {
    let mut dead = serde_json::to_value(lease("dead", 1, 0)).expect("JSON");
    dead["metadata"]["namespace"] = json!("ns");
    server.put(dead);
}

fn holder(server: &FakeApi) -> String {
    let lease = server.get(LEASE).expect("a lease");
    let holder = lease["spec"]["holderIdentity"].as_str();
    holder.expect("a holder").to_owned()
}

fn terms(identity: &str) -> LeaseConfig {
    LeaseConfig {
        namespace: "ns".to_owned(),
        name: "l".to_owned(),
        identity: identity.to_owned(),
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(5),
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
    }
}

fn candidate(server: &FakeApi, identity: &str) -> (Leadership, CancellationToken) {
    let stop = CancellationToken::new();
    let metrics = Arc::new(Metrics::default());
    let (leadership, task) = hold(server.client(), terms(identity), metrics, stop.clone());
    tokio::spawn(task);
    (leadership, stop)
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_the_next_follows_at_once() {
    let server = FakeApi::default();
    let (mut first, stop) = candidate(&server, "first");
    first.gained().await;
    let (mut second, _stop) = candidate(&server, "second");
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(first.leads() && !second.leads());
    stop.cancel();
    first.lost().await;
    let given_up = Instant::now();
    second.gained().await;
    assert!(
        given_up.elapsed() <= Duration::from_secs(6),
        "{:?}",
        given_up.elapsed()
    );
    assert_eq!(holder(&server), "second");
}

#[tokio::test(start_paused = true)]
async fn who_cannot_renew_stops_before_anybody_else_begins() {
    let server = FakeApi::default();
    let (mut first, _stop) = candidate(&server, "first");
    first.gained().await;
    hang(&server);
    let hung = Instant::now();
    first.lost().await;
    assert!(
        hung.elapsed() <= Duration::from_secs(10),
        "{:?}",
        hung.elapsed()
    );
    assert!(!first.leads());
}

#[tokio::test(start_paused = true)]
async fn who_was_paused_knows_it_before_its_tasks_do() {
    let (until, leadership) = Leadership::elected();
    until.send_replace(Some(Instant::now() + Duration::from_secs(10)));
    assert!(leadership.leads());
    tokio::time::advance(Duration::from_secs(11)).await;
    // No time has been set yet.
    assert!(!leadership.leads());
}

#[tokio::test(start_paused = true)]
async fn who_only_looks_sees_leaders_and_takes_nothing() {
    let server = FakeApi::default();
    let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let stop = CancellationToken::new();
    let (watches, task) = observe(server.client(), terms("node"), stop.clone());
    tokio::spawn(task);
    wait(20).await;
    assert!(server.get(LEASE).is_none());
    assert!(!watches.sight().led && watches.is_elected());
    let (mut first, ends) = candidate(&server, "first");
    first.gained().await;
    wait(6).await;
    let seen = watches.sight();
    assert!(seen.led && !watches.leads());
    // An API server that does not answer changes nothing.
    hang(&server);
    wait(60).await;
    assert_eq!(watches.sight(), seen);
    server.heal();
    first.gained().await;
    // The leader releases its lease.
    ends.cancel();
    wait(12).await;
    assert!(!watches.sight().led);
    assert_eq!(holder(&server), "");
    // A lease that is not renewed within its duration counts as free, and the observer leaves it
    // alone.
    put_dead(&server);
    wait(6).await;
    assert!(watches.sight().led);
    wait(21).await;
    assert!(!watches.sight().led);
    assert_eq!(holder(&server), "dead");
    // A process that may not read the lease sees no leader.
    let (mut second, _ends) = candidate(&server, "second");
    second.gained().await;
    wait(6).await;
    assert!(watches.sight().led);
    forbid(&server);
    wait(6).await;
    assert!(!watches.sight().led);
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn whether_anybody_leads_is_seen_by_all() {
    let server = FakeApi::default();
    let pause = || tokio::time::sleep(Duration::from_secs(6));
    let begun = Instant::now();
    let (mut first, _stop) = candidate(&server, "first");
    let (second, _stop2) = candidate(&server, "second");
    assert!(!second.sight().led && second.is_elected());
    first.gained().await;
    pause().await;
    let seen = second.sight();
    assert!(first.sight().led && seen.led && !second.leads());
    // An unanswered request does not change the observation.
    hang(&server);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(second.sight(), seen);
    server.heal();
    forbid(&server);
    let mut waits = second.clone();
    waits.sight_changed().await;
    // The first change may be the one to a leader.
    while waits.sight().led {
        waits.sight_changed().await;
    }
    assert!(second.sight().since > begun + Duration::from_secs(60));
    assert!(!Leadership::always().is_elected());
}
