//! The annotation of a claim that asks for a fault.

use futures::future::join_all;
use hostloop_api_objects::claim_fault::NONE;
use hostloop_api_objects::constants::FAULT;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::api::{self, ApiError};
use crate::cluster::Cluster;

/// The fault that a claim asks for, as its annotation says it.
pub(crate) fn annotation(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(FAULT).map(String::as_str)
}

/// True if a claim asks to have no fault, whatever its class says.
pub(crate) fn asks_for_none(claim: &PersistentVolumeClaim) -> bool {
    annotation(claim) == Some(NONE)
}

/// Sets the annotations of claims to these faults, or removes them, all at the same time. Each is
/// tried, and the first error is returned.
pub(crate) async fn annotate<'c>(
    cluster: &Cluster,
    faults: impl Iterator<Item = (&'c PersistentVolumeClaim, Option<String>)>,
    dry_run: bool,
) -> Result<(), ApiError> {
    let changes = faults.map(|(claim, fault)| change(cluster, claim, fault, dry_run));
    join_all(changes).await.into_iter().collect()
}

async fn change(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
    fault: Option<String>,
    dry_run: bool,
) -> Result<(), ApiError> {
    let fault = fault.as_deref();
    let claims: Api<PersistentVolumeClaim> =
        cluster.namespaced(claim.metadata.namespace.as_deref());
    let changed = api::merge(&claims, &claim.name_any(), &patch(claim, fault), dry_run).await;
    match changed {
        // A claim that is gone, or that another one has followed, has no fault any more.
        Err(ApiError::NotFound { .. } | ApiError::Conflict { .. })
            if fault.is_none_or(|fault| fault == NONE) =>
        {
            Ok(())
        }
        changed => changed,
    }
}

/// A change of this very claim: one that has its name later is not meant.
fn patch(claim: &PersistentVolumeClaim, fault: Option<&str>) -> Value {
    json!({"metadata": {"uid": claim.metadata.uid, "annotations": {FAULT: fault}}})
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::test_objects::read;

    #[rstest]
    #[case::set(Some("gone,for=300s"), json!("gone,for=300s"))]
    #[case::removed(None, Value::Null)]
    fn patches(#[case] fault: Option<&str>, #[case] value: Value) {
        let claim = read(json!({"metadata": {"name": "data", "uid": "u"}}));
        let expected = json!({"uid": "u", "annotations": {"hostloop.csi.dev/fault": value}});
        assert_eq!(patch(&claim, fault)["metadata"], expected);
    }
}
