//! Data goes only when the life of its object says so: that of a volume with its claim, that of a
//! snapshot with its VolumeSnapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::{Cluster, PROVISIONER_FINALIZER};
use crate::foreign::is_foreign;
use crate::model::view::{has_finalizer, is_deleting, name, text, uid};
use crate::oracle::adopted;
use crate::oracle::gone::Gone;
use crate::oracle::ownership::is_named_after_claim;
use crate::trace;

/// What the oracle remembers of data that was there with its objects. Data that was taken over by
/// hand has several, and goes with each that lets it go.
#[derive(Default)]
pub(super) struct Lives {
    /// By handle.
    known: BTreeMap<String, Volume>,
    contents: DataOwners,
    volumes: DataOwners,
    /// The handles of volumes that are gone, and that were reported.
    reported: BTreeSet<String>,
    /// The contents of snapshots that went since the last look.
    pub(super) gone: Gone,
}

/// What the oracle knows of a volume that has or had a PersistentVolume.
struct Volume {
    name: String,
    retained: bool,
    /// Its object is going in a way that leaves the data, whatever the policy becomes.
    left_behind: bool,
    /// It may hold data: it was staged for certain, or it is a copy. A call for it that failed, or
    /// that had no answer, let no pod write to it.
    valuable: bool,
    gone: bool,
}

/// The objects that data had, by its handle and their UIDs. Each is true if its deletion left the
/// data, when both were last there.
#[derive(Default)]
struct DataOwners(BTreeMap<String, BTreeMap<String, bool>>);

impl DataOwners {
    fn note(&mut self, handle: &str, object: &Value, leaves_data: bool) {
        let objects = self.0.entry(handle.to_owned()).or_default();
        objects.insert(uid(object).to_owned(), leaves_data);
    }

    /// True if this object had the data.
    fn has(&self, handle: &str, object: &Value) -> bool {
        let objects = self.0.get(handle);
        objects.is_some_and(|objects| objects.contains_key(uid(object)))
    }

    /// True if an object that had the data may have let it go.
    fn has_one_that_lets_go(&self, handle: &str) -> bool {
        let mut objects = self.0.get(handle).into_iter().flatten();
        objects.any(|(_, leaves_data)| !leaves_data)
    }

    /// True if another object that had the data may have let it go.
    fn has_another_that_lets_go(&self, handle: &str, object: &Value) -> bool {
        let mut objects = self.0.get(handle).into_iter().flatten();
        objects.any(|(owner, leaves_data)| owner != uid(object) && !leaves_data)
    }

    /// The handles of data that went with this object, if it went with one: the object need not name
    /// it any more, and no other object lets it go.
    fn let_go_by(&self, object: &Value) -> Vec<&str> {
        let owned = self.0.iter();
        let owned = owned.filter(|(_, objects)| objects.get(uid(object)) == Some(&false));
        let handles = owned.map(|(handle, _)| handle.as_str());
        handles
            .filter(|handle| !self.has_another_that_lets_go(handle, object))
            .collect()
    }
}

/// What there is at one moment.
pub(super) struct Present<'a> {
    pub(super) cluster: &'a Cluster,
    /// The handles of all data.
    pub(super) data: &'a BTreeSet<String>,
    /// The handles of data that is gone because the API server went back to a backup.
    pub(super) lost: &'a BTreeSet<String>,
    /// The PersistentVolumes.
    pub(super) volumes: &'a [Arc<Value>],
    pub(super) claims: &'a [Arc<Value>],
}

impl Present<'_> {
    fn is_there(&self, handle: &str) -> bool {
        self.data.contains(handle) || self.lost.contains(handle)
    }
}

impl Lives {
    /// Checks that all data is there that has to be. What is gone is reported once.
    pub(super) fn check(&mut self, present: &Present<'_>) {
        self.note(present);
        self.check_known(present);
        self.check_volumes(present);
        self.check_snapshots(present);
    }

