//! Gathers the facts: lists, discovery, reviews of rights, and commands in the node pods.
//!
//! A request that fails becomes an unknown fact. Only a server that does not answer at all ends the
//! check.

use hostloop_api_objects::lease_name::leader_lease;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::decide::snapshot_controllers;
use super::facts::{Fact, Facts, Right, Unknown};
use crate::api::{self, ApiError, Kind};
use crate::manifests::KERNELS;
use crate::node_pods::NODE_PODS;
use crate::progress_line::ProgressLine;
use crate::volume_objects::VolumeObjects;
use crate::{Cluster, SNAPSHOT_LEASE};

mod enforced;
mod kubelets;
mod machines;
mod rights;
mod server;

/// The label that says what an object is a part of.
const COMPONENT: &str = "app.kubernetes.io/component";

impl From<ApiError> for Unknown {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::Forbidden { call, .. } => Unknown::Forbidden(call.right()),
            ApiError::NotServed(kind) => Unknown::NotServed(kind),
            error => Unknown::Failed(error.to_string()),
        }
    }
}

/// Gathers all facts. The error says why the API server does not answer.
pub(super) async fn gather(
    cluster: &Cluster,
    progress: &mut ProgressLine,
) -> Result<Facts, String> {
    let client = &cluster.client;
    progress.show("asking the API server for its version");
    let asked = server::server(client).await?;

    progress.show("reading the cluster's objects");
    let system = &cluster.system_namespace;
    let lease = leader_lease(&cluster.driver_name);
    let (snapshot_namespace, snapshot_lease) = SNAPSHOT_LEASE;
    let (daemon_sets, deployments, pods) = tokio::join!(
        driver_sets(cluster),
        all(cluster),
        list(cluster.system(), ListParams::default()),
    );
    let (served, csi_driver, classes, snapshot_classes, nodes, csi_nodes) = tokio::join!(
        server::served(client),
        get(cluster.all(), &cluster.driver_name),
        all(cluster),
        all(cluster),
        all(cluster),
        all(cluster),
    );
    let (policies, bindings, objects) = tokio::join!(
        all(cluster),
        all(cluster),
        VolumeObjects::gather(cluster, None)
    );
    let (lease, snapshot_lease, kernels) = tokio::join!(
        get(cluster.system(), &lease),
        get(cluster.namespaced(Some(snapshot_namespace)), snapshot_lease),
        get(cluster.system(), KERNELS),
    );
    let status_periods = kubelets::status_periods(cluster, &kernels, &nodes).await;

    progress.show("asking for the rights of hostloop's accounts");
    let is_installed = !daemon_sets.as_ref().is_ok_and(Vec::is_empty);
    let rights = if is_installed {
        rights(cluster, &deployments).await
    } else {
        Vec::new()
    };
    let enforced = if is_installed {
        enforced::enforced(cluster).await
    } else {
        Err(Unknown::NotAsked("hostloop is not installed".to_owned()))
    };
    progress.show("asking the node pods about their machines");
    let (machines, reports) = machines::machines(cluster, asked.ahead).await;
    progress.clear();
    Ok(Facts {
        driver: cluster.driver_name.clone(),
        namespace: system.clone(),
        now: asked.now(),
        server: asked.server,
        served,
        csi_driver,
        classes,
        snapshot_classes,
        daemon_sets,
        deployments,
        pods,
        nodes,
        csi_nodes,
        kernels,
        status_periods,
        machines,
        rights,
        policies,
        bindings,
        enforced,
        lease,
        snapshot_lease,
        objects: objects.map_err(Unknown::from),
        reports,
    })
}

/// The rights of the accounts.
async fn rights(cluster: &Cluster, deployments: &Fact<Vec<Deployment>>) -> Vec<Right> {
    let controllers = snapshot_controllers(deployments.as_deref().unwrap_or_default());
    let own = format!("{}/", cluster.system_namespace);
    let snapshots = controllers.iter().any(|name| name.starts_with(&own));
    rights::ask(cluster, &rights::required(cluster, snapshots)).await
}

/// All objects of a kind, in all namespaces.
async fn all<K: Kind>(cluster: &Cluster) -> Fact<Vec<K>> {
    list(cluster.all(), ListParams::default()).await
}

/// The DaemonSets of the driver, without that of fault disks.
async fn driver_sets(cluster: &Cluster) -> Fact<Vec<DaemonSet>> {
    let mut sets: Vec<DaemonSet> =
        list(cluster.system(), ListParams::default().labels(NODE_PODS)).await?;
    sets.retain(|set| set.labels().get(COMPONENT).map(String::as_str) != Some("fault-disks"));
    Ok(sets)
}

async fn list<K: Kind>(api: Api<K>, params: ListParams) -> Fact<Vec<K>> {
    Ok(api::list(&api, params).await?)
}

async fn get<K: Kind>(api: Api<K>, name: &str) -> Fact<Option<K>> {
    Ok(api::get(&api, name).await?)
}

#[cfg(test)]
mod tests;
