//! Creates the driver's default classes. kubectl looks up all kinds of a manifest before it applies the
//! first object, so a manifest cannot contain a definition and an object of its kind.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::TypeMeta;

use super::names::{DEFAULT_CLASS, DEFAULT_GROUP_CLASS};
use crate::client::{ApiError, Kube, Resource};
use crate::snapshots::{DeletionPolicy, VolumeGroupSnapshotClass, VolumeSnapshotClass};

/// Creates the classes of this name that are missing. Existing ones stay as they are.
pub(super) async fn ensure_classes(kube: &Kube, name: &str, driver: &str) -> Result<(), ApiError> {
    let class = VolumeSnapshotClass {
        types: Some(TypeMeta::resource::<VolumeSnapshotClass>()),
        metadata: metadata(name, DEFAULT_CLASS),
        driver: driver.to_owned(),
        parameters: None,
        deletion_policy: DeletionPolicy::Delete,
    };
    ensure(kube, &class).await?;
    let group_class = VolumeGroupSnapshotClass {
        types: Some(TypeMeta::resource::<VolumeGroupSnapshotClass>()),
        metadata: metadata(name, DEFAULT_GROUP_CLASS),
        driver: driver.to_owned(),
        parameters: None,
        deletion_policy: DeletionPolicy::Delete,
    };
    ensure(kube, &group_class).await
}

fn metadata(name: &str, default_class: &str) -> ObjectMeta {
    let annotation = (default_class.to_owned(), "true".to_owned());
    ObjectMeta {
        name: Some(name.to_owned()),
        annotations: Some(BTreeMap::from([annotation])),
        ..ObjectMeta::default()
    }
}

async fn ensure<K: Resource>(kube: &Kube, class: &K) -> Result<(), ApiError> {
    match kube.create(class).await {
        Ok(class) => {
            tracing::info!(kind = %K::kind(&()), name = class.name_any(), "made the missing class");
            Ok(())
        }
        Err(ApiError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