    /// True if the data of a volume was to stay when its objects were last there. `None` for one
    /// that never had an object.
    pub(super) fn keeps(&self, handle: &str) -> Option<bool> {
        let known = self.known.get(handle)?;
        Some(known.retained || known.left_behind)
    }

    /// Notes what the objects of volumes say.
    fn note(&mut self, present: &Present<'_>) {
        let mut seen = BTreeSet::new();
        for volume in present.volumes {
            let handle = text(volume, "/spec/csi/volumeHandle");
            let claim = text(volume, "/spec/claimRef/uid");
            let known = self.known.entry(handle.to_owned());
            let known = known.or_insert_with(|| Volume {
                name: name(volume).to_owned(),
                retained: false,
                left_behind: false,
                valuable: false,
                gone: false,
            });
            // While one object of a volume replaces another, each may let the data go.
            let is_first = seen.insert(handle);
            known.retained = adopted::keeps(volume) && (is_first || known.retained);
            known.left_behind =
                is_deleting(volume) && (known.left_behind || goes_without_data(volume));
            let mut claims = present.claims.iter();
            let is_copy = claims.any(|one| uid(one) == claim && is_copy_for(volume, one));
            known.valuable |= is_copy || present.cluster.has_staged(handle);
        }
    }

    /// Checks that what is bound is there, and what was to be kept when its object went.
    fn check_known(&mut self, present: &Present<'_>) {
        for (handle, known) in &mut self.known {
            let mut volumes = present.volumes.iter();
            let object = volumes.find(|one| text(one, "/spec/csi/volumeHandle") == handle.as_str());
            match object {
                _ if present.is_there(handle) => {}
                // The object goes after the volume.
                Some(object) if !is_deleting(object) && object["status"]["phase"] == "Bound" => {
                    trace::violation(format!(
                        "data lost: the volume of bound {} is gone",
                        known.name
                    ));
                }
                _ if self.volumes.has_one_that_lets_go(handle) => {}
                _ if known.retained && known.valuable && !known.gone => {
                    trace::violation(format!(
                        "data lost: the volume {} had the policy Retain and data, and is gone",
                        known.name
                    ));
                    known.gone = true;
                }
                _ => {}
            }
        }
    }

    /// Checks that what an object still wants is there.
    fn check_volumes(&mut self, present: &Present<'_>) {
        for volume in present.volumes {
            let handle = text(volume, "/spec/csi/volumeHandle");
            if present.data.contains(handle) {
                let leaves_data = adopted::keeps(volume);
                self.volumes.note(handle, volume, leaves_data);
                self.reported.remove(handle);
            } else if !present.is_there(handle)
                && keeps_volume(volume, claim_of(volume, present.claims))
                && self.volumes.has(handle, volume)
                && !self.volumes.has_another_that_lets_go(handle, volume)
                && self.reported.insert(handle.to_owned())
            {
                trace::violation(format!(
                    "data lost: the volume {handle} is gone, and its object {} wants it: {} {}",
                    name(volume),
                    volume["spec"]["persistentVolumeReclaimPolicy"],
                    volume["status"]["phase"],
                ));
            }
        }
    }

    /// The API server went back to a backup, which the data with handles in `lost` does not fit.
    /// Volumes may get other objects instead of those that came since.
    pub(super) fn went_back(&mut self, lost: &BTreeSet<String>) {
        for (handle, known) in &mut self.known {
            known.gone |= lost.contains(handle);
        }
        self.volumes = DataOwners::default();
        self.gone.went_back();
    }

