//! What the cluster has before an installation.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::Value;

use super::snapshots::{Definition, SnapshotApi};
use super::{Error, kubelet};
use crate::api::{Call, Objects, timely};
use crate::distribution::Distribution;
use crate::manifests::{self, DEFAULT_CLASS, Installed, KERNELS, Kernels, ObjectKey, Version};
use crate::{Cluster, SNAPSHOT_LEASE};

/// The seconds for which a snapshot controller that does not renew its lease counts as running.
const LEASE_LIFE: i64 = 300;

/// What the cluster has.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    /// The context's name.
    pub(super) context: String,
    pub(super) version: Version,
    /// The server's version as it says it.
    pub(super) server: String,
    pub(super) nodes: Vec<Node>,
    pub(super) distribution: Distribution,
    /// The DaemonSets of others.
    pub(super) daemon_sets: Vec<Value>,
    pub(super) snapshots: SnapshotApi,
    /// `None` if there is no DaemonSet of hostloop.
    pub(super) installed: Option<Installed>,
    /// `attachRequired` of the CSIDriver, if there is one.
    pub(super) attach_required: Option<bool>,
    /// The cluster's default classes.
    pub(super) default_classes: Vec<String>,
    /// The nodes that share a kernel; `None` if no object names them.
    pub(super) kernels: Option<Kernels>,
}

impl Survey {
    /// Reads all of it.
    pub(super) async fn take(cluster: &Cluster, objects: &mut Objects) -> Result<Survey, Error> {
        let call = Call::new("get", "/version", None, "");
        let info = timely(call, cluster.client.apiserver_version()).await?;
        let version = Version::of(&info).filter(|version| *version >= Version::OLDEST);
        let version = version.ok_or_else(|| Error::TooOld {
            found: info.git_version.clone(),
        })?;

        let nodes: Vec<Node> = objects.list(("v1", "Node"), "", "").await?;
        let daemon_sets: Vec<Value> = objects.list(("apps/v1", "DaemonSet"), "", "").await?;
        let deployments: Vec<Value> = objects.list(("apps/v1", "Deployment"), "", "").await?;
        let namespace = &cluster.system_namespace;
        let daemon_set_key = ObjectKey::new("apps/v1", "DaemonSet", namespace, "hostloop");
        let controller_key =
            ObjectKey::new("apps/v1", "Deployment", namespace, "hostloop-controller");
        let controller = deployments
            .iter()
            .find(|one| ObjectKey::of(one) == controller_key);
        let installed = daemon_sets
            .iter()
            .find(|one| ObjectKey::of(one) == daemon_set_key)
            .map(|one| Installed::of(one, controller));
        let snapshots = snapshots(&deployments, installed.as_ref(), objects).await?;
        let driver = ObjectKey::new("storage.k8s.io/v1", "CSIDriver", "", &cluster.driver_name);
        let driver = objects.get(&driver).await?;
        let classes: Vec<Value> = objects
            .list(("storage.k8s.io/v1", "StorageClass"), "", "")
            .await?;
        let kernels_key = ObjectKey::new("v1", "ConfigMap", namespace, KERNELS);
        let kernels = objects.get(&kernels_key).await?;
        Ok(Survey {
            context: cluster.context.clone().unwrap_or_default(),
            version,
            server: info.git_version,
            distribution: Distribution::of_most(&nodes),
            nodes,
            default_classes: classes
                .iter()
                .filter(|class| class["metadata"]["annotations"][DEFAULT_CLASS] == "true")
                .map(|c| ObjectKey::of(c).name)
                .collect(),
            attach_required: driver.map(|driver| driver["spec"]["attachRequired"] != false),
            kernels: kernels.as_ref().map(shared_kernels),
            daemon_sets: daemon_sets
                .iter()
                .filter(|one| ObjectKey::of(one) != daemon_set_key)
                .cloned()
                .collect(),
            snapshots,
            installed,
        })
    }

    /// Kubelet's directory: the given flag, else what the cluster shows.
    pub(super) fn kubelet_dir(&self, chosen: Option<&str>) -> kubelet::KubeletDirectory {
        let installed = self
            .installed
            .as_ref()
            .and_then(|found| found.kubelet_dir.as_deref());
        kubelet::find(chosen, installed, self.distribution, &self.daemon_sets)
    }
}

