use hostloop_controllers::api::names::PROVISIONER;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;

mod changes;

/// Seconds since the epoch at which the tests judge.
const NOW: u64 = 1_767_322_800;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A time some seconds before now.
fn ago(seconds: u64) -> String {
    let at = i64::try_from(NOW - seconds).unwrap();
    k8s_openapi::jiff::Timestamp::from_second(at).unwrap().to_string()
}

/// The objects of a case, as JSON.
#[derive(Default)]
struct Case {
    claim: Value,
    volume: Value,
    class: Value,
    attachments: Vec<Value>,
    pods: Vec<Value>,
    events: Vec<Value>,
    on_node: Option<Value>,
    missing_on_node: Option<&'static str>,
    volumes_unknown: bool,
}

impl Case {
    /// `STATE`, `STATE (NOTE)` or `STATE STUCK [SINCE]: REASON`, with `since` in seconds ago.
    fn judged(self) -> String {
        fn some<T: DeserializeOwned>(value: Value) -> Option<T> {
            (!value.is_null()).then(|| read(value))
        }
        let claim = some(self.claim);
        let volume = some(self.volume);
        let class = some(self.class);
        let attachments: Vec<_> = self.attachments.into_iter().map(read).collect();
        let pods: Vec<_> = self.pods.into_iter().map(read).collect();
        let events: Vec<_> = self.events.into_iter().map(read).collect();
        let on_node = self.on_node.map(read);
        let facts = VolumeFacts {
            claim: claim.as_ref(),
            volume: volume.as_ref(),
            has_all_volumes: !self.volumes_unknown,
            class: class.as_ref(),
            attachments: attachments.iter().collect(),
            pods: pods.iter().collect(),
            on_node: match (&on_node, self.missing_on_node) {
                (Some(volume), _) => OnNode::Known(volume),
                (None, Some(why)) => OnNode::Missing(why.to_owned()),
                (None, None) => OnNode::Unknown,
            },
            events: &events,
            now_ns: NOW * 1_000_000_000,
        };
        let judged = judge(&facts);
        let state = judged.state.as_str();
        match (judged.stuck, judged.note) {
            (None, None) => state.to_owned(),
            (None, Some(note)) => format!("{state} ({note})"),
            (Some(stuck), _) => {
                let since = stuck.since_ns.map(|since| NOW - since / 1_000_000_000);
                let since = since.map(|since| format!(" {since}s")).unwrap_or_default();
                format!("{state} STUCK{since}: {}", stuck.why)
            }
        }
    }
}

/// A claim with this phase, made some seconds ago.
fn claim(phase: &str, age: u64) -> Value {
    json!({
        "metadata": {
            "name": "data", "namespace": "demo", "uid": "c", "creationTimestamp": ago(age),
            "annotations": {PROVISIONER: "hostloop.csi.dev"},
        },
        "spec": {"volumeName": if phase == "Pending" { "" } else { "pv" }},
        "status": {"phase": phase},
    })
}

/// The same with another value at a JSON pointer's parent.
fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[field] = value;
    object
}

fn volume(phase: &str) -> Value {
    json!({
        "metadata": {"name": "pv", "uid": "v"},
        "spec": {"persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": phase},
    })
}

fn class(mode: &str) -> Value {
    json!({"metadata": {"name": "c"}, "provisioner": "p", "volumeBindingMode": mode})
}

fn pod(name: &str, phase: &str) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}")}, "status": {"phase": phase}})
}

fn warning(uid: &str, reason: &str, age: u64) -> Value {
    json!({
        "metadata": {"name": "e"}, "type": "Warning", "reason": reason, "message": "why",
        "involvedObject": {"uid": uid}, "lastTimestamp": ago(age),
    })
}

/// A volume in the report of a node, with these mounts.
fn on_node(staged: bool, mounts: &[&str]) -> Value {
    json!({
        "id": "vol", "name": "n", "inline": null, "pool": "default", "size_bytes": 1,
        "allocated_bytes": 1, "provisioning": "thin", "format": "ext4", "source": null,
        "published_nodes": [], "staged_at": staged.then_some("/k/stage"),
        "staged_as": staged.then_some("mount"), "loops": [], "direct_io": true,
        "frozen_since_ns": null, "mounts": mounts, "created_ns": 1,
    })
}

fn bound() -> Case {
    Case { claim: claim("Bound", 900), volume: volume("Bound"), ..Case::default() }
}

