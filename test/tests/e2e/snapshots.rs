//! Snapshots, group snapshots, and volumes restored from them.

use hostloop_test::front::fields::is_ready_to_use;
use hostloop_test::front::objects::{self, cloned, restored, sized};
use serde_json::{Value, json};

use crate::objects::{assert_text, name, text};
use crate::space::Space;
use crate::world::World;

/// A snapshot of a volume in use holds the data of its moment. Restored volumes, also larger ones,
/// and a clone of the volume start with their source's data.
pub(crate) fn a_snapshot_is_restored_and_larger_and_a_volume_cloned(world: &World) {
    let space = Space::new(world, "snapshot");
    space.run_data("writer", "hostloop-xfs");
    space.sh("writer", "echo before > /data/file && sync");
    snapshot(&space, "snap", "data");
    assert_content(&space, "snap");
    space.sh("writer", "echo after > /data/file && sync");

    for (claim, from) in [
        ("same", restored("snap")),
        ("larger", larger("snap")),
        ("copy", cloned("data")),
    ] {
        space.claim(claim, "hostloop-xfs", from);
    }
    let claims = ["same", "larger", "copy"];
    space.run("reader", &claims);
    let read = |claim: &str| space.sh("reader", &format!("cat /{claim}/file"));
    assert_eq!(claims.map(read), ["before", "before", "after"]);
    let mib = space.mib("reader", "/larger");
    assert!(mib > 850, "{mib} MiB");

    // Each volume changes independently.
    let write = "for c in same larger copy; do echo $c > /$c/file; done; sync";
    space.sh("reader", write);
    assert_eq!(space.sh("writer", "cat /data/file"), "after");
    for claim in claims {
        space.volume(claim);
    }
    // A snapshot outlives its source.
    space.delete_pod("writer");
    space.delete_claim("data");
    space.claim("late", "hostloop-xfs", restored("snap"));
    space.run("last", &["late"]);
    assert_eq!(space.sh("last", "cat /late/file"), "before");
    space.volume("late");
    space.end();
}

/// Takes a snapshot and waits until it is ready.
pub(crate) fn snapshot(space: &Space<'_>, named: &str, claim: &str) {
    space.create(objects::snapshot(&space.name, named, "hostloop", claim));
    ready(space, "VolumeSnapshot", named);
}

/// Gives a claim the label that a group snapshot selects by.
pub(crate) fn label(space: &Space<'_>, claim: &str, app: &str) {
    space.patch_claim(claim, json!({"metadata": {"labels": {"app": app}}}));
}

/// Creates a group snapshot of the claims with a label.
pub(crate) fn group_snapshot(space: &Space<'_>, named: &str, app: &str) {
    space.create(objects::group_snapshot(
        &space.name,
        named,
        "hostloop",
        ("app", app),
    ));
}

/// The change of a claim of 1 GiB that is restored from a smaller snapshot.
pub(crate) fn larger(snapshot: &str) -> Value {
    objects::with(restored(snapshot), sized("1Gi"))
}

/// Waits until a snapshot or group of snapshots is ready, and returns it.
pub(crate) fn ready(space: &Space<'_>, kind: &str, named: &str) -> Value {
    space
        .world
        .until_is("ready", (kind, &space.name, named), is_ready_to_use)
}

/// The content of a snapshot. [`Space::end`] looks for leaks of it.
pub(crate) fn content_of(space: &Space<'_>, snapshot: &str) -> Value {
    let snapshot = space.world.get("VolumeSnapshot", &space.name, snapshot);
    let bound = text(&snapshot, "/status/boundVolumeSnapshotContentName");
    let content = space.world.get("VolumeSnapshotContent", "", bound);
    space.remember(text(&content, "/status/snapshotHandle"));
    content
}

fn assert_content(space: &Space<'_>, snapshot: &str) {
    let content = content_of(space, snapshot);
    let snapshot = space.world.get("VolumeSnapshot", &space.name, snapshot);
    assert_text(&snapshot, "/status/restoreSize", "512Mi");
    let uid = text(&snapshot, "/metadata/uid");
    assert_text(&content, "/spec/volumeSnapshotRef/uid", uid);
    let created = content.pointer("/status/creationTime");
    assert!(created.is_some_and(Value::is_number), "{content}");
}

/// The members of a group hold their volumes' data of one moment, and can be restored.
pub(crate) fn a_group_is_snapshotted_at_one_moment(world: &World) {
    let space = Space::new(world, "group");
    let claims = ["first", "second"];
    for claim in claims {
        space.claim(claim, "hostloop-xfs", json!({}));
        label(&space, claim, "group");
    }
    // The second file is written after the first, so it is at most one behind at any moment. Both
    // are only appended to: a rewritten file would be empty at some moments.
    let script = "n=0; while :; do n=$((n + 1)); echo $n >> /first/n; sync /first/n; \
                  echo $n >> /second/n; sync /second/n; done";
    space.run_script("writer", &claims, script);
    space.sh("writer", "until [ -s /second/n ]; do sleep 0.1; done");
    group_snapshot(&space, "both", "group");
    ready(&space, "VolumeGroupSnapshot", "both");

    for claim in claims {
        let member = member_of(&space, claim);
        ready(&space, "VolumeSnapshot", &member);
        let at = ("VolumeSnapshot", space.name.as_str(), member.as_str());
        world.until_is("of its group", at, |snapshot| {
            text(snapshot, "/status/volumeGroupSnapshotName") == "both"
        });
        assert_content(&space, &member);
        space.claim(&format!("{claim}-again"), "hostloop-xfs", restored(&member));
    }
    space.run("reader", &["first-again", "second-again"]);
    let read = |claim: &str| {
        let n = space.sh("reader", &format!("tail -n 1 /{claim}-again/n"));
        let number = n.parse::<i64>();
        number.unwrap_or_else(|_| panic!("{claim}: {n:?}"))
    };
    let [first, second] = claims.map(read);
    assert!((0..=1).contains(&(first - second)), "{first} and {second}");
    for claim in ["first", "second", "first-again", "second-again"] {
        space.volume(claim);
    }
    world.remove("VolumeGroupSnapshot", &space.name, "both");
    space.end();
}

/// The group's member for this claim.
fn member_of(space: &Space<'_>, claim: &str) -> String {
    space.world.until(&format!("the member of {claim}"), || {
        let all = space.world.list("VolumeSnapshot", &space.name);
        let of = |s: &&Value| text(s, "/spec/source/persistentVolumeClaimName") == claim;
        match all.iter().find(of) {
            Some(member) => Ok(name(member).to_owned()),
            None => Err(format!("{all:?}")),
        }
    })
}
