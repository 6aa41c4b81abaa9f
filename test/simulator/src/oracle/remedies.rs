//! What messages tell users to do, found by the words of their advice.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::messages::LEAST;
use crate::model::view::{name, namespace, text};
use crate::users::{bytes, is_immediate};

/// What a user changes of a claim that has no volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Remedy {
    /// Nothing: a claim with another UID may have more luck.
    Again,
    /// Name another class of volumes.
    Class,
    /// Name no class of attributes.
    Attributes,
    /// Name no selector of volumes.
    Selector,
    /// Name no source.
    Source,
    /// Use the other volume mode.
    Mode,
    /// Request as much as the source needs.
    Larger,
    /// Request less.
    Smaller,
}

use Remedy::{Again, Attributes, Class, Larger, Mode, Selector, Smaller, Source};

/// Words of messages about claims, and what they advise.
const OF_CLAIMS: &[(&str, Remedy)] = &[
    // The class.
    ("is not a parameter of this driver", Class),
    ("StorageClass", Class),
    ("storageclass.storage.k8s.io", Class),
    ("no storage class is set", Class),
    ("leave it out of mountOptions", Class),
    ("make the volume thin", Class),
    ("no pool named", Class),
    // The attributes.
    ("mutable_parameters", Attributes),
    ("spec.volumeAttributesClassName", Attributes),
    ("is not a mutable parameter", Attributes),
    ("is not among the accepted parameters", Attributes),
    ("make the volume thin", Attributes),
    ("spec.selector of the claim is not supported", Selector),
    // The source.
    ("correct spec.dataSource", Source),
    ("with another source", Source),
    ("name another source", Source),
    ("the source of the claim, ", Source),
    ("waiting for the source of the claim", Source),
    ("the new volume is to be", Source),
    ("code = NotFound", Source),
    ("code = FailedPrecondition", Source),
    ("code = DataLoss", Source),
    ("code = Internal", Source),
    (LEAST, Larger),
    // The mode.
    ("use the same mode", Mode),
    ("must have the mode of its source", Mode),
    ("use volumeMode Block", Mode),
    ("request a block device", Mode),
    // The size.
    ("no room", Smaller),
    ("has room for", Smaller),
    ("more room", Smaller),
    ("enough free storage", Smaller),
    ("code = ResourceExhausted", Smaller),
    ("that a volume may have", Smaller),
    ("request less", Smaller),
    // What was made for it can't be used.
    ("code = AlreadyExists", Again),
    ("code = Internal", Again),
];

/// The words before the name of the class in each message of a failed attempt.
const ATTEMPT: &str = "failed to provision volume with StorageClass";

/// What messages about a claim advise.
pub(super) fn of_claim<'a>(messages: impl IntoIterator<Item = &'a str>) -> BTreeSet<Remedy> {
    let mut found = BTreeSet::new();
    for message in messages {
        // It names the class, whatever is wrong.
        let message = message.replace(ATTEMPT, "");
        let known = OF_CLAIMS
            .iter()
            .filter(|(words, _)| message.contains(words));
        // A class of attributes has advice in the same words as a class of volumes.
        let is_of_attributes = message.contains("VolumeAttributesClass");
        found.extend(
            known
                .map(|(_, remedy)| *remedy)
                .filter(|remedy| *remedy != Class || !is_of_attributes),
        );
        if message.contains("has not published its capacity")
            || message.contains("has none for volumes of this class")
        {
            found.insert(Class);
        }
    }
    found
}

/// The largest size that sources need, as messages write it.
pub(super) fn least<'a>(messages: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let sizes = messages.into_iter().filter_map(|message| {
        let (_, rest) = message.split_once(LEAST)?;
        rest.split([':', ' ']).next()
    });
    sizes.max_by_key(|size| bytes(&Value::from(*size)))
}

/// The class that a user names instead of one that is wrong or missing.
pub(super) fn other_class(claim: &Value) -> &'static str {
    if is_immediate(text(claim, "/spec/storageClassName")) {
        "ext4-now"
    } else {
        "ext4"
    }
}

