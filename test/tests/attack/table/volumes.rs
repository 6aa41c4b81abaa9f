//! PersistentVolumes.

use super::Outcome::{No, Nothing};
use super::*;

pub(super) fn volumes() -> Vec<Attack> {
    [new_volumes(), changed_volumes()].concat()
}

const V: &str = "persistentvolumes";
const ZONE: &str = "topology.kubernetes.io/zone";

fn new_volumes() -> Vec<Attack> {
    const ELSEWHERE: &str = "a new volume has to be on node";
    const DRIVER: &str = "a new volume has to be of driver hostloop.csi.dev";
    const CLAIM: &str = "a new volume has to be for one claim";
    const CLASS: &str = "a new volume has to name its StorageClass";
    const SECRET: &str = "a new volume may name only secrets";
    const OWNER: &str = "a new volume has no owner";
    const FINALIZER: &str = "a new volume has no owner, and only finalizers";
    const LABEL: &str = "a new volume has no label but that of its node";
    const LONG: &str = "no long text in its annotations, attributes and options";
    const SUM: &str = "up to 4096 characters of attributes, and as many of options";
    const CLAIM_TEXT: &str = "no long text about its claim and secrets, and few access modes";
    const PLACE: &str = "on one node by labels with one short value each";
    const LABELS: &str = "on one node by few labels";
    const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";
    let others = Others(ELSEWHERE, ELSEWHERE, DRIVER);
    let refused = |why| others.never(why);
    let two_nodes = spec(json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [{
        "matchExpressions": [{"key": "topology.hostloop.csi.dev/node", "operator": "In",
        "values": ["$OWN", "$OTHER"]}]}]}}}));
    let no_claim = spec(json!({"claimRef": null}));
    let no_uid = spec(json!({"claimRef": {"uid": null}}));
    let no_class = spec(json!({"storageClassName": null}));
    let name = json!({"metadata": {"name": "pvc-00000000-0000-4000-8000-000000000000"}});
    let secret = |field: &str| {
        let any = json!({"namespace": "kube-system", "name": "any"});
        spec(json!({"csi": {field: any}}))
    };
    let long_name = annotation(
        "volume.kubernetes.io/provisioner-deletion-secret-name",
        json!(long()),
    );
    let attributes = spec(json!({"csi": {"volumeAttributes": {IDENTITY: long()}}}));
    let options = spec(json!({"mountOptions": [long()]}));
    let kilobyte = "x".repeat(1000);
    let many_options = spec(json!({"mountOptions": vec![kilobyte.as_str(); 64]}));
    let many_attributes: Value = (0..8).map(|n| (format!("a{n}"), json!(kilobyte))).collect();
    let many_attributes = spec(json!({"csi": {"volumeAttributes": many_attributes}}));
    let about_claim = |field: &str| spec(json!({"claimRef": {field: long()}}));
    let modes = spec(json!({"accessModes": vec!["ReadWriteOnce"; 1000]}));
    let place = |others: Vec<Value>| {
        let mut terms = vec![
            json!({"key": "topology.hostloop.csi.dev/node", "operator": "In",
            "values": ["$OWN"]}),
        ];
        terms.extend(others);
        spec(json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": terms}]}}}))
    };
    let label_of = |n: usize, values: Vec<String>| {
        let key = format!("example.com/{n}");
        json!({"key": key, "operator": "NotIn", "values": values})
    };
    let many_values = (0..1000).map(|n| n.to_string()).collect();
    let many_values = place(vec![label_of(0, many_values)]);
    let many_labels = place(
        (0..100)
            .map(|n| label_of(n, vec!["x".to_owned()]))
            .collect(),
    );
    let only_own = |why| [No(why), Nothing, Nothing, Nothing];
    let create = rows("create", V);
    vec![
        create("for a claim, by its UID", json!({}), others.own()),
        create(
            "on another node, too",
            two_nodes,
            [No(ELSEWHERE), Nothing, Nothing, Nothing],
        ),
        create("for no claim", no_claim, refused(CLAIM)),
        create(
            "for a claim by its name, without UID",
            no_uid,
            refused(CLAIM),
        ),
        create("under a name that is not its claim's", name, refused(CLAIM)),
        create("without a class", no_class, refused(CLASS)),
        create(
            "that has kubelet read a secret at staging",
            secret("nodeStageSecretRef"),
            refused(SECRET),
        ),
        create(
            "that has kubelet read a secret at publishing",
            secret("nodePublishSecretRef"),
            refused(SECRET),
        ),
        create(
            "that has kubelet read a secret at expansion",
            secret("nodeExpandSecretRef"),
            refused(SECRET),
        ),
        create(
            "that names a secret for a controller",
            secret("controllerExpandSecretRef"),
            refused(SECRET),
        ),
        create("with an owner", owner(), refused(OWNER)),
        create(
            "with a finalizer of another component",
            finalizers(&[KEEP]),
            refused(FINALIZER),
        ),
        create(
            "with a label of a zone",
            label(ZONE, "here"),
            refused(LABEL),
        ),
        create(
            "with the name of a secret of 200 kB",
            long_name,
            refused(LONG),
        ),
        create("with attributes of 200 kB", attributes, refused(LONG)),
        create("with a mount option of 200 kB", options, refused(LONG)),
        create("with 64 mount options of 1 kB", many_options, refused(SUM)),
        create("with 8 attributes of 1 kB", many_attributes, refused(SUM)),
        create(
            "for a claim with a version of 200 kB",
            about_claim("resourceVersion"),
            refused(CLAIM_TEXT),
        ),
        create(
            "for a part of a claim, in 200 kB",
            about_claim("fieldPath"),
            refused(CLAIM_TEXT),
        ),
        create(
            "with an access mode a thousand times",
            modes,
            refused(CLAIM_TEXT),
        ),
        create(
            "for nodes without a thousand values of a label",
            many_values,
            only_own(PLACE),
        ),
        create(
            "for nodes with a hundred labels",
            many_labels,
            only_own(LABELS),
        ),
    ]
}

