//! The attack table: what a node tries, and what comes of it by whose object it tries it on.

use serde_json::{Value, json};

use crate::target::Target;

/// What comes of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done.
    Yes,
    /// It is refused, with these words.
    No(&'static str),
    /// There is no such object, or nothing to change.
    Nothing,
}

impl Outcome {
    /// What is wrong with what was found, if anything.
    pub(crate) fn differs_from(&self, found: &Result<(), String>) -> Option<String> {
        match (self, found) {
            (Outcome::Yes, Ok(())) | (Outcome::Nothing, _) => None,
            (Outcome::No(words), Err(why)) if why.contains(words) => None,
            (Outcome::Yes, Err(why)) => Some(format!("refused: {why}")),
            (Outcome::No(words), Err(why)) => Some(format!("refused, but not as {words:?}: {why}")),
            (Outcome::No(words), Ok(())) => Some(format!("let through, not refused as {words:?}")),
        }
    }
}

/// One try.
pub(crate) struct Attack {
    pub(crate) verb: &'static str,
    /// A subresource is behind a slash.
    pub(crate) resource: &'static str,
    /// What it changes, in words.
    pub(crate) what: &'static str,
    /// The change, merged into the object. `$OWN` and `$OTHER` are nodes' names.
    pub(crate) change: Value,
    /// By whose object it is: see [`crate::target::Target::ALL`].
    pub(crate) outcomes: [Outcome; 4],
}

impl Attack {
    /// One that is not in the table.
    pub(crate) fn of_own(verb: &'static str, resource: &'static str, change: Value) -> Attack {
        let outcomes = Target::ALL.map(|_| Outcome::Nothing);
        row(verb, resource, "", change, outcomes)
    }
}

/// What may be read.
pub(crate) struct Read {
    pub(crate) resource: &'static str,
    pub(crate) verbs: &'static [&'static str],
    /// Where; empty is everywhere.
    pub(crate) namespace: &'static str,
    /// The name that may be read, where it is one alone.
    pub(crate) name: &'static str,
}

impl Read {
    /// Each verb with the resource.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.verbs.iter().map(|verb| (*verb, self.resource))
    }
}

/// What the API server says where no role grants a verb.
pub(crate) const ROLE: &str = "cannot";

const ALL: &[&str] = &["get", "list", "watch"];

const fn read(resource: &'static str, verbs: &'static [&'static str]) -> Read {
    Read {
        resource,
        verbs,
        namespace: "",
        name: "none",
    }
}

const fn read_in_own_namespace(
    resource: &'static str,
    verbs: &'static [&'static str],
    name: &'static str,
) -> Read {
    Read {
        resource,
        verbs,
        namespace: "hostloop",
        name,
    }
}

/// What the account reads.
pub(crate) fn reads() -> Vec<Read> {
    vec![
        read("persistentvolumes", ALL),
        read("persistentvolumeclaims", ALL),
        read("storageclasses", ALL),
        read("volumeattributesclasses", ALL),
        read("csinodes", ALL),
        read("csidrivers", &["list", "watch"]),
        read("nodes", &["get"]),
        read("pods", &["list", "watch"]),
        read("volumeattachments", &["list", "watch"]),
        read("volumesnapshots", &["get"]),
        read("volumesnapshotcontents", ALL),
        read("volumesnapshotclasses", &["list", "watch"]),
        read("volumegroupsnapshotcontents", ALL),
        read("volumegroupsnapshotclasses", &["list", "watch"]),
        read_in_own_namespace("pods", &["get"], "none"),
        read_in_own_namespace("csistoragecapacities", &["list", "watch"], "none"),
        read_in_own_namespace("leases", &["get"], "hostloop-hostloop-csi-dev"),
    ]
}

/// What it must not read.
pub(crate) fn hidden() -> Vec<Read> {
    vec![
        read("secrets", ALL),
        read_in_own_namespace("secrets", ALL, "none"),
        read_in_own_namespace("configmaps", ALL, "none"),
        read_in_own_namespace("leases", &["list", "watch"], "none"),
        read("nodes", &["list", "watch"]),
    ]
}

fn row(
    verb: &'static str,
    resource: &'static str,
    what: &'static str,
    change: Value,
    outcomes: [Outcome; 4],
) -> Attack {
    Attack {
        verb,
        resource,
        what,
        change,
        outcomes,
    }
}

/// Everything that is tried.
pub(crate) fn attacks() -> Vec<Attack> {
    let parts = [
        volumes(),
        claims(),
        attachments(),
        capacities(),
        snapshots(),
        contents(),
        group_contents(),
        events(),
        leases(),
    ];
    parts.into_iter().flatten().collect()
}

use Outcome::{No, Nothing, Yes};

/// Its own alone.
fn own(other: &'static str, unplaced: &'static str, foreign: &'static str) -> [Outcome; 4] {
    [Yes, No(other), No(unplaced), No(foreign)]
}

/// Not even its own.
fn never(why: &'static str, other: [&'static str; 3]) -> [Outcome; 4] {
    let [another, unplaced, foreign] = other;
    [No(why), No(another), No(unplaced), No(foreign)]
}

