//! No call waits for long for a thread that is not for copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{event_about, event_note, text};
use crate::{messages, trace};

/// Checks that no event speaks of a call that has waited for such a thread. What takes these threads
/// is short, so a call finds one even if its own namespace has all the copies that it may have. The
/// events outlive their objects: a greedy namespace gives its copies up before the quiet time.
pub(super) fn check(cluster: &Cluster) {
    for sentence in starved(&cluster.api.shared("events")) {
        trace::violation(sentence);
    }
}

/// What events say of such calls, one sentence for each namespace: a greedy one has dozens.
fn starved(events: &[Arc<Value>]) -> Vec<String> {
    let mut starved = BTreeMap::new();
    for event in events {
        let note = event_note(event);
        if !messages::waits_for_changes(note) {
            continue;
        }
        let about = event_about(event);
        let [namespace, kind, name] = ["/namespace", "/kind", "/name"].map(|at| text(about, at));
        starved
            .entry(namespace)
            .or_insert_with(|| format!("starved: {kind} {namespace}/{name}: {note}"));
    }
    starved.into_values().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_sentence_for_each_namespace_that_waits_for_what_is_short() {
        const CHANGES: &str = "the call waits for the changes in its pool (24 run, 22 wait)";
        const COPIES: &str = "the call waits for the copies in its pool (2 run, 44 wait)";
        let event = |namespace: &str, name: &str, note: &str| {
            let about = json!({"kind": "PersistentVolumeClaim", "namespace": namespace,
                "name": name});
            Arc::new(json!({"involvedObject": about, "message": note}))
        };
        let of = |namespace: &str, name: &str| {
            format!("starved: PersistentVolumeClaim {namespace}/{name}: {CHANGES}")
        };
        for (events, expected) in [
            (vec![], vec![]),
            (vec![event("greedy", "copy-1", COPIES)], vec![]),
            (
                vec![
                    event("u", "c1", COPIES),
                    event("u", "c2", CHANGES),
                    event("greedy", "copy-1", CHANGES),
                    event("greedy", "copy-2", CHANGES),
                ],
                vec![of("greedy", "copy-1"), of("u", "c2")],
            ),
        ] {
            assert_eq!(starved(&events), expected);
        }
    }
}
