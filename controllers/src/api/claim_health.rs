//! PersistentVolumeClaims, as far as the health of their volumes goes.
//!
//! The API's own type of a claim is that of an older Kubernetes, and drops `status.healthStatus`.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{Deserialize, Serialize};

/// A claim with the health of its volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Resource, Serialize)]
#[resource(inherit = PersistentVolumeClaim)]
#[serde(default)]
pub struct HealthClaim {
    pub metadata: ObjectMeta,
    pub spec: HealthClaimSpec,
    pub status: HealthClaimStatus,
}

/// The volume of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HealthClaimSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_name: Option<String>,
}

/// Whether a claim is bound, and the health of its volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HealthClaimStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// `None` if the volume is healthy, or if the API server does not store its health.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_status: Option<HealthStatus>,
}

/// The health of a volume (`VolumeHealthStatus` of Kubernetes 1.37). The time of its last transition
/// is only written.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HealthStatus {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub health_conditions: Vec<HealthCondition>,
}

/// A problem of a volume. A claim has at most one for each status and reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(default)]
pub struct HealthCondition {
    /// The severity: `DataLoss`, `Inaccessible` or `Degraded`.
    pub status: String,
    /// The kind of problem, in one word.
    pub reason: String,
    /// Details for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::kube::trimmed_object;
    use crate::kept_fields::CLAIM_HEALTH;

    #[test]
    fn a_claim_is_read_as_the_api_server_writes_it() {
        let condition = json!({"status": "Degraded", "reason": "R", "message": "m"});
        let health = json!({
            "healthConditions": [condition], "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "annotations": {"a": "x".repeat(300_000)},
            },
            "spec": {"volumeName": "pv", "accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "healthStatus": health},
        });
        let kept = trimmed_object(&CLAIM_HEALTH, claim.to_string().as_bytes());
        let read: HealthClaim = serde_json::from_slice(&kept).expect("a claim");
        assert_eq!(read.metadata.uid.as_deref(), Some("u"));
        assert_eq!(read.metadata.annotations, None);
        let written = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
            "spec": {"volumeName": "pv"},
            "status": {"phase": "Bound", "healthStatus": {"healthConditions": [condition]}},
        });
        assert_eq!(serde_json::to_value(read).expect("JSON"), written);
    }
}
