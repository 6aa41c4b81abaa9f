//! Times and events for the tests of verdicts.

use serde_json::{Value, json};

/// Seconds since the epoch at which the tests judge.
pub(super) const NOW: u64 = 1_767_322_800;

/// A time some seconds before now.
pub(super) fn ago(seconds: u64) -> String {
    let at = i64::try_from(NOW - seconds).unwrap();
    k8s_openapi::jiff::Timestamp::from_second(at)
        .unwrap()
        .to_string()
}

/// A warning about the object with this UID, seen some seconds ago.
pub(super) fn warning(uid: &str, reason: &str, age: u64) -> Value {
    json!({
        "metadata": {"name": "e"}, "type": "Warning", "reason": reason, "message": "why",
        "involvedObject": {"uid": uid}, "lastTimestamp": ago(age),
    })
}
