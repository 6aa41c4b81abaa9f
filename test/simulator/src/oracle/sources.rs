//! What the last event of a claim says of its source is true. Users who believe it give the source up,
//! and then nothing waits any more.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{
    SELECTED_NODE, annotation, event_about, event_note, name, namespace, text, uid,
};
use crate::oracle::advice::is_pending;
use crate::oracle::objects::{Objects, state};
use crate::trace;

/// The reason of events about a volume that could not be made.
const FAILED: &str = "ProvisioningFailed";

/// Checks after a quiet time what is said of the sources of claims without a volume.
pub(super) fn are_as_said(cluster: &Cluster, objects: &Objects) {
    let events = cluster.api.shared("events");
    for claim in objects.claims.iter().filter(|claim| is_pending(claim)) {
        let Some(source) = objects.source(claim) else {
            continue;
        };
        let content = objects.content(source);
        if !is_of_present_nodes(cluster, claim, content) {
            continue;
        }
        let said = said_last(&events, claim);
        if let Some(said) = said.filter(|said| is_false(said, source, content)) {
            trace::violation(format!(
                "not so: an event says of the source of claim {}: {said}; {}; content: {}",
                name(claim),
                state(source),
                content.map(state).unwrap_or_default()
            ));
        }
    }
}

/// True if the nodes of a claim and of its source are there. No one corrects what a node said that
/// has left for good, or of a claim that no node works on any more.
fn is_of_present_nodes(cluster: &Cluster, claim: &Value, content: Option<&Value>) -> bool {
    let node = annotation(claim, SELECTED_NODE);
    let machine = node.and_then(|node| cluster.machine_named(node));
    let handle = content.map(|content| text(content, "/status/snapshotHandle"));
    machine.is_some_and(|machine| !machine.is_gone())
        && !handle.is_some_and(|handle| cluster.has_lost(handle))
}

/// The last thing that is said of why a claim has no volume.
pub(super) fn said_last<'a>(events: &'a [Arc<Value>], claim: &Value) -> Option<&'a str> {
    let of_claim = events.iter().filter(|event| {
        text(event, "/reason") == FAILED && text(event_about(event), "/uid") == uid(claim)
    });
    let last = of_claim.max_by(|one, other| age(one).cmp(&age(other)));
    last.map(|event| event_note(event))
}

/// When an event last happened, in whole seconds, and the version of its object. An event that got no
/// answer is sent again, and has a later version then than one that came after it.
fn age(event: &Value) -> (&str, u64) {
    let version = text(event, "/metadata/resourceVersion").parse::<u64>();
    (text(event, "/lastTimestamp"), version.unwrap_or_default())
}

/// True if a message says something of a source that is not so.
fn is_false(said: &str, source: &Value, content: Option<&Value>) -> bool {
    let bound = text(source, "/status/boundVolumeSnapshotContentName");
    let content = content.filter(|content| name(content) == bound);
    let handle = content.map_or("", |content| text(content, "/status/snapshotHandle"));
    let path = format!("{}/{}", namespace(source), name(source));
    let missing = ["VolumeSnapshot", "PersistentVolumeClaim"]
        .map(|kind| format!("the source of the claim, {kind} {path}, does not exist"));
    missing.iter().any(|words| said.contains(words))
        || [
            (
                "it is not bound to a volume yet",
                source["status"]["phase"] == "Bound",
            ),
            (
                "it is not bound to a VolumeSnapshotContent yet",
                content.is_some(),
            ),
            ("has no status.snapshotHandle", !handle.is_empty()),
            (
                "it is not ready to use yet",
                source["status"]["readyToUse"] == true,
            ),
        ]
        .into_iter()
        .any(|(words, is_otherwise)| is_otherwise && said.contains(words))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn snapshot(status: Value) -> Value {
        json!({"metadata": {"name": "s1", "namespace": "u"}, "status": status})
    }

    fn content(handle: &str) -> Value {
        json!({"metadata": {"name": "content"}, "status": {"snapshotHandle": handle}})
    }

    #[rstest]
    #[case::missing(
        "the source of the claim, VolumeSnapshot u/s1, does not exist: create it",
        true
    )]
    #[case::of_another("the source of the claim, VolumeSnapshot u/s2, does not exist", false)]
    #[case::unbound("it is not bound to a VolumeSnapshotContent yet", true)]
    #[case::without_handle("its content has no status.snapshotHandle", true)]
    #[case::not_ready("it is not ready to use yet (status.readyToUse)", true)]
    #[case::full("no node has room for 1Ti", false)]
    fn what_is_said_of_a_ready_snapshot(#[case] said: &str, #[case] expected: bool) {
        let bound = "boundVolumeSnapshotContentName";
        let ready = snapshot(json!({bound: "content", "readyToUse": true}));
        assert_eq!(is_false(said, &ready, Some(&content("h"))), expected);
    }

    #[rstest]
    #[case::unbound(json!({}), "h", "it is not bound to a VolumeSnapshotContent yet")]
    #[case::without_handle(
        json!({"boundVolumeSnapshotContentName": "content"}),
        "",
        "its content has no status.snapshotHandle"
    )]
    #[case::of_another_content(json!({}), "h", "its content has no status.snapshotHandle")]
    #[case::not_ready(json!({"readyToUse": false}), "h", "it is not ready to use yet")]
    fn what_is_said_of_one_that_is_not(
        #[case] status: Value,
        #[case] handle: &str,
        #[case] said: &str,
    ) {
        assert!(!is_false(said, &snapshot(status), Some(&content(handle))));
    }

    #[test]
    fn a_claim_as_a_source_is_bound_or_not() {
        let said = "cannot be used: it is not bound to a volume yet";
        for (phase, expected) in [("Bound", true), ("Pending", false)] {
            let claim = snapshot(json!({"phase": phase}));
            assert_eq!(is_false(said, &claim, None), expected, "{phase}");
        }
    }

    #[test]
    fn the_last_event_of_a_claim_counts() {
        let event = |uid: &str, seconds: u64, version: u64, note: &str| {
            Arc::new(json!({
                "reason": FAILED, "message": note, "involvedObject": {"uid": uid},
                "lastTimestamp": format!("2026-01-01T00:00:0{seconds}Z"),
                "metadata": {"resourceVersion": version.to_string()},
            }))
        };
        let events = [
            event("1", 1, 12, "first, and sent again"),
            event("1", 2, 9, "second"),
            event("1", 2, 10, "third"),
            event("2", 3, 11, "of another"),
        ];
        let claim = json!({"metadata": {"uid": "1"}});
        assert_eq!(said_last(&events, &claim), Some("third"));
        assert_eq!(said_last(&events[3..], &claim), None);
    }
}
