//! Objects of a node itself: attachments, capacities, events, and the leader's lease.

use super::Outcome::{No, Nothing, Yes};
use super::*;

pub(super) fn attachments() -> Vec<Attack> {
    const A: &str = "volumeattachments";
    const STATUS: &str = "volumeattachments/status";
    const ELSEWHERE: &str = "the attachment is not one to node";
    const DRIVER: &str = "the attachment is not of driver hostloop.csi.dev";
    let own = || [Yes, No(ELSEWHERE), Nothing, No(DRIVER)];
    let never = |why| [No(why), No(ELSEWHERE), Nothing, No(DRIVER)];
    let patch = |what, change, outcomes| row("patch", A, what, change, outcomes);
    let status = |what, change, outcomes| row("patch", STATUS, what, change, outcomes);
    vec![
        patch(
            "remove the attacher's finalizer",
            finalizers(&[KEEP]),
            own(),
        ),
        patch(
            "remove all finalizers",
            json!({"metadata": {"finalizers": null}}),
            never("no finalizer of an attachment but the attacher's"),
        ),
        patch(
            "set the node's ID",
            annotation("csi.alpha.kubernetes.io/node-id", json!("x")),
            own(),
        ),
        patch(
            "set another annotation",
            annotation("x", json!("y")),
            never("no annotation of an attachment but that of its ID"),
        ),
        patch("set an owner", owner(), never("who owns it")),
        patch("set a label", label("app", "x"), never("or its labels")),
        status(
            "say that it is attached",
            json!({"status": {"attached": true}}),
            own(),
        ),
        row(
            "delete",
            A,
            "delete it",
            json!({}),
            forbidden(&[Target::Unplaced]),
        ),
        row(
            "create",
            A,
            "create one",
            json!({}),
            forbidden(&[Target::Unplaced]),
        ),
    ]
}

pub(super) fn capacities() -> Vec<Attack> {
    const C: &str = "csistoragecapacities";
    const ELSEWHERE: &str = "the capacity is not that of node";
    const DRIVER: &str = "the capacity is not of driver hostloop.csi.dev";
    let own = || [Yes, No(ELSEWHERE), Nothing, No(DRIVER)];
    let never = |why| [No(why), No(ELSEWHERE), Nothing, No(DRIVER)];
    let keeper = "csi.storage.k8s.io/managed-by";
    let topology =
        json!({"nodeTopology": {"matchLabels": {"topology.hostloop.csi.dev/node": "$OTHER"}}});
    vec![
        row("create", C, "create one", json!({}), own()),
        row(
            "create",
            C,
            "in the name of another node",
            label(keeper, "external-provisioner-$OTHER"),
            [
                No("the capacity is not managed by"),
                No(ELSEWHERE),
                Nothing,
                No(DRIVER),
            ],
        ),
        row(
            "create",
            C,
            "with a finalizer",
            finalizers(&[KEEP]),
            never("a finalizer on a capacity"),
        ),
        row(
            "patch",
            C,
            "change what room there is",
            json!({"capacity": "9Gi"}),
            own(),
        ),
        row(
            "patch",
            C,
            "name its pools",
            annotation("hostloop.csi.dev/pools", json!("x")),
            own(),
        ),
        row(
            "patch",
            C,
            "make it another node's keeper's",
            label(keeper, "external-provisioner-$OTHER"),
            never("the capacity is not managed by"),
        ),
        row("delete", C, "delete it", json!({}), own()),
        // The class and the topology are immutable, so there is no patch to try.
        row(
            "create",
            C,
            "for another driver's class",
            json!({"storageClassName": "$RUN-foreign"}),
            [
                No("the class of the capacity is of another driver"),
                Nothing,
                Nothing,
                Nothing,
            ],
        ),
        row(
            "create",
            C,
            "of another node",
            topology,
            [No(ELSEWHERE), Nothing, Nothing, Nothing],
        ),
    ]
}

pub(super) fn events() -> Vec<Attack> {
    const E: &str = "events";
    const SOURCE: &str = "the event is not one of hostloop.csi.dev on node";
    let own = || [Yes, No(SOURCE), Nothing, No(SOURCE)];
    let never = |why| [No(why), No(SOURCE), Nothing, No(SOURCE)];
    let about = |kind: &str, name: &str| json!({"involvedObject": {"kind": kind, "name": name}});
    vec![
        row("create", E, "about a claim", json!({}), own()),
        row(
            "create",
            E,
            "about a pod",
            about("Pod", "x"),
            never("a node may emit events only about claims"),
        ),
        row(
            "create",
            E,
            "about another node",
            about("Node", "$OTHER"),
            never("a node may emit events only about claims"),
        ),
        row(
            "create",
            E,
            "with an owner",
            owner(),
            never("an event has no owner"),
        ),
        row("patch", E, "count it once more", json!({"count": 2}), own()),
        row(
            "patch",
            E,
            "change what it says",
            json!({"message": "x"}),
            never("only how often an event happened"),
        ),
        row(
            "patch",
            E,
            "set an owner",
            owner(),
            never("only how often an event happened"),
        ),
        row(
            "delete",
            E,
            "delete it",
            json!({}),
            forbidden(&[Target::Unplaced]),
        ),
    ]
}

pub(super) fn leases() -> Vec<Attack> {
    let none = [No(ROLE), Nothing, Nothing, Nothing];
    vec![
        row("create", "leases", "take the lead", json!({}), none.clone()),
        row("patch", "leases", "take the lead", json!({}), none.clone()),
        row("delete", "leases", "end the lead", json!({}), none),
    ]
}
