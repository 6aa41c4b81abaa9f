//! PersistentVolumes.

use super::Outcome::{No, Nothing, Yes};
use super::*;

const ZONE: &str = "topology.kubernetes.io/zone";

pub(super) fn volumes() -> Vec<Attack> {
    const V: &str = "persistentvolumes";
    const MINE: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    // The API server adds this one to every new volume.
    const PROTECTION: &str = "kubernetes.io/pv-protection";
    const ELSEWHERE: &str = "the volume is not on node";
    const DRIVER: &str = "the volume is not of driver hostloop.csi.dev";
    const NEW_ELSEWHERE: &str = "a new volume has to be on node";
    const NEW_DRIVER: &str = "a new volume has to be of driver hostloop.csi.dev";
    let own = || own(ELSEWHERE, ELSEWHERE, DRIVER);
    let never = |why| never(why, [ELSEWHERE, ELSEWHERE, DRIVER]);
    let new = |why| {
        [
            No(why),
            No(NEW_ELSEWHERE),
            No(NEW_ELSEWHERE),
            No(NEW_DRIVER),
        ]
    };
    let create = |what, change, outcomes| row("create", V, what, change, outcomes);
    let patch = |what, change, outcomes| row("patch", V, what, change, outcomes);
    let attached = [KEEP, MINE, PROTECTION, "external-attacher/hostloop-csi-dev"];
    vec![
        create(
            "for a claim, by its UID",
            json!({}),
            [Yes, No(NEW_ELSEWHERE), No(NEW_ELSEWHERE), No(NEW_DRIVER)],
        ),
        create(
            "on another node, too",
            json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{
                "matchExpressions": [{"key": "topology.hostloop.csi.dev/node", "operator": "In",
                "values": ["$OWN", "$OTHER"]}]}]}}}}),
            [No(NEW_ELSEWHERE), Nothing, Nothing, Nothing],
        ),
        create(
            "for no claim",
            json!({"spec": {"claimRef": null}}),
            new("a new volume has to be for one claim"),
        ),
        create(
            "for a claim by its name, without UID",
            json!({"spec": {"claimRef": {"uid": null}}}),
            new("a new volume has to be for one claim"),
        ),
        create(
            "under a name that is not its claim's",
            json!({"metadata": {"name": "pvc-00000000-0000-4000-8000-000000000000"}}),
            new("a new volume has to be for one claim"),
        ),
        create(
            "without a class",
            json!({"spec": {"storageClassName": null}}),
            new("a new volume has to name its StorageClass"),
        ),
        create(
            "that has kubelet read a secret at staging",
            secret_of("nodeStageSecretRef"),
            new("a new volume may name only secrets"),
        ),
        create(
            "that has kubelet read a secret at publishing",
            secret_of("nodePublishSecretRef"),
            new("a new volume may name only secrets"),
        ),
        create(
            "that has kubelet read a secret at expansion",
            secret_of("nodeExpandSecretRef"),
            new("a new volume may name only secrets"),
        ),
        create(
            "that names a secret for a controller",
            secret_of("controllerExpandSecretRef"),
            new("a new volume may name only secrets"),
        ),
        create("with an owner", owner(), new("a new volume has no owner")),
        create(
            "with a finalizer of another component",
            finalizers(&[KEEP]),
            new("a new volume has no owner, and only finalizers"),
        ),
        create(
            "with a label of a zone",
            label(ZONE, "here"),
            new("a new volume has no label but that of its node"),
        ),
        patch(
            "remove the provisioner's finalizer",
            finalizers(&[KEEP, PROTECTION]),
            own(),
        ),
        patch("add the attacher's finalizer", finalizers(&attached), own()),
        patch(
            "remove all finalizers",
            json!({"metadata": {"finalizers": null}}),
            never("only the provisioner's and the attacher's finalizers"),
        ),
        patch(
            "add another finalizer",
            finalizers(&[KEEP, MINE, PROTECTION, "x.example/y"]),
            never("only the provisioner's and the attacher's finalizers"),
        ),
        patch("set an owner", owner(), never("who owns a volume")),
        patch("label it as its own", label(NODE_LABEL, "$OWN"), own()),
        patch(
            "label it as another node's",
            label(NODE_LABEL, "$OTHER"),
            never("no label of a volume but its own name's"),
        ),
        patch(
            "set a label of a zone",
            label(ZONE, "here"),
            never("no label of a volume but its own name's"),
        ),
        patch(
            "set the resizer's annotation",
            annotation(
                "volume.alpha.kubernetes.io/pre-resize-capacity",
                json!("1Gi"),
            ),
            own(),
        ),
        patch(
            "set the secret of its deletion",
            annotation(
                "volume.kubernetes.io/provisioner-deletion-secret-name",
                json!("x"),
            ),
            never("no annotation of a volume but the resizer's"),
        ),
        patch(
            "grow it",
            json!({"spec": {"capacity": {"storage": "2Gi"}}}),
            own(),
        ),
        patch(
            "shrink it",
            json!({"spec": {"capacity": {"storage": "1Mi"}}}),
            never("may only grow"),
        ),
        patch(
            "set its attributes class",
            json!({"spec": {"volumeAttributesClassName": "hostloop-direct"}}),
            own(),
        ),
        patch(
            "have its data deleted",
            json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}),
            never("nothing else it says"),
        ),
        patch(
            "give it to another claim",
            json!({"spec": {"claimRef": {"name": "x", "uid": "x"}}}),
            never("nothing else it says"),
        ),
        patch(
            "change its class",
            json!({"spec": {"storageClassName": "x"}}),
            never("nothing else it says"),
        ),
        patch(
            "change its mount options",
            json!({"spec": {"mountOptions": ["suid"]}}),
            never("nothing else it says"),
        ),
        row("delete", V, "delete it", json!({}), own()),
        row(
            "patch",
            "persistentvolumes/status",
            "set its phase",
            json!({"status": {"phase": "Released"}}),
            never_granted(),
        ),
    ]
}

fn secret_of(part: &str) -> Value {
    json!({"spec": {"csi": {part: {"namespace": "kube-system", "name": "any"}}}})
}
