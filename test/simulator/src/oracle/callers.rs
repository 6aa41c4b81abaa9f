//! The leader has no driver, so it leaves calls to the nodes. A user can do nothing about a call that
//! failed because the wrong process made it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{event_about, event_note, text};
use crate::{messages, trace};

/// Checks that no event speaks of a call that a process could not make.
pub(super) fn have_drivers(cluster: &Cluster) {
    for sentence in without_driver(&cluster.api.shared("events")) {
        trace::violation(sentence);
    }
}

/// What events say of such calls, one sentence for each kind of object and message.
fn without_driver(events: &[Arc<Value>]) -> BTreeSet<String> {
    let notes = events.iter().map(|event| (event, event_note(event)));
    let wrong = notes.filter(|(_, note)| messages::lacks_driver(note));
    wrong
        .map(|(event, note)| format!("no driver: {}: {note}", text(event_about(event), "/kind")))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_about_calls_without_a_driver() {
        let event = |name: &str, note: &str| {
            let about = json!({"kind": "VolumeSnapshotContent", "name": name});
            Arc::new(json!({"involvedObject": about, "message": note}))
        };
        let wrong = "ListSnapshots: Unavailable: this process has no CSI driver";
        let sentence = format!("no driver: VolumeSnapshotContent: {wrong}");
        for (events, expected) in [
            (vec![], vec![]),
            (
                vec![event("c1", "ListSnapshots: Unavailable: no answer")],
                vec![],
            ),
            (vec![event("c1", wrong), event("c2", wrong)], vec![sentence]),
        ] {
            assert_eq!(without_driver(&events), BTreeSet::from_iter(expected));
        }
    }
}
