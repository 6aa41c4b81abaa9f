//! Pods, as far as controllers read them.
//!
//! A pod of the API's own type has a member for each kind of volume in each of its volumes: 3 kB for a
//! volume of a few letters. A user who fills pods with such volumes would decide how much memory the
//! controllers take. So these types have only what the client keeps of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource, Serialize)]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
#[serde(default)]
pub struct Pod {
    pub metadata: ObjectMeta,
    /// `None` if the pod is too large to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<PodSpec>,
    pub status: PodStatus,
}

/// What a pod uses, and where it runs or may run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<PodVolume>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
}

/// A volume of a pod, of any kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolume {
    pub name: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<UsedClaim>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<Ephemeral>,
}

/// The claim of a volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UsedClaim {
    pub claim_name: Box<str>,
}

/// Says that a volume is a generic ephemeral one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Ephemeral {}

/// How far a pod is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct PodStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
}

impl Pod {
    /// Namespaces and names of the claims that the pod uses. The claim of a generic ephemeral volume
    /// is named after the pod and the volume.
    pub(crate) fn claims(&self) -> impl Iterator<Item = (String, String)> {
        let volumes = self.spec.iter().flat_map(|spec| &spec.volumes);
        volumes.filter_map(move |volume| {
            let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => claim.claim_name.to_string(),
                (None, Some(_)) => format!("{}-{}", self.name_any(), volume.name),
                (None, None) => return None,
            };
            Some((self.namespace().unwrap_or_default(), name))
        })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::client::kube::{in_memory, trimmed_object};
    use crate::kept_fields::KEPT_FIELDS;

    /// The bytes of a pod and of its volumes.
    fn taken(pod: &Pod) -> usize {
        let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes);
        let volumes = volumes.map(|volume| {
            let claim = volume.persistent_volume_claim.as_ref();
            let name = claim.map_or(0, |claim| claim.claim_name.len());
            size_of::<PodVolume>() + volume.name.len() + name
        });
        size_of::<Pod>() + volumes.sum::<usize>()
    }

    #[test]
    fn a_volume_takes_forty_bytes() {
        assert_eq!(size_of::<PodVolume>(), 40);
    }

    /// The client lets a pod through that takes up to 64 KiB by its count. In truth, it takes less.
    #[rstest]
    #[case::of_other_kinds(json!({"name": "v", "emptyDir": {}}), json!({"name": "v"}))]
    #[case::claims(
        json!({"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}}),
        json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}})
    )]
    #[case::ephemeral(
        json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}),
        json!({"name": "v", "ephemeral": {}})
    )]
    fn the_largest_pod_takes_no_more_than_the_client_counts(
        #[case] volume: Value,
        #[case] kept: Value,
    ) {
        let pods = KEPT_FIELDS.iter().find(|kind| kind.plural == "pods");
        let pods = pods.expect("pods are in the table");
        let most = pods.max / in_memory(format!("{kept},").as_bytes());
        for (count, is_kept) in [(most - 10, true), (most + 1, false)] {
            let object = json!({
                "metadata": {"name": "p", "namespace": "ns"},
                "spec": {"volumes": vec![volume.clone(); count]},
            });
            let json = trimmed_object(pods, object.to_string().as_bytes());
            let pod: Pod = serde_json::from_slice(&json).expect("a pod");
            assert_eq!(pod.spec.is_some(), is_kept);
            let volumes = pod.spec.as_ref().map_or(0, |spec| spec.volumes.len());
            assert_eq!(volumes, if is_kept { count } else { 0 });
            assert!(taken(&pod) <= 64 * 1024, "{} bytes", taken(&pod));
        }
    }

    /// What is written is read again: the size of a pod in a store is that of its JSON.
    #[test]
    fn a_pod_is_read_as_the_api_server_writes_it() {
        let required = json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["n"]}]}]});
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "nodeName": "n", "nodeSelector": {"a": "b"}, "containers": [],
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": required}},
                "volumes": [
                    {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                    {"name": "c", "emptyDir": {}},
                ],
            },
            "status": {"phase": "Running", "message": "m"},
        });
        let read: Pod = crate::testing::kept(pod.clone());
        let mut expected = pod;
        for (path, member) in [
            ("", "apiVersion"),
            ("", "kind"),
            ("/spec", "containers"),
            ("/status", "message"),
            ("/spec/volumes/2", "emptyDir"),
        ] {
            let part = expected.pointer_mut(path).and_then(Value::as_object_mut);
            part.expect("an object").remove(member);
        }
        expected["spec"]["volumes"][1]["ephemeral"] = json!({});
        assert_eq!(serde_json::to_value(&read).expect("JSON"), expected);
        let claims: Vec<_> = read.claims().map(|(_, name)| name).collect();
        assert_eq!(claims, ["data", "p-b"]);
        let namespaces: Vec<_> = read.claims().map(|(namespace, _)| namespace).collect();
        assert_eq!(namespaces, ["ns", "ns"]);
    }
}
