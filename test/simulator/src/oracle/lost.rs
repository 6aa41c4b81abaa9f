//! What a backup of the API server does not fit, after the API server went back to it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{is_deleting, items, text, uid};
use crate::oracle::objects::handles_of_objects;
use crate::shim;

/// How long calls go on that were under way when the API server went back to a backup. A copy may
/// take longer.
pub(super) const ECHO: Duration = Duration::from_secs(60);
/// How much later than that a look may be, because a timer may be late.
const LATE: Duration = Duration::from_secs(1);
/// How long after its last caller a call may still wait for a copy, and then end.
const WITHOUT_CALLER: Duration = Duration::from_secs(420);

/// What a backup of the API server does not fit.
#[derive(Default)]
pub(super) struct Lost {
    /// When the API server last went back.
    pub(super) since: Option<Duration>,
    /// Handles of objects that came back after the deletion of their data.
    pub(super) data: BTreeSet<String>,
    /// Handles of data that has lost its objects, because they came after the backup.
    pub(super) objects: BTreeSet<String>,
    /// UIDs of VolumeSnapshots and VolumeGroupSnapshots that are lost, because they came after the
    /// backup. While the API server goes back, also of others.
    lost_snapshots: BTreeSet<String>,
    /// Handles of data that calls from before may still delete: a deletion waits for a copy.
    doomed: BTreeSet<String>,
}

impl Lost {
    /// The API server will go back.
    pub(super) fn goes_back(&mut self, cluster: &Cluster) {
        self.lost_snapshots.extend(uids_of_snapshots(cluster));
        self.doomed.extend(doomed(cluster));
    }

    /// The API server went back.
    pub(super) fn went_back(&mut self, cluster: &Cluster) {
        self.since = Some(shim::now());
        self.keep_lost_snapshots(&uids_of_snapshots(cluster));
        self.note(cluster);
    }

    fn keep_lost_snapshots(&mut self, present: &BTreeSet<String>) {
        self.lost_snapshots.retain(|uid| !present.contains(uid));
    }

    /// Notes what does not fit, while calls from before may still end.
    pub(super) fn note(&mut self, cluster: &Cluster) {
        let now = shim::now();
        if !self.has_echo(now) && self.doomed.is_empty() && self.objects.is_empty() {
            return;
        }
        let (data, objects) = (cluster.handles(), handles_of_objects(cluster));
        self.note_doomed(now, &data);
        self.note_misfits(now, &data, &objects);
    }

    /// Notes what objects have no data, and what data has no object. What has an object again goes
    /// with that one.
    fn note_misfits(&mut self, now: Duration, data: &BTreeSet<String>, objects: &BTreeSet<String>) {
        if self.has_echo(now) {
            self.data.extend(objects.difference(data).cloned());
            self.objects.extend(data.difference(objects).cloned());
        }
        self.objects.retain(|handle| !objects.contains(handle));
    }

    /// Notes what of the doomed data is gone, while a call from before may still have waited.
    fn note_doomed(&mut self, now: Duration, data: &BTreeSet<String>) {
        self.data.extend(self.doomed.difference(data).cloned());
        let last = self.since.map(|since| since + ECHO + WITHOUT_CALLER);
        if last.is_none_or(|last| now > last) {
            self.doomed.clear();
        }
    }

    /// How long calls from before may still go on.
    pub(super) fn rest_of_echo(&self, now: Duration) -> Duration {
        self.since
            .map_or(Duration::ZERO, |since| (since + ECHO).saturating_sub(now))
    }

    /// True if what does not fit may come from a call from before.
    fn has_echo(&self, now: Duration) -> bool {
        self.since.is_some_and(|since| now <= since + ECHO + LATE)
    }

    /// True if a driver took the snapshot or group with this name for an object that is lost. It
    /// may have begun before, and ended long after.
    pub(super) fn was_taken_for_lost(&self, name: &str) -> bool {
        let uid = name.split_once('-').map_or("", |(_, uid)| uid);
        // The name of a member is that of its group, and a number.
        let uid = uid.split_once('/').map_or(uid, |(group, _)| group);
        self.lost_snapshots.contains(uid)
    }
}

/// The UIDs of all VolumeSnapshots and VolumeGroupSnapshots.
fn uids_of_snapshots(cluster: &Cluster) -> BTreeSet<String> {
    let kinds = ["volumesnapshots", "volumegroupsnapshots"];
    let all = kinds.into_iter().flat_map(|kind| cluster.api.shared(kind));
    all.map(|object| uid(&object).to_owned()).collect()
}

/// The handles of data that hostloop may be deleting.
fn doomed(cluster: &Cluster) -> BTreeSet<String> {
    let kinds = [
        "persistentvolumes",
        "volumesnapshotcontents",
        "volumegroupsnapshotcontents",
    ];
    let owners = kinds.into_iter().flat_map(|kind| cluster.api.shared(kind));
    let owners = owners.filter(|owner| lets_go(owner));
    owners.flat_map(|owner| handles_of(&owner)).collect()
}

/// True if hostloop may be deleting the data of this object.
fn lets_go(owner: &Value) -> bool {
    let policies = [
        "/spec/persistentVolumeReclaimPolicy",
        "/spec/deletionPolicy",
    ];
    let is_kept = policies.iter().any(|at| text(owner, at) == "Retain");
    let is_released = ["Released", "Failed"].contains(&text(owner, "/status/phase"));
    !is_kept && (is_released || is_deleting(owner))
}

