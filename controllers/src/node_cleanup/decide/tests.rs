use serde_json::{Value, json};

use super::*;
use crate::node_cleanup::sample::*;
use crate::snapshots::content::{ContentKeys, GROUP, SINGLE};
use crate::testing::DRIVER;

fn settings() -> Settings {
    Settings {
        driver: DRIVER.to_owned(),
        attached: "external-attacher/csi-example".to_owned(),
        naming: crate::testing::options(),
    }
}

/// n1 exists; other nodes do not.
fn resolver() -> NodeResolver {
    let mut resolver = NodeResolver::default();
    resolver.note(&[object(node("n1"))], &[object(csi_node("n1"))], DRIVER);
    resolver
}

/// The node and the step for each leftover.
fn found(facts: &Facts) -> Vec<String> {
    let leftovers = settings().leftovers(facts, &resolver());
    leftovers.iter().map(word).collect()
}

fn word(leftover: &Leftover) -> String {
    let step = match &leftover.step {
        None => "nothing",
        Some(Step::ReleaseAttachment(_)) => "release attachment",
        Some(Step::DeleteVolume(_)) => "delete volume",
        Some(Step::ReleaseVolume(_)) => "release volume",
        Some(Step::ReportVolume(_)) => "report",
        Some(Step::ClearClaim(_)) => "clear",
        Some(Step::DeleteCapacity(_)) => "delete capacity",
        Some(Step::ReleaseContent(_)) => "release content",
        Some(Step::ReleaseGroup(_)) => "release group",
    };
    format!("{} {step}", leftover.node)
}

/// Checks the node and the step for an object after each change. An empty text means that the
/// object is not a leftover.
fn check<K: Resource>(
    put: impl Fn(&mut Facts, Arc<K>),
    object_of: impl Fn() -> Value,
    cases: Vec<(&str, Value, &str)>,
) {
    for (what, change, expected) in cases {
        let mut facts = Facts::default();
        put(&mut facts, object(with(object_of(), change)));
        assert_eq!(found(&facts).join(", "), expected, "{what}");
    }
}

fn going() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

fn finalizers(list: &[&str]) -> Value {
    json!({"metadata": {"finalizers": list}})
}

#[test]
fn attachments() {
    let other = json!({"spec": {"attacher": "other"}});
    check(
        |facts, value| facts.attachments.push(value),
        || attachment("a", "v", "n2"),
        vec![
            ("present node", json!({"spec": {"nodeName": "n1"}}), ""),
            ("not being deleted", json!({}), "n2 nothing"),
            ("being deleted", going(), "n2 release attachment"),
            (
                "without our finalizer",
                with(going(), finalizers(&["another/finalizer"])),
                "n2 nothing",
            ),
            ("of another driver", with(going(), other), ""),
        ],
    );
}

/// The node that has the volume detaches it from all others, also from those that are gone.
#[test]
fn attachments_of_shared_volumes() {
    for (user, owner, expected) in [
        ("n1", "n1", ""),
        ("n2", "n1", ""),
        ("n1", "n2", "n2 release attachment"),
        ("n2", "n2", "n2 release attachment"),
        ("n3", "n2", "n2 release attachment"),
    ] {
        let volume = shared("v", owner, &[owner, user]);
        let facts = Facts {
            attachments: vec![object(deleted(attachment("a", "v", user)))],
            shared: [("v".to_owned(), object(volume))].into(),
            ..Facts::default()
        };
        assert_eq!(found(&facts).join(", "), expected, "{user} {owner}");
    }
}

#[test]
fn a_shared_volume_out_of_service_is_that_of_its_owner() {
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    let down = json!({"spec": {"taints": [taint]}, "status": {
        "conditions": [{"type": "Ready", "status": "False"}]}});
    for (user, owner, expected) in [
        ("n1", "n1", &["n1 release attachment"][..]),
        ("n2", "n1", &["n1 release attachment"]),
        ("n1", "n2", &[]),
        ("n2", "n2", &[]),
    ] {
        let volume = shared("v", owner, &["n1", "n2"]);
        let facts = Facts {
            nodes: vec![object(with(node("n1"), &down)), object(node("n2"))],
            attachments: vec![object(deleted(attachment("a", "v", user)))],
            shared: [("v".to_owned(), object(volume))].into(),
            ..Facts::default()
        };
        let found = settings().out_of_service(&facts);
        let found: Vec<String> = found.iter().map(word).collect();
        assert_eq!(found, expected, "{user} {owner}");
    }
}

