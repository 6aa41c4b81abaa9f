//! Creates the CustomResourceDefinitions of the snapshot kinds.

use hostloop_api_objects::snapshot_crds::FILES;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::embedded_object;

mod ensure;

pub(crate) use ensure::ensure_crds;

/// The definitions in [`FILES`].
fn crds() -> Vec<CustomResourceDefinition> {
    FILES.into_iter().map(embedded_object::read).collect()
}

#[cfg(test)]
mod tests;
