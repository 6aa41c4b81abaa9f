//! Objects of a node itself: attachments, capacities, events, and the leader's lease.

use super::Outcome::{No, Nothing, Yes};
use super::*;

pub(super) fn attachments() -> Vec<Attack> {
    const A: &str = "volumeattachments";
    const ELSEWHERE: &str = "the attachment is not one to node";
    const DRIVER: &str = "the attachment is not of driver hostloop.csi.dev";
    const FINALIZER: &str = "no finalizer of an attachment but the attacher's";
    const ANNOTATION: &str = "no annotation of an attachment but that of its ID";
    // The API server itself answers first.
    const PREFIX: &str = "metadata.generateName: Invalid value";
    const METADATA: &str = "about an attachment, and little metadata";
    // The API server itself answers first.
    const LONG: [Outcome; 4] = {
        const LONG: Outcome = No("may not be more than 1024 bytes");
        [LONG, LONG, Nothing, LONG]
    };
    const ATTACHER: &str = "external-attacher/hostloop-csi-dev";
    let own = [Yes, No(ELSEWHERE), Nothing, No(DRIVER)];
    let never = |why| [No(why), No(ELSEWHERE), Nothing, No(DRIVER)];
    let patch = rows("patch", A);
    let detached = finalizers(&[KEEP]);
    let node_id = annotation("csi.alpha.kubernetes.io/node-id", json!("x"));
    let other = annotation("x", json!("y"));
    let long_id = annotation("csi.alpha.kubernetes.io/node-id", json!(long()));
    let attached = status(json!({"attached": true}));
    let failed = |message: String| status(json!({"attachError": {"message": message}}));
    let failed_at = |time| status(json!({"attachError": {"message": "x", "time": time}}));
    let mut since = managed(
        "storage.k8s.io/v1",
        json!({"f:spec": {"f:attacher": {}}}),
        LATE,
    );
    since["metadata"]["annotations"] = node_id["metadata"]["annotations"].clone();
    let metadata = status(json!({"attachmentMetadata": {"x": long()}}));
    let patch_status = rows("patch", "volumeattachments/status");
    let mut attacks = vec![
        patch("remove the attacher's finalizer", detached, own),
        patch("remove all finalizers", no_finalizers(), never(FINALIZER)),
        patch("set the node's ID", node_id, own),
        patch("set another annotation", other, never(ANNOTATION)),
        patch("set a node's ID of 200 kB", long_id, never(ANNOTATION)),
        patch(
            "repeat a finalizer",
            repeated(&[KEEP], ATTACHER),
            never(FINALIZER),
        ),
        patch("set an owner", owner(), never("who owns it")),
        patch("set a label", label("app", "x"), never("or its labels")),
        patch(
            "set a prefix of its name of 200 kB",
            name_prefix(),
            [No(PREFIX), No(PREFIX), Nothing, No(PREFIX)],
        ),
        patch_status("say that it is attached", attached, own),
        patch_status("say in 1 kB why it is not", failed("x".repeat(1024)), own),
        patch_status("say in 200 kB why it is not", failed(long()), LONG),
        patch_status(
            "say that it failed in the year 10000",
            failed_at(LATE),
            never(TIME),
        ),
        patch_status(
            "say that it failed on the last day of the year 9999",
            failed_at(LAST_DAY),
            never(TIME),
        ),
        patch_status(
            "say that it failed in the year -1",
            failed_at(EARLY),
            never(TIME),
        ),
        patch(
            "say that a field has a manager since the year 10000",
            since,
            [No(MANAGER_TIME), No(DENIED), Nothing, No(DENIED)],
        ),
        patch_status("hand kubelet 200 kB with it", metadata, never(METADATA)),
    ];
    let forbidden = [No(ROLE), No(ROLE), Nothing, No(ROLE)];
    attacks.extend(only_changed(A, forbidden));
    attacks
}

/// The annotation of a capacity that names these pools.
fn pools(names: &[&str]) -> Value {
    annotation("hostloop.csi.dev/pools", json!(names.join(",")))
}

/// The annotation of a capacity that says where its node serves changed blocks.
fn endpoint(text: &str) -> Value {
    annotation("hostloop.csi.dev/snapshot-metadata", json!(text))
}

