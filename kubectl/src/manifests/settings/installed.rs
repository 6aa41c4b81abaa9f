//! What was chosen at an earlier installation, read from the cluster's objects.

use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::Value;

use super::pool::Pool;
use super::{CONTAINER, POOL_FLAG};
use crate::container_flags::arguments;
use crate::manifests::{field, helm_release};

/// The choices that the installed workloads show. What they don't show is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The driver's name; `None` if the workload is of a version without this variable.
    pub(crate) driver_name: Option<String>,
    pub(crate) kubelet_dir: Option<String>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) image: Option<String>,
    /// Volumes are attached.
    pub(crate) attach: Option<bool>,
    /// hostloop is the cluster's snapshot controller.
    pub(crate) snapshot_controller: bool,
    /// The Helm release that the DaemonSet belongs to.
    pub(crate) helm_release: Option<String>,
}

impl Installed {
    /// Reads the DaemonSet and the controller's Deployment.
    pub(crate) fn of(daemon_set: &Value, deployment: Option<&Value>) -> Self {
        let driver = container(daemon_set, CONTAINER);
        // A pod template has no values for the fields of a pod.
        let args = arguments(&Pod::default(), &driver);
        let pools = args.iter().filter_map(|arg| arg.strip_prefix(POOL_FLAG));
        let controller = "spec.template.spec.containers.[name=hostloop-controller]";
        let snapshot_controller = deployment.is_some_and(|deployment| {
            let value = variable(&container(deployment, controller), "SNAPSHOT_CONTROLLER");
            value.is_some_and(|value| !value.is_empty())
        });
        Installed {
            driver_name: variable(&driver, "DRIVER_NAME"),
            kubelet_dir: variable(&driver, "KUBELET_DIR"),
            pools: pools.filter_map(|pool| pool.parse().ok()).collect(),
            attach: variable(&driver, "ATTACH").map(|value| value == "true"),
            image: driver.image,
            snapshot_controller,
            helm_release: helm_release(daemon_set).map(str::to_owned),
        }
    }
}

/// The container at this path; an empty one if it can't be read.
fn container(workload: &Value, path: &str) -> Container {
    let found = field(workload, path).cloned();
    found
        .and_then(|container| serde_json::from_value(container).ok())
        .unwrap_or_default()
}

/// The value of an environment variable.
fn variable(container: &Container, name: &str) -> Option<String> {
    // As in Kubernetes, the last of equal names counts.
    container
        .env
        .iter()
        .flatten()
        .rfind(|variable| variable.name == name)?
        .value
        .clone()
}
