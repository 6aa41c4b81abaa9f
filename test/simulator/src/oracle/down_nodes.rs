//! An event that says that a node is not ready is true: the node has stood still.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{event_about, event_note, text};
use crate::trace;

/// The reasons of the events about nodes that are down, and of those about their end.
const REASONS: [&str; 2] = ["NodeFailed", "NodeRecovered"];

/// Checks that no event speaks of a node that has never stopped.
pub(super) fn are_down(cluster: &Cluster) {
    let machines = cluster.machines.iter();
    let steady: Vec<&str> = machines
        .filter(|machine| !machine.has_stopped())
        .map(|machine| machine.name())
        .collect();
    for breach in breaches(&cluster.api.shared("events"), &steady) {
        trace::violation(breach);
    }
}

/// What events say wrongly of these nodes, which have never stopped.
fn breaches(events: &[Arc<Value>], steady: &[&str]) -> Vec<String> {
    let of_nodes = events
        .iter()
        .filter(|event| REASONS.contains(&text(event, "/reason")));
    let notes = of_nodes.map(|event| (event, event_note(event)));
    notes
        .filter(|(_, note)| steady.iter().any(|node| has_word(note, node)))
        .map(|(event, note)| {
            let about = text(event_about(event), "/name");
            format!("not down: the node has never stopped, but an event on {about} says: {note}")
        })
        .collect()
}

/// True if a text has this name as a word.
fn has_word(note: &str, name: &str) -> bool {
    note.split([' ', ',', '.']).any(|word| word == name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::of_a_steady_node("NodeFailed", "Node n1, on which pods use it, is not ready", 1)]
    #[case::of_its_return("NodeRecovered", "Node n1 is ready again", 1)]
    #[case::of_another_node("NodeFailed", "Node n2, on which pods use it, is not ready", 0)]
    #[case::of_a_longer_name("NodeFailed", "Node n10, on which pods use it, is not ready", 0)]
    #[case::of_something_else("Resizing", "Node n1 expands the volume", 0)]
    fn events_about_nodes(#[case] reason: &str, #[case] note: &str, #[case] expected: usize) {
        let event = json!({"reason": reason, "message": note,
            "involvedObject": {"kind": "PersistentVolumeClaim", "name": "c1"}});
        assert_eq!(breaches(&[Arc::new(event)], &["n1", "n3"]).len(), expected);
    }
}
