use hostloop_api_objects::constants::PROVISIONER;
use hostloop_api_objects::labels::SELECTED_NODE;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::test_objects::read;
use crate::verdict::testing::{NOW, ago, warning};

mod changes;

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
    failed_call: Option<&'static str>,
}

impl Case {
    fn of(claim: Value) -> Case {
        Case {
            claim,
            ..Case::default()
        }
    }

    fn pod(mut self, name: &str, phase: &str) -> Case {
        self.pods.push(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}")}, "status": {"phase": phase},
        }));
        self
    }

    /// Sets a field of the last pod.
    fn pod_has(mut self, pointer: &str, value: Value) -> Case {
        let pod = self.pods.pop().unwrap();
        self.pods.push(with(pod, pointer, value));
        self
    }

    /// Adds a normal event about the object with this UID.
    fn normal(mut self, uid: &str, reason: &str, age: u64) -> Case {
        let event = with(warning(uid, reason, age), "/type", json!("Normal"));
        self.events.push(event);
        self
    }

    /// Adds a warning about the object with this UID.
    fn warning(mut self, uid: &str, reason: &str, age: u64) -> Case {
        self.events.push(warning(uid, reason, age));
        self
    }

    /// Adds the volume in the report of a node, with these mounts.
    fn on_node(mut self, staged: bool, mounts: &[&str]) -> Case {
        self.on_node = Some(json!({
            "id": "vol", "name": "n", "inline": null, "pool": "default", "size_bytes": 1,
            "allocated_bytes": 1, "provisioning": "thin", "format": "ext4", "source": null,
            "published_nodes": [], "staged_at": staged.then_some("/k/stage"),
            "staged_as": staged.then_some("mount"), "loops": [], "direct_io": true,
            "frozen_since_ns": null, "mounts": mounts, "created_ns": 1,
        }));
        self
    }

    /// Sets a field of the volume in the report.
    fn reported(mut self, field: &str, value: Value) -> Case {
        self.on_node.as_mut().unwrap()[field] = value;
        self
    }

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
            failed_call: self.failed_call.map(|why| Stuck::new(why, None)),
            events: &events,
            now_ns: NOW * 1_000_000_000,
        };
        let judged = volume_verdict(&facts);
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

/// Compares each case with its judgement.
#[track_caller]
fn expect<const N: usize>(cases: [(Case, &str); N]) {
    for (case, judged) in cases {
        assert_eq!(case.judged(), judged);
    }
}

fn bound() -> Case {
    Case {
        volume: volume("Bound"),
        ..Case::of(claim("Bound", 900))
    }
}

