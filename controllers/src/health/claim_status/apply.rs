//! Writes the health of a volume into the status of its claim.

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::decide;
use super::gather::{claim_of, is_bound_to};
use crate::api::claim_health::{HealthClaim, HealthCondition};
use crate::client::ApiError;
use crate::controller::Context;
use crate::health::decide::Volume;
use crate::kept_fields::CLAIM_HEALTH;

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The claim has these conditions.
    Stored,
    /// The API server has dropped them.
    Dropped,
    /// The claim is not bound to the volume, or not any more.
    NotBound,
}

/// Gives the claim of a volume these conditions. The claim is read first, so that no other claim of
/// its name gets them: the API server ignores a UID in the write of a status.
pub(super) async fn write(
    context: &Context,
    volume: &Volume,
    found: &[HealthCondition],
) -> Result<Written, ApiError> {
    let (namespace, name) = claim_of(volume);
    let kube = &context.kube;
    let claim: Option<HealthClaim> = kube.get_fields(&namespace, &name, &CLAIM_HEALTH).await?;
    let Some(claim) = claim.filter(|claim| is_bound_to(claim, volume)) else {
        return Ok(Written::NotBound);
    };
    let has = claim.status.health_status.as_ref();
    let Some(status) = decide::patch(has, found, Timestamp::now()) else {
        return Ok(Written::Stored);
    };
    let metadata = json!({"resourceVersion": claim.metadata.resource_version});
    let patch = json!({"metadata": metadata, "status": status});
    let claim = kube
        .merge_status_fields(&claim, patch, &CLAIM_HEALTH)
        .await?;
    let has = decide::conditions_of(claim.status.health_status.as_ref());
    if has.is_empty() && !found.is_empty() {
        return Ok(Written::Dropped);
    }
    Ok(Written::Stored)
}