#[test]
fn claims_without_a_volume() {
    let pending = |age| Case { claim: claim("Pending", age), ..Case::default() };
    let late = || class("WaitForFirstConsumer");
    for (case, judged) in [
        (pending(5), "Pending (the volume is being made)"),
        (
            pending(300),
            "Pending STUCK 300s: no volume yet, and no event says why; see the log of hostloop's \
             pods",
        ),
        (Case { class: late(), ..pending(300) }, "Pending (waits for its first pod)"),
        (
            Case { class: late(), pods: vec![pod("a", "Pending")], ..pending(5) },
            "Pending (the volume is being made)",
        ),
        (
            Case {
                class: late(),
                pods: vec![pod("a", "Pending"), pod("b", "Pending")],
                events: vec![
                    warning("uid-a", "FailedScheduling", 9),
                    warning("uid-b", "FailedScheduling", 4),
                    warning("uid-b", "BackOff", 1),
                ],
                ..pending(5)
            },
            "Pending STUCK 4s: pod b: FailedScheduling: why",
        ),
        (
            Case {
                class: late(),
                events: vec![warning("c", "ProvisioningFailed", 3), warning("x", "Other", 1)],
                ..pending(5)
            },
            "Pending STUCK 3s: ProvisioningFailed: why",
        ),
        (
            Case {
                claim: with(claim("Pending", 5), "/spec/volumeName", json!("mine")),
                ..Case::default()
            },
            "Pending (waits for PersistentVolume mine)",
        ),
        (
            Case {
                claim: with(claim("Pending", 500), "/spec/volumeName", json!("mine")),
                ..Case::default()
            },
            "Pending STUCK 500s: waits for PersistentVolume mine",
        ),
        (
            Case { claim: claim("Lost", 5), ..Case::default() },
            "Lost STUCK: PersistentVolume pv is gone",
        ),
        (
            Case { claim: claim("Bound", 5), ..Case::default() },
            "Lost STUCK: PersistentVolume pv does not exist",
        ),
        (Case { claim: claim("Bound", 5), volumes_unknown: true, ..Case::default() }, "Bound"),
    ] {
        assert_eq!(case.judged(), judged);
    }
}

#[test]
fn volumes_in_use() {
    for (case, judged) in [
        (bound(), "Bound"),
        (Case { on_node: Some(on_node(false, &[])), ..bound() }, "Bound"),
        (Case { on_node: Some(on_node(true, &["/k/stage"])), ..bound() }, "staged"),
        (
            Case { on_node: Some(on_node(true, &["/k/stage", "/pods/uid-a/v"])), ..bound() },
            "published",
        ),
        (Case { pods: vec![pod("a", "Running")], ..bound() }, "published"),
        (Case { pods: vec![pod("a", "Pending")], ..bound() }, "Bound"),
        (
            Case { pods: vec![pod("a", "Running")], on_node: Some(on_node(false, &[])), ..bound() },
            "Bound",
        ),
        (
            Case {
                pods: vec![pod("a", "Pending")],
                events: vec![warning("uid-a", "FailedMount", 7)],
                on_node: Some(on_node(true, &["/k/stage"])),
                ..bound()
            },
            "staged STUCK 7s: pod a: FailedMount: why",
        ),
        // The pod has the volume: the warning is old.
        (
            Case {
                pods: vec![pod("a", "Pending")],
                events: vec![warning("uid-a", "FailedMount", 7)],
                on_node: Some(on_node(true, &["/k/stage", "/pods/uid-a/v"])),
                ..bound()
            },
            "published",
        ),
        (
            Case {
                pods: vec![pod("a", "Running")],
                events: vec![warning("uid-a", "FailedMount", 7)],
                ..bound()
            },
            "published",
        ),
        (
            Case { missing_on_node: Some("node n1 does not have it"), ..bound() },
            "Bound STUCK: node n1 does not have it",
        ),
        (
            Case {
                on_node: Some(with(
                    on_node(true, &[]),
                    "/frozen_since_ns",
                    json!((NOW - 61) * 1_000_000_000),
                )),
                ..bound()
            },
            "staged STUCK 61s: its filesystem is frozen: writes wait",
        ),
        (
            Case {
                on_node: Some(with(
                    on_node(true, &[]),
                    "/frozen_since_ns",
                    json!((NOW - 5) * 1_000_000_000),
                )),
                ..bound()
            },
            "staged",
        ),
    ] {
        assert_eq!(case.judged(), judged);
    }
}