#[test]
fn claims_without_a_volume() {
    let pending = |age| Case::of(claim("Pending", age));
    let late = |age| Case {
        class: class("WaitForFirstConsumer"),
        ..pending(age)
    };
    let named = |age| {
        Case::of(with(
            claim("Pending", age),
            "/spec/volumeName",
            json!("mine"),
        ))
    };
    let unscheduled = late(5)
        .pod("a", "Pending")
        .pod("b", "Pending")
        .warning("uid-a", "FailedScheduling", 9)
        .warning("uid-b", "FailedScheduling", 4)
        .warning("uid-b", "BackOff", 1);
    let failed = |case: Case| case.warning("c", "ProvisioningFailed", 3);
    let chosen = |age| Case {
        claim: with(
            claim("Pending", age),
            "/metadata/annotations",
            json!({SELECTED_NODE: "n1"}),
        ),
        ..late(age)
    };
    let used = |pod_age| {
        late(900)
            .pod("a", "Pending")
            .pod_has("/metadata/creationTimestamp", json!(ago(pod_age)))
    };
    let fits_nowhere = || {
        used(5).pod_has(
            "/status/conditions",
            json!([{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/2 nodes are available", "lastTransitionTime": ago(4),
            }]),
        )
    };
    let gated = used(5).pod_has(
        "/status/conditions",
        json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
    );
    let unexplained = "Pending STUCK 300s: no volume yet, and no event says why; see the log of \
                       hostloop's pods";
    expect([
        (pending(5), "Pending (the volume is being made)"),
        (pending(300), unexplained),
        (late(300), "Pending (waits for its first pod)"),
        // What failed for an earlier pod is history.
        (failed(late(5)), "Pending (waits for its first pod)"),
        (
            pending(300).normal("c", "WaitForFirstConsumer", 1),
            "Pending (waits for its first pod)",
        ),
        (
            late(5).pod("a", "Pending"),
            "Pending (waits for a node for pod a)",
        ),
        (used(5), "Pending (waits for a node for pod a)"),
        (failed(used(2)), "Pending (waits for a node for pod a)"),
        (
            used(300),
            "Pending STUCK 300s: no node is chosen for pod a, and no event says why; see the \
             scheduler's log",
        ),
        (
            fits_nowhere(),
            "Pending STUCK 4s: pod a: Unschedulable: 0/2 nodes are available",
        ),
        (
            fits_nowhere().warning("uid-a", "FailedScheduling", 9),
            "Pending STUCK 9s: pod a: FailedScheduling: 0/2 nodes are available",
        ),
        (gated, "Pending (waits for a node for pod a)"),
        (
            chosen(5).pod("a", "Pending"),
            "Pending (the volume is being made)",
        ),
        (
            unscheduled,
            "Pending STUCK 4s: pod b: FailedScheduling: why",
        ),
        (
            failed(pending(5)),
            "Pending STUCK 3s: ProvisioningFailed: why",
        ),
        (
            failed(chosen(5)),
            "Pending STUCK 3s: ProvisioningFailed: why",
        ),
        (
            failed(late(5).pod("a", "Pending")),
            "Pending STUCK 3s: ProvisioningFailed: why",
        ),
        (named(5), "Pending (waits for PersistentVolume mine)"),
        (
            named(500),
            "Pending STUCK 500s: waits for PersistentVolume mine",
        ),
        (
            Case::of(claim("Lost", 5)),
            "Lost STUCK: PersistentVolume pv is gone",
        ),
        (
            Case::of(claim("Bound", 5)),
            "Lost STUCK: PersistentVolume pv does not exist",
        ),
        (
            Case {
                volumes_unknown: true,
                ..Case::of(claim("Bound", 5))
            },
            "Bound",
        ),
    ]);
}

#[test]
fn volumes_in_use() {
    let staged = || bound().on_node(true, &["/k/stage"]);
    let published = || bound().on_node(true, &["/k/stage", "/pods/uid-a/v"]);
    let unmounted = |case: Case| case.warning("uid-a", "FailedMount", 7);
    let missing = Case {
        missing_on_node: Some("node n1 does not have it"),
        ..bound()
    };
    let next = published().pod("b", "Pending").pod_has(
        "/status/conditions",
        json!([{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim \
                        with ReadWriteOncePod access mode already in-use by another pod.",
            "lastTransitionTime": ago(4),
        }]),
    );
    let frozen = |seconds: u64| {
        let since = json!((NOW - seconds) * 1_000_000_000);
        bound()
            .on_node(true, &[])
            .reported("frozen_since_ns", since)
    };
    let shared = |users: Value| {
        let case = bound().on_node(true, &["/k/anchor"]);
        case.reported("reach", json!("kernel"))
            .reported("users", users)
    };
    let user = |pins: bool| json!([{"node": "n2", "published": true, "pins": pins}]);
    expect([
        (shared(json!([])), "Bound"),
        (shared(user(false)).pod("a", "Pending"), "Bound"),
        (shared(user(true)).pod("a", "Pending"), "staged"),
        (shared(user(true)).pod("a", "Running"), "published"),
        (bound(), "Bound"),
        (bound().on_node(false, &[]), "Bound"),
        (staged(), "staged"),
        (published(), "published"),
        (bound().pod("a", "Running"), "published"),
        (bound().pod("a", "Pending"), "Bound"),
        (bound().pod("a", "Running").on_node(false, &[]), "Bound"),
        (
            unmounted(staged().pod("a", "Pending")),
            "staged STUCK 7s: pod a: FailedMount: why",
        ),
        // The pod has the volume: the warning is old.
        (unmounted(published().pod("a", "Pending")), "published"),
        (unmounted(bound().pod("a", "Running")), "published"),
        // As the claim demands.
        (
            next,
            "published (pod b: Unschedulable: 0/1 nodes are available: 1 node(s) unavailable due to \
             PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod.)",
        ),
        // The pod is gone.
        (unmounted(bound()), "Bound"),
        (missing, "Bound STUCK: node n1 does not have it"),
        (
            frozen(61),
            "staged STUCK 61s: its filesystem is frozen: writes wait",
        ),
        (frozen(5), "staged"),
        (
            frozen(61).reported(
                "fault",
                json!({
                    "name": "frozen", "fault": "frozen,for=300s", "since_ns": 1, "state": "active",
                }),
            ),
            "staged",
        ),
        // Another fault explains no freeze.
        (
            frozen(61).reported(
                "fault",
                json!({"name": "full", "fault": "full,for=600s", "since_ns": 1, "state": "active"}),
            ),
            "staged STUCK 61s: its filesystem is frozen: writes wait",
        ),
    ]);
}

