use serde_json::{Value, json};

use super::*;
use crate::api::constants::PROVISIONER;
use crate::api::scope::{NODE_LABEL, SELECTED_NODE};
use crate::testing::{read, with};

const NOW: &str = "Immediate";
const LATE: &str = "WaitForFirstConsumer";

fn class(driver: &str, mode: &str) -> StorageClass {
    read(json!({
        "metadata": {"name": "fast"}, "provisioner": driver, "volumeBindingMode": mode,
    }))
}

fn volume(driver: &str) -> PersistentVolume {
    read(json!({"metadata": {"name": "v"},
        "spec": {"csi": {"driver": driver, "volumeHandle": "h"}}}))
}

fn settings() -> Settings<'static> {
    Settings {
        driver: "d",
        restores: true,
        clones: true,
    }
}

/// A claim with these patches.
fn claim(patches: &[&Value]) -> PersistentVolumeClaim {
    let claim = json!({"metadata": {"name": "c", "annotations": {PROVISIONER: "d"}},
        "spec": {"storageClassName": "fast"}});
    read(patches.iter().copied().fold(claim, with))
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

fn provisioner(driver: &str) -> Value {
    json!({"metadata": {"annotations": {PROVISIONER: driver}}})
}

#[test]
fn claims_without_a_volume() {
    let (no_driver, other) = (&provisioner(""), &provisioner("e"));
    let deleted = &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let snapshot = &source("VolumeSnapshot");
    let clone = &source("PersistentVolumeClaim");
    let stuff = &source("Stuff");
    let (on, on_label, wrong) = (&selected("n1"), &labelled("n1"), &labelled("n2"));
    let label = || Step::Label("n1".to_owned());
    let restore = || Step::Follow(DataSource::Snapshot("s".to_owned()));
    let follow = || Step::Follow(DataSource::Claim("s".to_owned()));
    let foreign = || Step::Foreign("Stuff.example.com".to_owned());
    for (mode, patches, step) in [
        (NOW, &[][..], Step::Choose),
        (NOW, &[no_driver], Step::Nothing),
        (NOW, &[other], Step::Nothing),
        (NOW, &[deleted], Step::Nothing),
        (NOW, &[on], label()),
        (NOW, &[on, on_label], Step::Nothing),
        (NOW, &[snapshot], restore()),
        (NOW, &[snapshot, no_driver], Step::Nothing),
        (NOW, &[clone], follow()),
        (NOW, &[stuff], foreign()),
        (LATE, &[], Step::Nothing),
        (LATE, &[on], label()),
        (LATE, &[on, no_driver], Step::Nothing),
        (LATE, &[on, wrong], label()),
        (LATE, &[snapshot], restore()),
        (LATE, &[snapshot, no_driver], restore()),
        (LATE, &[snapshot, on], restore()),
        (LATE, &[clone], follow()),
        (LATE, &[clone, deleted], Step::Nothing),
        (LATE, &[stuff], Step::Nothing),
        (LATE, &[stuff, on], label()),
    ] {
        let (claim, class) = (claim(patches), class("d", mode));
        let facts = Facts {
            claim: Arc::new(claim),
            class: Some(Arc::new(class)),
            volume: None,
            volume_node: None,
        };
        assert_eq!(decide(&facts, settings()), step, "{mode} {patches:?}");
    }
}

#[test]
fn claims_with_a_volume_and_of_other_drivers() {
    let (ours, theirs) = (&class("d", NOW), &class("e", NOW));
    let (volume, foreign) = (&volume("d"), &volume("e"));
    let bound = &json!({"spec": {"volumeName": "v"}});
    let migrated = &json!({"metadata": {"annotations": {"pv.kubernetes.io/migrated-to": "d"}}});
    let (on, wrong) = (&selected("n1"), &labelled("n2"));
    let label = |node: &str| Step::Label(node.to_owned());
    let (n1, n2) = (Some("n1"), Some("n2"));
    let (no, some) = (None, Some(volume));
    for (patches, class, volume, node, step) in [
        (&[][..], None, no, None, Step::NotOurs),
        (&[], Some(theirs), no, None, Step::NotOurs),
        (&[migrated], Some(theirs), no, None, Step::Choose),
        (&[bound], Some(ours), Some(foreign), None, Step::NotOurs),
        // The bound volume is not in the cache yet.
        (&[bound], Some(ours), no, None, Step::NotOurs),
        // A static volume.
        (&[bound], None, some, n2, label("n2")),
        // The volume is on another node than the selected one.
        (&[bound, on], Some(ours), some, n2, label("n2")),
        // The volume is accessible from every node.
        (&[bound, on], Some(ours), some, None, label("n1")),
        (&[bound], Some(ours), some, None, Step::Nothing),
        (&[bound, wrong], None, some, n2, Step::Nothing),
        // The claim is not bound to its volume yet.
        (&[on], Some(ours), some, n1, label("n1")),
    ] {
        let facts = Facts {
            claim: Arc::new(claim(patches)),
            class: class.cloned().map(Arc::new),
            volume: volume.cloned().map(Arc::new),
            volume_node: node.map(str::to_owned),
        };
        assert_eq!(decide(&facts, settings()), step, "{patches:?} {node:?}");
    }
}

/// The node that makes the volume reports the error.
#[test]
fn without_the_capability_a_source_counts_as_none() {
    let class = class("d", NOW);
    for (kind, restores, clones) in [
        ("VolumeSnapshot", false, true),
        ("PersistentVolumeClaim", true, false),
    ] {
        let facts = Facts {
            claim: Arc::new(claim(&[&source(kind)])),
            class: Some(Arc::new(class.clone())),
            volume: None,
            volume_node: None,
        };
        let settings = Settings {
            restores,
            clones,
            ..settings()
        };
        assert_eq!(decide(&facts, settings), Step::Choose, "{kind}");
    }
}
