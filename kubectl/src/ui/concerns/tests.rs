use serde_json::json;

use super::*;
use crate::ui::kinds::{KINDS, OwnNames};

/// A cluster with objects of two drivers, as a page of driver `d` gets them.
struct Scene {
    history: Arc<History>,
    concerns: Concerns,
}

impl Scene {
    fn new() -> Scene {
        let history = Arc::new(History::new(1 << 20));
        Scene {
            concerns: Concerns::new(history.clone(), VerdictFacts::default()),
            history,
        }
    }

    fn set(&self, kind: &str, key: &str, mut object: Value) {
        let names = OwnNames {
            driver: "d".to_owned(),
            system_namespace: "hostloop".to_owned(),
        };
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = namespace.into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = "1".into();
        }
        let known = KINDS.iter().find(|known| known.kind == kind).unwrap();
        if let Some(shown) = (known.show)(&object, &names) {
            self.concerns
                .set(kind, key, shown, known.concern(&object, &names));
        }
    }

    /// What the page has now.
    fn shown(&self) -> Vec<String> {
        let mut shown = BTreeSet::new();
        for text in self.history.all().texts {
            let message: Value = serde_json::from_str(&text).unwrap();
            let of = |field: &str| message[field].as_str().unwrap().to_owned();
            let name = format!("{} {}", of("kind"), of("key"));
            match of("op").as_str() {
                "set" => shown.insert(name),
                _ => shown.remove(&name),
            };
        }
        shown.into_iter().collect()
    }
}

fn pod(claim: &str) -> Value {
    json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
}

fn about(kind: &str, namespace: &str, name: &str) -> Value {
    json!({"involvedObject": {"kind": kind, "namespace": namespace, "name": name},
        "message": "text of a user"})
}

/// Objects with whether the page shows them.
fn objects() -> Vec<(&'static str, &'static str, Value, bool)> {
    let class = |name: &str| json!({"spec": {"storageClassName": name}});
    let volume = |driver: &str| json!({"spec": {"csi": {"driver": driver}}});
    let taken = |claim: &str| json!({"spec": {"source": {"persistentVolumeClaimName": claim}}});
    let group = |content: &str| {
        json!({"spec": {"source": {"selector": {}}},
        "status": {"boundVolumeGroupSnapshotContentName": content}})
    };
    vec![
        ("StorageClass", "ours", json!({"provisioner": "d"}), true),
        ("StorageClass", "theirs", json!({"provisioner": "x"}), false),
        ("PersistentVolume", "pv-ours", volume("d"), true),
        ("PersistentVolume", "pv-theirs", volume("x"), false),
        (
            "PersistentVolumeClaim",
            "demo/by-class",
            class("ours"),
            true,
        ),
        (
            "PersistentVolumeClaim",
            "demo/by-volume",
            json!({"spec": {"volumeName": "pv-ours"}}),
            true,
        ),
        (
            "PersistentVolumeClaim",
            "demo/owner-data",
            class("ours"),
            true,
        ),
        (
            "PersistentVolumeClaim",
            "bank/theirs",
            class("theirs"),
            false,
        ),
        (
            "PersistentVolumeClaim",
            "bank/by-volume",
            json!({"spec": {"volumeName": "pv-theirs"}}),
            false,
        ),
        (
            "PersistentVolumeClaim",
            "bank/none",
            json!({"spec": {}}),
            false,
        ),
        ("Pod", "demo/user", pod("by-class"), true),
        ("Pod", "bank/by-class", pod("by-class"), false),
        ("Pod", "bank/secret-project", pod("theirs"), false),
        (
            "Pod",
            "demo/owner",
            json!({"spec": {"volumes": [{"name": "data", "ephemeral": {}}]}}),
            true,
        ),
        (
            "Pod",
            "bank/owner",
            json!({"spec": {"volumes": [{"name": "data", "ephemeral": {}}]}}),
            false,
        ),
        (
            "VolumeSnapshotContent",
            "content",
            json!({"spec": {"driver": "d"}}),
            true,
        ),
        ("VolumeSnapshot", "demo/by-claim", taken("by-class"), true),
        (
            "VolumeSnapshot",
            "demo/by-content",
            json!({"status": {"boundVolumeSnapshotContentName": "content"}}),
            true,
        ),
        ("VolumeSnapshot", "bank/theirs", taken("theirs"), false),
        (
            "VolumeGroupSnapshotContent",
            "group",
            json!({"spec": {"driver": "d"}}),
            true,
        ),
        ("VolumeGroupSnapshot", "demo/group", group("group"), true),
        (
            "VolumeGroupSnapshot",
            "demo/theirs",
            group("another"),
            false,
        ),
        (
            "VolumeGroupSnapshot",
            "demo/new",
            json!({"spec": {"source": {"selector": {}}}}),
            true,
        ),
        (
            "VolumeGroupSnapshot",
            "bank/new",
            json!({"spec": {"source": {"selector": {}}}}),
            false,
        ),
        ("Event", "demo/1", about("Pod", "demo", "user"), true),
        (
            "Event",
            "demo/2",
            about("PersistentVolumeClaim", "demo", "by-class"),
            true,
        ),
        (
            "Event",
            "demo/3",
            about("VolumeSnapshot", "demo", "by-claim"),
            true,
        ),
        (
            "Event",
            "default/4",
            about("PersistentVolume", "", "pv-ours"),
            true,
        ),
        (
            "Event",
            "bank/1",
            about("Pod", "bank", "secret-project"),
            false,
        ),
        (
            "Event",
            "bank/2",
            about("PersistentVolumeClaim", "bank", "theirs"),
            false,
        ),
        (
            "Event",
            "bank/3",
            about("VolumeSnapshot", "bank", "theirs"),
            false,
        ),
        ("Event", "bank/4", about("Pod", "bank", "unknown"), false),
        (
            "Event",
            "default/5",
            about("PersistentVolume", "", "pv-theirs"),
            false,
        ),
    ]
}