#[test]
fn claims_that_are_deleted() {
    let deleted = |seconds: u64| {
        let claim = with(
            claim("Bound", 900),
            "/metadata/deletionTimestamp",
            json!(ago(seconds)),
        );
        let claim = with(
            claim,
            "/metadata/finalizers",
            json!(["kubernetes.io/pvc-protection"]),
        );
        Case { claim, ..bound() }
    };
    let used = || deleted(500).pod("a", "Running");
    let held = "Deleting STUCK 500s: its deletion waits for the finalizers \
                kubernetes.io/pvc-protection";
    expect([
        (deleted(5), "Deleting"),
        (used(), "Deleting (waits for the end of pod a)"),
        (
            used().pod("b", "Running"),
            "Deleting (waits for the end of pods a, b)",
        ),
        (deleted(500), held),
    ]);
}

#[test]
fn volumes_without_a_claim() {
    let alone = |phase: &str| Case {
        volume: volume(phase),
        ..Case::default()
    };
    let on_node = || Case::default().on_node(false, &[]);
    // An inline volume is staged at the path of its pod.
    let inline = |mounts| {
        Case::default()
            .on_node(true, mounts)
            .reported("inline", json!("csi-1"))
    };
    let pending = || Case::default().pod("a", "Pending");
    let attached = |policy: &str, status: Value| {
        let mut case = alone("Released");
        case.volume["spec"]["persistentVolumeReclaimPolicy"] = json!(policy);
        case.attachments.push(json!({
            "metadata": {"name": "a"}, "status": status,
            "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "pv"}},
        }));
        case
    };
    let busy = json!({"attached": true, "detachError": {"message": "busy", "time": ago(3)}});
    let undeleted = alone("Released").warning("v", "VolumeFailedDelete", 3);
    let unmounted = pending().warning("uid-a", "FailedMount", 3);
    let changed = |reason: &str| {
        let mut case = alone("Released").warning("v", reason, 3);
        case.volume["status"]["lastPhaseTransitionTime"] = json!(ago(3));
        case
    };
    let earlier = alone("Released").warning("v", "VolumeConditionAbnormal", 9);
    let earlier = Case {
        volume: with(
            earlier.volume,
            "/status/lastPhaseTransitionTime",
            json!(ago(3)),
        ),
        ..earlier
    };
    expect([
        (alone("Available"), "Available"),
        (alone("Released"), "Released (kept: its policy is Retain)"),
        // The person may not list claims.
        (alone("Bound"), "Bound"),
        (
            attached("Delete", Value::Null),
            "Released (waits for the detach from node n1)",
        ),
        (
            attached("Delete", busy),
            "Released STUCK 3s: detaching from node n1: busy",
        ),
        (
            attached("Retain", Value::Null),
            "Released (kept: its policy is Retain)",
        ),
        (undeleted, "Released STUCK 3s: VolumeFailedDelete: why"),
        (
            changed("VolumeFailedDelete"),
            "Released STUCK 3s: VolumeFailedDelete: why",
        ),
        (earlier, "Released (kept: its policy is Retain)"),
        (on_node(), "unclaimed (no PersistentVolume has it)"),
        (
            Case {
                failed_call: Some("NodeStageVolume failed with INTERNAL"),
                ..on_node()
            },
            "unclaimed STUCK: NodeStageVolume failed with INTERNAL",
        ),
        (
            on_node().reported("frozen_since_ns", json!((NOW - 70) * 1_000_000_000)),
            "unclaimed STUCK 70s: its filesystem is frozen: writes wait",
        ),
        (
            Case {
                volumes_unknown: true,
                ..on_node()
            },
            "Bound",
        ),
        (inline(&["/k/stage"]).pod("a", "Running"), "published"),
        (inline(&[]).pod("a", "Pending"), "staged"),
        (
            inline(&["/k/stage"]),
            "published (inline; its pod is not known)",
        ),
        (pending(), "Pending"),
        (unmounted, "Pending STUCK 3s: pod a: FailedMount: why"),
    ]);
}
