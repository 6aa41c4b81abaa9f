//! Whether the API server enforces the admission policies: the answer to a write that they deny.
//!
//! The write is a dry run in the name of the node pods' account, so nothing is stored. Only people
//! who may impersonate the account can make it.

use http::Request;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::json;

use crate::Cluster;
use crate::api::{ApiError, Call, timely};
use crate::check::facts::{Fact, Unknown};

/// The account of the node pods.
const ACCOUNT: &str = "hostloop";
/// What the API server's message has if a policy denied the write.
const POLICY: &str = "ValidatingAdmissionPolicy";

/// True if a policy denies the write.
pub(super) async fn enforced(cluster: &Cluster) -> Fact<bool> {
    let namespace = &cluster.system_namespace;
    let call = Call::new("impersonate", "serviceaccounts", Some(namespace), "");
    // Valid in all respects but one: the account's token names no node.
    let volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"generateName": "hostloop-check-"},
        "spec": {
            "capacity": {"storage": "1Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": cluster.driver_name, "volumeHandle": "hostloop-check"},
        },
    });
    let request = Request::post("/api/v1/persistentvolumes?dryRun=All")
        .header(CONTENT_TYPE, "application/json")
        .header(
            "Impersonate-User",
            format!("system:serviceaccount:{namespace}:{ACCOUNT}"),
        )
        .body(volume.to_string().into_bytes())
        .map_err(|error| Unknown::Failed(error.to_string()))?;
    let sent = cluster.client.request::<PersistentVolume>(request);
    match timely(call, sent).await {
        Ok(_) => Ok(false),
        Err(ApiError::Rejected { message, .. }) if message.contains(POLICY) => Ok(true),
        // The line about the account's rights says so.
        Err(ApiError::Forbidden { message, .. }) if !message.contains("impersonate") => {
            Err(Unknown::NotAsked(format!(
                "account {ACCOUNT} of namespace {namespace} may not create persistentvolumes"
            )))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use rstest::rstest;

    use super::*;
    use crate::test_objects::cluster_of;

    #[rstest]
    #[case::accepted(201, "", Ok(true), "")]
    #[case::denied(
        422,
        "x is forbidden: ValidatingAdmissionPolicy 'hostloop-new-volumes' with \
        binding 'hostloop-new-volumes' denied request: the token is not bound",
        Ok(false),
        ""
    )]
    #[case::person(403, "User \"u\" cannot impersonate resource \"serviceaccounts\"", Err(()),
        "you may not impersonate serviceaccounts in namespace hostloop")]
    #[case::account(403, "User \"a\" cannot create resource \"persistentvolumes\"", Err(()),
        "account hostloop of namespace hostloop may not create persistentvolumes")]
    #[case::broken(500, "no etcd", Err(()),
        "impersonate serviceaccounts in namespace hostloop: no etcd (HTTP 500)")]
    #[tokio::test]
    async fn answers(
        #[case] code: u16,
        #[case] message: &str,
        #[case] stored: Result<bool, ()>,
        #[case] why: &str,
    ) {
        let api = FakeApi::default();
        let body = match code {
            201 => json!({"metadata": {"name": "x"}}),
            code => json!({"kind": "Status", "status": "Failure", "code": code,
                "message": message}),
        };
        api.answer("/api/v1/persistentvolumes", code, body);
        let got = enforced(&cluster_of(&api)).await;
        assert_eq!(
            api.requests(),
            ["POST /api/v1/persistentvolumes?dryRun=All"]
        );
        match (got, stored) {
            (Ok(enforced), Ok(stored)) => assert_eq!(enforced, !stored),
            (Err(got), Err(())) => assert_eq!(got.to_string(), why),
            (got, stored) => panic!("{got:?} {stored:?}"),
        }
    }
}