fn finalizers(all: &[&str]) -> Value {
    json!({"metadata": {"finalizers": all}})
}

fn annotation(key: &str, value: Value) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

fn label(key: &str, value: &str) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

/// An owner that does not exist: the cluster deletes what it owns.
fn owner() -> Value {
    json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap",
        "name": "gone", "uid": "00000000-0000-4000-8000-00000000dead"}]}})
}

fn secret_of(part: &str) -> Value {
    json!({"spec": {"csi": {part: {"namespace": "kube-system", "name": "any"}}}})
}

const KEEP: &str = crate::target::KEEP;
const NODE_LABEL: &str = "hostloop.csi.dev/node";
const ZONE: &str = "topology.kubernetes.io/zone";

fn volumes() -> Vec<Attack> {
    const V: &str = "persistentvolumes";
    const MINE: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    // The API server puts it on each new volume.
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

/// No role grants the verb.
fn never_granted() -> [Outcome; 4] {
    never(ROLE, [ROLE, ROLE, ROLE])
}

fn claims() -> Vec<Attack> {
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

fn attachments() -> Vec<Attack> {
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

/// No role grants the verb; but there is nothing to try it on for these.
fn forbidden(but: &[Target]) -> [Outcome; 4] {
    Target::ALL.map(|target| match but.contains(&target) {
        true => Nothing,
        false => No(ROLE),
    })
}

fn capacities() -> Vec<Attack> {
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
        // The topology can't be changed at all.
        row(
            "create",
            C,
            "of another node",
            topology,
            [No(ELSEWHERE), Nothing, Nothing, Nothing],
        ),
    ]
}

fn snapshots() -> Vec<Attack> {
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
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

fn contents() -> Vec<Attack> {
    const C: &str = "volumesnapshotcontents";
    const STATUS: &str = "volumesnapshotcontents/status";
    const CREATING: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    of_contents(C, CREATING)
        .into_iter()
        .chain([
            row(
                "patch",
                C,
                "change whether its snapshot is kept",
                json!({"spec": {"deletionPolicy": "Delete"}}),
                never(
                    "whether its snapshot is kept",
                    [MANAGED, UNMANAGED, CONTENT_DRIVER],
                ),
            ),
            row(
                "patch",
                STATUS,
                "say which snapshot it is",
                json!({"status": {"snapshotHandle": "x", "readyToUse": true}}),
                own(MANAGED, UNMANAGED, CONTENT_DRIVER),
            ),
            row(
                "patch",
                STATUS,
                "set an owner",
                owner(),
                // The server takes nothing but the status.
                own(MANAGED, UNMANAGED, CONTENT_DRIVER),
            ),
            row("delete", C, "delete it", json!({}), never_granted()),
            row("create", C, "create one", json!({}), never_granted()),
        ])
        .collect()
}

fn group_contents() -> Vec<Attack> {
    const C: &str = "volumegroupsnapshotcontents";
    const STATUS: &str = "volumegroupsnapshotcontents/status";
    const CREATING: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
    of_contents(C, CREATING)
        .into_iter()
        .chain([
            row(
                "patch",
                C,
                "change whether its snapshots are kept",
                json!({"spec": {"deletionPolicy": "Delete"}}),
                never(
                    "whether its snapshot is kept",
                    [MANAGED, UNMANAGED, CONTENT_DRIVER],
                ),
            ),
            row(
                "patch",
                STATUS,
                "say which group it is",
                json!({"status": {"volumeGroupSnapshotHandle": "x", "readyToUse": true}}),
                own(MANAGED, UNMANAGED, CONTENT_DRIVER),
            ),
            row("delete", C, "delete it", json!({}), never_granted()),
            row("create", C, "create one", json!({}), never_granted()),
        ])
        .collect()
}

/// The same for both kinds of contents.
fn of_contents(resource: &'static str, creating: &'static str) -> Vec<Attack> {
    let own = || own(MANAGED, UNMANAGED, CONTENT_DRIVER);
    let never = |why| never(why, [MANAGED, UNMANAGED, CONTENT_DRIVER]);
    let patch = |what, change, outcomes| row("patch", resource, what, change, outcomes);
    vec![
        patch(
            "say that its snapshot is being made",
            annotation(creating, json!("yes")),
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
                No("whose a content is"),
                Nothing,
                No(UNMANAGED),
                No(CONTENT_DRIVER),
            ],
        ),
    ]
}

fn events() -> Vec<Attack> {
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
            never("a node may tell of claims"),
        ),
        row(
            "create",
            E,
            "about another node",
            about("Node", "$OTHER"),
            never("a node may tell of claims"),
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

fn leases() -> Vec<Attack> {
    let none = [No(ROLE), Nothing, Nothing, Nothing];
    vec![
        row("create", "leases", "take the lead", json!({}), none.clone()),
        row("patch", "leases", "take the lead", json!({}), none.clone()),
        row("delete", "leases", "end the lead", json!({}), none),
    ]
}
