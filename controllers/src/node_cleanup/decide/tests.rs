use serde_json::{Value, json};

use super::super::sample::*;
use super::*;
use crate::snapshots::content::{ContentKeys, GROUP, SINGLE};
use crate::testing::DRIVER;

fn rules() -> Rules {
    Rules {
        driver: DRIVER.to_owned(),
        attached: "external-attacher/csi-example".to_owned(),
        naming: Naming::new(&crate::testing::options()),
    }
}

/// n1 exists; other nodes do not.
fn places() -> Places {
    let mut places = Places::default();
    places.note(&[object(node("n1"))], &[object(csi_node("n1"))], DRIVER);
    places
}

/// The node and the action for each leftover.
fn found(seen: &Seen) -> Vec<String> {
    let leftovers = rules().leftovers(seen, &places());
    leftovers.iter().map(word).collect()
}

fn word(leftover: &Leftover) -> String {
    let action = match &leftover.action {
        None => "nothing",
        Some(Action::ReleaseAttachment(_)) => "release attachment",
        Some(Action::DeleteVolume(_)) => "delete volume",
        Some(Action::ReleaseVolume(_)) => "release volume",
        Some(Action::ReportVolume(_)) => "report",
        Some(Action::ClearClaim(_)) => "clear",
        Some(Action::DeleteCapacity(_)) => "delete capacity",
        Some(Action::ReleaseContent(_)) => "release content",
        Some(Action::ReleaseGroup(_)) => "release group",
    };
    format!("{} {action}", leftover.node)
}

/// The node and the action for one object.
fn one<K: Resource>(value: Value, put: impl Fn(&mut Seen, Arc<K>)) -> String {
    let mut seen = Seen::default();
    put(&mut seen, object(value));
    found(&seen).pop().unwrap_or_default()
}

