use serde_json::{Value, json};

use super::*;
use crate::api::names::PROVISIONER;
use crate::cache::scope::SELECTED_NODE;

const NOW: &str = "Immediate";
const LATE: &str = "WaitForFirstConsumer";

fn class(driver: &str, mode: &str) -> StorageClass {
    serde_json::from_value(json!({
        "metadata": {"name": "fast"}, "provisioner": driver, "volumeBindingMode": mode,
    }))
    .expect("a class")
}

fn volume(driver: &str) -> PersistentVolume {
    serde_json::from_value(json!({"metadata": {"name": "v"},
        "spec": {"csi": {"driver": driver, "volumeHandle": "h"}}}))
    .expect("a volume")
}

fn terms() -> Terms<'static> {
    Terms {
        driver: "d",
        restores: true,
        clones: true,
    }
}

/// A claim, patched with `more`.
fn claim(more: Value) -> PersistentVolumeClaim {
    let mut claim = json!({"metadata": {"name": "c", "annotations": {PROVISIONER: "d"}},
        "spec": {"storageClassName": "fast"}});
    json_patch::merge(&mut claim, &more);
    serde_json::from_value(claim).expect("a claim")
}

fn source(kind: &str) -> Value {
    let group = match kind {
        "VolumeSnapshot" => Some("snapshot.storage.k8s.io"),
        "PersistentVolumeClaim" => None,
        _ => Some("example.com"),
    };
    json!({"spec": {"dataSource": {"apiGroup": group, "kind": kind, "name": "s"}}})
}

fn selected(node: &str) -> Value {
    json!({"metadata": {"annotations": {SELECTED_NODE: node}}})
}

fn labelled(node: &str) -> Value {
    json!({"metadata": {"labels": {NODE_LABEL: node}}})
}

fn and(one: Value, other: &Value) -> Value {
    let mut both = one;
    json_patch::merge(&mut both, other);
    both
}

