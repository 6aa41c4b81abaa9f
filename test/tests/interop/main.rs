//! The driver behind upstream's sidecars, as they are released, and our controllers among them:
//! whoever does a sidecar's work, the same lifecycle passes and nothing is left.
//!
//! The control plane is real and has no nodes: the tests do what kubelet would do, and the driver
//! is a process of this machine.

mod kubelet;
mod lifecycle;
mod process;
mod site;

use lifecycle::lifecycle;
use site::{Cast, Site, Who};

async fn plays(cast: Cast) {
    let site = Site::up(cast).await;
    lifecycle(&site).await;
    site.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_upstreams() {
    plays(Cast {
        provisioner: Who::Theirs,
        attacher: Who::Theirs,
        resizer: Who::Theirs,
        snapshotter: Who::Theirs,
        snapshot_controller: Who::Theirs,
    })
    .await;
}

/// Our provisioner, and our snapshot-controller beside upstream's.
#[tokio::test(flavor = "multi_thread")]
async fn some_of_ours_and_twins() {
    plays(Cast {
        provisioner: Who::Ours,
        attacher: Who::Theirs,
        resizer: Who::Theirs,
        snapshotter: Who::Theirs,
        snapshot_controller: Who::Both,
    })
    .await;
}

/// The other way round.
#[tokio::test(flavor = "multi_thread")]
async fn the_others_of_ours() {
    plays(Cast {
        provisioner: Who::Theirs,
        attacher: Who::Ours,
        resizer: Who::Ours,
        snapshotter: Who::Ours,
        snapshot_controller: Who::Theirs,
    })
    .await;
}

/// So that what fails above can be told from what the test itself gets wrong.
#[tokio::test(flavor = "multi_thread")]
async fn all_of_ours() {
    plays(Cast {
        provisioner: Who::Ours,
        attacher: Who::Ours,
        resizer: Who::Ours,
        snapshotter: Who::Ours,
        snapshot_controller: Who::Ours,
    })
    .await;
}
