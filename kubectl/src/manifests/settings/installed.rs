//! What was chosen at an earlier installation, read from the cluster's objects.

use k8s_openapi::api::core::v1::Container;
use serde_json::Value;

use super::CONTAINER;
use super::pool::Pool;
use crate::container_flags::{flag_values, variable};
use crate::manifests::{field, helm_release};

/// The choices that the installed workloads show. What they don't show is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The driver's name; `None` if the workload is of a version without this variable.
    pub(crate) driver_name: Option<String>,
    pub(crate) kubelet_dir: Option<String>,
    pub(crate) pools: Vec<Pool>,
    /// What the workload has for pools, and can't be read as one.
    pub(crate) unread_pools: Vec<String>,
    /// The container's `command` has arguments, too.
    pub(crate) has_command_arguments: bool,
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
        // Earlier versions have an argument for each pool.
        let given = Vec::from_iter(flag_values(&driver, "pool"));
        let (mut pools, mut unread_pools) = (Vec::new(), Vec::new());
        let words = given.iter().flat_map(|pools| pools.split(';'));
        for pool in words.filter(|word| !word.is_empty()) {
            match pool.parse::<Pool>() {
                Ok(pool) => pools.push(pool),
                Err(_) => unread_pools.push(pool.to_owned()),
            }
        }
        let controller = "spec.template.spec.containers.[name=hostloop-controller]";
        let snapshot_controller = deployment.is_some_and(|deployment| {
            let controller = container(deployment, controller);
            variable(&controller, "SNAPSHOT_CONTROLLER").is_some_and(|value| !value.is_empty())
        });
        Installed {
            driver_name: variable(&driver, "DRIVER_NAME").map(str::to_owned),
            kubelet_dir: variable(&driver, "KUBELET_DIR").map(str::to_owned),
            pools,
            unread_pools,
            has_command_arguments: driver.command.as_ref().is_some_and(|words| words.len() > 1),
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
