//! Many nodes while everything around them fails: processes are killed and paused, the API server
//! goes away and forgets, calls are lost. In the end each claim is bound, to one volume, and when
//! the claims are gone nothing is left.
//!
//! Each test has a fleet of its own, in a namespace of its own, on one control plane. Two run at a
//! time, but a test that takes the control plane away runs alone.
//!
//! `FAULTS_CLAIMS` says how many claims a storm has.

mod apiserver;
mod central;
mod clocks;
mod flaky;
mod gaps;
mod ghost;
mod killed;
mod leader;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use hostloop_test::cluster::{Cluster, Options};
use hostloop_test::fleet::{Fleet, FleetSpec};
use hostloop_test::machine;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long a storm may take, and its end.
fn patience() -> Duration {
    Duration::from_secs(300) + Duration::from_millis(300) * u32::try_from(claims()).unwrap_or(0)
}

/// Short waits, so that a test sees several tries and terms.
const QUICK: [&str; 6] = [
    "--timeout=5s",
    "--retry-interval-start=200ms",
    "--retry-interval-max=2s",
    "--leader-election-lease-duration=3s",
    "--leader-election-renew-deadline=2s",
    "--leader-election-retry-period=500ms",
];
/// How long it may take until another leads: the lease runs out, and is looked at every so often.
const HANDOVER: Duration = Duration::from_secs(20);

/// Claims of a storm.
fn claims() -> usize {
    let told = std::env::var("FAULTS_CLAIMS").ok();
    told.map_or(300, |n| n.parse().expect("FAULTS_CLAIMS is a number"))
}

/// Which tests may run now.
static TURNS: RwLock<()> = RwLock::const_new(());

/// For a test that only needs its own fleet: hold this until it ends.
async fn beside_others() -> RwLockReadGuard<'static, ()> {
    TURNS.read().await
}

/// For a test that takes away what all of them need: hold this until it ends.
async fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().await
}

/// The control plane. It goes with this process.
async fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    let up = || {
        machine::require();
        CLUSTER.get_or_init(|| Cluster::up(&Options::default()))
    };
    // Bringing it up takes its time.
    let cluster = tokio::task::spawn_blocking(up).await;
    let cluster = cluster.expect("the control plane comes up");
    // A test that failed may have left them away.
    for part in ["etcd", "apiserver", "controller-manager"] {
        part_of(cluster, Cluster::start, part).await;
    }
    cluster
}

/// Does something to a part of the control plane.
async fn part_of(cluster: &'static Cluster, action: fn(&Cluster, &str), part: &'static str) {
    let done = tokio::task::spawn_blocking(move || action(cluster, part));
    done.await.expect("it can be done");
}

/// So many nodes with quick controllers.
fn spec(name: &str, nodes: usize) -> FleetSpec {
    FleetSpec::new(name, nodes).args(&QUICK)
}

/// Brings them up and waits until all are at work.
async fn up(spec: FleetSpec) -> Fleet {
    let cluster = cluster().await;
    let fleet = spec.up(&cluster.kubeconfig()).await;
    fleet.start(Duration::ZERO).await;
    fleet.ready(patience()).await;
    fleet
}

/// The end of a test: so many claims are bound, each to a volume of its own; then all is taken
/// away, and nothing is left.
async fn ends(fleet: Fleet, claims: usize) {
    fleet.bound(claims, patience()).await;
    fleet.each_once(patience()).await;
    fleet.clear(patience()).await;
    fleet.down().await;
}

/// A service account for each node of a fleet to be, by which the audit log tells them apart: their
/// users and kubeconfigs.
async fn accounts(names: &[&str]) -> (Vec<String>, Vec<PathBuf>, tempfile::TempDir) {
    let cluster = cluster().await;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (path, names) = (
        dir.path().to_owned(),
        names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>(),
    );
    let made = tokio::task::spawn_blocking(move || {
        let made = names
            .iter()
            .map(|name| cluster.account("default", name, &path));
        made.unzip()
    });
    let (users, files) = made.await.expect("accounts can be made");
    (users, files, dir)
}
