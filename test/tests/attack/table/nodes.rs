//! Objects of a node itself: attachments, capacities, events, and the leader's lease.

use super::Outcome::{No, Nothing, Yes};
use super::*;

pub(super) fn attachments() -> Vec<Attack> {
    const A: &str = "volumeattachments";
    const ELSEWHERE: &str = "the attachment is not one to node";
    const DRIVER: &str = "the attachment is not of driver hostloop.csi.dev";
    const FINALIZER: &str = "no finalizer of an attachment but the attacher's";
    const ANNOTATION: &str = "no annotation of an attachment but that of its ID";
    let own = [Yes, No(ELSEWHERE), Nothing, No(DRIVER)];
    let never = |why| [No(why), No(ELSEWHERE), Nothing, No(DRIVER)];
    let patch = rows("patch", A);
    let detached = finalizers(&[KEEP]);
    let node_id = annotation("csi.alpha.kubernetes.io/node-id", json!("x"));
    let other = annotation("x", json!("y"));
    let attached = status(json!({"attached": true}));
    let mut attacks = vec![
        patch("remove the attacher's finalizer", detached, own),
        patch("remove all finalizers", no_finalizers(), never(FINALIZER)),
        patch("set the node's ID", node_id, own),
        patch("set another annotation", other, never(ANNOTATION)),
        patch("set an owner", owner(), never("who owns it")),
        patch("set a label", label("app", "x"), never("or its labels")),
        rows("patch", "volumeattachments/status")("say that it is attached", attached, own),
    ];
    let forbidden = [No(ROLE), No(ROLE), Nothing, No(ROLE)];
    attacks.extend(only_changed(A, forbidden));
    attacks
}

pub(super) fn capacities() -> Vec<Attack> {
    const C: &str = "csistoragecapacities";
    const ELSEWHERE: &str = "the capacity is not that of node";
    const DRIVER: &str = "the capacity is not of driver hostloop.csi.dev";
    const MANAGED: &str = "the capacity is not managed by";
    const FINALIZER: &str = "a finalizer on a capacity";
    const CLASS: &str = "the class of the capacity is of another driver";
    let own = [Yes, No(ELSEWHERE), Nothing, No(DRIVER)];
    let never = |why| [No(why), No(ELSEWHERE), Nothing, No(DRIVER)];
    let manager = "csi.storage.k8s.io/managed-by";
    let other = || label(manager, "external-provisioner-$OTHER");
    let pools = annotation("hostloop.csi.dev/pools", json!("x"));
    let class = json!({"storageClassName": "$RUN-foreign"});
    let topology =
        json!({"nodeTopology": {"matchLabels": {"topology.hostloop.csi.dev/node": "$OTHER"}}});
    let (create, patch) = (rows("create", C), rows("patch", C));
    vec![
        create("create one", json!({}), own),
        create("in the name of another node", other(), never(MANAGED)),
        create("with a finalizer", finalizers(&[KEEP]), never(FINALIZER)),
        patch("change what room there is", json!({"capacity": "9Gi"}), own),
        patch("name its pools", pools, own),
        patch("make it another node's keeper's", other(), never(MANAGED)),
        rows("delete", C)("delete it", json!({}), own),
        // The class and the topology are immutable, so there is no patch to try.
        create("for another driver's class", class, [No(CLASS), Nothing, Nothing, Nothing]),
        create("of another node", topology, [No(ELSEWHERE), Nothing, Nothing, Nothing]),
    ]
}

pub(super) fn events() -> Vec<Attack> {
    const E: &str = "events";
    const SOURCE: &str = "the event is not one of hostloop.csi.dev on node";
    const ABOUT: &str = "a node may emit events only about claims";
    const COUNT: &str = "only how often an event happened";
    let own = [Yes, No(SOURCE), Nothing, No(SOURCE)];
    let never = |why| [No(why), No(SOURCE), Nothing, No(SOURCE)];
    let about = |kind: &str, name: &str| json!({"involvedObject": {"kind": kind, "name": name}});
    let (create, patch) = (rows("create", E), rows("patch", E));
    vec![
        create("about a claim", json!({}), own),
        create("about a pod", about("Pod", "x"), never(ABOUT)),
        create("about another node", about("Node", "$OTHER"), never(ABOUT)),
        create("with an owner", owner(), never("an event has no owner")),
        patch("count it once more", json!({"count": 2}), own),
        patch("change what it says", json!({"message": "x"}), never(COUNT)),
        patch("set an owner", owner(), never(COUNT)),
        rows("delete", E)("delete it", json!({}), [No(ROLE), No(ROLE), Nothing, No(ROLE)]),
    ]
}

pub(super) fn leases() -> Vec<Attack> {
    let none = [No(ROLE), Nothing, Nothing, Nothing];
    let row = |verb, what| rows(verb, "leases")(what, json!({}), none);
    vec![
        row("create", "take the lead"),
        row("patch", "take the lead"),
        row("delete", "end the lead"),
    ]
}