/// The claim that a user makes instead of one without a volume. `None` if it would be the same.
pub(super) fn instead(
    claim: &Value,
    remedies: &BTreeSet<Remedy>,
    least: Option<&str>,
) -> Option<Value> {
    let mut spec = claim["spec"].clone();
    let has_source = !spec["dataSource"].is_null();
    let has = bytes(&spec["resources"]["requests"]["storage"]);
    let fields = spec.as_object_mut()?;
    fields.remove("volumeName");
    if remedies.contains(&Class) {
        fields.insert("storageClassName".to_owned(), json!(other_class(claim)));
    }
    if remedies.contains(&Attributes) {
        fields.remove("volumeAttributesClassName");
    }
    if remedies.contains(&Selector) {
        fields.remove("selector");
    }
    // What has a source can't be smaller than it.
    let gives_up = has_source && (remedies.contains(&Source) || remedies.contains(&Smaller));
    if gives_up {
        fields.remove("dataSource");
        fields.remove("dataSourceRef");
    } else if remedies.contains(&Mode) {
        let other = if fields.get("volumeMode") == Some(&json!("Block")) {
            "Filesystem"
        } else {
            "Block"
        };
        fields.insert("volumeMode".to_owned(), json!(other));
    }
    if remedies.contains(&Smaller) {
        fields.insert("resources".to_owned(), request("1"));
    } else if let Some(size) = least.filter(|size| !gives_up && bytes(&json!(size)) > has) {
        fields.insert("resources".to_owned(), request(size));
    }
    let is_same = spec == claim["spec"];
    (!is_same || remedies.contains(&Again)).then(|| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name(claim), "namespace": namespace(claim)}, "spec": spec})
    })
}

fn request(size: &str) -> Value {
    json!({"requests": {"storage": size}})
}

/// Words of messages about pods that wait for no change of theirs: only without this pod, what it
/// uses is free for others.
const OF_PODS: &[&str] = &[
    // Of the scheduler.
    "\" not found",
    "is being deleted",
    "bound to non-existent",
    "ReadWriteOncePod access mode",
    "node affinity",
    "didn't find available persistent volumes",
    "was not created for the pod",
    "exceed max volume count",
    // Of the attacher.
    "delete the claim and its pods",
    // Of kubelet, which quotes the driver's final answers.
    "code = NotFound",
    "code = FailedPrecondition",
    "code = ResourceExhausted",
    "code = OutOfRange",
    "code = InvalidArgument",
    "code = AlreadyExists",
    "code = DataLoss",
    "code = Internal",
];

/// True if a message about a pod means that it will not run as it is.
pub(super) fn gives_up_pod(message: &str) -> bool {
    // A smaller claim of it may have room.
    !message.contains("enough free storage") && OF_PODS.iter().any(|words| message.contains(words))
}

/// True if a message about a pod means that claims without a volume delay it that do not wait for
/// pods.
pub(super) fn is_about_immediate_claims(message: &str) -> bool {
    message.contains("unbound immediate PersistentVolumeClaims")
}

/// What a user does with a snapshot or group that can't be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SnapshotRemedy {
    /// Delete it.
    Delete,
    /// Take it again with another class.
    Class,
}

/// Words of messages about snapshots and groups that no change makes possible.
const OF_SNAPSHOTS: &[&str] = &[
    "there is no claim",
    "no node works on",
    "is being deleted",
    "is not bound to",
    "does not exist",
    "is not of a CSI driver",
    "VolumeSnapshotContent is missing",
    "there is no VolumeSnapshotContent",
    "is bound to another snapshot",
    "of a snapshot made beforehand",
    "must be given",
    "the CSI driver has no snapshot",
    "fits no claim",
    "on different nodes",
    "is too large to be read",
    "VolumeGroupSnapshotContent is missing",
    "there is no VolumeGroupSnapshotContent",
    "is bound to another group snapshot",
    "of a group snapshot made beforehand",
    "names no member",
    "no room",
    "NotFound",
    "FailedPrecondition",
    "ResourceExhausted",
    "InvalidArgument",
    "AlreadyExists",
    "DataLoss",
    "Internal",
];

