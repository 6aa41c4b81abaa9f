use serde_json::{Value, json};

use super::*;

fn nodes() -> Vec<Arc<Node>> {
    [("n1", "a"), ("n2", "a"), ("n3", "b")]
        .map(|(name, zone)| {
            let labels = json!({"t/node": name, "zone": zone});
            let node = json!({"metadata": {"name": name, "labels": labels}});
            Arc::new(serde_json::from_value(node).expect("a node"))
        })
        .into()
}

fn volume(affinity: &[(&str, &str)]) -> PersistentVolume {
    let terms: Vec<Value> = affinity
        .iter()
        .map(|(key, value)| {
            json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]})
        })
        .collect();
    let affinity = if terms.is_empty() {
        Value::Null
    } else {
        json!({"required": {"nodeSelectorTerms": terms}})
    };
    crate::testing::read(json!({
        "metadata": {"name": "v"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": affinity},
    }))
}

fn on(node: &str) -> SourceLocation {
    SourceLocation::Node(node.to_owned())
}

/// True if two locations are equal, apart from the texts of `Unknown` and `Gone`.
fn alike(one: &SourceLocation, other: &SourceLocation) -> bool {
    match (one, other) {
        (SourceLocation::Unknown(_), SourceLocation::Unknown(_))
        | (SourceLocation::Gone(_), SourceLocation::Gone(_)) => true,
        _ => one == other,
    }
}

fn gone() -> SourceLocation {
    SourceLocation::Gone(String::new())
}

fn unknown() -> SourceLocation {
    SourceLocation::Unknown(String::new())
}

fn several() -> SourceLocation {
    SourceLocation::Several(["n1", "n2"].map(str::to_owned).into())
}

#[test]
fn shared_volumes_by_their_handle_or_label() {
    for (affine, by_handle, label, location) in [
        (&["n1", "n2"][..], Some("n2"), Some("n2"), on("n2")),
        // One node made the volume with the handle of another node's data.
        (&["n1", "n2"], Some("n2"), Some("n1"), unknown()),
        (&["n1", "n2"], Some("n2"), Some("n9"), unknown()),
        (&["n1", "n2"], Some("n2"), None, on("n2")),
        (&["n1", "n2"], None, Some("n2"), on("n2")),
        (&["n1", "n2"], None, None, unknown()),
        (&["n1", "n2"], Some("n3"), Some("n1"), unknown()),
        (&["n1", "n2"], None, Some("n3"), unknown()),
        // Of the nodes that fit, only one exists. It does not have the volume.
        (&["n1", "n9"], None, Some("n9"), gone()),
        (&["n9"], None, Some("n9"), gone()),
        (&["n1"], None, Some("n1"), on("n1")),
    ] {
        let labels = label.map(|label| json!({NODE_LABEL: label}));
        let volume = crate::testing::shared(
            json!({
                "metadata": {"name": "v", "labels": labels},
                "spec": {"csi": {"driver": "d", "volumeHandle": "h"}},
            }),
            "t/node",
            affine,
        );
        let node = by_handle.map(str::to_owned);
        let found = of_volume_in(&crate::testing::read(volume), node, &nodes());
        let what = format!("{affine:?} {by_handle:?} {label:?}: {found:?}");
        assert!(alike(&found, &location), "{what}");
    }
}

#[test]
fn volumes_by_their_affinity_and_handle() {
    for (affinity, by_handle, location) in [
        (&[("t/node", "n2")][..], None, on("n2")),
        (&[("t/node", "n9")], None, gone()),
        (&[("zone", "a")], None, several()),
        (&[("zone", "b")], None, on("n3")),
        (&[("t/node", "n9"), ("t/node", "n1")], None, on("n1")),
        (&[], None, SourceLocation::Anywhere),
        // The handle counts where the affinity leaves a choice.
        (&[], Some("n3"), on("n3")),
        (&[("zone", "a")], Some("n2"), on("n2")),
        (&[("t/node", "n1")], Some("n1"), on("n1")),
        // One node made the volume with the handle of another node's data.
        (&[("zone", "a")], Some("n3"), unknown()),
        (&[("t/node", "n1")], Some("n2"), unknown()),
        (&[("t/node", "n9")], Some("n2"), gone()),
    ] {
        let node = by_handle.map(str::to_owned);
        let found = of_volume_in(&volume(affinity), node, &nodes());
        let what = format!("{affinity:?} {by_handle:?}: {found:?}");
        assert!(alike(&found, &location), "{what}");
    }
}

