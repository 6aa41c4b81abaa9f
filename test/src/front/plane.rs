//! The control plane that fronts share: a real API server, controller manager and scheduler,
//! without nodes.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::cluster::{self, Cluster};
use crate::deployed;
use crate::front::process::Controllers;
use crate::machine::text;
use crate::scratch::Scratch;

/// The shared control plane. It runs as long as a reference to it exists.
pub struct Plane {
    /// Dropped before the cluster: the controller would log errors about a missing API server.
    snapshots: Mutex<Option<(Controllers, Scratch)>>,
    cluster: Cluster,
}

impl Plane {
    /// Returns the control plane of this process and starts it if it is not running.
    pub fn shared() -> Arc<Plane> {
        static SHARED: Mutex<Weak<Plane>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        if let Some(plane) = shared.upgrade() {
            return plane;
        }
        let plane = Arc::new(Plane {
            snapshots: Mutex::new(None),
            cluster: Cluster::up(&cluster::Options {
                scheduler: true,
                ..cluster::Options::default()
            }),
        });
        plane.apply(deployed::PARAMETERS);
        *shared = Arc::downgrade(&plane);
        plane
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.cluster.kubeconfig()
    }

    /// Applies a manifest.
    pub fn apply(&self, yaml: &str) {
        self.cluster.apply(yaml);
    }

    /// Deletes the objects of a manifest.
    pub fn delete(&self, yaml: &str) {
        self.cluster.delete(yaml);
    }

    /// Starts the snapshot controller if it is not running yet.
    pub fn with_snapshot_controller(&self) {
        let mut there = self.snapshots.lock();
        if there.is_some() {
            return;
        }
        self.cluster.create_crds();
        let scratch = Scratch::new();
        let args = [
            "--leader-tasks=only".to_owned(),
            "--drivername=none.test.csi.dev".to_owned(),
            "--leader-election=false".to_owned(),
            format!("--kubeconfig={}", text(&self.kubeconfig())),
            "--controllers=snapshot-controller".to_owned(),
        ];
        *there = Some((
            Controllers::start(scratch.path(), "kube-system", &args),
            scratch,
        ));
    }
}
