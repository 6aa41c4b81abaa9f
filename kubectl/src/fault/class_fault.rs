//! The fault that a class has for its claims without one of their own.

use futures::future::try_join_all;
use hostloop_api_objects::claim_fault::CLASS_PARAMETER;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use crate::api::{self, ApiError};
use crate::cluster::Cluster;
use crate::volume_objects::class_name;

/// Whether the class of a claim has a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassFault {
    Absent,
    Present,
    /// The person may not read the class.
    Unknown,
}

/// Reads the classes of these claims, and returns what they have in the same order.
pub(super) async fn of_classes(
    cluster: &Cluster,
    claims: &[PersistentVolumeClaim],
) -> Result<Vec<ClassFault>, ApiError> {
    try_join_all(claims.iter().map(|claim| of_class(cluster, claim))).await
}

async fn of_class(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
) -> Result<ClassFault, ApiError> {
    let Some(name) = class_name(claim).filter(|name| !name.is_empty()) else {
        return Ok(ClassFault::Absent);
    };
    match api::get::<StorageClass>(&cluster.all(), name).await {
        Ok(Some(class)) if has_fault(&class) => Ok(ClassFault::Present),
        Ok(_) => Ok(ClassFault::Absent),
        Err(ApiError::Forbidden { .. }) => Ok(ClassFault::Unknown),
        Err(error) => Err(error),
    }
}

fn has_fault(class: &StorageClass) -> bool {
    let parameters = class.parameters.as_ref();
    parameters.is_some_and(|parameters| parameters.contains_key(CLASS_PARAMETER))
}
