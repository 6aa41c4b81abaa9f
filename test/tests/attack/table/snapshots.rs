//! VolumeSnapshots, VolumeSnapshotContents and VolumeGroupSnapshotContents.

use super::Outcome::{No, Nothing, Yes};
use super::*;

pub(super) fn snapshots() -> Vec<Attack> {
    const S: &str = "volumesnapshots";
    const SOURCE: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
    let refused = [No("and change nothing else"); 4];
    let restored = finalizers(&[KEEP, SOURCE]);
    let added = finalizers(&[KEEP, "x.example/y"]);
    let class = spec(json!({"volumeSnapshotClassName": "x"}));
    let bound = status(json!({"boundVolumeSnapshotContentName": "x"}));
    let patch = rows("patch", S);
    let mut attacks = vec![
        patch("keep it while it is restored", restored, [Yes; 4]),
        patch("remove all finalizers", no_finalizers(), refused),
        patch("add another finalizer", added, refused),
        patch("repeat a finalizer", repeated(&[KEEP], SOURCE), refused),
        patch("set an owner", owner(), refused),
        patch("set a label", label("app", "x"), refused),
        patch("set an annotation", annotation("x", json!("y")), refused),
        patch("change its class", class, refused),
        rows("patch", "volumesnapshots/status")("bind it to a content", bound, FORBIDDEN),
    ];
    attacks.extend(only_changed(S, FORBIDDEN));
    attacks
}

const UNMANAGED: &str = "the content is managed by no node yet";
const MANAGED: &str = "the content is managed by node";
const CONTENT_DRIVER: &str = "the content is not of driver hostloop.csi.dev";
const OTHERS: Others = Others(MANAGED, UNMANAGED, CONTENT_DRIVER);
const OTHER_HANDLE: &str = "another snapshot than it has";
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
const SECRET: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";

pub(super) fn contents() -> Vec<Attack> {
    of_contents(Contents {
        resource: "volumesnapshotcontents",
        status: "volumesnapshotcontents/status",
        creating: "snapshot.storage.kubernetes.io/volumesnapshot-being-created",
        keep: "change whether its snapshot is kept",
        handle: "snapshotHandle",
        another: ("name another snapshot", OTHER_HANDLE),
        none: "name no snapshot",
    })
}

pub(super) fn group_contents() -> Vec<Attack> {
    const STATUS: &str = "volumegroupsnapshotcontents/status";
    const MEMBERS: &str = "no member that is not a snapshot of its volumes";
    let member = |volume: &str, snapshot: &str| {
        status(json!({"volumeSnapshotInfoList": [{"volumeHandle": volume,
            "snapshotHandle": snapshot, "creationTime": 1, "readyToUse": true}]}))
    };
    let mut attacks = of_contents(Contents {
        resource: "volumegroupsnapshotcontents",
        status: STATUS,
        creating: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created",
        keep: "change whether its snapshots are kept",
        handle: "volumeGroupSnapshotHandle",
        // Its definition answers first.
        another: ("name another group", "can't be changed once set"),
        none: "name no group",
    });
    let never = OTHERS.never(MEMBERS);
    let its_own = member("vol-p1-1", "snap-p1-1");
    let other_volume = member("vol-p1-2", "snap-p1-2");
    let other_pool = member("vol-p1-1", "snap-p2-1");
    let patch = rows("patch", STATUS);
    attacks.extend([
        patch("name a snapshot of its volume", its_own, OTHERS.own()),
        patch("name a snapshot of another volume", other_volume, never),
        patch("name a snapshot of another pool", other_pool, never),
    ]);
    attacks
}

/// The differences between contents of snapshots and of groups.
struct Contents {
    resource: &'static str,
    status: &'static str,
    /// The annotation that marks a snapshot in progress.
    creating: &'static str,
    keep: &'static str,
    /// The field of the status that names its snapshot.
    handle: &'static str,
    /// How naming another one is called, and why it is refused.
    another: (&'static str, &'static str),
    /// How naming none is called.
    none: &'static str,
}

fn of_contents(kind: Contents) -> Vec<Attack> {
    const NODE: &str = "which node a content belongs to";
    const KEPT: &str = "whether its snapshot is kept";
    const FINALIZER: &str = "the snapshotter's finalizer";
    const UTC: &str = "only times in UTC, of the years 0 to 8999, about a content";
    let own = OTHERS.own();
    let never = |why| OTHERS.never(why);
    let named = |handle: Value| status(json!({kind.handle: handle}));
    let (another, why) = kind.another;
    let creating = annotation(kind.creating, json!("yes"));
    let long_creating = annotation(kind.creating, json!(long()));
    let failed = |message: String| status(json!({"error": {"message": message}}));
    let secret = annotation(SECRET, json!("x"));
    let deleted = spec(json!({"deletionPolicy": "Delete"}));
    let ready = status(json!({"readyToUse": true}));
    let (patch, patch_status) = (rows("patch", kind.resource), rows("patch", kind.status));
    let mut attacks = vec![
        patch("say that its snapshot is being made", creating, own),
        patch(
            "say so in 200 kB",
            long_creating,
            never("no annotation of a content"),
        ),
        patch(
            "set another annotation",
            secret,
            never("no annotation of a content"),
        ),
        patch(
            "remove the snapshotter's finalizer",
            finalizers(&[KEEP]),
            own,
        ),
        patch("remove all finalizers", no_finalizers(), never(FINALIZER)),
        patch("set an owner", owner(), never("who owns a content")),
        patch(
            "label it as its own",
            label(MANAGED_BY, "$OWN"),
            [Nothing, No(MANAGED), No(UNMANAGED), Nothing],
        ),
        patch(
            "label it as another node's",
            label(MANAGED_BY, "$OTHER"),
            [No(NODE), Nothing, No(UNMANAGED), No(CONTENT_DRIVER)],
        ),
        patch(kind.keep, deleted, never(KEPT)),
        patch_status("say that it is ready", ready, own),
        patch_status("say in 4 kB why it is not", failed("x".repeat(4096)), own),
        patch_status(
            "say in 200 kB why it is not",
            failed(long()),
            never("messages of up to 4096 characters about a content"),
        ),
        patch_status(
            "say that it failed at a time with an offset of 99 hours",
            status(json!({"error": {"message": "x", "time": "2026-01-01T00:00:00+99:99"}})),
            never(UTC),
        ),
        patch_status(
            "say that it failed on the last day of the year 9999",
            status(json!({"error": {"message": "x", "time": LAST_DAY}})),
            never(UTC),
        ),
        patch_status(
            another,
            named(json!("x")),
            [No(why), Nothing, Nothing, Nothing],
        ),
        // After that it could name any.
        patch_status(kind.none, named(Value::Null), never(OTHER_HANDLE)),
        // The API server ignores everything but the status here.
        patch_status("set an owner", owner(), own),
    ];
    attacks.extend(only_changed(kind.resource, FORBIDDEN));
    attacks
}