pub(super) fn capacities() -> Vec<Attack> {
    const C: &str = "csistoragecapacities";
    const ELSEWHERE: &str = "the capacity is not that of node";
    const DRIVER: &str = "the capacity is not of driver hostloop.csi.dev";
    const MANAGED: &str = "the capacity is not managed by";
    const FINALIZER: &str = "a finalizer on a capacity";
    const CLASS: &str = "the class of the capacity is of another driver";
    const OWNER: &str = "a capacity is owned by the DaemonSet";
    const MARKS: &str = "the labels of its driver and its node, and the annotations of its pools";
    const PLACE: &str = "a capacity is of one place";
    const IDS: &str = "a capacity names up to 16 pools, by their IDs";
    const POOL: &str = "00c0ffee00c0ffee";
    const ENDPOINT: &str = "a capacity names an address and the hash of a certificate";
    let own = [Yes, No(ELSEWHERE), Nothing, No(DRIVER)];
    let never = |why| [No(why), No(ELSEWHERE), Nothing, No(DRIVER)];
    let manager = "csi.storage.k8s.io/managed-by";
    let other = || label(manager, "external-provisioner-$OTHER");
    let owned = |kind: &str, name: &str| {
        json!({"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": kind,
            "name": name, "uid": "00000000-0000-4000-8000-00000000dead"}]}})
    };
    let mut waited_for = owned("DaemonSet", "hostloop");
    waited_for["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(true);
    let everywhere = json!({"nodeTopology": {"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "Exists"}]}});
    let labels: Value = (0..100)
        .map(|n| (format!("example.com/{n}"), json!("x")))
        .collect();
    let narrow = json!({"nodeTopology": {"matchLabels": labels}});
    let class = json!({"storageClassName": "$RUN-foreign"});
    let topology =
        json!({"nodeTopology": {"matchLabels": {"topology.hostloop.csi.dev/node": "$OTHER"}}});
    let (create, patch) = (rows("create", C), rows("patch", C));
    vec![
        create("create one", json!({}), own),
        create("in the name of another node", other(), never(MANAGED)),
        create("with a finalizer", finalizers(&[KEEP]), never(FINALIZER)),
        create(
            "owned by its pod's DaemonSet",
            owned("DaemonSet", "hostloop"),
            own,
        ),
        create("with an owner", owner(), never(OWNER)),
        create(
            "owned by another DaemonSet",
            owned("DaemonSet", "x"),
            never(OWNER),
        ),
        create(
            "owned by a DaemonSet with a name of 200 kB",
            owned("DaemonSet", &format!("hostloop{}", long())),
            [
                No("owners with names of up to 253 characters"),
                No(DENIED),
                Nothing,
                No(DENIED),
            ],
        ),
        create(
            "that its owner's deletion waits for",
            waited_for,
            never(OWNER),
        ),
        create("with a label", label("app", "x"), never(MARKS)),
        create(
            "with an annotation of 200 kB",
            annotation("x", json!(long())),
            never(MARKS),
        ),
        create("with 16 pools", pools(&[POOL; 16]), own),
        create("with 17 pools", pools(&[POOL; 17]), never(IDS)),
        create(
            "with a part of all handles as its pool",
            pools(&["vol", "snap", "group"]),
            never(IDS),
        ),
        create("with pools of 200 kB", pools(&[&long()]), never(IDS)),
        create(
            "with the endpoint of its changed blocks",
            endpoint(&format!("10.0.0.7:50051/{}", "0f".repeat(32))),
            own,
        ),
        create(
            "with an endpoint that has a name",
            endpoint(&format!("example.com:443/{}", "0f".repeat(32))),
            never(ENDPOINT),
        ),
        create(
            "with an endpoint of 200 kB",
            endpoint(&long()),
            never(ENDPOINT),
        ),
        create("of all nodes, too", everywhere, never(PLACE)),
        create("with a hundred labels to select by", narrow, never(PLACE)),
        patch("change what room there is", json!({"capacity": "9Gi"}), own),
        patch("name its pools", pools(&[POOL, "0123456789abcdef"]), own),
        patch(
            "name a part of all handles as its pool",
            pools(&["vol"]),
            never(IDS),
        ),
        patch("name pools in 200 kB", pools(&[&long()]), never(IDS)),
        patch(
            "name the endpoint of its changed blocks",
            endpoint(&format!("[fd00::7]:50051/{}", "0f".repeat(32))),
            own,
        ),
        patch(
            "name an endpoint without a certificate",
            endpoint("10.0.0.7:50051"),
            never(ENDPOINT),
        ),
        patch(
            "set another annotation of 200 kB",
            annotation("x", json!(long())),
            never(MARKS),
        ),
        patch("set a label", label("app", "x"), never(MARKS)),
        patch("set an owner", owner(), never(OWNER)),
        patch("add a finalizer", finalizers(&[KEEP]), never(FINALIZER)),
        patch("make it another node's keeper's", other(), never(MANAGED)),
        rows("delete", C)("delete it", json!({}), own),
        // The class and the topology are immutable, so there is no patch to try.
        create(
            "for another driver's class",
            class,
            [No(CLASS), Nothing, Nothing, Nothing],
        ),
        create(
            "of another node",
            topology,
            [No(ELSEWHERE), Nothing, Nothing, Nothing],
        ),
    ]
}

pub(super) fn events() -> Vec<Attack> {
    const E: &str = "events";
    const SOURCE: &str = "the event is not one of hostloop.csi.dev on node";
    const ABOUT: &str = "a node may emit events only about claims";
    const COUNT: &str = "only how often an event happened";
    const SHORT: &str = "an event has a message of up to 1024 characters, and no label";
    let own = [Yes, No(SOURCE), Nothing, No(SOURCE)];
    let never = |why| [No(why), No(SOURCE), Nothing, No(SOURCE)];
    let about = |kind: &str, name: &str| json!({"involvedObject": {"kind": kind, "name": name}});
    let series = json!({"series": {"count": 2, "lastObservedTime": "9999-12-31T12:00:00.000000Z"}});
    // Fields that the object has go to the manager of the request.
    let since = managed("v1", json!({"f:series": {}}), LATE);
    let (create, patch) = (rows("create", E), rows("patch", E));
    vec![
        create("about a claim", json!({}), own),
        create("about a pod", about("Pod", "x"), never(ABOUT)),
        create("about another node", about("Node", "$OTHER"), never(ABOUT)),
        create("with an owner", owner(), never("an event has no owner")),
        create("in 200 kB", json!({"message": long()}), never(SHORT)),
        create("of a type of 200 kB", json!({"type": long()}), never(SHORT)),
        create(
            "about a claim with a version of 200 kB",
            json!({"involvedObject": {"resourceVersion": long()}}),
            never(SHORT),
        ),
        create(
            "under a name of 1 kB",
            json!({"metadata": {"name": "x".repeat(1024)}}),
            [
                No("a name of up to 300 characters"),
                No(DENIED),
                Nothing,
                No(DENIED),
            ],
        ),
        create("with a label", label("app", "x"), never(SHORT)),
        create(
            "with an annotation of 200 kB",
            annotation("x", json!(long())),
            never(SHORT),
        ),
        create(
            "first in the year 10000",
            json!({"firstTimestamp": LATE}),
            never(TIME),
        ),
        create(
            "of a series until the last day of the year 9999",
            series,
            never(TIME),
        ),
        create(
            "with a field that has a manager since the year 10000",
            since,
            [No(MANAGER_TIME), No(DENIED), Nothing, No(DENIED)],
        ),
        patch("count it once more", json!({"count": 2}), own),
        patch(
            "say that it last happened on the last day of the year 9999",
            json!({"lastTimestamp": LAST_DAY}),
            never(TIME),
        ),
        patch(
            "say that it last happened in the year -1",
            json!({"lastTimestamp": EARLY}),
            never(TIME),
        ),
        patch("change what it says", json!({"message": "x"}), never(COUNT)),
        patch("set an owner", owner(), never(COUNT)),
        rows("delete", E)(
            "delete it",
            json!({}),
            [No(ROLE), No(ROLE), Nothing, No(ROLE)],
        ),
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
