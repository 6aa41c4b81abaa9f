//! The driver behind upstream's sidecars, as they are released, and hostloop's controllers among
//! them: with each division of the work, the same lifecycle passes and nothing is left.
//!
//! The control plane is real and has no nodes: the tests do what kubelet would do, and the driver
//! is a process of this machine.

mod environment;
mod kubelet;
mod lifecycle;
mod lost_answers;
mod refused;
mod site;
mod sizes;

use lifecycle::lifecycle;
use lost_answers::lost_answers;
use refused::refused;
use site::Who::{self, Both, Ours, Theirs};
use site::{ROLES, Site};
use sizes::odd_sizes;

/// Runs the lifecycle and the odd cases. `cast` says who plays each of [`ROLES`].
async fn plays(cast: [Who; ROLES.len()]) {
    let site = Site::up(cast).await;
    lifecycle(&site).await;
    refused(&site, cast[3]).await;
    if cast == [Theirs; ROLES.len()] {
        odd_sizes(&site).await;
    }
    site.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_upstreams() {
    plays([Theirs; 5]).await;
}

/// Hostloop's provisioner, and its snapshot controller beside upstream's.
#[tokio::test(flavor = "multi_thread")]
async fn provisioner_of_hostloop_and_both_snapshot_controllers() {
    plays([Ours, Theirs, Theirs, Theirs, Both]).await;
}

/// The other way round.
#[tokio::test(flavor = "multi_thread")]
async fn attacher_resizer_and_snapshotter_of_hostloop() {
    plays([Theirs, Ours, Ours, Ours, Theirs]).await;
}

/// Upstream's provisioner repeats what has no answer, and nothing is made twice or left.
#[tokio::test(flavor = "multi_thread")]
async fn all_of_upstreams_without_some_answers() {
    let site = Site::up_behind_proxy([Theirs; 5], lost_answers::RULES).await;
    lost_answers(&site).await;
    site.down().await;
}