#[test]
fn attachments_wait_for_a_node_that_is_not_ready() {
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    let attached = json!({"status": {"attached": true}});
    for (what, user, owner, change, expected) in [
        ("to be attached", "n2", "n1", json!({}), Some("n1")),
        (
            "to be detached",
            "n2",
            "n1",
            with(going(), &attached),
            Some("n1"),
        ),
        ("to its own node", "n1", "n1", json!({}), Some("n1")),
        ("attached", "n2", "n1", attached, None),
        ("of a ready node", "n1", "n2", json!({}), None),
        ("of a missing node", "n2", "n3", json!({}), None),
        (
            "of another driver",
            "n2",
            "n1",
            json!({"spec": {"attacher": "other"}}),
            None,
        ),
    ] {
        let facts = Facts {
            nodes: vec![object(with(node("n1"), &not_ready)), object(node("n2"))],
            attachments: vec![
                object(with(attachment("a", "v", user), change)),
                object(attachment("b", "of-one-node", "n1")),
            ],
            shared: [(
                "v".to_owned(),
                object(shared("v", owner, &["n1", "n2", "n3"])),
            )]
            .into(),
            ..Facts::default()
        };
        let found = settings().waiting_for_owner(&facts);
        let found: Vec<&str> = found.iter().map(|one| &*one.owner).collect();
        assert_eq!(found, Vec::from_iter(expected), "{what}");
    }
}

/// They have one affinity, and one of them is on a node that is there.
#[test]
fn shared_volumes_with_one_affinity_have_their_own_places() {
    let nodes = ["n1", "n2"];
    let of = |owner: &str| object::<PersistentVolume>(shared("v", owner, &nodes));
    let settings = settings();
    assert_ne!(settings.place(&of("n1")), settings.place(&of("n2")));
    assert_eq!(settings.place(&of("n1")), settings.place(&of("n1")));
}

#[test]
fn volumes() {
    let put = |facts: &mut Facts, value| facts.volumes.push(value);
    for (phase, policy, is_going, step) in [
        ("Released", "Delete", false, "delete volume"),
        ("Released", "Delete", true, "release volume"),
        ("Released", "Retain", false, "nothing"),
        ("Released", "Retain", true, "release volume"),
        ("Released", "Recycle", false, "nothing"),
        ("Released", "Recycle", true, "release volume"),
        ("Released", "", false, "nothing"),
        ("Bound", "Delete", false, "report"),
        ("Bound", "Delete", true, "report"),
        ("Bound", "Retain", false, "report"),
        ("Available", "Delete", false, "nothing"),
        ("Pending", "Delete", false, "nothing"),
        ("Failed", "Delete", false, "nothing"),
        ("", "Delete", false, "nothing"),
    ] {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let change = json!({
            "spec": {"persistentVolumeReclaimPolicy": text(policy)},
            "status": {"phase": text(phase)},
        });
        let change = if is_going {
            with(change, going())
        } else {
            change
        };
        let expected = format!("n2 {step}");
        let what = format!("{phase} {policy} {is_going}");
        check(put, || volume("v", "n2"), vec![(&what, change, &expected)]);
    }
    let without = finalizers(&["kubernetes.io/pv-protection"]);
    let affinity = |affinity: Value| json!({"spec": {"nodeAffinity": affinity}});
    let csi = |csi: Value| json!({"spec": {"csi": csi}});
    check(
        put,
        || released("v", "n2"),
        vec![
            ("without us", with(going(), without), "n2 nothing"),
            ("on no node", affinity(Value::Null), ""),
            ("on two nodes", affinity(on(&["n2", "n3"])), ""),
            ("of another driver", csi(json!({"driver": "other"})), ""),
            ("without a driver", csi(Value::Null), ""),
        ],
    );
    check(
        put,
        || released("v", "n1"),
        vec![("present node", json!({}), "")],
    );
}

#[test]
fn a_volume_that_an_attachment_names_stays() {
    let other = json!({"spec": {"attacher": "other"}});
    for (what, attachment, expected) in [
        ("same node", attachment("a", "v", "n2"), "n2 nothing"),
        ("going", deleted(attachment("a", "v", "n2")), "n2 nothing"),
        ("other node", attachment("a", "v", "n1"), "n2 nothing"),
        (
            "other driver",
            with(attachment("a", "v", "n2"), other),
            "n2 nothing",
        ),
        ("of another", attachment("a", "w", "n2"), "n2 delete volume"),
    ] {
        let facts = Facts {
            volumes: vec![object(released("v", "n2"))],
            attachments: vec![object(attachment)],
            ..Facts::default()
        };
        let last = found(&facts).pop();
        assert_eq!(last.as_deref(), Some(expected), "{what}");
    }
}

