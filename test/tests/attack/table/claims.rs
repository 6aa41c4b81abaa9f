//! PersistentVolumeClaims.

use super::Outcome::{No, Nothing, Yes};
use super::*;

const C: &str = "persistentvolumeclaims";
const ELSEWHERE: &str = "the claim is not one of node";
const DRIVER: &str = "the claim is not of driver hostloop.csi.dev";
const REMOVED: &str = "and remove none";
const ANNOTATION: &str = "this annotation of a claim";
const LABEL: &str = "no label of a claim but its own name's";
const CLASS: &str = "an attributes class that a claim";
const MESSAGE: &str = "up to 4096 characters into the conditions of a claim";
const STORAGE: &str = "how much storage it has";
const HEALTH: &str = "the health of no claim but one that is bound";
const NAME: &str = "a name of up to 300 characters";
const CLONE: &str = "provisioner.storage.kubernetes.io/cloning-protection";
const PROTECTION: &str = "kubernetes.io/pvc-protection";
const SELECTED: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const FAULT: &str = "hostloop.csi.dev/fault";
const EXPANDED: &str = "volume.kubernetes.io/node-expansion-not-required";
const OTHERS: Others = Others(ELSEWHERE, ELSEWHERE, DRIVER);

fn never(why: &'static str) -> [Outcome; 4] {
    OTHERS.never(why)
}

/// Requests about claims and their status.
pub(super) fn claims() -> Vec<Attack> {
    let mut attacks = of_claims();
    attacks.extend(of_statuses());
    attacks.extend(only_changed(C, FORBIDDEN));
    attacks
}

fn of_claims() -> Vec<Attack> {
    let own = OTHERS.own();
    let patch = rows("patch", C);
    let cloned = finalizers(&[KEEP, PROTECTION, CLONE]);
    let added = finalizers(&[KEEP, PROTECTION, "x.example/y"]);
    let mut since = managed("v1", json!({"f:spec": {"f:volumeMode": {}}}), LAST_DAY);
    since["metadata"]["finalizers"] = cloned["metadata"]["finalizers"].clone();
    let no_node = annotation(SELECTED, Value::Null);
    let other_node = annotation(SELECTED, json!("$OTHER"));
    let given = annotation(PROVISIONER, json!("x"));
    let taken = annotation(PROVISIONER, json!("hostloop.csi.dev"));
    vec![
        patch("keep it while it is cloned", cloned, own),
        patch(
            "say that a field has a manager since the last day of the year 9999",
            since,
            [No(MANAGER_TIME), No(DENIED), No(DENIED), No(DENIED)],
        ),
        patch("add another finalizer", added, never(REMOVED)),
        patch(
            "remove a finalizer",
            finalizers(&[PROTECTION]),
            never(REMOVED),
        ),
        patch("remove all finalizers", no_finalizers(), never(REMOVED)),
        patch(
            "repeat a finalizer",
            repeated(&[KEEP, PROTECTION], CLONE),
            never(REMOVED),
        ),
        patch("set an owner", owner(), never("who owns a claim")),
        patch(
            "give it back to the scheduler",
            no_node,
            [Yes, No(ELSEWHERE), Nothing, No(DRIVER)],
        ),
        patch(
            "select another node for it",
            other_node,
            [No(ANNOTATION), Nothing, No(ELSEWHERE), No(DRIVER)],
        ),
        patch(
            "select this node for it",
            annotation(SELECTED, json!("$OWN")),
            [Nothing, No(ELSEWHERE), No(ELSEWHERE), Nothing],
        ),
        patch("hand it to another provisioner", given, never(ANNOTATION)),
        patch(
            "take it from another provisioner",
            taken,
            [Nothing, Nothing, Nothing, No(DRIVER)],
        ),
        patch(
            "ask for a fault of its volume",
            annotation(FAULT, json!("gone")),
            never(ANNOTATION),
        ),
        patch("label it as its own", label(NODE_LABEL, "$OWN"), own),
        patch("label it as another node's", other_label(), never(LABEL)),
        patch("change another label", label("app", "x"), never(LABEL)),
        patch(
            "bind it to a volume",
            spec(json!({"volumeName": "x"})),
            never("what a claim asks for"),
        ),
    ]
}

