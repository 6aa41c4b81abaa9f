//! After everything was deleted, and a quiet time, nothing is left but what was to be kept.

use hostloop_driver::kernel::{LoopDevices, Mounts};

use crate::cluster::Cluster;
use crate::machine::Contents;
use crate::model::view::name;
use crate::oracle::Oracle;
use crate::oracle::objects::{Objects, ours, state};
use crate::oracle::unmarked;
use crate::trace;

/// Checks that the API server has no object of users and of hostloop, but contents that may stay.
pub(super) fn objects_are_gone(cluster: &Cluster) {
    let kinds = [
        "pods",
        "persistentvolumeclaims",
        "persistentvolumes",
        "volumesnapshots",
        "volumesnapshotcontents",
        "volumegroupsnapshots",
        "volumegroupsnapshotcontents",
        "volumeattachments",
    ];
    let objects = Objects::of(cluster);
    for kind in kinds {
        let left = ours(cluster, kind).into_iter();
        for object in left.filter(|object| !unmarked::may_stay(cluster, object)) {
            trace::violation(format!(
                "not deleted: {kind} {}: {}; {}",
                name(&object),
                state(&object),
                objects.history(&object)
            ));
        }
    }
}

/// Checks that kubelets and kernels have no volume.
pub(super) fn nodes_are_idle(cluster: &Cluster) {
    for machine in cluster.machines.iter().filter(|one| !one.is_gone()) {
        if !machine.kubelet.is_idle() {
            trace::violation("left: kubelet still uses volumes");
        }
        let kernel = machine.kernel();
        let loops = kernel.loops().map_or(1, |loops| loops.len());
        let mounts = kernel.mounts().map_or(0, |mounts| mounts.entries.len());
        if loops > 0 || mounts > 2 {
            trace::violation(format!(
                "left in the kernel: {loops} loop devices, {mounts} mounts"
            ));
        }
    }
}

/// What the oracle knows of a volume that is left.
#[derive(Clone, Copy, Debug)]
struct LeftVolume {
    /// True if its objects said that it stays, false if it goes with them. `None` for one that
    /// never had an object.
    kept: Option<bool>,
    /// Nothing was ever written to it.
    is_empty: bool,
    has_lost_object: bool,
    /// The API server went back to a backup.
    went_back: bool,
    /// It was there when the driver's process died.
    has_outlived_driver: bool,
}

impl LeftVolume {
    /// True if the deletion of all objects may leave it. The driver only deletes an empty volume
    /// without an object.
    fn may_stay(self) -> bool {
        // If data came after the backup, or a copy's claim did, the wish to keep it is lost, too.
        // Only the process that made a copy knows of it before it has an object. If that dies, and
        // the claim goes, nothing says that the copy is not wanted.
        let had_no_object = self.kept.is_none() && (self.went_back || self.has_outlived_driver);
        let is_unknown = (had_no_object || self.has_lost_object) && !self.is_empty;
        self.kept == Some(true) || is_unknown
    }
}

/// Checks that pools have no volume but those that were to be kept, or that have lost their
/// objects.
pub(super) fn volumes_are_gone(oracle: &Oracle, cluster: &Cluster, contents: &Contents) {
    for volume in &contents.volumes {
        let id = volume.id.to_string();
        let left = LeftVolume {
            kept: oracle.lives.keeps(&id),
            is_empty: volume.is_empty(),
            has_lost_object: oracle.has_lost_object(&id),
            went_back: oracle.lost.since.is_some(),
            has_outlived_driver: cluster.has_outlived_driver(&id),
        };
        if !left.may_stay() {
            trace::violation(format!("left in the pool: volume {}", volume.name));
        }
    }
}

/// Checks that pools have no snapshot but those that were to be kept, that have lost their objects,
/// or that stay with their contents.
pub(super) fn snapshots_are_gone(oracle: &Oracle, cluster: &Cluster, contents: &Contents) {
    let of_contents = unmarked::kept_snapshots(cluster);
    for snapshot in &contents.snapshots {
        let id = snapshot.id.to_string();
        let group = snapshot.group.map(|group| group.to_string());
        let is_kept = oracle.snapshots.is_kept(&id) == Some(true)
            || group.is_some_and(|group| oracle.groups.is_kept(&group) == Some(true));
        let had_no_object = oracle.snapshots.is_kept(&id).is_none();
        let may_stay = oracle.adopted.may_stay(&id)
            || oracle.has_lost_object(&id)
            || of_contents.contains(&id)
            || (had_no_object && oracle.lost.was_taken_for_lost(&snapshot.name));
        if !is_kept && !may_stay {
            trace::violation(format!("left in the pool: snapshot {}", snapshot.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A copy that never had an object.
    const COPY: LeftVolume = LeftVolume {
        kept: None,
        is_empty: false,
        has_lost_object: false,
        went_back: false,
        has_outlived_driver: false,
    };

    #[rstest]
    #[case::forgotten(COPY, false)]
    #[case::after_a_backup(LeftVolume { went_back: true, ..COPY }, true)]
    #[case::after_a_death(LeftVolume { has_outlived_driver: true, ..COPY }, true)]
    #[case::empty_after_a_death(
        LeftVolume { has_outlived_driver: true, is_empty: true, ..COPY },
        false
    )]
    #[case::with_an_object_after_a_death(
        LeftVolume { kept: Some(false), has_outlived_driver: true, ..COPY },
        false
    )]
    #[case::with_a_lost_object(
        LeftVolume { kept: Some(false), has_lost_object: true, ..COPY },
        true
    )]
    #[case::empty_with_a_lost_object(
        LeftVolume { kept: Some(false), has_lost_object: true, is_empty: true, ..COPY },
        false
    )]
    #[case::to_be_deleted(LeftVolume { kept: Some(false), went_back: true, ..COPY }, false)]
    #[case::to_be_kept(LeftVolume { kept: Some(true), is_empty: true, ..COPY }, true)]
    fn volumes_that_may_stay(#[case] volume: LeftVolume, #[case] expected: bool) {
        assert_eq!(volume.may_stay(), expected);
    }
}
