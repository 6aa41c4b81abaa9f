//! PersistentVolumeClaims.

use super::Outcome::{No, Nothing, Yes};
use super::*;

pub(super) fn claims() -> Vec<Attack> {
    const C: &str = "persistentvolumeclaims";
    const STATUS: &str = "persistentvolumeclaims/status";
    const ELSEWHERE: &str = "the claim is not one of node";
    const DRIVER: &str = "the claim is not of driver hostloop.csi.dev";
    const CLONE: &str = "provisioner.storage.kubernetes.io/cloning-protection";
    const PROTECTION: &str = "kubernetes.io/pvc-protection";
    const SELECTED: &str = "volume.kubernetes.io/selected-node";
    let own = || own(ELSEWHERE, ELSEWHERE, DRIVER);
    let never = |why| never(why, [ELSEWHERE, ELSEWHERE, DRIVER]);
    let patch = |what, change, outcomes| row("patch", C, what, change, outcomes);
    let status = |what, change, outcomes| row("patch", STATUS, what, change, outcomes);
    vec![
        patch(
            "keep it while it is cloned",
            finalizers(&[KEEP, PROTECTION, CLONE]),
            own(),
        ),
        patch(
            "add another finalizer",
            finalizers(&[KEEP, PROTECTION, "x.example/y"]),
            never("and remove none"),
        ),
        patch(
            "remove a finalizer",
            finalizers(&[PROTECTION]),
            never("and remove none"),
        ),
        patch(
            "remove all finalizers",
            json!({"metadata": {"finalizers": null}}),
            never("and remove none"),
        ),
        patch("set an owner", owner(), never("who owns a claim")),
        patch(
            "give it back to the scheduler",
            annotation(SELECTED, Value::Null),
            [Yes, No(ELSEWHERE), Nothing, No(DRIVER)],
        ),
        patch(
            "select another node for it",
            annotation(SELECTED, json!("$OTHER")),
            [
                No("this annotation of a claim"),
                Nothing,
                No(ELSEWHERE),
                No(DRIVER),
            ],
        ),
        patch(
            "select this node for it",
            annotation(SELECTED, json!("$OWN")),
            [Nothing, No(ELSEWHERE), No(ELSEWHERE), Nothing],
        ),
        patch(
            "hand it to another provisioner",
            annotation("volume.kubernetes.io/storage-provisioner", json!("x")),
            never("this annotation of a claim"),
        ),
        patch(
            "take it from another provisioner",
            annotation(
                "volume.kubernetes.io/storage-provisioner",
                json!("hostloop.csi.dev"),
            ),
            [Nothing, Nothing, Nothing, No(DRIVER)],
        ),
        patch("label it as its own", label(NODE_LABEL, "$OWN"), own()),
        patch(
            "label it as another node's",
            label(NODE_LABEL, "$OTHER"),
            never("no label of a claim but its own name's"),
        ),
        patch(
            "change another label",
            label("app", "x"),
            never("no label of a claim but its own name's"),
        ),
        patch(
            "bind it to a volume",
            json!({"spec": {"volumeName": "x"}}),
            never("what a claim asks for"),
        ),
        status(
            "say how far its expansion is",
            json!({"status": {"conditions": [{"type": "Resizing", "status": "True"}]}}),
            own(),
        ),
        status(
            "say that its node need not expand it",
            annotation(
                "volume.kubernetes.io/node-expansion-not-required",
                json!("true"),
            ),
            own(),
        ),
        status(
            "say that it is to have what it asks for",
            allocated("1Gi"),
            own(),
        ),
        // A ResourceQuota counts the larger of the two.
        status(
            "say that it is to have more than it asks for",
            allocated("1Ti"),
            never("more room than it asks for"),
        ),
        status(
            "say that it has another attributes class",
            json!({"status": {"currentVolumeAttributesClassName": "x"}}),
            never("an attributes class that a claim"),
        ),
        status(
            "say that it is to have another attributes class",
            json!({"status": {"modifyVolumeStatus": {"status": "InProgress",
                "targetVolumeAttributesClassName": "x"}}}),
            never("an attributes class that a claim"),
        ),
        status(
            "say that it is lost",
            json!({"status": {"phase": "Lost"}}),
            never("whether a claim is bound"),
        ),
        status("set an owner", owner(), never("who owns a claim")),
        status(
            "remove all finalizers",
            json!({"metadata": {"finalizers": null}}),
            never("and remove none"),
        ),
        row("delete", C, "delete it", json!({}), never_granted()),
        row("create", C, "create one", json!({}), never_granted()),
    ]
}

fn allocated(size: &str) -> Value {
    json!({"status": {"allocatedResources": {"storage": size}}})
}