fn of_statuses() -> Vec<Attack> {
    let own = OTHERS.own();
    let patch = rows("patch", "persistentvolumeclaims/status");
    let resizing = json!({"conditions": [{"type": "Resizing", "status": "True"}]});
    let expanded = annotation(EXPANDED, json!("true"));
    let condition = |message: String| {
        status(json!({"conditions": [{"type": "Resizing", "status": "True", "message": message}]}))
    };
    let many = (0..100).map(|n| json!({"type": format!("x{n}"), "status": "True"}));
    let many = status(json!({"conditions": many.collect::<Value>()}));
    let allocated = |size: &str| status(json!({"allocatedResources": {"storage": size}}));
    let text = |field: &str| {
        let mut long_text = json!({"type": "Resizing", "status": "True"});
        long_text[field] = json!(long());
        status(json!({"conditions": [long_text]}))
    };
    let at = |field: &str, time: &str| {
        let mut condition = json!({"type": "Resizing", "status": "True"});
        condition[field] = json!(time);
        status(json!({"conditions": [condition]}))
    };
    let resources = |field: &str, value: &str| {
        let all: Value = (0..1000)
            .map(|n| (format!("example.com/{n}"), json!(value)))
            .collect();
        status(json!({field: all}))
    };
    let modified = json!({"modifyVolumeStatus": {"status": long(),
        "targetVolumeAttributesClassName": ""}});
    let denied = |why| [No(why), No(DENIED), No(DENIED), No(DENIED)];
    let class = json!({"currentVolumeAttributesClassName": "x"});
    let target = json!({"modifyVolumeStatus": {"status": "InProgress",
        "targetVolumeAttributesClassName": "x"}});
    vec![
        patch("say how far its expansion is", status(resizing), own),
        patch(
            "say in 4 kB how far it is",
            condition("x".repeat(4096)),
            own,
        ),
        patch(
            "say in 200 kB how far it is",
            condition(long()),
            never(MESSAGE),
        ),
        patch("set a hundred conditions", many, never(MESSAGE)),
        patch(
            "set a condition with a type of 200 kB",
            text("type"),
            never(MESSAGE),
        ),
        patch(
            "set a condition with a status of 200 kB",
            text("status"),
            never(MESSAGE),
        ),
        patch(
            "set a condition of the year 10000",
            at("lastTransitionTime", LATE),
            never(TIME),
        ),
        patch(
            "set a condition that was tried in the year 10000",
            at("lastProbeTime", LATE),
            never(TIME),
        ),
        patch(
            "set a condition of the last day of the year 9999",
            at("lastTransitionTime", LAST_DAY),
            never(TIME),
        ),
        patch(
            "set a condition of the year -1",
            at("lastTransitionTime", EARLY),
            never(TIME),
        ),
        patch(
            "say that it has a thousand resources",
            resources("capacity", "1"),
            never(STORAGE),
        ),
        patch(
            "say that it is to have a thousand resources",
            resources("allocatedResources", "1"),
            never(STORAGE),
        ),
        patch(
            "say how far a thousand resources are",
            resources("allocatedResourceStatuses", "NodeResizePending"),
            never(STORAGE),
        ),
        patch(
            "say in 200 kB how far its attributes are",
            status(modified),
            never(STORAGE),
        ),
        patch(
            "set a prefix of its name of 200 kB",
            name_prefix(),
            denied(NAME),
        ),
        patch("say that its node need not expand it", expanded, own),
        patch(
            "say so in 200 kB",
            annotation(EXPANDED, json!(long())),
            never(ANNOTATION),
        ),
        patch(
            "ask for a fault of its volume",
            annotation(FAULT, json!("gone")),
            never(ANNOTATION),
        ),
        patch(
            "say that it is to have what it asks for",
            allocated("1Gi"),
            own,
        ),
        // A ResourceQuota counts the larger of the two.
        patch(
            "say that it is to have more than it asks for",
            allocated("1Ti"),
            never("more room than it asks for"),
        ),
        patch(
            "say that it has another attributes class",
            status(class),
            never(CLASS),
        ),
        patch(
            "say that it is to have another attributes class",
            status(target),
            never(CLASS),
        ),
        patch(
            "say that it is lost",
            status(json!({"phase": "Lost"})),
            never("whether a claim is bound"),
        ),
        patch(
            "say how its volume is before it has one",
            status(json!({"healthStatus": {"healthConditions": [
                {"status": "Degraded", "reason": "Full"}]}})),
            never(HEALTH),
        ),
        patch("set an owner", owner(), never("who owns a claim")),
        patch("remove all finalizers", no_finalizers(), never(REMOVED)),
    ]
}