/// Words of messages about the class of a snapshot or group.
const OF_SNAPSHOT_CLASSES: &[&str] = &[
    "VolumeSnapshotClass",
    "VolumeGroupSnapshotClass",
    "snapshot class",
];

/// What messages about a snapshot or group advise.
pub(super) fn of_snapshot<'a>(
    messages: impl IntoIterator<Item = &'a str>,
) -> Option<SnapshotRemedy> {
    let mut found = None;
    for message in messages {
        let is_about_class = OF_SNAPSHOT_CLASSES
            .iter()
            .any(|words| message.contains(words));
        if is_about_class {
            found = found.or(Some(SnapshotRemedy::Class));
        } else if OF_SNAPSHOTS.iter().any(|words| message.contains(words)) {
            return Some(SnapshotRemedy::Delete);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_of_claims_is_found() {
        let wrong = "failed to provision volume with StorageClass \"wrong-now\": rpc error: code = \
                     InvalidArgument desc = parameters[\"unknown\"]: is not a parameter of this driver";
        let small = "failed to provision volume with StorageClass \"ext4\": \
                     spec.resources.requests.storage is 1, but VolumeSnapshot u/s1 needs at least \
                     10Mi: delete the claim and create one with a larger request (a claim without a \
                     volume can't be changed)";
        let full = "failed to provision volume with StorageClass \"ext4-now\": no node has room for \
                    1Ti: n1 has 2Gi left; it is tried again when one has more room";
        let options = "failed to provision volume with StorageClass \"options-now\": rpc error: code \
                       = InvalidArgument desc = volume_capabilities[0].mount.mount_flags: has \
                       errors=panic, and a damaged volume must not stop the node: leave it out of \
                       mountOptions";
        let pool = "failed to provision volume with StorageClass \"nowhere-now\": rpc error: code = \
                    InvalidArgument desc = no pool named \"nowhere\" is configured";
        for (message, expected) in [
            (wrong, vec![Class]),
            (pool, vec![Class]),
            (options, vec![Class]),
            (
                "StorageClass \"x\" does not exist: create it, or name another in the claim",
                vec![Class],
            ),
            ("storageclass.storage.k8s.io \"x\" not found", vec![Class]),
            (
                "no persistent volumes available for this claim and no storage class is set",
                vec![Class],
            ),
            (
                "VolumeAttributesClass \"x\", named by spec.volumeAttributesClassName, does not \
                 exist: create it, or name another in the claim",
                vec![Attributes],
            ),
            (
                "the source of the claim, VolumeSnapshot u/none, does not exist: create it, or \
                 correct spec.dataSource",
                vec![Source],
            ),
            (
                "waiting for the source of the claim: it is not bound yet",
                vec![Source],
            ),
            (small, vec![Larger]),
            (full, vec![Smaller]),
            (
                "this ext4 grows to 64 TiB at most: request less, or copy the data into a new volume",
                vec![Smaller],
            ),
            ("1 node(s) did not have enough free storage.", vec![Smaller]),
            (
                "spec.volumeMode is Block, but PersistentVolumeClaim u/c1 has Filesystem: a clone \
                 must have the mode of its source",
                vec![Mode],
            ),
            (
                "rpc error: code = Unavailable desc = the pool is not open yet",
                vec![],
            ),
        ] {
            let found: Vec<Remedy> = of_claim([message]).into_iter().collect();
            assert_eq!(found, expected, "{message}");
        }
        assert_eq!(least([full, small]), Some("10Mi"));
    }

    fn claim(spec: Value) -> Value {
        json!({"metadata": {"name": "c1", "namespace": "u", "uid": "1"}, "spec": spec})
    }

    #[test]
    fn what_users_make_instead() {
        let source = json!({"kind": "PersistentVolumeClaim", "name": "c2"});
        let old = claim(
            json!({"storageClassName": "wrong-now", "volumeMode": "Block",
            "resources": request("5"), "dataSource": source, "dataSourceRef": source,
            "volumeAttributesClassName": "wrong"}),
        );
        for (remedies, least, changes) in [
            (
                vec![Class],
                None,
                vec![("storageClassName", json!("ext4-now"))],
            ),
            (
                vec![Attributes],
                None,
                vec![("volumeAttributesClassName", Value::Null)],
            ),
            (
                vec![Source],
                Some("7"),
                vec![("dataSource", Value::Null), ("dataSourceRef", Value::Null)],
            ),
            (vec![Larger], Some("7"), vec![("resources", request("7"))]),
            (vec![Mode], None, vec![("volumeMode", json!("Filesystem"))]),
            (
                vec![Smaller],
                None,
                vec![
                    ("dataSource", Value::Null),
                    ("dataSourceRef", Value::Null),
                    ("resources", request("1")),
                ],
            ),
            (vec![Again], None, vec![]),
        ] {
            let new = instead(&old, &remedies.iter().copied().collect(), least).expect("a claim");
            assert!(new["metadata"]["uid"].is_null());
            let mut expected = old["spec"].clone();
            for (field, value) in changes {
                expected[field] = value;
            }
            for field in expected.as_object().expect("a spec").keys() {
                assert_eq!(new["spec"][field], expected[field], "{remedies:?}: {field}");
            }
        }
        let classless = claim(json!({"storageClassName": null, "resources": request("5")}));
        let new = instead(&classless, &[Class].into(), None).expect("a claim");
        assert_eq!(new["spec"]["storageClassName"], "ext4");
        let smallest = claim(json!({"storageClassName": "ext4", "resources": request("1")}));
        assert_eq!(instead(&smallest, &[Smaller].into(), None), None);
    }

    #[test]
    fn pods_and_snapshots_that_can_not_be_helped() {
        for (message, expected) in [
            (
                "0/1 nodes are available: persistentvolumeclaim \"c\" not found.",
                true,
            ),
            (
                "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
                false,
            ),
            (
                "0/3 nodes are available: 1 node(s) did not have enough free storage, 2 node(s) \
                 didn't match PersistentVolume's node affinity.",
                false,
            ),
            ("code = DataLoss desc = the image is missing", true),
            ("code = Unavailable desc = connection refused", false),
            (
                "AttachVolume.Attach failed for volume \"v\" : PersistentVolume v is marked for \
                 deletion, so no pod can start with it: clone its claim to keep the data, then \
                 delete the claim and its pods",
                true,
            ),
            (
                "AttachVolume.Attach failed for volume \"v\" : PersistentVolume v is marked for \
                 deletion",
                false,
            ),
        ] {
            assert_eq!(gives_up_pod(message), expected, "{message}");
        }
        for (messages, expected) in [
            (
                vec!["there is no claim \"none\" in this namespace"],
                Some(SnapshotRemedy::Delete),
            ),
            (
                vec!["there is no VolumeSnapshotClass none"],
                Some(SnapshotRemedy::Class),
            ),
            (
                vec![
                    "there is no VolumeSnapshotClass none",
                    "the CSI driver has no snapshot x",
                ],
                Some(SnapshotRemedy::Delete),
            ),
            (
                vec!["Failed to create snapshot: CreateSnapshot: ResourceExhausted: no space"],
                Some(SnapshotRemedy::Delete),
            ),
            (
                vec!["its selector fits no claim in this namespace"],
                Some(SnapshotRemedy::Delete),
            ),
            (
                vec!["VolumeGroupSnapshotClass foreign is of driver a, but volume v is of b"],
                Some(SnapshotRemedy::Class),
            ),
            (
                vec!["CreateSnapshot: Unavailable: the pool is missing"],
                None,
            ),
        ] {
            assert_eq!(
                of_snapshot(messages.iter().copied()),
                expected,
                "{messages:?}"
            );
        }
    }
}