/// The handles of an object's data, and of the members of a group.
fn handles_of(owner: &Value) -> Vec<String> {
    let own = [
        "/spec/csi/volumeHandle",
        "/status/snapshotHandle",
        "/status/volumeGroupSnapshotHandle",
    ];
    let own = own.iter().map(|at| text(owner, at));
    let members = items(owner, "/status/volumeSnapshotInfoList");
    let members = members.map(|member| text(member, "/snapshotHandle"));
    let handles = own.chain(members).filter(|handle| !handle.is_empty());
    handles.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::oracle::departures::tests::set;

    #[test]
    fn a_deletion_that_waited_is_no_loss_as_long_as_it_may_wait() {
        let mut lost = Lost {
            since: Some(Duration::from_secs(100)),
            doomed: set(&["a", "b", "c"]),
            ..Lost::default()
        };
        for (seconds, data, noted) in [
            (300, set(&["b", "c"]), set(&["a"])),
            (580, set(&["c"]), set(&["a", "b"])),
            (581, set(&["c"]), set(&["a", "b"])),
            (700, set(&[]), set(&["a", "b"])),
        ] {
            lost.note_doomed(Duration::from_secs(seconds), &data);
            assert_eq!(lost.data, noted, "{seconds}");
        }
    }

    #[test]
    fn data_is_lost_as_long_as_it_has_no_object() {
        let mut lost = Lost {
            since: Some(Duration::from_secs(100)),
            ..Lost::default()
        };
        for (seconds, data, objects, without_object, without_data) in [
            (
                100,
                set(&["a", "b"]),
                set(&["b", "c"]),
                set(&["a"]),
                set(&["c"]),
            ),
            (160, set(&["a", "b"]), set(&["b"]), set(&["a"]), set(&["c"])),
            // Later, what has no object has lost it in another way.
            (200, set(&["a", "b"]), set(&[]), set(&["a"]), set(&["c"])),
            (
                300,
                set(&["a", "b"]),
                set(&["a", "d"]),
                set(&[]),
                set(&["c"]),
            ),
        ] {
            lost.note_misfits(Duration::from_secs(seconds), &data, &objects);
            assert_eq!(lost.objects, without_object, "{seconds}");
            assert_eq!(lost.data, without_data, "{seconds}");
        }
    }

    #[rstest]
    #[case::bound("Delete", "Bound", false, false)]
    #[case::released("Delete", "Released", false, true)]
    #[case::not_deleted_yet("Delete", "Failed", false, true)]
    #[case::deleted("Delete", "", true, true)]
    #[case::kept("Retain", "Released", true, false)]
    fn data_that_may_be_being_deleted(
        #[case] policy: &str,
        #[case] phase: &str,
        #[case] is_deleted: bool,
        #[case] expected: bool,
    ) {
        for field in ["persistentVolumeReclaimPolicy", "deletionPolicy"] {
            let owner = json!({"metadata": {"deletionTimestamp": is_deleted.then_some("now")},
                "spec": {field: policy}, "status": {"phase": phase}});
            assert_eq!(lets_go(&owner), expected, "{field}");
        }
    }

    #[test]
    fn an_object_has_its_data_and_that_of_its_members() {
        for (owner, expected) in [
            (json!({"spec": {"csi": {"volumeHandle": "v"}}}), vec!["v"]),
            (json!({"status": {"snapshotHandle": "s"}}), vec!["s"]),
            (
                json!({"status": {"volumeGroupSnapshotHandle": "g",
                    "volumeSnapshotInfoList": [{"snapshotHandle": "m"}]}}),
                vec!["g", "m"],
            ),
            (json!({"status": null}), vec![]),
        ] {
            assert_eq!(handles_of(&owner), expected, "{owner}");
        }
    }

    #[test]
    fn the_last_look_is_when_calls_from_before_are_over() {
        let mut lost = Lost::default();
        assert_eq!(lost.rest_of_echo(Duration::ZERO), Duration::ZERO);
        assert!(!lost.has_echo(Duration::ZERO));
        lost.since = Some(Duration::from_secs(100));
        for (millis, rest, has_echo) in [
            (100_000, 60_000, true),
            (130_000, 30_000, true),
            (160_000, 0, true),
            (160_001, 0, true),
            (372_000, 0, false),
        ] {
            let now = Duration::from_millis(millis);
            assert_eq!(lost.rest_of_echo(now), Duration::from_millis(rest));
            assert_eq!(lost.has_echo(now), has_echo, "{millis}");
        }
    }

    #[test]
    fn snapshots_of_lost_objects_are_known_by_their_name() {
        let mut lost = Lost {
            lost_snapshots: ["a-1", "b-2"].map(str::to_owned).into(),
            ..Lost::default()
        };
        lost.keep_lost_snapshots(&BTreeSet::from(["b-2".to_owned()]));
        for (name, expected) in [
            ("snapshot-a-1", true),
            ("groupsnapshot-a-1", true),
            ("groupsnapshot-a-1/0", true),
            ("snapshot-b-2", false),
            ("a-1", false),
            ("pool", false),
        ] {
            assert_eq!(lost.was_taken_for_lost(name), expected, "{name}");
        }
    }
}
