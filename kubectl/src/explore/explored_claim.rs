//! The claim that loses power, and the node that has its volume.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use super::Error;
use crate::api;
use crate::cluster::Cluster;
use crate::fault::{is_bound, selected};
use crate::node_pods::{self, NodePod};
use crate::output;
use crate::status::node_of;
use crate::volume_objects::{bound_volume, handle};

/// A claim with a volume, and what a claim of its cuts takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExploredClaim {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) class: String,
    pub(super) access_modes: Vec<String>,
    pub(super) volume_mode: Option<String>,
    /// The volume's ID.
    pub(super) handle: String,
    /// The node that the volume names, if it names one.
    pub(super) node: Option<String>,
}

impl ExploredClaim {
    /// Reads the claim that a word names, its volume and its class.
    pub(super) async fn find(cluster: &Cluster, word: &str) -> Result<ExploredClaim, Error> {
        let claims = selected(cluster, &[word.to_owned()], None).await?;
        let Some(claim) = claims.into_iter().next() else {
            return Err(Error::Unbound(word.to_owned()));
        };
        let name = claim.name_any();
        let Some(volume) = bound_volume(&claim).filter(|_| is_bound(&claim)) else {
            return Err(Error::Unbound(name));
        };
        let volume = api::get::<PersistentVolume>(&cluster.all(), volume).await?;
        let found = volume.as_ref().and_then(|volume| {
            let handle = handle(volume, &cluster.driver_name)?;
            Some(ExploredClaim::of(cluster, &claim, volume, handle))
        });
        let Some(found) = found else {
            return Err(Error::NoVolume(name));
        };
        if found.class.is_empty() {
            return Err(Error::NoClass(name));
        }
        let class = api::get::<StorageClass>(&cluster.all(), &found.class).await?;
        match class {
            None => Err(Error::NoClass(name)),
            Some(class) if class.reclaim_policy.as_deref() == Some("Retain") => {
                Err(Error::Retained(found.class))
            }
            Some(_) => Ok(found),
        }
    }

    fn of(
        cluster: &Cluster,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        handle: &str,
    ) -> ExploredClaim {
        let spec = claim.spec.clone().unwrap_or_default();
        ExploredClaim {
            namespace: cluster.namespace.clone(),
            name: claim.name_any(),
            class: spec.storage_class_name.unwrap_or_default(),
            access_modes: spec.access_modes.unwrap_or_default(),
            volume_mode: spec.volume_mode,
            handle: handle.to_owned(),
            node: node_of(volume),
        }
    }

    /// The pod of the node that has the volume.
    pub(super) async fn node_pod(&self, cluster: &Cluster) -> Result<NodePod, Error> {
        let mut pods = node_pods::node_pods(cluster).await?;
        if let Some(node) = &self.node
            && pods.iter().any(|pod| pod.node == *node)
        {
            pods.retain(|pod| pod.node == *node);
        }
        let reports = node_pods::reports(cluster, &pods).await;
        let mut silent = Vec::new();
        for (pod, reported) in pods.into_iter().zip(reports) {
            match reported.report {
                Ok(report) if report.volumes.iter().any(|volume| volume.id == self.handle) => {
                    return Ok(pod);
                }
                Ok(_) => {}
                Err(error) => silent.push(format!("node {}: {error}", reported.node)),
            }
        }
        Err(Error::NoNode {
            claim: self.name.clone(),
            silent: output::names(silent),
        })
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fault::tests::claim;
    use crate::test_objects::cluster_of;

    fn cluster_with(claim: Value, volume: Value, class: Value) -> FakeApi {
        let api = FakeApi::default();
        for object in [claim, volume, class] {
            if object.is_object() {
                api.put(object);
            }
        }
        api
    }

    fn with_class(name: Value) -> Value {
        let mut claim = claim("data");
        claim["spec"]["storageClassName"] = name;
        claim["spec"]["accessModes"] = json!(["ReadWriteOnce"]);
        claim
    }

    fn volume(driver: &str) -> Value {
        json!({"kind": "PersistentVolume", "metadata": {"name": "pv-data"},
            "spec": {"csi": {"driver": driver, "volumeHandle": "vol-1"}}})
    }

    fn class(reclaim_policy: &str) -> Value {
        json!({"kind": "StorageClass", "metadata": {"name": "fast"},
            "provisioner": "hostloop.csi.dev", "reclaimPolicy": reclaim_policy})
    }

    fn pending() -> Value {
        let mut claim = with_class(json!("fast"));
        claim["status"]["phase"] = json!("Pending");
        claim
    }

    const OURS: &str = "hostloop.csi.dev";

    #[rstest]
    #[case::found(with_class(json!("fast")), volume(OURS), class("Delete"), "vol-1")]
    #[case::unbound(
        pending(),
        volume(OURS),
        class("Delete"),
        "claim data has no volume yet"
    )]
    #[case::no_volume(with_class(json!("fast")), json!(null), class("Delete"), "claim data: its PersistentVolume")]
    #[case::of_others(with_class(json!("fast")), volume("other"), class("Delete"), "claim data: its PersistentVolume")]
    #[case::no_class(with_class(json!(null)), volume(OURS), class("Delete"), "claim data has no StorageClass")]
    #[case::class_gone(with_class(json!("fast")), volume(OURS), json!(null), "claim data has no StorageClass")]
    #[case::retained(with_class(json!("fast")), volume(OURS), class("Retain"), "StorageClass fast retains")]
    #[tokio::test]
    async fn claims(
        #[case] claim: Value,
        #[case] volume: Value,
        #[case] class: Value,
        #[case] expected: &str,
    ) {
        let api = cluster_with(claim, volume, class);
        let found = ExploredClaim::find(&cluster_of(&api), "data").await;
        let said = match found {
            Ok(claim) => claim.handle,
            Err(error) => error.to_string(),
        };
        assert!(said.starts_with(expected), "{said}");
    }

    #[tokio::test]
    async fn without_a_node_that_has_the_volume_nothing_begins() {
        let api = cluster_with(with_class(json!("fast")), volume(OURS), class("Delete"));
        let cluster = cluster_of(&api);
        let claim = ExploredClaim::find(&cluster, "data").await.unwrap();
        let error = claim.node_pod(&cluster).await.unwrap_err().to_string();
        assert!(
            error.starts_with("no node has the volume of claim data"),
            "{error}"
        );
    }
}