#[test]
fn claims() {
    let annotated = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let driver = |value| annotated("volume.kubernetes.io/storage-provisioner", value);
    let selected = |value| annotated(crate::api::scope::SELECTED_NODE, value);
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    check(
        |facts, value| facts.claims.push(value),
        || claim("c", "n2"),
        vec![
            ("waiting", json!({}), "n2 clear"),
            ("for a present node", selected(json!("n1")), ""),
            ("for no node", selected(Value::Null), ""),
            ("for no name", selected(json!("../../pods/x")), ""),
            ("of another driver", driver(json!("other")), ""),
            ("without a driver", driver(Value::Null), ""),
            ("with a volume", json!({"spec": {"volumeName": "v"}}), ""),
            ("bound", phase("Bound"), ""),
            ("lost", phase("Lost"), ""),
            ("being deleted", going(), ""),
        ],
    );
    let claimed = json!({"spec": {"claimRef": {"uid": "uid-of-c"}}});
    let facts = Facts {
        claims: vec![object(claim("c", "n2"))],
        volumes: vec![object(with(volume("v", "n1"), claimed))],
        ..Facts::default()
    };
    assert_eq!(found(&facts), ["n2 nothing"], "its volume exists");
}

#[test]
fn contents() {
    let cases = |keys: &ContentKeys, source: Value, reference: &str, release: &'static str| {
        let annotation =
            |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
        let unbound =
            json!({"metadata": {"annotations": null}, "spec": {reference: {"uid": null}}});
        let given = with(unbound.clone(), json!({"spec": {"source": source}}));
        let retained = json!({"spec": {"deletionPolicy": "Retain"}});
        let present = json!({"metadata": {"deletionTimestamp": null}});
        vec![
            ("being deleted", json!({}), release),
            (
                "and created",
                annotation(keys.being_created, json!("yes")),
                release,
            ),
            ("not deleted", present, "n2 nothing"),
            (
                "in use",
                annotation(keys.being_deleted, Value::Null),
                "n2 nothing",
            ),
            ("retained", retained, release),
            ("without us", finalizers(&["x/y"]), "n2 nothing"),
            ("unbound, pre-provisioned", given, release),
            ("unbound, of a volume", unbound, "n2 nothing"),
            (
                "of another driver",
                json!({"spec": {"driver": "other"}}),
                "",
            ),
            ("of a present node", label("n1"), ""),
            ("of no node", json!({"metadata": {"labels": null}}), ""),
        ]
    };
    let handle = json!({"snapshotHandle": "s"});
    check(
        |facts, value| facts.contents.push(value),
        || content("c", "n2"),
        cases(&SINGLE, handle, "volumeSnapshotRef", "n2 release content"),
    );
    let handles = json!({"groupSnapshotHandles": {
        "volumeGroupSnapshotHandle": "g", "volumeSnapshotHandles": ["s"]}});
    check(
        |facts, value| facts.groups.push(value),
        || group_content("c", "n2"),
        cases(
            &GROUP,
            handles,
            "volumeGroupSnapshotRef",
            "n2 release group",
        ),
    );
}

fn label(node: &str) -> Value {
    json!({"metadata": {"labels": {crate::api::scope::MANAGED_BY: node}}})
}