    fn check_snapshots(&mut self, present: &Present<'_>) {
        let mut contents = present.cluster.api.shared("volumesnapshotcontents");
        // The snapshots of a group go with their group.
        let in_group = "/status/volumeGroupSnapshotHandle";
        contents.retain(|content| !is_foreign(content) && text(content, in_group).is_empty());
        for content in &contents {
            let handle = text(content, "/status/snapshotHandle");
            if present.data.contains(handle) {
                let leaves_data = text(content, "/spec/deletionPolicy") != "Delete";
                self.contents.note(handle, content, leaves_data);
            }
        }
        let gone = contents.iter().filter(|content| {
            let handle = text(content, "/status/snapshotHandle");
            // The deletion of another content with this handle deletes the snapshot for both.
            self.contents.has(handle, content)
                && !self.contents.has_another_that_lets_go(handle, content)
                && !present.is_there(handle)
        });
        let gone: Vec<&Arc<Value>> = gone.collect();
        let contents_gone = self.gone.take();
        if gone.is_empty() && contents_gone.is_empty() {
            return;
        }
        let snapshots = present.cluster.api.shared("volumesnapshots");
        self.check_gone_contents(present, &contents_gone, &snapshots);
        for content in gone {
            let user = text(content, "/spec/volumeSnapshotRef/uid");
            let snapshot = snapshots.iter().find(|snapshot| uid(snapshot) == user);
            let handle = text(content, "/status/snapshotHandle");
            if keeps_snapshot(content, snapshot.map(Arc::as_ref)) {
                trace::violation(format!(
                    "data lost: the snapshot {handle} is gone, and its content {} wants it",
                    name(content)
                ));
            }
            self.contents.0.remove(handle);
        }
    }

    /// Checks that no data went with its content while the VolumeSnapshot lives. The snapshotter
    /// takes the handle out of a content before it lets it go.
    fn check_gone_contents(
        &self,
        present: &Present<'_>,
        gone: &[Arc<Value>],
        snapshots: &[Arc<Value>],
    ) {
        for content in gone {
            let Some(snapshot) = living(snapshots, content) else {
                continue;
            };
            let handles = self.contents.let_go_by(content).into_iter();
            for handle in handles.filter(|handle| !present.is_there(handle)) {
                trace::violation(format!(
                    "data lost: the snapshot {handle} went with its content {}, and snapshot {} \
                     wants it",
                    name(content),
                    name(snapshot)
                ));
            }
        }
    }
}

/// The VolumeSnapshot of a content, unless it is being deleted.
fn living<'a>(snapshots: &'a [Arc<Value>], content: &Value) -> Option<&'a Value> {
    let user = text(content, "/spec/volumeSnapshotRef/uid");
    let mut snapshots = snapshots.iter().map(|snapshot| &**snapshot);
    snapshots.find(|snapshot| uid(snapshot) == user && !is_deleting(snapshot))
}

/// True if the volume of a claim is a copy of the claim's source. Kubernetes also binds such a claim
/// to a volume that was there before, which has nothing of the source.
fn is_copy_for(volume: &Value, claim: &Value) -> bool {
    !claim["spec"]["dataSource"].is_null() && is_named_after_claim(volume)
}

/// The claim of a volume, if it lives and has no other volume.
fn claim_of<'a>(volume: &Value, claims: &'a [Arc<Value>]) -> Option<&'a Value> {
    let claim = text(volume, "/spec/claimRef/uid");
    let claim = claims.iter().find(|one| uid(one) == claim)?;
    let bound = text(claim, "/spec/volumeName");
    let has_other = !bound.is_empty() && bound != name(volume);
    (!is_deleting(claim) && !has_other).then_some(&**claim)
}

/// True if an object goes, and leaves its data for good. The provisioner has no finalizer at what it is
/// to keep, the API server accepts none for what is being deleted, and without one the data stays.
fn goes_without_data(volume: &Value) -> bool {
    is_deleting(volume) && adopted::keeps(volume) && !has_finalizer(volume, PROVISIONER_FINALIZER)
}

/// True if the data of a volume must be there. The provisioner deletes that of a released volume
/// with the policy Delete, unless another one made it.
fn keeps_volume(volume: &Value, claim: Option<&Value>) -> bool {
    let phase = text(volume, "/status/phase");
    let is_released = phase == "Released" || phase == "Failed";
    let is_kept = !adopted::goes_with_claim(volume);
    claim.is_some() && !is_released || is_kept && !is_deleting(volume)
}

