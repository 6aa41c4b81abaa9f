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
    let affinity = match terms.is_empty() {
        true => Value::Null,
        false => json!({"required": {"nodeSelectorTerms": terms}}),
    };
    serde_json::from_value(json!({
        "metadata": {"name": "v"},
        "spec": {"csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": affinity},
    }))
    .expect("a volume")
}

fn on(node: &str) -> Home {
    Home::Node(node.to_owned())
}

/// Whether two homes are of a kind; words aside.
fn alike(one: &Home, other: &Home) -> bool {
    match (one, other) {
        (Home::Unknown(_), Home::Unknown(_)) | (Home::Gone(_), Home::Gone(_)) => true,
        _ => one == other,
    }
}

fn gone() -> Home {
    Home::Gone(String::new())
}

fn unknown() -> Home {
    Home::Unknown(String::new())
}

fn several() -> Home {
    Home::Several(["n1", "n2"].map(str::to_owned).into())
}

#[test]
fn volumes_by_their_affinity() {
    for (affinity, home) in [
        (&[("t/node", "n2")][..], on("n2")),
        (&[("t/node", "n9")], gone()),
        (&[("zone", "a")], several()),
        (&[("zone", "b")], on("n3")),
        (&[("t/node", "n9"), ("t/node", "n1")], on("n1")),
        (&[], Home::Anywhere),
    ] {
        let found = of_volume_in(&volume(affinity), None, &nodes());
        assert!(alike(&found, &home), "{affinity:?}: {found:?}");
    }
}

#[test]
fn volumes_by_their_handles_where_the_affinity_leaves_a_choice() {
    for (affinity, by_handle, home) in [
        (&[][..], "n3", on("n3")),
        (&[("zone", "a")], "n2", on("n2")),
        (&[("zone", "a")], "n3", several()),
        (&[("t/node", "n1")], "n2", on("n1")),
        (&[("t/node", "n9")], "n2", gone()),
    ] {
        let found = of_volume_in(&volume(affinity), Some(by_handle.to_owned()), &nodes());
        assert!(alike(&found, &home), "{affinity:?} {by_handle}: {found:?}");
    }
}

#[test]
fn claims_by_their_volumes() {
    let claim = |volume: Option<&str>| -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"volumeName": volume}}))
            .expect("a claim")
    };
    let (bound, pending) = (claim(Some("v")), claim(None));
    let here = volume(&[("t/node", "n1")]);
    for (what, source, volume, driver, home) in [
        ("there", Some(&bound), Some(&here), "d", None),
        (
            "another driver's",
            Some(&bound),
            Some(&here),
            "e",
            Some(Home::Anywhere),
        ),
        ("no volume", Some(&bound), None, "d", Some(unknown())),
        ("not bound", Some(&pending), None, "d", Some(unknown())),
        ("no claim", None, None, "d", Some(unknown())),
    ] {
        let found = volume_of("c", source, volume, driver).err();
        let same = match (&found, &home) {
            (Some(found), Some(home)) => alike(found, home),
            (found, home) => found.is_none() && home.is_none(),
        };
        assert!(same, "{what}: {found:?}");
    }
}

#[test]
fn contents_by_label_then_volume_then_handle() {
    let content = |label: Option<&str>| -> VolumeSnapshotContent {
        let labels = label.map(|label| json!({MANAGED_BY: label}));
        serde_json::from_value(json!({
            "metadata": {"name": "c", "labels": labels},
            "spec": {"driver": "d", "deletionPolicy": "Delete", "volumeSnapshotRef": {},
                     "source": {"volumeHandle": "v", "snapshotHandle": "given"}},
            "status": {"snapshotHandle": "told"},
        }))
        .expect("a content")
    };
    let pool = || Some("n3".to_owned());
    for (what, label, volume, by_handle, home) in [
        ("label", Some("n2"), Some(on("n1")), pool(), on("n2")),
        ("label of none", Some("n9"), Some(on("n1")), pool(), gone()),
        ("volume", None, Some(on("n1")), pool(), on("n1")),
        ("lost volume", None, Some(gone()), pool(), on("n3")),
        (
            "volume anywhere",
            None,
            Some(Home::Anywhere),
            pool(),
            on("n3"),
        ),
        ("handle", None, None, pool(), on("n3")),
        ("nothing", None, None, None, unknown()),
    ] {
        let found = of_content(&content(label), volume, by_handle, &nodes());
        assert!(alike(&found, &home), "{what}: {found:?}");
    }
    let content = content(None);
    let found: Vec<_> = handles(&content).collect();
    assert_eq!(found, ["told", "given", "v"]);
}

#[test]
fn snapshots_by_their_contents() {
    let snapshot = |bound: Option<&str>| -> VolumeSnapshot {
        serde_json::from_value(json!({
            "metadata": {"name": "s"}, "spec": {"source": {}},
            "status": {"boundVolumeSnapshotContentName": bound},
        }))
        .expect("a snapshot")
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
