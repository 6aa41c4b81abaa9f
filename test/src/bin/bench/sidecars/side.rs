//! The programs in front of the driver: hostloop's controllers, or upstream's sidecars.

use std::path::Path;

use hostloop_test::process::{Process, common};

use crate::cluster::ground::NAMESPACE;

/// Who is in front of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// One process of hostloop.
    Ours,
    /// One process for each of [`SIDECARS`].
    Theirs,
}

/// Upstream's programs, each with its flag for the number of workers.
const SIDECARS: [(&str, &str); 5] = [
    ("csi-provisioner", "--worker-threads"),
    ("csi-attacher", "--worker-threads"),
    ("csi-resizer", "--workers"),
    ("csi-snapshotter", "--worker-threads"),
    ("snapshot-controller", "--worker-threads"),
];

/// The same controllers.
const CONTROLLERS: &str = "provisioner,attacher,resizer,snapshotter,snapshot-controller";

/// Objects that each controller works on at once: what upstream's provisioner has by default.
const WORKERS: usize = 100;

impl Side {
    pub(super) const BOTH: [Side; 2] = [Side::Ours, Side::Theirs];

    /// A name for directories and claims.
    pub(super) fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Theirs => "theirs",
        }
    }

    /// Starts the programs. They log into this directory.
    pub(super) fn start(self, dir: &Path, endpoint: &str, kubeconfig: &Path) -> Vec<Process> {
        let shared = shared(endpoint, kubeconfig);
        match self {
            Side::Ours => {
                let own = [
                    format!("--controllers={CONTROLLERS}"),
                    format!("--worker-threads={WORKERS}"),
                ];
                vec![Process::controllers(dir, &[&shared[..], &own].concat())]
            }
            Side::Theirs => SIDECARS
                .iter()
                .map(|(program, workers)| {
                    // The snapshot controller calls no driver.
                    let first = usize::from(*program == "snapshot-controller");
                    let own = [format!("{workers}={WORKERS}")];
                    Process::sidecar(dir, program, &[&shared[first..], &own].concat())
                })
                .collect(),
        }
    }
}

/// Arguments that all programs take, the address of the driver first. The limits are too high to count.
fn shared(endpoint: &str, kubeconfig: &Path) -> Vec<String> {
    let mut args = common(endpoint, kubeconfig);
    args.extend([
        "--leader-election".to_owned(),
        format!("--leader-election-namespace={NAMESPACE}"),
        "--kube-api-qps=10000".to_owned(),
        "--kube-api-burst=10000".to_owned(),
    ]);
    args
}