#[test]
fn claims_that_are_deleted() {
    let deleted = |seconds: u64| {
        let claim = with(claim("Bound", 900), "/metadata/deletionTimestamp", json!(ago(seconds)));
        with(claim, "/metadata/finalizers", json!(["kubernetes.io/pvc-protection"]))
    };
    for (case, judged) in [
        (Case { claim: deleted(5), ..bound() }, "Deleting"),
        (
            Case { claim: deleted(500), pods: vec![pod("a", "Running")], ..bound() },
            "Deleting (waits for the end of pod a)",
        ),
        (
            Case {
                claim: deleted(500),
                pods: vec![pod("a", "Running"), pod("b", "Running")],
                ..bound()
            },
            "Deleting (waits for the end of pods a, b)",
        ),
        (
            Case { claim: deleted(500), ..bound() },
            "Deleting STUCK 500s: its deletion waits for the finalizers \
             kubernetes.io/pvc-protection",
        ),
    ] {
        assert_eq!(case.judged(), judged);
    }
}

#[test]
fn volumes_without_a_claim() {
    let alone = |phase: &str| Case { volume: volume(phase), ..Case::default() };
    // An inline volume is staged at the path of its pod.
    let inline = |mounts| with(on_node(true, mounts), "/inline", json!("csi-1"));
    let mounted = || Some(inline(&["/k/stage"]));
    for (case, judged) in [
        (alone("Available"), "Available"),
        (alone("Released"), "Released (kept: its policy is Retain)"),
        // The person may not list claims.
        (alone("Bound"), "Bound"),
        (
            Case { events: vec![warning("v", "VolumeFailedDelete", 3)], ..alone("Released") },
            "Released STUCK 3s: VolumeFailedDelete: why",
        ),
        (
            Case { on_node: Some(on_node(false, &[])), ..Case::default() },
            "unclaimed (no PersistentVolume has it)",
        ),
        (
            Case { on_node: Some(on_node(false, &[])), volumes_unknown: true, ..Case::default() },
            "Bound",
        ),
        (
            Case { on_node: mounted(), pods: vec![pod("a", "Running")], ..Case::default() },
            "published",
        ),
        (
            Case { on_node: Some(inline(&[])), pods: vec![pod("a", "Pending")], ..Case::default() },
            "staged",
        ),
        (
            Case { on_node: mounted(), ..Case::default() },
            "published (inline; its pod is not known)",
        ),
        (Case { pods: vec![pod("a", "Pending")], ..Case::default() }, "Pending"),
        (
            Case {
                pods: vec![pod("a", "Pending")],
                events: vec![warning("uid-a", "FailedMount", 3)],
                ..Case::default()
            },
            "Pending STUCK 3s: pod a: FailedMount: why",
        ),
    ] {
        assert_eq!(case.judged(), judged);
    }
}

#[test]
fn snapshots() {
    let snapshot = |age: u64, status: Value| {
        json!({
            "metadata": {"name": "s", "uid": "s", "creationTimestamp": ago(age)},
            "spec": {"source": {}}, "status": status,
        })
    };
    let content = |status: Value| {
        json!({
            "metadata": {"name": "c"},
            "spec": {
                "driver": "d", "deletionPolicy": "Delete", "source": {}, "volumeSnapshotRef": {},
            },
            "status": status,
        })
    };
    let error = || json!({"error": {"message": "full", "time": ago(6)}});
    for (snapshot, content, events, stuck) in [
        (snapshot(5, Value::Null), Value::Null, vec![], None),
        (
            snapshot(500, Value::Null),
            Value::Null,
            vec![],
            Some("500s: not taken yet; does a snapshot controller run in the cluster?"),
        ),
        (snapshot(500, json!({"readyToUse": true})), Value::Null, vec![], None),
        (
            snapshot(500, json!({"readyToUse": false})),
            Value::Null,
            vec![],
            Some("500s: not taken yet, and no event says why; see the log of hostloop's pods"),
        ),
        (snapshot(5, error()), Value::Null, vec![], Some("6s: full")),
        (snapshot(5, Value::Null), content(error()), vec![], Some("6s: full")),
        (snapshot(5, Value::Null), content(json!({"readyToUse": true})), vec![], None),
        (
            snapshot(5, Value::Null),
            Value::Null,
            vec![warning("s", "SnapshotCreationFailed", 2)],
            Some("2s: SnapshotCreationFailed: why"),
        ),
        (Value::Null, content(json!({})), vec![], None),
    ] {
        let said = format!("{snapshot} {content}");
        let snapshot: Option<VolumeSnapshot> = read(snapshot);
        let content: Option<VolumeSnapshotContent> = read(content);
        let events: Vec<Event> = events.into_iter().map(read).collect();
        let now = NOW * 1_000_000_000;
        let judged = snapshot_stuck(snapshot.as_ref(), content.as_ref(), &events, now);
        let judged = judged.map(|stuck| {
            let since = NOW - stuck.since_ns.unwrap_or_default() / 1_000_000_000;
            format!("{since}s: {}", stuck.why)
        });
        assert_eq!(judged.as_deref(), stuck, "{said}");
    }
}
