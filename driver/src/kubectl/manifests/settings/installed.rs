//! What was chosen at an earlier installation, read from the cluster's objects.

use std::collections::BTreeMap;

use serde_json::Value;

use super::pool::Pool;
use super::{CONTAINER, POOL_FLAG};
use crate::kubectl::manifests::{field, helm_release};

/// The choices that the installed workloads show. What they don't show is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::kubectl) struct Installed {
    pub(in crate::kubectl) kubelet_dir: Option<String>,
    pub(in crate::kubectl) pools: Vec<Pool>,
    pub(in crate::kubectl) image: Option<String>,
    /// hostloop is the cluster's snapshot controller.
    pub(in crate::kubectl) snapshot_controller: bool,
    /// The Helm release that the DaemonSet belongs to.
    pub(in crate::kubectl) helm_release: Option<String>,
}

impl Installed {
    /// Reads the DaemonSet and the controller's Deployment.
    pub(in crate::kubectl) fn of(daemon_set: &Value, deployment: Option<&Value>) -> Self {
        let variables = variables(daemon_set, CONTAINER);
        let args = field(daemon_set, &format!("{CONTAINER}.args")).and_then(Value::as_array);
        let args = args.into_iter().flatten().filter_map(Value::as_str);
        let pools = args.filter_map(|arg| arg.strip_prefix(POOL_FLAG));
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let controller = "spec.template.spec.containers.[name=hostloop-controller]";
        let runs_snapshots = |deployment: &Value| {
            let variables = self::variables(deployment, controller);
            variables.get("SNAPSHOT_CONTROLLER").is_some_and(|value| !value.is_empty())
        };
        Installed {
            kubelet_dir: variables.get("KUBELET_DIR").map(|dir| (*dir).to_owned()),
            pools: pools.filter_map(|pool| expand(pool, &variables).parse().ok()).collect(),
            image: text(field(daemon_set, &format!("{CONTAINER}.image"))),
            snapshot_controller: deployment.is_some_and(runs_snapshots),
            helm_release: helm_release(daemon_set).map(str::to_owned),
        }
    }
}

/// The environment variables of a container that have plain values.
fn variables<'a>(workload: &'a Value, container: &str) -> BTreeMap<&'a str, &'a str> {
    let list = field(workload, &format!("{container}.env")).and_then(Value::as_array);
    let list = list.into_iter().flatten().filter(|variable| variable["valueFrom"].is_null());
    let pairs = list.filter_map(|variable| {
        Some((variable["name"].as_str()?, variable["value"].as_str().unwrap_or_default()))
    });
    pairs.collect()
}

/// Replaces `$(NAME)` by the variable's value, as kubelet does. An unknown name stays.
fn expand(text: &str, variables: &BTreeMap<&str, &str>) -> String {
    variables
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
}
