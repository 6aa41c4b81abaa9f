//! The CustomResourceDefinitions of the snapshot kinds: the files in `deploy/crds`.
//!
//! Names, versions and rules agree with those of other snapshot-controllers, so a cluster may have
//! the definitions of either.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

mod ensure;

pub(crate) use ensure::ensure_crds;

/// The files, single kinds first.
pub const FILES: [&str; 6] = [
    include_str!("../../../deploy/crds/snapshot.storage.k8s.io_volumesnapshotclasses.yaml"),
    include_str!("../../../deploy/crds/snapshot.storage.k8s.io_volumesnapshotcontents.yaml"),
    include_str!("../../../deploy/crds/snapshot.storage.k8s.io_volumesnapshots.yaml"),
    include_str!(
        "../../../deploy/crds/groupsnapshot.storage.k8s.io_volumegroupsnapshotclasses.yaml"
    ),
    include_str!(
        "../../../deploy/crds/groupsnapshot.storage.k8s.io_volumegroupsnapshotcontents.yaml"
    ),
    include_str!("../../../deploy/crds/groupsnapshot.storage.k8s.io_volumegroupsnapshots.yaml"),
];

/// The definitions in [`FILES`].
fn crds() -> Vec<CustomResourceDefinition> {
    FILES
        .into_iter()
        .map(|text| serde_saphyr::from_str(text).expect("tests read each embedded file"))
        .collect()
}

#[cfg(test)]
mod tests;