#[test]
fn attachments() {
    let gone = || attachment("a", "v", "n2");
    let other = json!({"spec": {"attacher": "other"}});
    let without = json!({"metadata": {"finalizers": ["another/finalizer"]}});
    for (what, value, expected) in [
        (
            "of a node that is there",
            deleted(attachment("a", "v", "n1")),
            "",
        ),
        ("that is not being deleted", gone(), "n2 nothing"),
        (
            "that is being deleted",
            deleted(gone()),
            "n2 release attachment",
        ),
        (
            "without our finalizer",
            deleted(with(gone(), without)),
            "n2 nothing",
        ),
        ("of another driver", deleted(with(gone(), other)), ""),
    ] {
        let found = one(value, |seen, value| seen.attachments.push(value));
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn volumes() {
    let policy = |policy: Value| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    let phase = |phase: Value| json!({"status": {"phase": phase}});
    let without = json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}});
    let other = json!({"spec": {"csi": {"driver": "other"}}});
    let gone = || released("v", "n2");
    for (what, value, expected) in [
        ("released, to be deleted", gone(), "n2 delete volume"),
        ("being deleted", deleted(gone()), "n2 release volume"),
        (
            "being deleted, without us",
            deleted(with(gone(), without)),
            "n2 nothing",
        ),
        ("of a node that is there", released("v", "n1"), ""),
        (
            "of no node",
            with(gone(), json!({"spec": {"nodeAffinity": null}})),
            "",
        ),
        (
            "of two nodes",
            with(gone(), json!({"spec": {"nodeAffinity": on(&["n2", "n3"])}})),
            "",
        ),
        (
            "retained",
            with(gone(), policy(json!("Retain"))),
            "n2 nothing",
        ),
        (
            "retained, being deleted",
            deleted(with(gone(), policy(json!("Retain")))),
            "n2 release volume",
        ),
        (
            "recycled",
            with(gone(), policy(json!("Recycle"))),
            "n2 nothing",
        ),
        (
            "recycled, being deleted",
            deleted(with(gone(), policy(json!("Recycle")))),
            "n2 release volume",
        ),
        (
            "without a policy",
            with(gone(), policy(Value::Null)),
            "n2 nothing",
        ),
        ("bound", volume("v", "n2"), "n2 report"),
        (
            "bound, being deleted",
            deleted(volume("v", "n2")),
            "n2 report",
        ),
        (
            "bound, retained",
            with(volume("v", "n2"), policy(json!("Retain"))),
            "n2 report",
        ),
        (
            "available",
            with(gone(), phase(json!("Available"))),
            "n2 nothing",
        ),
        (
            "pending",
            with(gone(), phase(json!("Pending"))),
            "n2 nothing",
        ),
        ("failed", with(gone(), phase(json!("Failed"))), "n2 nothing"),
        (
            "without a phase",
            with(gone(), phase(Value::Null)),
            "n2 nothing",
        ),
        ("of another driver", with(gone(), other), ""),
        (
            "not of a driver",
            with(gone(), json!({"spec": {"csi": null}})),
            "",
        ),
    ] {
        let found = one(value, |seen, value| seen.volumes.push(value));
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn a_volume_that_an_attachment_names_stays() {
    for (what, attachment, expected) in [
        ("at its node", attachment("a", "v", "n2"), "n2 nothing"),
        (
            "at its node, going",
            deleted(attachment("a", "v", "n2")),
            "n2 nothing",
        ),
        (
            "at one that is there",
            attachment("a", "v", "n1"),
            "n2 nothing",
        ),
        (
            "by another",
            with(
                attachment("a", "v", "n2"),
                json!({"spec": {"attacher": "other"}}),
            ),
            "n2 nothing",
        ),
        ("of another", attachment("a", "w", "n2"), "n2 delete volume"),
    ] {
        let seen = Seen {
            volumes: vec![object(released("v", "n2"))],
            attachments: vec![object(attachment)],
            ..Seen::default()
        };
        let last = found(&seen).pop();
        assert_eq!(last.as_deref(), Some(expected), "{what}");
    }
}

#[test]
fn claims() {
    let gone = || claim("c", "n2");
    let annotated = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let provisioner = "volume.kubernetes.io/storage-provisioner";
    let selected = crate::cache::scope::SELECTED_NODE;
    for (what, value, expected) in [
        ("waiting", gone(), "n2 clear"),
        ("for a node that is there", claim("c", "n1"), ""),
        (
            "for none",
            with(gone(), annotated(selected, Value::Null)),
            "",
        ),
        ("for no name", claim("c", "../../pods/x"), ""),
        (
            "of another driver",
            with(gone(), annotated(provisioner, json!("other"))),
            "",
        ),
        (
            "without a driver",
            with(gone(), annotated(provisioner, Value::Null)),
            "",
        ),
        (
            "with a volume",
            with(gone(), json!({"spec": {"volumeName": "v"}})),
            "",
        ),
        (
            "bound",
            with(gone(), json!({"status": {"phase": "Bound"}})),
            "",
        ),
        (
            "lost",
            with(gone(), json!({"status": {"phase": "Lost"}})),
            "",
        ),
        ("being deleted", deleted(gone()), ""),
    ] {
        let found = one(value, |seen, value| seen.claims.push(value));
        assert_eq!(found, expected, "{what}");
    }
    let claimed = json!({"spec": {"claimRef": {"uid": "uid-of-c"}}});
    let seen = Seen {
        claims: vec![object(gone())],
        volumes: vec![object(with(volume("v", "n1"), claimed))],
        ..Seen::default()
    };
    assert_eq!(found(&seen), ["n2 nothing"], "its volume is made already");
}

#[test]
fn contents() {
    let changes = |marks: &ContentKeys, source: Value, reference: &str| {
        let annotation = marks.being_deleted;
        vec![
            ("being deleted", json!({}), "release"),
            (
                "being made",
                json!({"metadata": {"annotations": {
                    annotation.replace("being-deleted", "being-created"): "yes"}}}),
                "release",
            ),
            (
                "kept",
                json!({"metadata": {"deletionTimestamp": null}}),
                "nothing",
            ),
            (
                "in use",
                json!({"metadata": {"annotations": {annotation: null}}}),
                "nothing",
            ),
            (
                "retained",
                json!({"spec": {"deletionPolicy": "Retain"}}),
                "nothing",
            ),
            (
                "without us",
                json!({"metadata": {"finalizers": ["x/y"]}}),
                "nothing",
            ),
            (
                "unbound, pre-provisioned",
                json!({"metadata": {"annotations": null},
                    "spec": {"source": source, reference: {"uid": null}}}),
                "release",
            ),
            (
                "unbound, of a volume",
                json!({"metadata": {"annotations": null}, "spec": {reference: {"uid": null}}}),
                "nothing",
            ),
            (
                "of another driver",
                json!({"spec": {"driver": "other"}}),
                "",
            ),
            ("of a node that is there", label("n1"), ""),
            ("of no node", json!({"metadata": {"labels": null}}), ""),
        ]
    };
    let single = changes(&SINGLE, json!({"snapshotHandle": "s"}), "volumeSnapshotRef");
    for (what, change, expected) in single {
        let value = with(content("c", "n2"), change);
        let found = one(value, |seen, value| seen.contents.push(value));
        assert_eq!(found, full(expected, "content"), "{what}");
    }
    let handles = json!({"groupSnapshotHandles": {
        "volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["s"]}});
    for (what, change, expected) in changes(&GROUP, handles, "volumeGroupSnapshotRef") {
        let value = with(group_content("c", "n2"), change);
        let found = one(value, |seen, value| seen.groups.push(value));
        assert_eq!(found, full(expected, "group"), "a group {what}");
    }
}

fn label(node: &str) -> Value {
    json!({"metadata": {"labels": {crate::cache::scope::MANAGED_BY: node}}})
}

fn full(action: &str, what: &str) -> String {
    match action {
        "" => String::new(),
        "release" => format!("n2 release {what}"),
        action => format!("n2 {action}"),
    }
}

#[test]
fn capacities() {
    for (node, expected) in [("n1", ""), ("n2", "n2 delete capacity")] {
        let value = capacity("c", &format!("external-provisioner-{node}"), node);
        let found = one(value, |seen, value| seen.capacities.push(value));
        assert_eq!(found, expected);
    }
}

#[test]
fn nodes_out_of_service() {
    let key = "node.kubernetes.io/out-of-service";
    let tainted = |key: &str, ready: &str| {
        let taints = json!([{"key": key, "value": "x", "effect": "NoExecute"}]);
        let conditions = json!([{"type": "Ready", "status": ready}]);
        let change = json!({"spec": {"taints": taints}, "status": {"conditions": conditions}});
        with(node("n1"), change)
    };
    let going = || deleted(attachment("a", "v", "n1"));
    for (what, node, attachment, expected) in [
        (
            "down",
            tainted(key, "Unknown"),
            going(),
            Some("n1 release attachment"),
        ),
        (
            "not ready",
            tainted(key, "False"),
            going(),
            Some("n1 release attachment"),
        ),
        ("up all the same", tainted(key, "True"), going(), None),
        ("tainted otherwise", tainted("x/y", "False"), going(), None),
        (
            "not being deleted",
            tainted(key, "False"),
            attachment("a", "v", "n1"),
            None,
        ),
        (
            "of another node",
            tainted(key, "False"),
            deleted(attachment("a", "v", "n2")),
            None,
        ),
        (
            "of another driver",
            tainted(key, "False"),
            with(going(), json!({"spec": {"attacher": "other"}})),
            None,
        ),
    ] {
        let seen = Seen {
            nodes: vec![object(node)],
            attachments: vec![object(attachment)],
            volumes: vec![object(released("v", "n1")), object(volume("w", "n1"))],
            claims: vec![object(claim("c", "n1"))],
            contents: vec![object(content("c", "n1"))],
            ..Seen::default()
        };
        let found: Vec<String> = rules().out_of_service(&seen).iter().map(word).collect();
        assert_eq!(found.first().map(String::as_str), expected, "{what}");
        assert!(found.len() <= 1, "attachments only");
    }
}

#[test]
fn finalizers_of_others_stay() {
    let remaining = |finalizers: Value| {
        let change = json!({"metadata": {"finalizers": finalizers}});
        let mut value = with(released("v", "n2"), change);
        let volume: Arc<PersistentVolume> = object(value.clone());
        let patch = rules().remove_finalizers(&volume)?;
        let patch: json_patch::Patch = serde_json::from_value(patch).expect("a patch");
        json_patch::patch(&mut value, &patch).expect("it applies");
        Some(value["metadata"]["finalizers"].clone())
    };
    let (ours, attached) = (VOLUME_FINALIZER, "external-attacher/csi-example");
    for (finalizers, left) in [
        (json!([ours]), Some(json!([]))),
        (json!([ours, "x/y", attached]), Some(json!(["x/y"]))),
        (
            json!([attached, "x/y", ours, "z"]),
            Some(json!(["x/y", "z"])),
        ),
        (json!(["x/y", "external-attacher/other"]), None),
        (json!([]), None),
    ] {
        assert_eq!(remaining(finalizers.clone()), left, "{finalizers}");
    }
}
