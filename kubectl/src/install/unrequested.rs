//! Components that an earlier installation has applied, and this one does not ask for.

use std::collections::BTreeSet;

use futures::StreamExt;
use hostloop_api_objects::snapshot_metadata::SnapshotMetadataService;
use hostloop_report::node_faults::NodeFaults;
use k8s_openapi::api::core::v1::{PersistentVolume, Pod};
use kube::Resource;

use super::Error;
use super::decide::InstallPlan;
use super::survey::Survey;
use crate::api::{AT_ONCE, Objects};
use crate::manifests::{self, ObjectKey};
use crate::node_pods::{self, NodePod};
use crate::output;
use crate::volume_objects::{claim_ref, handle};
use crate::{Cluster, FAULT_DISKS, NAME_LABEL};

/// Fails if the servers of fault disks would go while volumes are on their disks, and names these.
pub(super) async fn refuse_in_use(
    plan: &InstallPlan,
    survey: &Survey,
    cluster: &Cluster,
    objects: &mut Objects,
) -> Result<(), Error> {
    let namespace = cluster.system_namespace.as_str();
    let servers = ObjectKey::new("apps/v1", "DaemonSet", namespace, FAULT_DISKS);
    let mut daemon_sets = survey.daemon_sets.iter().map(ObjectKey::of);
    let is_kept = plan.settings.faults || survey.installed.is_none();
    if is_kept || !daemon_sets.any(|key| key == servers) {
        return Ok(());
    }
    let labels = format!("{}={FAULT_DISKS}", NAME_LABEL.0);
    let servers: Vec<Pod> = objects.list(("v1", "Pod"), namespace, &labels).await?;
    let nodes: BTreeSet<String> = servers
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    if nodes.is_empty() {
        return Ok(());
    }
    let drivers = node_pods::node_pods(cluster).await?;
    let volumes: Vec<PersistentVolume> = objects.list(("v1", "PersistentVolume"), "", "").await?;
    let asked: Vec<_> = nodes
        .iter()
        .map(|node| disks_on(cluster, &drivers, node))
        .collect();
    let answers: Vec<_> = futures::stream::iter(asked)
        .buffered(AT_ONCE)
        .collect()
        .await;
    let in_use: Vec<String> = nodes
        .iter()
        .zip(answers)
        .flat_map(|(node, disks)| lines(node, disks, &volumes, &cluster.driver_name))
        .collect();
    if in_use.is_empty() {
        Ok(())
    } else {
        Err(Error::FaultDisksInUse(in_use))
    }
}

/// The volumes on the fault disks of a node, by their handles, or why that is not known.
async fn disks_on(
    cluster: &Cluster,
    drivers: &[NodePod],
    node: &str,
) -> Result<Vec<String>, String> {
    let here = drivers.iter().filter(|pod| pod.node == node);
    let Some(pod) = here.min_by_key(|pod| pod.not_running.is_some()) else {
        return Err("DaemonSet hostloop has no pod there".to_owned());
    };
    let command = pod.command(&["pool-fault", "list"]);
    let said: Result<NodeFaults, _> = node_pods::ask(cluster, pod, &command).await;
    let said = said.map_err(|error| error.to_string())?;
    said.served_disks
        .ok_or_else(|| "the server of its fault disks does not answer".to_owned())
}

/// What would lose its power on a node.
fn lines(
    node: &str,
    disks: Result<Vec<String>, String>,
    volumes: &[PersistentVolume],
    driver: &str,
) -> Vec<String> {
    let disks = match disks {
        Ok(disks) => disks,
        Err(why) => return vec![format!("volumes on {node}, if there are any: {why}")],
    };
    let in_use = disks.iter().map(|disk| {
        let volume = volumes
            .iter()
            .find(|volume| handle(volume, driver) == Some(disk.as_str()));
        let claim = volume.and_then(claim_ref).and_then(|claim| {
            let (namespace, name) = (claim.namespace.as_deref()?, claim.name.as_deref()?);
            Some(format!("{namespace}/{name}"))
        });
        match claim {
            Some(claim) => format!("claim {claim} on {node}"),
            None => format!("volume {disk} on {node}"),
        }
    });
    in_use.collect()
}

/// What the error says.
pub(super) fn sentence(in_use: &[String]) -> String {
    format!(
        "without --faults, the servers of fault disks are removed, which cuts the power of{}\n\
         Delete the pods that use them first, or add --faults",
        output::first_lines(in_use)
    )
}

/// Removes the objects of components that are not asked for, and returns which these were.
pub(super) async fn remove(
    plan: &InstallPlan,
    survey: &Survey,
    cluster: &Cluster,
    objects: &mut Objects,
) -> Result<Vec<ObjectKey>, Error> {
    if survey.installed.is_none() {
        return Ok(Vec::new());
    }
    let mut removed = Vec::new();
    for key in keys(plan, cluster) {
        let found = objects.get(&key).await?;
        if let Some(object) = found.filter(manifests::is_ours) {
            objects.delete(&object).await?;
            removed.push(key);
        }
    }
    Ok(removed)
}

/// The objects of all components that are not asked for.
fn keys(plan: &InstallPlan, cluster: &Cluster) -> Vec<ObjectKey> {
    let mut keys = plan.settings.unrequested();
    if !plan.settings.snapshot_metadata {
        // The controller has made it. It names a Service that goes.
        keys.push(ObjectKey::new(
            &SnapshotMetadataService::api_version(&()),
            &SnapshotMetadataService::kind(&()),
            "",
            &cluster.driver_name,
        ));
    }
    keys
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::test_objects::read;

    #[rstest]
    #[case::none(Ok(vec![]), &[])]
    #[case::of_a_claim(Ok(vec!["vol-1"]), &["claim shop/data on n1"])]
    #[case::of_no_claim(Ok(vec!["vol-2"]), &["volume vol-2 on n1"])]
    #[case::unknown(Err("no answer"), &["volumes on n1, if there are any: no answer"])]
    fn what_would_lose_its_power_is_named(
        #[case] disks: Result<Vec<&str>, &str>,
        #[case] expected: &[&str],
    ) {
        let volume: PersistentVolume = read(json!({"metadata": {"name": "v"},
            "spec": {"csi": {"driver": "d", "volumeHandle": "vol-1"},
                "claimRef": {"namespace": "shop", "name": "data"}}}));
        let disks = match disks {
            Ok(disks) => Ok(disks.into_iter().map(str::to_owned).collect()),
            Err(why) => Err(why.to_owned()),
        };
        assert_eq!(lines("n1", disks, &[volume], "d"), expected);
    }
}
