//! In a calm world, a driver has no cause to answer that something is wrong with itself. Users follow
//! the advice of such answers, too, and may get round the fault by it.

use crate::cluster::Cluster;
use crate::model::view::{event_note, uid};
use crate::oracle::objects::Objects;
use crate::trace;

/// The codes of such answers.
const CODES: [&str; 3] = ["DataLoss", "Internal", "Unknown"];

/// Words of kubelet about a call that it did not make.
const LACKS_SECRET: &str = "failed to find the secret";

/// Checks what events say, and what kubelets complain about. Only a calm world has a single node.
pub(super) fn are_missing(cluster: &Cluster, objects: &Objects) {
    if cluster.only_node().is_none() {
        return;
    }
    let events = cluster.api.shared("events");
    let notes = events.iter().map(|event| event_note(event));
    notes.filter(|note| is_fault(note)).for_each(report);
    for pod in &objects.pods {
        let complaints = cluster.complaints(uid(pod));
        let faults = complaints.iter().filter(|complaint| is_fault(complaint));
        faults.for_each(|fault| report(fault));
    }
}

fn report(message: &str) {
    trace::violation(format!("a fault of the driver in a calm world: {message}"));
}

/// True if a message quotes an answer with such a code, in one of the forms that there are. Kubelet
/// itself says so of a secret that it lacks.
fn is_fault(message: &str) -> bool {
    let has_code = CODES.iter().any(|code| {
        message.contains(&format!("code = {code} ")) || message.contains(&format!(": {code}: "))
    });
    has_code && !message.contains(LACKS_SECRET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_known_by_their_codes() {
        for (message, expected) in [
            ("rpc error: code = Internal desc = mkfs failed", true),
            ("code = DataLoss desc = the image is missing", true),
            ("CreateSnapshot: Internal: no such file", true),
            ("rpc error: code = NotFound desc = no volume", false),
            ("CreateSnapshot: ResourceExhausted: no space", false),
            ("Internal traffic", false),
            ("code = Internal desc = failed to find the secret c1", false),
        ] {
            assert_eq!(is_fault(message), expected, "{message}");
        }
    }
}
