//! The CustomResourceDefinitions of the snapshot kinds: the files in `deploy/crds`.
//!
//! Names, versions and rules agree with those of other snapshot-controllers, so a cluster may have
//! the definitions of either.

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