#[test]
fn claims_without_a_volume() {
    let unasked = json!({"metadata": {"annotations": {PROVISIONER: ""}}});
    let of_another = json!({"metadata": {"annotations": {PROVISIONER: "e"}}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let label = || Todo::Label("n1".to_owned());
    let snapshot = || Todo::Follow(DataSource::Snapshot("s".to_owned()));
    let clone = || Todo::Follow(DataSource::Claim("s".to_owned()));
    let foreign = || Todo::Foreign("Stuff.example.com".to_owned());
    let (of_s, of_c) = (source("VolumeSnapshot"), source("PersistentVolumeClaim"));
    let on = selected("n1");
    for (what, more, mode, todo) in [
        ("now", json!({}), NOW, Todo::Choose),
        ("now, not yet ours", unasked.clone(), NOW, Todo::Nothing),
        ("now, another's", of_another, NOW, Todo::Nothing),
        ("now, going", going.clone(), NOW, Todo::Nothing),
        ("now, selected", on.clone(), NOW, label()),
        (
            "now, all done",
            and(on.clone(), &labelled("n1")),
            NOW,
            Todo::Nothing,
        ),
        ("now, of a snapshot", of_s.clone(), NOW, snapshot()),
        (
            "now, of a snapshot, not yet ours",
            and(of_s.clone(), &unasked),
            NOW,
            Todo::Nothing,
        ),
        ("now, of a claim", of_c.clone(), NOW, clone()),
        ("now, of other stuff", source("Stuff"), NOW, foreign()),
        ("late", json!({}), LATE, Todo::Nothing),
        ("late, selected", on.clone(), LATE, label()),
        (
            "late, selected, not yet ours",
            and(on.clone(), &unasked),
            LATE,
            Todo::Nothing,
        ),
        (
            "late, wrong label",
            and(on.clone(), &labelled("n2")),
            LATE,
            label(),
        ),
        ("late, of a snapshot", of_s.clone(), LATE, snapshot()),
        (
            "late, of a snapshot, not yet ours",
            and(of_s.clone(), &unasked),
            LATE,
            snapshot(),
        ),
        (
            "late, of a snapshot, selected",
            and(of_s.clone(), &on),
            LATE,
            snapshot(),
        ),
        ("late, of a claim", of_c.clone(), LATE, clone()),
        (
            "late, of a claim, going",
            and(of_c, &going),
            LATE,
            Todo::Nothing,
        ),
        ("late, of other stuff", source("Stuff"), LATE, Todo::Nothing),
        (
            "late, of other stuff, selected",
            and(source("Stuff"), &on),
            LATE,
            label(),
        ),
    ] {
        let (claim, class) = (claim(more), class("d", mode));
        let facts = Facts {
            claim: &claim,
            class: Some(&class),
            volume: None,
            volume_node: None,
        };
        assert_eq!(decide(facts, terms()), todo, "{what}");
    }
}

#[test]
fn what_is_not_ours() {
    let (ours, theirs) = (class("d", NOW), class("e", NOW));
    let (plain, bound) = (
        claim(json!({})),
        claim(json!({"spec": {"volumeName": "v"}})),
    );
    let migrated = claim(json!({"metadata": {"annotations": {
        "pv.kubernetes.io/migrated-to": "d"}}}));
    let foreign = volume("e");
    for (what, claim, class, volume, todo) in [
        ("no class", &plain, None, None, Todo::NotOurs),
        ("another class", &plain, Some(&theirs), None, Todo::NotOurs),
        ("taken over", &migrated, Some(&theirs), None, Todo::Choose),
        (
            "a volume of another",
            &bound,
            Some(&ours),
            Some(&foreign),
            Todo::NotOurs,
        ),
        (
            "a volume nobody has seen",
            &bound,
            Some(&ours),
            None,
            Todo::NotOurs,
        ),
    ] {
        let facts = Facts {
            claim,
            class,
            volume,
            volume_node: None,
        };
        assert_eq!(decide(facts, terms()), todo, "{what}");
    }
}

#[test]
fn claims_with_a_volume_are_where_that_is() {
    let bound = json!({"spec": {"volumeName": "v"}});
    let label = |node: &str| Todo::Label(node.to_owned());
    let (ours, class) = (volume("d"), class("d", NOW));
    for (what, more, class, node, todo) in [
        ("static", bound.clone(), None, Some("n2"), label("n2")),
        (
            "in two places",
            and(bound.clone(), &selected("n1")),
            Some(&class),
            Some("n2"),
            label("n2"),
        ),
        (
            "anywhere",
            and(bound.clone(), &selected("n1")),
            Some(&class),
            None,
            label("n1"),
        ),
        ("nowhere", bound.clone(), Some(&class), None, Todo::Nothing),
        (
            "labelled",
            and(bound, &labelled("n2")),
            None,
            Some("n2"),
            Todo::Nothing,
        ),
        (
            "not bound yet",
            selected("n1"),
            Some(&class),
            Some("n1"),
            label("n1"),
        ),
    ] {
        let claim = claim(more);
        let facts = Facts {
            claim: &claim,
            class,
            volume: Some(&ours),
            volume_node: node,
        };
        assert_eq!(decide(facts, terms()), todo, "{what}");
    }
}

#[test]
fn a_driver_that_makes_none_of_sources_says_so_itself() {
    let class = class("d", NOW);
    for (kind, restores, clones) in [
        ("VolumeSnapshot", false, true),
        ("PersistentVolumeClaim", true, false),
    ] {
        let claim = claim(source(kind));
        let facts = Facts {
            claim: &claim,
            class: Some(&class),
            volume: None,
            volume_node: None,
        };
        let terms = Terms {
            restores,
            clones,
            ..terms()
        };
        assert_eq!(decide(facts, terms), Todo::Choose, "{kind}");
    }
}
