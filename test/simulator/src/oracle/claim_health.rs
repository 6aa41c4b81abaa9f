//! The status of a claim tells the health of its volume: since when it is so, and nothing that is
//! over. Software follows it and not events, so no advice helps against what is wrong there.

use std::sync::Arc;

use hostloop_driver::storage::Provisioning;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{is_deleting, items, name, text};
use crate::oracle::capacity::available;
use crate::oracle::objects::{Objects, volume_of};
use crate::oracle::ownership::{self, is_named_after_claim};
use crate::trace;

/// The conditions in the status of a claim.
const CONDITIONS: &str = "/status/healthStatus/healthConditions";
/// The reason of a condition of a volume on a disk that has little room left.
const NEARLY_FULL: &str = "PoolNearlyFull";
/// The reason of a condition of a volume with a damaged record.
const UNREADABLE: &str = "RecordUnreadable";
/// A pool has enough room if it has so much for a thick volume, in bytes.
const ENOUGH: u64 = 16 << 20;

/// Checks that claims say since when their volumes have problems.
pub(super) fn has_times(claims: &[Arc<Value>]) {
    for claim in claims.iter().filter(|claim| lacks_time(claim)) {
        trace::violation(format!(
            "health without a time: claim {} has {}",
            name(claim),
            claim["status"]["healthStatus"]
        ));
    }
}

/// True if a claim has the problems of its volume, and not the time since when it has them.
fn lacks_time(claim: &Value) -> bool {
    items(claim, CONDITIONS).next().is_some()
        && text(claim, "/status/healthStatus/lastTransitionTime").is_empty()
}

/// Checks after a quiet time that problems which are over have left the status of claims. A node
/// reads that status once an hour, so it may not know what an API server has that went back.
pub(super) fn is_present(cluster: &Cluster, objects: &Objects) {
    if ownership::has_gone_back() {
        return;
    }
    let unreadable = cluster.unreadable();
    let bound = objects.claims.iter();
    for claim in bound.filter(|claim| text(claim, "/status/phase") == "Bound") {
        let volume = volume_of(cluster, claim);
        let Some(volume) = volume.filter(|volume| is_reported(claim, volume)) else {
            continue;
        };
        let handle = text(&volume, "/spec/csi/volumeHandle");
        // No process reports on a node that has left for good, or on a volume that is gone.
        let Some(machine) = cluster.machine_of(handle).filter(|one| !one.is_gone()) else {
            continue;
        };
        let room = available(machine, Provisioning::Thick).unwrap_or_default();
        if let Some(reason) = past(claim, room >= ENOUGH, unreadable.contains(handle)) {
            trace::violation(format!(
                "health that is over: claim {} still has {reason}: {}",
                name(claim),
                claim["status"]["healthStatus"]
            ));
        }
    }
}

/// True if the node of a volume keeps the status of its claim up to date: hostloop has made the
/// volume for the claim, and no one deletes one of the two.
fn is_reported(claim: &Value, volume: &Value) -> bool {
    is_named_after_claim(volume)
        && volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        && text(volume, "/status/phase") == "Bound"
        && !is_deleting(volume)
        && !is_deleting(claim)
}

/// The reason of a condition of a claim that is over, if there is one.
fn past(claim: &Value, has_room: bool, is_unreadable: bool) -> Option<&str> {
    let mut reasons = items(claim, CONDITIONS).map(|condition| text(condition, "/reason"));
    reasons.find(|reason| match *reason {
        NEARLY_FULL => has_room,
        UNREADABLE => !is_unreadable,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn claim(health: &Value) -> Value {
        json!({"metadata": {"name": "c1"}, "status": {"phase": "Bound", "healthStatus": health}})
    }

    #[rstest]
    #[case::healthy(Value::Null, false)]
    #[case::with_a_time(
        json!({"healthConditions": [{"status": "Degraded", "reason": "R"}],
            "lastTransitionTime": "2026-01-01T00:00:00Z"}),
        false
    )]
    #[case::without(json!({"healthConditions": [{"status": "Degraded", "reason": "R"}]}), true)]
    #[case::over(json!({"healthConditions": []}), false)]
    fn problems_have_a_time(#[case] health: Value, #[case] expected: bool) {
        assert_eq!(lacks_time(&claim(&health)), expected);
    }

    #[rstest]
    #[case::full(NEARLY_FULL, false, false, None)]
    #[case::with_room_again(NEARLY_FULL, true, false, Some(NEARLY_FULL))]
    #[case::unreadable(UNREADABLE, true, true, None)]
    #[case::readable(UNREADABLE, true, false, Some(UNREADABLE))]
    #[case::of_something_else("NotMounted", true, false, None)]
    fn problems_end(
        #[case] reason: &str,
        #[case] has_room: bool,
        #[case] is_unreadable: bool,
        #[case] expected: Option<&str>,
    ) {
        let claim = claim(&json!({"healthConditions": [{"status": "Degraded", "reason": reason}]}));
        assert_eq!(past(&claim, has_room, is_unreadable), expected);
    }
}
