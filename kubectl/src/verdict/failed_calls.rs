//! Calls that fail, by the volume that they are about.
//!
//! They say what is wrong with a volume of which no object does: without a cluster, there are none.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::text;
use crate::verdict::Stuck;

/// What undoes a call: its success makes an earlier failure meaningless.
const UNDONE_BY: [(&str, &str); 4] = [
    ("CreateVolume", "DeleteVolume"),
    ("ControllerPublishVolume", "ControllerUnpublishVolume"),
    ("NodeStageVolume", "NodeUnstageVolume"),
    ("NodePublishVolume", "NodeUnpublishVolume"),
];

/// Codes that ask the caller to try again, and mostly pass.
const PASSING: [&str; 5] = [
    "ABORTED",
    "CANCELED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
];
/// A failure with such a code counts from this try on.
const PASSING_TRIES: u32 = 3;

/// Volumes that are remembered. Failures of further ones are not.
const MOST: usize = 4096;

/// The failures that no later success has settled, by volume ID and call.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailedCalls(BTreeMap<String, BTreeMap<String, FailedCall>>);

/// A row of failures of one call.
#[derive(Clone, Debug, Default)]
struct FailedCall {
    tries: u32,
    /// When the first of them began, in microseconds since the epoch.
    since_us: u64,
    /// When the last of them began.
    last_us: u64,
    /// The code and the error of the last one.
    code: String,
    error: String,
}

impl FailedCalls {
    /// Takes an event of a process. Returns true if it is a call that has ended.
    pub(crate) fn take(&mut self, event: &Value) -> bool {
        let (name, code) = (text(event, "/name"), text(event, "/code"));
        let ids = ["/request/volume_id", "/answer/volume_id"];
        let id = ids.iter().map(|path| text(event, path));
        let Some(id) = id.into_iter().find(|id| !id.is_empty()) else {
            return false;
        };
        if text(event, "/kind") != "call" || name.is_empty() || code.is_empty() {
            return false;
        }
        if code == "OK" {
            self.settle(id, name);
            return true;
        }
        if self.0.len() >= MOST && !self.0.contains_key(id) {
            return true;
        }
        let started = event["t"].as_u64().unwrap_or_default();
        let calls = self.0.entry(id.to_owned()).or_default();
        let failed = calls.entry(name.to_owned()).or_default();
        if failed.tries == 0 {
            failed.since_us = started;
        }
        failed.tries += 1;
        failed.last_us = started;
        failed.code = code.to_owned();
        failed.error = text(event, "/error").to_owned();
        true
    }

    /// Forgets what the success of a call settles.
    fn settle(&mut self, id: &str, name: &str) {
        let Some(calls) = self.0.get_mut(id) else {
            return;
        };
        calls.retain(|failed, _| failed != name && !UNDONE_BY.contains(&(failed.as_str(), name)));
        if calls.is_empty() {
            self.0.remove(id);
        }
    }

    /// Why calls about a volume fail: the newest failure that lasts.
    pub(crate) fn of(&self, id: &str) -> Option<Stuck> {
        let calls = self.0.get(id)?.iter();
        let lasting = calls.filter(|(_, failed)| {
            failed.tries >= PASSING_TRIES || !PASSING.contains(&failed.code.as_str())
        });
        let (name, failed) = lasting.max_by_key(|(_, failed)| failed.last_us)?;
        Some(failed.stuck(name))
    }

    /// The IDs of the volumes with failures.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl FailedCall {
    fn stuck(&self, name: &str) -> Stuck {
        let times = match self.tries {
            1 => String::new(),
            tries => format!(" {tries} times"),
        };
        let error = match self.error.as_str() {
            "" => String::new(),
            error => format!(": {error}"),
        };
        let why = format!("{name} failed{times} with {}{error}", self.code);
        Stuck::new(why, Some(self.since_us.saturating_mul(1000)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Calls, each with its name, its code and its start.
    fn after(calls: &[(&str, &str, u64)]) -> Option<String> {
        let mut failed = FailedCalls::default();
        for (name, code, t) in calls {
            failed.take(&json!({
                "kind": "call", "name": name, "code": code, "t": t, "error": "why",
                "request": {"volume_id": "v"},
            }));
        }
        assert!(failed.of("other").is_none());
        failed
            .of("v")
            .map(|stuck| format!("{} {}", stuck.since_ns.unwrap() / 1000, stuck.why))
    }

    #[test]
    fn a_failure_lasts_until_the_same_call_succeeds_or_is_undone() {
        let (stage, unstage) = ("NodeStageVolume", "NodeUnstageVolume");
        let aborted = |t| (stage, "ABORTED", t);
        for (calls, why) in [
            (vec![("CreateVolume", "OK", 1)], None),
            (
                vec![(stage, "INTERNAL", 1)],
                Some("1 NodeStageVolume failed with INTERNAL: why"),
            ),
            (
                vec![(stage, "INTERNAL", 1), (stage, "NOT_FOUND", 2)],
                Some("1 NodeStageVolume failed 2 times with NOT_FOUND: why"),
            ),
            (vec![(stage, "INTERNAL", 1), (stage, "OK", 2)], None),
            (vec![(stage, "INTERNAL", 1), (unstage, "OK", 2)], None),
            (vec![aborted(1), aborted(2)], None),
            (
                vec![aborted(1), aborted(2), aborted(3)],
                Some("1 NodeStageVolume failed 3 times with ABORTED: why"),
            ),
            (
                vec![("A", "INTERNAL", 1), ("B", "INTERNAL", 2)],
                Some("2 B failed with INTERNAL: why"),
            ),
            // It is under way.
            (vec![("A", "", 1)], None),
        ] {
            assert_eq!(after(&calls).as_deref(), why, "{calls:?}");
        }
    }

    #[test]
    fn other_events_are_not_taken() {
        let mut failed = FailedCalls::default();
        for event in [
            json!({"kind": "phase", "name": "mkfs", "code": "INTERNAL", "request": {"volume_id": "v"}}),
            json!({"kind": "call", "name": "CreateVolume", "code": "INTERNAL", "request": {"name": "n"}}),
            json!({"kind": "call", "name": 5, "code": [], "request": {"volume_id": {}}}),
            json!(null),
        ] {
            assert!(!failed.take(&event), "{event}");
        }
        assert_eq!(failed.ids().count(), 0);
        let answered =
            json!({"kind": "call", "name": "A", "code": "UNKNOWN", "answer": {"volume_id": "v"}});
        assert!(failed.take(&answered));
        assert_eq!(failed.ids().collect::<Vec<_>>(), ["v"]);
    }
}
