//! The controllers in front of a driver that is not hostloop: every loop's whole way, on a real
//! API server and controller manager, and what becomes of each kind of failure.

mod apart;
mod attaching;
mod bad_objects;
mod conformance;
mod electing;
mod failing;
mod gone;
mod groups;
mod modifying;
mod places;
mod policy;
mod provisioning;
mod resizing;
mod scheduling;
mod snapshots;
mod telling;

use std::sync::Arc;

use hostloop_test::front::plane::Plane;
use hostloop_test::front::{Front, FrontSpec};

/// A front, and what it stands on.
struct Rig {
    front: Front,
    plane: Arc<Plane>,
}

impl Rig {
    async fn up(spec: FrontSpec) -> Rig {
        let plane = plane(false).await;
        Rig {
            front: spec.up(plane.kubeconfig()).await,
            plane,
        }
    }

    /// With the cluster's part of snapshots.
    async fn with_snapshots(spec: FrontSpec) -> Rig {
        let plane = plane(true).await;
        Rig {
            front: spec.up(plane.kubeconfig()).await,
            plane,
        }
    }

    async fn down(self) {
        self.front.down().await;
    }
}

/// Bringing it up takes its time, which tests that run already must not lose.
async fn plane(snapshots: bool) -> Arc<Plane> {
    let up = tokio::task::spawn_blocking(move || {
        let plane = Plane::shared();
        if snapshots {
            plane.with_snapshot_controller();
        }
        plane
    });
    up.await.expect("the control plane comes up")
}

impl std::ops::Deref for Rig {
    type Target = Front;

    fn deref(&self) -> &Front {
        &self.front
    }
}

impl std::ops::DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut Front {
        &mut self.front
    }
}
