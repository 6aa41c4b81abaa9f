//! The snapshot kinds, for the snapshot-controller, the snapshotter and users of snapshots.

use std::collections::BTreeMap;

pub use hostloop_api_objects::snapshots::*;

use crate::client::kube::kinds;

pub(crate) mod content;

kinds! {
    cluster: VolumeSnapshotClass, VolumeSnapshotContent, VolumeGroupSnapshotClass,
        VolumeGroupSnapshotContent;
    namespaced: VolumeSnapshot, VolumeGroupSnapshot,
}

impl content::SnapshotClass for VolumeSnapshotClass {
    fn driver(&self) -> &str {
        &self.driver
    }

    fn parameters(&self) -> Option<&BTreeMap<String, String>> {
        self.parameters.as_ref()
    }
}

impl content::SnapshotClass for VolumeGroupSnapshotClass {
    fn driver(&self) -> &str {
        &self.driver
    }

    fn parameters(&self) -> Option<&BTreeMap<String, String>> {
        self.parameters.as_ref()
    }
}
