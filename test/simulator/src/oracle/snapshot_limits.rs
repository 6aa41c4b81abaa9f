//! The snapshots of a namespace promise no more on a node than its driver allows them, and none is
//! refused that is within that.

use std::collections::BTreeMap;
use std::sync::Arc;

use hostloop_driver::storage::SnapshotRecord;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::Contents;
use crate::model::view::{event_about, event_note, text};
use crate::oracle::promises::promised_to_snapshots;
use crate::{messages, trace};

/// The parameters of a snapshot that name its namespace.
const NAMESPACES: [&str; 2] = [
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
];

/// Checks the records of all nodes. After a power cut, a disk may have again what was deleted.
pub(super) fn are_kept(cluster: &Cluster) {
    let machines = cluster.machines.iter();
    for machine in machines.filter(|machine| !machine.has_lost_power()) {
        let most = machine.snapshots_of_namespace();
        let contents = machine.contents();
        for (namespace, promised) in promised(&contents) {
            if promised > most {
                let node = machine.name();
                trace::violation(format!(
                    "too many snapshots: those of namespace {namespace:?} promise {promised} bytes on \
                     {node}, of at most {most}"
                ));
            }
        }
    }
}

/// What the snapshots of each namespace promise at least, in bytes.
fn promised(contents: &Contents) -> BTreeMap<&str, u64> {
    let mut of_namespaces: BTreeMap<&str, Vec<&SnapshotRecord>> = BTreeMap::new();
    for snapshot in &contents.snapshots {
        let namespace = namespace_of(snapshot);
        of_namespaces.entry(namespace).or_default().push(snapshot);
    }
    let of_namespaces = of_namespaces.into_iter();
    of_namespaces
        .map(|(namespace, snapshots)| (namespace, promised_to_snapshots(snapshots)))
        .collect()
}

fn namespace_of(snapshot: &SnapshotRecord) -> &str {
    let mut named = NAMESPACES
        .iter()
        .filter_map(|key| snapshot.parameters.get(*key));
    named.next().map_or("", String::as_str)
}

/// Checks that no event speaks of a limit that is not exceeded.
pub(super) fn are_exceeded(cluster: &Cluster) {
    for breach in refused_within(&cluster.api.shared("events")) {
        trace::violation(breach);
    }
}

/// What events say of refusals that their own numbers contradict.
fn refused_within(events: &[Arc<Value>]) -> Vec<String> {
    let notes = events.iter().map(|event| (event, event_note(event)));
    let wrong = notes.filter(|(_, note)| {
        messages::snapshot_limit(note).is_some_and(|[used, more, limit]| used + more <= limit)
    });
    wrong
        .map(|(event, note)| {
            let about = event_about(event);
            let [kind, name] = ["/kind", "/name"].map(|at| text(about, at));
            format!("refused within its limit: {kind} {name}: {note}")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::beyond(1, 0)]
    #[case::exactly(0, 1)]
    fn refusals(#[case] used: u64, #[case] expected: usize) {
        let note = format!(
            "Failed to create snapshot: CreateSnapshot: ResourceExhausted: the snapshots of namespace \
             \"u\" promise {used} bytes on this node, and 32.0 MiB (33554432 bytes) more would exceed \
             its limit of 32.0 MiB (33554432 bytes) (--max-snapshot-bytes-per-namespace): delete some"
        );
        let about = json!({"kind": "VolumeSnapshot", "name": "s1"});
        let events = [
            Arc::new(json!({"involvedObject": about.clone(), "message": note})),
            Arc::new(json!({"involvedObject": about, "message": "no room"})),
        ];
        let found = refused_within(&events);
        assert_eq!(found.len(), expected, "{found:?}");
    }
}
