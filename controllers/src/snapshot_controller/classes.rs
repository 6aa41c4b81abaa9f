//! Creates the driver's default classes. A manifest cannot contain both a definition and an object
//! of its kind, because kubectl first looks up all kinds of a manifest.

use kube::ResourceExt;

use super::embedded_object;
use crate::client::{ApiError, Kube, Resource};
use crate::snapshots::{VolumeGroupSnapshotClass, VolumeSnapshotClass};

/// The classes of the components. Velero and `kubectl hostloop uninstall` find them by labels.
const CLASS: &str = include_str!("../../../deploy/components/snapshot-class/class.yaml");
const GROUP_CLASS: &str =
    include_str!("../../../deploy/components/group-snapshot-class/class.yaml");

/// Creates the classes of this name that are missing. Existing ones stay as they are.
pub(super) async fn ensure_classes(kube: &Kube, name: &str, driver: &str) -> Result<(), ApiError> {
    let mut class: VolumeSnapshotClass = embedded_object::read(CLASS);
    class.metadata.name = Some(name.to_owned());
    class.driver = driver.to_owned();
    ensure(kube, &class).await?;
    let mut group_class: VolumeGroupSnapshotClass = embedded_object::read(GROUP_CLASS);
    group_class.metadata.name = Some(name.to_owned());
    group_class.driver = driver.to_owned();
    ensure(kube, &group_class).await
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
