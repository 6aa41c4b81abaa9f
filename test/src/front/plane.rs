//! The control plane that fronts share: a real API server, controller manager and scheduler,
//! without nodes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::cluster::{self, Cluster};
use crate::deployed;
use crate::front::process::Controllers;
use crate::machine::text;
use crate::scratch::Scratch;

/// It is up for as long as somebody holds it.
pub struct Plane {
    /// Before the cluster, so that it goes first: it would complain that its server is away.
    snapshots: Mutex<Option<SnapshotController>>,
    cluster: Cluster,
}

/// The control plane's snapshot controller.
struct SnapshotController {
    _controllers: Controllers,
    _scratch: Scratch,
}

impl Plane {
    /// The one of this process, brought up if nobody has it.
    pub fn shared() -> Arc<Plane> {
        static SHARED: Mutex<Weak<Plane>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// How it is reached.
    pub fn kubeconfig(&self) -> PathBuf {
        self.cluster.kubeconfig()
    }

    /// Applies a manifest.
    pub fn apply(&self, yaml: &str) {
        self.cluster.apply(yaml);
    }

    /// Deletes what is in a manifest.
    pub fn delete(&self, yaml: &str) {
        self.cluster.delete(yaml);
    }

    /// Has the cluster's part of snapshots done, from now on.
    pub fn with_snapshot_controller(&self) {
        let mut there = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if there.is_some() {
            return;
        }
        let probe = ["get", "crd", "volumesnapshots.snapshot.storage.k8s.io"];
        if self.cluster.try_kubectl(&probe).is_err() {
            let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
            self.cluster.kubectl(&["create", "-k", text(&crds)]);
            let all = ["wait", "--for=condition=Established", "crd", "--all"];
            self.cluster.kubectl(&all);
        }
        let scratch = Scratch::new();
        let args = [
            "--leader-tasks=only".to_owned(),
            "--drivername=none.test.csi.dev".to_owned(),
            "--leader-election=false".to_owned(),
            format!("--kubeconfig={}", text(&self.kubeconfig())),
            "--controllers=snapshot-controller".to_owned(),
        ];
        *there = Some(SnapshotController {
            _controllers: Controllers::start(scratch.path(), "kube-system", &args),
            _scratch: scratch,
        });
    }
}
