//! Creates missing CustomResourceDefinitions in a cluster.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

use super::crds;
use crate::client::{ApiError, Kube};

/// How long the API server may take to serve a new kind.
const SERVED_WITHIN: Duration = Duration::from_secs(10);
/// The interval between checks that a new kind is served.
const LOOK: Duration = Duration::from_millis(200);

/// Creates the definitions of kinds that the API server does not serve, and waits until it does.
/// Existing definitions stay as they are, however old or new.
///
/// Every account can list what is served. The right to create definitions is only needed if one is
/// missing.
pub(crate) async fn ensure_crds(kube: &Kube) -> Result<(), ApiError> {
    let mut made = Vec::new();
    for crd in crds() {
        if is_served(kube, &crd).await? {
            continue;
        }
        match kube.create(&crd).await {
            Ok(_) => {
                tracing::info!(name = crd.name_any(), "made the missing definition");
                made.push(crd);
            }
            // The cluster's definition does not serve this version. It stays unchanged.
            Err(ApiError::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let served = async {
        for crd in &made {
            while !is_served(kube, crd).await.unwrap_or(false) {
                tokio::time::sleep(LOOK).await;
            }
        }
    };
    // Watches of the kinds retry anyway; waiting here saves them a retry.
    let _ = tokio::time::timeout(SERVED_WITHIN, served).await;
    Ok(())
}

/// True if the server serves a definition's kind in its version.
async fn is_served(kube: &Kube, crd: &CustomResourceDefinition) -> Result<bool, ApiError> {
    let version = crd.spec.versions.first().map(|version| &version.name);
    let version = version.map(String::as_str).unwrap_or_default();
    let served = kube
        .served(&format!("{}/{version}", crd.spec.group))
        .await?;
    Ok(served.contains(&crd.spec.names.plural))
}