/// True if the data of a snapshot must be there. The snapshotter deletes that of a content that is
/// deleted with the policy Delete, and after its VolumeSnapshot. The snapshot-controller's mark of a
/// content excuses nothing: while the VolumeSnapshot lives, there must be no mark.
fn keeps_snapshot(content: &Value, snapshot: Option<&Value>) -> bool {
    let is_kept = text(content, "/spec/deletionPolicy") != "Delete";
    is_kept || !is_deleting(content) || snapshot.is_some_and(|snapshot| !is_deleting(snapshot))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cluster::DRIVER;
    use crate::model::view::PROVISIONED_BY;
    use crate::oracle::content_kinds::SNAPSHOTS;

    /// The snapshot-controller's annotation of a content: its VolumeSnapshot is being deleted.
    const BEING_DELETED: &str = SNAPSHOTS.being_deleted;
    /// A VolumeSnapshot that is not being deleted, and one that is.
    const LIVES: Option<bool> = Some(false);
    const DELETED: Option<bool> = Some(true);

    fn volume(policy: &str, phase: &str, deleted: bool) -> Value {
        json!({"metadata": {"name": "v", "deletionTimestamp": deleted.then_some("now")},
            "spec": {"persistentVolumeReclaimPolicy": policy, "claimRef": {"uid": "u"}},
            "status": {"phase": phase}})
    }

    #[rstest]
    #[case::bound("Delete", "Bound", false, true, true)]
    #[case::not_bound_yet("Delete", "", false, true, true)]
    #[case::deleted_by_a_user("Delete", "Bound", true, true, true)]
    #[case::released("Delete", "Released", false, false, false)]
    #[case::released_from_a_claim_with_another("Delete", "Released", false, true, false)]
    #[case::made_too_late("Delete", "", false, false, false)]
    #[case::failed("Delete", "Failed", false, false, false)]
    #[case::kept("Retain", "Released", false, false, true)]
    #[case::kept_without_an_object("Retain", "Released", true, false, false)]
    fn volumes(
        #[case] policy: &str,
        #[case] phase: &str,
        #[case] deleted: bool,
        #[case] has_claim: bool,
        #[case] expected: bool,
    ) {
        let claim = json!({"metadata": {"name": "c"}});
        let volume = volume(policy, phase, deleted);
        assert_eq!(keeps_volume(&volume, has_claim.then_some(&claim)), expected);
    }

    #[rstest]
    #[case::living("Retain", false, &[], false)]
    #[case::going("Retain", true, &[], true)]
    #[case::in_use("Retain", true, &["kubernetes.io/pv-protection"], true)]
    #[case::held_by_the_provisioner("Retain", true, &[PROVISIONER_FINALIZER], false)]
    #[case::to_be_deleted("Delete", true, &[], false)]
    fn objects_that_leave_their_data(
        #[case] policy: &str,
        #[case] deleted: bool,
        #[case] finalizers: &[&str],
        #[case] expected: bool,
    ) {
        let mut volume = volume(policy, "Bound", deleted);
        volume["metadata"]["finalizers"] = json!(finalizers);
        assert_eq!(goes_without_data(&volume), expected);
    }

    #[rstest]
    #[case::waiting(json!({}), true)]
    #[case::bound(json!({"spec": {"volumeName": "v"}}), true)]
    #[case::with_another_volume(json!({"spec": {"volumeName": "w"}}), false)]
    fn claims(#[case] claim: Value, #[case] expected: bool) {
        let mut claim = claim;
        claim["metadata"]["uid"] = json!("u");
        let volume = volume("Delete", "", false);
        let claims = [Arc::new(claim.clone())];
        assert_eq!(claim_of(&volume, &claims).is_some(), expected);
        claim["metadata"]["deletionTimestamp"] = json!("now");
        assert!(claim_of(&volume, &[Arc::new(claim)]).is_none());
    }

    #[rstest]
    #[case::copied("hostloop-u", json!({"kind": "VolumeSnapshot", "name": "s"}), true)]
    #[case::made_without_a_source("hostloop-u", Value::Null, false)]
    #[case::freed_by_another_claim("hostloop-w", json!({"kind": "VolumeSnapshot"}), false)]
    #[case::made_by_hand("adopted-c", json!({"kind": "PersistentVolumeClaim"}), false)]
    fn copies(#[case] name: &str, #[case] source: Value, #[case] expected: bool) {
        let mut volume = volume("Retain", "Bound", false);
        volume["metadata"]["name"] = json!(name);
        volume["metadata"]["annotations"] = json!({PROVISIONED_BY: DRIVER});
        volume["spec"]["storageClassName"] = json!("kept-now");
        let claim = json!({"metadata": {"uid": "u"}, "spec": {"dataSource": source}});
        assert_eq!(is_copy_for(&volume, &claim), expected);
    }

    #[test]
    fn data_goes_with_each_object_that_lets_it_go() {
        let [old, new] = ["1", "2"].map(|uid| json!({"metadata": {"uid": uid}}));
        let mut owners = DataOwners::default();
        owners.note("h", &old, true);
        assert!(owners.has("h", &old) && !owners.has("h", &new) && !owners.has("i", &old));
        for (leaves_data, expected) in [(true, false), (false, true)] {
            owners.note("h", &new, leaves_data);
            assert_eq!(owners.has_another_that_lets_go("h", &old), expected);
            assert!(!owners.has_another_that_lets_go("h", &new));
        }
    }

    #[test]
    fn an_object_lets_go_what_no_other_lets_go() {
        let [old, new] = ["1", "2"].map(|uid| json!({"metadata": {"uid": uid}}));
        let mut owners = DataOwners::default();
        for (leaves_data, of_another, expected) in [
            (true, None, vec![]),
            (false, None, vec!["h"]),
            (false, Some(true), vec!["h"]),
            (false, Some(false), vec![]),
        ] {
            owners.note("h", &old, leaves_data);
            owners.note("i", &new, false);
            if let Some(leaves_data) = of_another {
                owners.note("h", &new, leaves_data);
            }
            let let_go = owners.let_go_by(&old);
            assert_eq!(let_go, expected, "{leaves_data} {of_another:?}");
        }
    }

    #[test]
    fn a_content_that_went_has_a_snapshot_that_lives() {
        let content = json!({"spec": {"volumeSnapshotRef": {"uid": "1"}}});
        for (uid, deleted, expected) in [
            ("1", Value::Null, true),
            ("1", json!("now"), false),
            ("2", Value::Null, false),
        ] {
            let metadata = json!({"uid": uid, "deletionTimestamp": deleted});
            let snapshots = [Arc::new(json!({"metadata": metadata}))];
            assert_eq!(
                living(&snapshots, &content).is_some(),
                expected,
                "{snapshots:?}"
            );
        }
    }

    #[rstest]
    #[case::living("Delete", false, LIVES, true)]
    #[case::living_without_a_snapshot("Delete", false, None, true)]
    #[case::living_with_a_deleted_snapshot("Delete", false, DELETED, true)]
    #[case::content_deleted_by_a_user("Delete", true, LIVES, true)]
    #[case::deleted_after_its_snapshot("Delete", true, DELETED, false)]
    #[case::without_a_snapshot("Delete", true, None, false)]
    #[case::kept("Retain", true, DELETED, true)]
    fn snapshots(
        #[case] policy: &str,
        #[case] deleted: bool,
        #[case] snapshot: Option<bool>,
        #[case] expected: bool,
        #[values(true, false)] marked: bool,
    ) {
        let content = json!({"metadata": {"deletionTimestamp": deleted.then_some("now"),
                "annotations": {BEING_DELETED: marked.then_some("yes")}},
            "spec": {"deletionPolicy": policy}});
        let snapshot = snapshot.map(
            |deleted| json!({"metadata": {"name": "s", "deletionTimestamp": deleted.then_some("now")}}),
        );
        assert_eq!(keeps_snapshot(&content, snapshot.as_ref()), expected);
    }
}