async fn snapshots(
    deployments: &[Value],
    installed: Option<&Installed>,
    objects: &mut Objects,
) -> Result<SnapshotApi, Error> {
    let mut found = SnapshotApi {
        is_ours: installed.is_some_and(|installed| installed.snapshot_controller),
        controllers: controllers(deployments),
        ..SnapshotApi::default()
    };
    let (namespace, name) = SNAPSHOT_LEASE;
    let lease = ObjectKey::new("coordination.k8s.io/v1", "Lease", namespace, name);
    // A provider's controller may run outside the cluster, where only its lease shows it.
    if let Some(lease) = objects.get(&lease).await?
        && found.controllers.is_empty()
        && let Ok(lease) = serde_json::from_value::<Lease>(lease)
        && let Some(holder) = live_holder(&lease, Timestamp::now().as_second())
    {
        found
            .controllers
            .push(format!("{holder}, which holds Lease {}", lease.name_any()));
    }
    let definitions = manifests::crds().into_iter();
    for object in definitions.chain([manifests::metadata_crd()]) {
        let key = ObjectKey::of(&object);
        if let Some(existing) = objects.get(&key).await? {
            found
                .definitions
                .insert(key.name, Definition::of(&existing));
        }
    }
    Ok(found)
}

/// The kernels that a ConfigMap names, with their nodes.
fn shared_kernels(config_map: &Value) -> Kernels {
    let data = config_map["data"].as_object().into_iter().flatten();
    let texts =
        data.filter_map(|(kernel, nodes)| Some((kernel.clone(), nodes.as_str()?.to_owned())));
    texts.collect()
}

/// The Deployments of snapshot controllers. Distributions put words before the name.
fn controllers(deployments: &[Value]) -> Vec<String> {
    let keys = deployments.iter().map(ObjectKey::of);
    keys.filter(|key| key.name.ends_with("snapshot-controller"))
        .map(|key| key.to_string())
        .collect()
}

/// The holder of the snapshot controllers' lease, if it renews it and is not hostloop. `now` is in
/// seconds since the epoch.
fn live_holder(lease: &Lease, now: i64) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let holder = spec
        .holder_identity
        .as_ref()
        .filter(|holder| !holder.is_empty())?;
    let is_live = spec.renew_time.as_ref()?.0.as_second() + LEASE_LIFE > now;
    (is_live && !holder.starts_with("hostloop-")).then(|| holder.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn snapshot_controllers_by_their_names() {
        let named = |name: &str| json!({"kind": "Deployment", "metadata": {"name": name, "namespace": "kube-system"}});
        let all = [
            "snapshot-controller",
            "rke2-snapshot-controller",
            "coredns",
            "hostloop-controller",
        ];
        let all: Vec<Value> = all.into_iter().map(named).collect();
        assert_eq!(
            controllers(&all),
            [
                "Deployment kube-system/snapshot-controller",
                "Deployment kube-system/rke2-snapshot-controller"
            ]
        );
    }

    #[test]
    fn nodes_of_kernels_are_texts() {
        let found = shared_kernels(&json!({"data": {"kernel": "a b", "odd": 1}}));
        let expected = Kernels::from([("kernel".to_owned(), "a b".to_owned())]);
        assert_eq!(found, expected);
        assert_eq!(shared_kernels(&json!({})), Kernels::new());
    }

    #[test]
    fn a_lease_shows_a_running_controller() {
        let renewed = 1_700_000_000;
        for (holder, now, found) in [
            (
                json!("snapshot-controller-x"),
                renewed + 10,
                Some("snapshot-controller-x"),
            ),
            (json!("snapshot-controller-x"), renewed + 301, None),
            (json!("hostloop-controller-x"), renewed + 10, None),
            (json!(""), renewed + 10, None),
            (json!(null), renewed + 10, None),
        ] {
            let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": holder,
                "renewTime": "2023-11-14T22:13:20.000000Z"}});
            let lease: Lease = serde_json::from_value(lease).unwrap();
            assert_eq!(live_holder(&lease, now).as_deref(), found, "{holder} {now}");
        }
    }
}