#[test]
fn claims_by_their_volumes() {
    let claim = |volume: Option<&str>| -> PersistentVolumeClaim {
        crate::testing::read(json!({"metadata": {"name": "c"}, "spec": {"volumeName": volume}}))
    };
    let (bound, pending) = (claim(Some("v")), claim(None));
    let here = volume(&[("t/node", "n1")]);
    let (bound, volume) = (Some(&bound), Some(&here));
    let anywhere = SourceLocation::Anywhere;
    assert_eq!(volume_of("c", bound, volume, "d"), Ok(&here));
    for (what, source, volume, driver, location) in [
        ("another driver's", bound, volume, "e", anywhere),
        ("no volume", bound, None, "d", unknown()),
        ("not bound", Some(&pending), None, "d", unknown()),
        ("no claim", None, None, "d", unknown()),
    ] {
        let found = volume_of("c", source, volume, driver).expect_err(what);
        assert!(alike(&found, &location), "{what}: {found:?}");
    }
}

#[test]
fn contents_by_label_and_handle_and_before_by_their_volume() {
    let content = |label: Option<&str>| -> VolumeSnapshotContent {
        let labels = label.map(|label| json!({MANAGED_BY: label}));
        crate::testing::read(json!({
            "metadata": {"name": "c", "labels": labels},
            "spec": {"driver": "d", "deletionPolicy": "Delete", "volumeSnapshotRef": {},
                     "source": {"volumeHandle": "v"}},
        }))
    };
    let pool = |node: &str| Some(node.to_owned());
    for (what, label, volume, by_handle, location) in [
        ("both", Some("n2"), on("n1"), pool("n2"), on("n2")),
        ("label", Some("n2"), on("n1"), None, on("n2")),
        ("label of none", Some("n9"), on("n1"), pool("n3"), gone()),
        // A node wrote another node's snapshot handle into its own content.
        ("no agreement", Some("n2"), on("n2"), pool("n3"), unknown()),
        ("handle and volume", None, on("n1"), pool("n1"), on("n1")),
        // A node wrote the handle of another node's snapshot into a group that has this content.
        ("another's handle", None, on("n1"), pool("n3"), unknown()),
        ("no such volume", None, unknown(), pool("n3"), unknown()),
        ("volume", None, on("n1"), None, on("n1")),
        ("volumes", None, several(), None, several()),
        ("nothing", None, unknown(), None, unknown()),
    ] {
        let found = of_content(&content(label), || volume, by_handle, &nodes());
        assert!(alike(&found, &location), "{what}: {found:?}");
    }
}

#[test]
fn volumes_of_one_handle_have_to_agree() {
    for (locations, location) in [
        (vec![on("n1")], on("n1")),
        (vec![on("n1"), on("n1")], on("n1")),
        (vec![on("n1"), on("n2")], unknown()),
        (vec![on("n1"), unknown()], unknown()),
        (vec![several()], several()),
        (vec![], unknown()),
    ] {
        let found = of_all("h", locations.clone());
        assert!(alike(&found, &location), "{locations:?}: {found:?}");
    }
}

#[test]
fn snapshots_by_their_contents() {
    let snapshot = |bound: Option<&str>| -> VolumeSnapshot {
        crate::testing::read(json!({
            "metadata": {"name": "s"}, "spec": {"source": {}},
            "status": {"boundVolumeSnapshotContentName": bound},
        }))
    };
    assert_eq!(
        content_of("s", Some(&snapshot(Some("c")))),
        Ok("c".to_owned())
    );
    for absent in [None, Some(snapshot(None)), Some(snapshot(Some("")))] {
        let found = content_of("s", absent.as_ref()).expect_err("no content");
        assert!(alike(&found, &unknown()), "{found:?}");
    }
}
