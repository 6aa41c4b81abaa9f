//! Many nodes during failures: processes are paused, the API server goes away and loses its history,
//! calls are lost. In the end each claim is bound to one volume, and after the claims are deleted
//! nothing is left. Deaths of processes at any moment are for the simulator.
//!
//! Each test has its own fleet and namespace on one control plane. Two tests run at a time, but a
//! test that takes the control plane away runs alone.
//!
//! `FAULTS_CLAIMS` sets the number of claims in a storm, 150 by default.

mod apiserver;
mod central;
mod clocks;
mod flaky;
mod gaps;
mod ghost;
mod leader;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use hostloop_test::cluster::{Cluster, Options, Request};
use hostloop_test::fleet::{Binding, Fleet, FleetSpec};
use hostloop_test::machine;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Time limit of a storm, and of its cleanup.
fn patience() -> Duration {
    Duration::from_secs(300) + Duration::from_millis(300) * u32::try_from(claims()).unwrap_or(0)
}

/// Short timeouts, so that a test sees several retries and lease terms.
const QUICK: [&str; 3] = [
    "--timeout=5s",
    "--retry-interval-start=200ms",
    "--retry-interval-max=2s",
];
/// The default terms of the lease, and frequent tries. On a busy machine, an answer takes seconds.
const DEFAULT_LEASE: [&str; 3] = [
    "--leader-election-lease-duration=15s",
    "--leader-election-renew-deadline=10s",
    "--leader-election-retry-period=500ms",
];
/// Terms that leave time to renew on a busy machine.
const LASTING_LEASE: [&str; 3] = [
    "--leader-election-lease-duration=30s",
    "--leader-election-renew-deadline=25s",
    "--leader-election-retry-period=500ms",
];
/// The number of claims in a storm.
fn claims() -> usize {
    let set = std::env::var("FAULTS_CLAIMS").ok();
    set.map_or(150, |n| n.parse().expect("FAULTS_CLAIMS is a number"))
}

/// Determines which tests may run now.
static TURNS: RwLock<()> = RwLock::const_new(());

/// The lock of a test that only needs its own fleet. Hold it until the test ends.
async fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURNS.read().await
}

/// The lock of a test that takes away what all tests need. Hold it until the test ends.
async fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().await
}

/// The control plane. It ends with this process.
async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    let up = || {
        machine::require();
        CLUSTER.get_or_init(|| Cluster::up(&Options::default()))
    };
    // Starting the cluster blocks for some time.
    let cluster = tokio::task::spawn_blocking(up).await;
    let cluster = cluster.expect("the control plane comes up");
    // A failed test may have left these parts stopped.
    for part in ["etcd", "apiserver", "controller-manager"] {
        part_of(cluster, Cluster::start, part).await;
    }
    cluster
}

/// Runs an action on a part of the control plane.
async fn part_of(cluster: &'static Cluster, action: fn(&Cluster, &str), part: &'static str) {
    let done = tokio::task::spawn_blocking(move || action(cluster, part));
    done.await.expect("it can be done");
}

/// A fleet of this many nodes with short timeouts.
fn spec(name: &str, nodes: usize) -> FleetSpec {
    FleetSpec::new(name, nodes).args(&[QUICK, DEFAULT_LEASE].concat())
}

/// [`spec`] for a test that decides when the lead changes.
fn steady(name: &str, nodes: usize) -> FleetSpec {
    FleetSpec::new(name, nodes).args(&[QUICK, LASTING_LEASE].concat())
}

/// Starts a fleet and waits until all controllers work.
async fn up(spec: FleetSpec) -> Fleet {
    let cluster = cluster().await;
    let fleet = spec.up(&cluster.kubeconfig()).await;
    fleet.start(Duration::ZERO).await;
    fleet.ready(patience()).await;
    fleet
}

/// Makes this many claims of each binding, and waits until all are bound.
async fn storms(fleet: &Fleet, each: usize) {
    fleet.storm(Binding::Wait, 0..each).await;
    fleet.storm(Binding::Immediate, 0..each).await;
    fleet.bound(2 * each, patience()).await;
}

/// True if a request has changed an object other than an event.
fn writes(request: &Request) -> bool {
    let reads = matches!(request.verb.as_str(), "get" | "list" | "watch");
    !reads && request.code < 300 && request.resource != "events"
}

/// The end of a test: this many claims are bound, each to its own volume. Then everything is
/// deleted, and nothing is left.
async fn ends(fleet: Fleet, claims: usize) {
    fleet.bound(claims, patience()).await;
    fleet.each_once(patience()).await;
    fleet.clear(patience()).await;
    fleet.down().await;
}

/// Creates a service account for each node of a fleet, so that the audit log distinguishes them.
/// Returns their users and kubeconfigs.
async fn accounts(names: &[&str]) -> (Vec<String>, Vec<PathBuf>, tempfile::TempDir) {
    let cluster = cluster().await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let made = tokio::task::block_in_place(|| {
        let made = names.iter();
        made.map(|name| cluster.account("default", name, dir.path()))
            .unzip()
    });
    let (users, files): (Vec<String>, Vec<PathBuf>) = made;
    (users, files, dir)
}