fn changed_volumes() -> Vec<Attack> {
    const MINE: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    // The API server adds this one to every new volume.
    const PROTECTION: &str = "kubernetes.io/pv-protection";
    const ATTACHER: &str = "external-attacher/hostloop-csi-dev";
    const ELSEWHERE: &str = "the volume is not on node";
    const DRIVER: &str = "the volume is not of driver hostloop.csi.dev";
    const FINALIZER: &str = "only the provisioner's and the attacher's finalizers";
    const LABEL: &str = "no label of a volume but its own name's";
    const ANNOTATION: &str = "no annotation of a volume but the resizer's";
    const REST: &str = "nothing else it says";
    const RESIZED: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
    const SECRET: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
    let others = Others(ELSEWHERE, ELSEWHERE, DRIVER);
    let own = others.own();
    let never = |why| others.never(why);
    let removed = finalizers(&[KEEP, PROTECTION]);
    let attached = finalizers(&[KEEP, MINE, PROTECTION, ATTACHER]);
    let added = finalizers(&[KEEP, MINE, PROTECTION, "x.example/y"]);
    let resized = annotation(RESIZED, json!("1Gi"));
    let secret = annotation(SECRET, json!("x"));
    let size = |size: &str| spec(json!({"capacity": {"storage": size}}));
    let attributes = spec(json!({"volumeAttributesClassName": "hostloop-direct"}));
    let policy = spec(json!({"persistentVolumeReclaimPolicy": "Delete"}));
    let claim = spec(json!({"claimRef": {"name": "x", "uid": "x"}}));
    let class = spec(json!({"storageClassName": "x"}));
    let options = spec(json!({"mountOptions": ["suid"]}));
    let phase = status(json!({"phase": "Released"}));
    let patch = rows("patch", V);
    vec![
        patch("remove the provisioner's finalizer", removed, own),
        patch("add the attacher's finalizer", attached, own),
        patch("remove all finalizers", no_finalizers(), never(FINALIZER)),
        patch("add another finalizer", added, never(FINALIZER)),
        patch(
            "repeat a finalizer",
            repeated(&[KEEP, MINE, PROTECTION], ATTACHER),
            never(FINALIZER),
        ),
        patch("set an owner", owner(), never("who owns a volume")),
        patch("label it as its own", label(NODE_LABEL, "$OWN"), own),
        patch("label it as another node's", other_label(), never(LABEL)),
        patch("set a label of a zone", label(ZONE, "here"), never(LABEL)),
        patch("set the resizer's annotation", resized, own),
        patch(
            "set it to 200 kB",
            annotation(RESIZED, json!(long())),
            never(ANNOTATION),
        ),
        patch("set the secret of its deletion", secret, never(ANNOTATION)),
        patch("grow it", size("2Gi"), own),
        patch("shrink it", size("1Mi"), never("may only grow")),
        patch("set its attributes class", attributes, own),
        patch("have its data deleted", policy, never(REST)),
        patch("give it to another claim", claim, never(REST)),
        patch("change its class", class, never(REST)),
        patch("change its mount options", options, never(REST)),
        rows("delete", V)("delete it", json!({}), own),
        rows("patch", "persistentvolumes/status")("set its phase", phase, FORBIDDEN),
    ]
}
