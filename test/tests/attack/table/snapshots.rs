//! VolumeSnapshots, VolumeSnapshotContents and VolumeGroupSnapshotContents.

use super::Outcome::{No, Nothing, Yes};
use super::*;

pub(super) fn snapshots() -> Vec<Attack> {
    const S: &str = "volumesnapshots";
    const NOTHING: &str = "and change nothing else";
    const SOURCE: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
    let any = |outcome: Outcome| [(); 4].map(|()| outcome.clone());
    let patch = |what, change, outcome| row("patch", S, what, change, any(outcome));
    vec![
        patch(
            "keep it while it is restored",
            finalizers(&[KEEP, SOURCE]),
            Yes,
        ),
        patch(
            "remove all finalizers",
            json!({"metadata": {"finalizers": null}}),
            No(NOTHING),
        ),
        patch(
            "add another finalizer",
            finalizers(&[KEEP, "x.example/y"]),
            No(NOTHING),
        ),
        patch("set an owner", owner(), No(NOTHING)),
        patch("set a label", label("app", "x"), No(NOTHING)),
        patch(
            "set an annotation",
            annotation("x", json!("y")),
            No(NOTHING),
        ),
        patch(
            "change its class",
            json!({"spec": {"volumeSnapshotClassName": "x"}}),
            No(NOTHING),
        ),
        row(
            "patch",
            "volumesnapshots/status",
            "bind it to a content",
            json!({"status": {"boundVolumeSnapshotContentName": "x"}}),
            any(No(ROLE)),
        ),
        row("delete", S, "delete it", json!({}), any(No(ROLE))),
        row("create", S, "create one", json!({}), any(No(ROLE))),
    ]
}

const UNMANAGED: &str = "the content is managed by no node yet";
const MANAGED: &str = "the content is managed by node";
const CONTENT_DRIVER: &str = "the content is not of driver hostloop.csi.dev";
const OTHER_HANDLE: &str = "another snapshot than it has";
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

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
    const G: &str = "volumegroupsnapshotcontents/status";
    const MEMBERS: &str = "no member that is not a snapshot of its volumes";
    let member = |volume: &str, snapshot: &str| {
        json!({"status": {"volumeSnapshotInfoList": [{"volumeHandle": volume,
            "snapshotHandle": snapshot, "creationTime": 1, "readyToUse": true}]}})
    };
    let mut attacks = of_contents(Contents {
        resource: "volumegroupsnapshotcontents",
        status: "volumegroupsnapshotcontents/status",
        creating: "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created",
        keep: "change whether its snapshots are kept",
        handle: "volumeGroupSnapshotHandle",
        // Its definition answers first.
        another: ("name another group", "can't be changed once set"),
        none: "name no group",
    });
    let own = own(MANAGED, UNMANAGED, CONTENT_DRIVER);
    let never = || never(MEMBERS, [MANAGED, UNMANAGED, CONTENT_DRIVER]);
    let members = |what, change, outcomes| row("patch", G, what, change, outcomes);
    attacks.extend([
        members(
            "name a snapshot of its volume",
            member("vol-p1-1", "snap-p1-1"),
            own,
        ),
        members(
            "name a snapshot of another volume",
            member("vol-p1-2", "snap-p1-2"),
            never(),
        ),
        members(
            "name a snapshot of another pool",
            member("vol-p1-1", "snap-p2-1"),
            never(),
        ),
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
    let own = || own(MANAGED, UNMANAGED, CONTENT_DRIVER);
    let never = |why| never(why, [MANAGED, UNMANAGED, CONTENT_DRIVER]);
    let patch = |what, change, outcomes| row("patch", kind.resource, what, change, outcomes);
    let status = |what, change, outcomes| row("patch", kind.status, what, change, outcomes);
    let named = |handle: Value| json!({"status": {kind.handle: handle}});
    let (another, why) = kind.another;
    vec![
        patch(
            "say that its snapshot is being made",
            annotation(kind.creating, json!("yes")),
            own(),
        ),
        patch(
            "set another annotation",
            annotation(
                "snapshot.storage.kubernetes.io/deletion-secret-name",
                json!("x"),
            ),
            never("no annotation of a content"),
        ),
        patch(
            "remove the snapshotter's finalizer",
            finalizers(&[KEEP]),
            own(),
        ),
        patch(
            "remove all finalizers",
            json!({"metadata": {"finalizers": null}}),
            never("the snapshotter's finalizer"),
        ),
        patch("set an owner", owner(), never("who owns a content")),
        patch(
            "label it as its own",
            label(MANAGED_BY, "$OWN"),
            [Nothing, No(MANAGED), No(UNMANAGED), Nothing],
        ),
        patch(
            "label it as another node's",
            label(MANAGED_BY, "$OTHER"),
            [
                No("which node a content belongs to"),
                Nothing,
                No(UNMANAGED),
                No(CONTENT_DRIVER),
            ],
        ),
        patch(
            kind.keep,
            json!({"spec": {"deletionPolicy": "Delete"}}),
            never("whether its snapshot is kept"),
        ),
        status(
            "say that it is ready",
            json!({"status": {"readyToUse": true}}),
            own(),
        ),
        status(
            another,
            named(json!("x")),
            [No(why), Nothing, Nothing, Nothing],
        ),
        // After that it could name any.
        status(kind.none, named(Value::Null), never(OTHER_HANDLE)),
        // The API server ignores everything but the status here.
        status("set an owner", owner(), own()),
        row(
            "delete",
            kind.resource,
            "delete it",
            json!({}),
            never_granted(),
        ),
        row(
            "create",
            kind.resource,
            "create one",
            json!({}),
            never_granted(),
        ),
    ]
}