#[test]
fn only_what_concerns_hostloop_is_shown_in_whatever_order_it_comes() {
    let mut expected: Vec<String> = objects()
        .into_iter()
        .filter(|(.., shown)| *shown)
        .map(|(kind, key, ..)| format!("{kind} {key}"))
        .collect();
    expected.sort();
    for turn in 0..objects().len() {
        let mut all = objects();
        all.rotate_left(turn);
        for all in [all.clone(), all.into_iter().rev().collect()] {
            let scene = Scene::new();
            for (kind, key, object, _) in all {
                scene.set(kind, key, object);
            }
            assert_eq!(scene.shown(), expected, "turned by {turn}");
            let texts = scene.history.all().texts;
            assert!(!texts.iter().any(|text| text.contains("bank")));
        }
    }
}

#[test]
fn what_was_shown_stays_until_its_end() {
    let scene = Scene::new();
    scene.set(
        "PersistentVolume",
        "pv",
        json!({"spec": {"csi": {"driver": "d"}}}),
    );
    let claim =
        |uid: &str, volume: &str| json!({"metadata": {"uid": uid}, "spec": {"volumeName": volume}});
    scene.set("PersistentVolumeClaim", "demo/a", claim("1", "pv"));
    scene.concerns.delete("PersistentVolume", "pv");
    scene.set("PersistentVolumeClaim", "demo/a", claim("1", ""));
    assert_eq!(scene.shown(), ["PersistentVolumeClaim demo/a"]);
    scene.concerns.delete("PersistentVolumeClaim", "demo/a");
    assert!(scene.shown().is_empty());
    // An event about the end comes after it.
    scene.set(
        "Event",
        "demo/1",
        about("PersistentVolumeClaim", "demo", "a"),
    );
    assert_eq!(scene.shown(), ["Event demo/1"]);
    // Another claim of this name is another driver's, and so are its events.
    scene.set("PersistentVolumeClaim", "demo/a", claim("2", ""));
    scene.set(
        "Event",
        "demo/2",
        about("PersistentVolumeClaim", "demo", "a"),
    );
    assert_eq!(scene.shown(), ["Event demo/1"]);
    // Also if no watch saw the end of the first one.
    scene.set("PersistentVolumeClaim", "demo/b", claim("3", "pv"));
    scene.set("PersistentVolumeClaim", "demo/b", claim("4", ""));
    assert_eq!(scene.shown(), ["Event demo/1"]);
}
