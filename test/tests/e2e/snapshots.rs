//! Snapshots, group snapshots, and volumes restored from them.

use serde_json::{Value, json};

use crate::objects::text;
use crate::space::Space;
use crate::world::World;

/// A snapshot of a volume in use holds the data of its moment. Restored volumes, also larger ones,
/// and a clone of the volume start with their source's data.
pub(crate) fn a_snapshot_is_restored_and_larger_and_a_volume_cloned(world: &World) {
    let space = Space::new(world, "snapshot");
    space.claim("data", "hostloop-xfs", json!({}));
    space.pod("writer", &["data"]);
    space.ready("writer");
    space.sh("writer", "echo before > /data/file && sync");
    snapshot(&space, "snap", "data");
    assert_content(&space, "snap");
    space.sh("writer", "echo after > /data/file && sync");

    let from =
        json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap"});
    let larger = json!({"requests": {"storage": "1Gi"}});
    space.claim("same", "hostloop-xfs", json!({"dataSource": from}));
    space.claim(
        "larger",
        "hostloop-xfs",
        json!({"dataSource": from, "resources": larger}),
    );
    let volume = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    space.claim("copy", "hostloop-xfs", json!({"dataSource": volume}));
    let claims = ["same", "larger", "copy"];
    space.pod("reader", &claims);
    space.ready("reader");
    let read = |claim: &str| space.sh("reader", &format!("cat /{claim}/file"));
    assert_eq!(claims.map(read), ["before", "before", "after"]);
    let mib = space.sh("reader", "df -m /larger | awk 'END { print $2 }'");
    assert!(mib.parse::<u64>().is_ok_and(|m| m > 850), "{mib} MiB");

    // Each volume changes independently.
    space.sh(
        "reader",
        "for c in same larger copy; do echo $c > /$c/file; done; sync",
    );
    assert_eq!(space.sh("writer", "cat /data/file"), "after");
    for claim in claims {
        space.volume(claim);
    }
    // A snapshot outlives its source.
    space.delete_pod("writer");
    space.delete_claim("data");
    space.claim("late", "hostloop-xfs", json!({"dataSource": from}));
    space.pod("last", &["late"]);
    space.ready("last");
    assert_eq!(space.sh("last", "cat /late/file"), "before");
    space.volume("late");
    space.end();
}

/// Takes a snapshot and waits until it is ready.
pub(crate) fn snapshot(space: &Space<'_>, named: &str, claim: &str) {
    space.create(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": named},
        "spec": {"volumeSnapshotClassName": "hostloop",
            "source": {"persistentVolumeClaimName": claim}}}));
    ready(space, "VolumeSnapshot", named);
}

fn ready(space: &Space<'_>, kind: &str, named: &str) -> Value {
    space.world.until(&format!("{kind} {named}"), || {
        let object = space.world.get(kind, &space.name, named);
        if object.pointer("/status/readyToUse") == Some(&Value::Bool(true)) {
            return Ok(object);
        }
        Err(format!("{}; {}", object["status"], space.events()))
    })
}

fn assert_content(space: &Space<'_>, snapshot: &str) {
    let snapshot = space.world.get("VolumeSnapshot", &space.name, snapshot);
    assert_eq!(text(&snapshot, "/status/restoreSize"), "512Mi");
    let bound = text(&snapshot, "/status/boundVolumeSnapshotContentName");
    let content = space.world.get("VolumeSnapshotContent", "", bound);
    assert_eq!(
        text(&content, "/spec/volumeSnapshotRef/uid"),
        text(&snapshot, "/metadata/uid")
    );
    assert_eq!(
        content
            .pointer("/status/creationTime")
            .map(Value::is_number),
        Some(true)
    );
    space.remember(text(&content, "/status/snapshotHandle"));
}

/// The members of a group hold their volumes' data of one moment, and can be restored.
pub(crate) fn a_group_is_snapshotted_at_one_moment(world: &World) {
    let space = Space::new(world, "group");
    let claims = ["first", "second"];
    for claim in claims {
        space.claim(claim, "hostloop-xfs", json!({}));
        let label = json!({"metadata": {"labels": {"app": "group"}}});
        world.patch("PersistentVolumeClaim", &space.name, claim, &label);
    }
    // The second file is written after the first, so it is at most one behind at any moment. Both
    // are only appended to: a rewritten file would be empty at some moments.
    let script = "n=0; while :; do n=$((n + 1)); echo $n >> /first/n; sync /first/n; \
                  echo $n >> /second/n; sync /second/n; done";
    space.script("writer", &claims, script);
    space.ready("writer");
    space.sh("writer", "until [ -s /second/n ]; do sleep 0.1; done");
    space.create(json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": "both"},
        "spec": {"volumeGroupSnapshotClassName": "hostloop",
            "source": {"selector": {"matchLabels": {"app": "group"}}}}}));
    ready(&space, "VolumeGroupSnapshot", "both");

    for claim in claims {
        let member = member_of(&space, claim);
        assert_content_ready(&space, &member);
        let from = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": member});
        let restored = format!("{claim}-again");
        space.claim(&restored, "hostloop-xfs", json!({"dataSource": from}));
    }
    space.pod("reader", &["first-again", "second-again"]);
    space.ready("reader");
    let read = |claim: &str| {
        let n = space.sh("reader", &format!("tail -n 1 /{claim}-again/n"));
        n.parse::<i64>()
            .unwrap_or_else(|_| panic!("{claim}: {n:?}"))
    };
    let [first, second] = claims.map(read);
    assert!((0..=1).contains(&(first - second)), "{first} and {second}");
    for claim in ["first", "second", "first-again", "second-again"] {
        space.volume(claim);
    }
    world.delete("VolumeGroupSnapshot", &space.name, "both");
    world.gone("VolumeGroupSnapshot", &space.name, "both");
    space.end();
}

/// The group's member for this claim.
fn member_of(space: &Space<'_>, claim: &str) -> String {
    space.world.until(&format!("the member of {claim}"), || {
        let all = space.world.list("VolumeSnapshot", &space.name);
        let of = |s: &&Value| text(s, "/spec/source/persistentVolumeClaimName") == claim;
        match all.iter().find(of) {
            Some(member) => Ok(text(member, "/metadata/name").to_owned()),
            None => Err(format!("{all:?}")),
        }
    })
}

fn assert_content_ready(space: &Space<'_>, member: &str) {
    let snapshot = ready(space, "VolumeSnapshot", member);
    assert_eq!(text(&snapshot, "/status/volumeGroupSnapshotName"), "both");
    assert_content(space, member);
}
