//! Hostloop's controllers in place of Kubernetes' sidecars, before drivers of other authors: the Go
//! host-path driver, and the mock driver of Kubernetes' own suite. The suite `interop` is the other
//! way round.
//!
//! One process has all controllers, with the command line of KEP-4958 and the rights of
//! `deploy/examples/other-driver.yaml`. Cluster and kubelet are real, and the driver is a process of
//! this machine.

mod driver;
mod life;
mod sanity;
mod site;

use driver::Kind;
use life::life;
use site::Site;

#[tokio::test(flavor = "multi_thread")]
async fn one_process_serves_the_host_path_driver() {
    serves(Kind::HostPath).await;
}

/// It attaches, snapshots and grows in memory, and names neither a node nor a size as host-path does.
#[tokio::test(flavor = "multi_thread")]
async fn one_process_serves_the_mock_driver() {
    serves(Kind::Mock).await;
}

async fn serves(kind: Kind) {
    let site = Site::up(kind).await;
    life(&site).await;
    site.down().await;
}
