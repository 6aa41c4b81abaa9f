//! Selects rows by the labels of `--selector`, which the API server compares.

use std::collections::BTreeSet;

use hostloop_api_objects::snapshots::VolumeSnapshot;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::ListParams;

use super::report::ClusterReport;
use crate::api::{self, ApiError, Namespaced};
use crate::cluster::Cluster;

/// Namespaces and names of objects.
type ObjectNames = BTreeSet<(String, String)>;

/// The objects with the labels.
pub(super) struct Selected {
    claims: ObjectNames,
    pods: ObjectNames,
    snapshots: ObjectNames,
}

/// Lists the objects with these labels.
pub(super) async fn selected(
    cluster: &Cluster,
    namespace: Option<&str>,
    labels: &str,
) -> Result<Selected, ApiError> {
    let snapshots = names::<VolumeSnapshot>(cluster, namespace, labels).await;
    let snapshots = api::served(snapshots)?;
    Ok(Selected {
        claims: names::<PersistentVolumeClaim>(cluster, namespace, labels).await?,
        pods: names::<Pod>(cluster, namespace, labels).await?,
        snapshots,
    })
}

async fn names<K: Namespaced>(
    cluster: &Cluster,
    namespace: Option<&str>,
    labels: &str,
) -> Result<ObjectNames, ApiError> {
    let api = cluster.namespaced::<K>(namespace);
    let all = api::list(&api, ListParams::default().labels(labels)).await?;
    let names = all
        .iter()
        .map(|object| (object.namespace().unwrap_or_default(), object.name_any()));
    Ok(names.collect())
}

impl Selected {
    /// Removes the rows of other objects. An inline volume has the labels of its pod.
    pub(super) fn select(&self, report: &mut ClusterReport) {
        report.volumes.retain(|row| {
            if row.inline.is_some() {
                has(&self.pods, row.namespace.as_ref(), row.pods.first())
            } else {
                has(&self.claims, row.namespace.as_ref(), row.claim.as_ref())
            }
        });
        report
            .snapshots
            .retain(|row| has(&self.snapshots, row.namespace.as_ref(), row.name.as_ref()));
    }
}

fn has(names: &ObjectNames, namespace: Option<&String>, name: Option<&String>) -> bool {
    let key = namespace.cloned().zip(name.cloned());
    key.is_some_and(|key| names.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{SnapshotRow, VolumeRow};

    fn names(names: &[&str]) -> ObjectNames {
        let names = names
            .iter()
            .map(|name| ("demo".to_owned(), (*name).to_owned()));
        names.collect()
    }

    #[test]
    fn rows_of_objects_with_the_labels() {
        let selected = Selected {
            claims: names(&["data", "web"]),
            pods: names(&["web"]),
            snapshots: names(&["s"]),
        };
        let row = |namespace: &str, claim: &str| VolumeRow {
            namespace: Some(namespace.to_owned()),
            claim: Some(claim.to_owned()),
            ..VolumeRow::default()
        };
        let inline = |pod: &str| VolumeRow {
            namespace: Some("demo".to_owned()),
            inline: Some("scratch".to_owned()),
            pods: vec![pod.to_owned()],
            ..VolumeRow::default()
        };
        let snapshot = |name: &str| SnapshotRow {
            namespace: Some("demo".to_owned()),
            name: Some(name.to_owned()),
            ..SnapshotRow::default()
        };
        let mut report = ClusterReport {
            volumes: vec![
                row("demo", "data"),
                row("demo", "other"),
                row("else", "data"),
                inline("web"),
                inline("data"),
                VolumeRow::default(),
            ],
            snapshots: vec![snapshot("s"), snapshot("t"), SnapshotRow::default()],
            ..ClusterReport::default()
        };
        selected.select(&mut report);
        let volumes: Vec<_> = report
            .volumes
            .iter()
            .filter_map(VolumeRow::object)
            .collect();
        assert_eq!(volumes, ["persistentvolumeclaim/data", "pod/web/scratch"]);
        assert_eq!(report.snapshots, [snapshot("s")]);
    }
}
