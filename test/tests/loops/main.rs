//! The controllers in front of a driver that is not hostloop. The tests cover every controller and
//! each kind of failure, on a real API server and controller manager.

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

/// A front and its control plane.
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

    /// Starts the rig with the snapshot controller.
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

/// Starting the control plane takes time, and must not block tests that already run.
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