/// A user snapshots a volume after its node has gone, and deletes the snapshot again.
#[test]
fn contents_that_no_node_has_begun() {
    let lone = json!({"metadata": {"labels": null}});
    let begun =
        |keys: &ContentKeys| json!({"metadata": {"annotations": {keys.being_created: "yes"}}});
    let taken = [
        json!({"status": {"snapshotHandle": "s"}}),
        json!({"status": {"volumeGroupSnapshotHandle": "g"}}),
    ];
    let in_use =
        |keys: &ContentKeys| json!({"metadata": {"annotations": {keys.being_deleted: null}}});
    let nothing = json!({});
    for (what, handles, change, steps) in [
        (
            "alone",
            ["handle-of-gone"; 2],
            [nothing.clone(), nothing.clone()],
            ["n2 release content", "n2 release group"],
        ),
        (
            "one of two volumes",
            ["handle-of-here", "handle-of-gone"],
            [nothing.clone(), nothing.clone()],
            ["", "n2 release group"],
        ),
        (
            "not deleted",
            ["handle-of-gone"; 2],
            [in_use(&SINGLE), in_use(&GROUP)],
            ["n2 nothing"; 2],
        ),
        (
            "begun without a label",
            ["handle-of-gone"; 2],
            [begun(&SINGLE), begun(&GROUP)],
            [""; 2],
        ),
        (
            "taken without a label",
            ["handle-of-gone"; 2],
            taken,
            [""; 2],
        ),
        (
            "of a present node",
            ["handle-of-gone"; 2],
            [label("n1"), label("n1")],
            [""; 2],
        ),
        (
            "on a present node",
            ["handle-of-here"; 2],
            [nothing.clone(), nothing.clone()],
            [""; 2],
        ),
        (
            "of no known volume",
            ["handle-of-none"; 2],
            [nothing.clone(), nothing],
            [""; 2],
        ),
    ] {
        let [of_single, of_group] = change;
        let single = json!({"spec": {"source": {"volumeHandle": handles[0]}}});
        let group = json!({"spec": {"source": {"volumeHandles": handles}}});
        let single = with(
            with(with(content("c", "n2"), lone.clone()), single),
            of_single,
        );
        let group = with(
            with(with(group_content("c", "n2"), lone.clone()), group),
            of_group,
        );
        let volumes: [Arc<PersistentVolume>; 2] =
            [object(volume("gone", "n2")), object(volume("here", "n1"))];
        let of_single = Facts {
            volumes: volumes.to_vec(),
            contents: vec![object(single)],
            ..Facts::default()
        };
        let of_group = Facts {
            volumes: volumes.to_vec(),
            groups: vec![object(group)],
            ..Facts::default()
        };
        // The bound volume is reported each time.
        let found = [of_single, of_group].map(|facts| found(&facts)[1..].join(", "));
        assert_eq!(found, steps, "{what}");
    }
}

#[test]
fn capacities() {
    for (node, expected) in [("n1", ""), ("n2", "n2 delete capacity")] {
        check(
            |facts, value| facts.capacities.push(value),
            || capacity("c", &format!("external-provisioner-{node}"), node),
            vec![(node, json!({}), expected)],
        );
    }
}

#[test]
fn nodes_out_of_service() {
    let key = "node.kubernetes.io/out-of-service";
    let attached = || attachment("a", "v", "n1");
    let other = json!({"spec": {"attacher": "other"}});
    for (what, taint, ready, attachment, is_released) in [
        ("down", key, "Unknown", deleted(attached()), true),
        ("not ready", key, "False", deleted(attached()), true),
        ("ready again", key, "True", deleted(attached()), false),
        ("other taint", "x/y", "False", deleted(attached()), false),
        ("not being deleted", key, "False", attached(), false),
        (
            "of another node",
            key,
            "False",
            deleted(attachment("a", "v", "n2")),
            false,
        ),
        (
            "of another driver",
            key,
            "False",
            deleted(with(attached(), other)),
            false,
        ),
    ] {
        let taints = json!([{"key": taint, "value": "x", "effect": "NoExecute"}]);
        let conditions = json!([{"type": "Ready", "status": ready}]);
        let change = json!({"spec": {"taints": taints}, "status": {"conditions": conditions}});
        let facts = Facts {
            nodes: vec![object(with(node("n1"), change))],
            attachments: vec![object(attachment)],
            // Only attachments count.
            volumes: vec![object(released("v", "n1")), object(volume("w", "n1"))],
            claims: vec![object(claim("c", "n1"))],
            contents: vec![object(content("c", "n1"))],
            ..Facts::default()
        };
        let found: Vec<String> = settings().out_of_service(&facts).iter().map(word).collect();
        let expected: &[&str] = if is_released {
            &["n1 release attachment"]
        } else {
            &[]
        };
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn finalizers_of_others_stay() {
    let (ours, attached) = (VOLUME_FINALIZER, "external-attacher/csi-example");
    for (before, after) in [
        (&[ours][..], Some(json!([]))),
        (&[ours, "x/y", attached], Some(json!(["x/y"]))),
        (&[attached, "x/y", ours, "z"], Some(json!(["x/y", "z"]))),
        (&["x/y", "external-attacher/other"], None),
        (&[], None),
    ] {
        let mut value = with(released("v", "n2"), finalizers(before));
        let volume: Arc<PersistentVolume> = object(value.clone());
        let patch = settings().remove_finalizers(&volume);
        let left = patch.map(|patch| {
            let patch: json_patch::Patch = serde_json::from_value(patch).expect("a patch");
            json_patch::patch(&mut value, &patch).expect("it applies");
            value["metadata"]["finalizers"].clone()
        });
        assert_eq!(left, after, "{before:?}");
    }
}
