//! A reserved node makes the volumes of pods that tolerate it: the scheduler may choose it for them.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{event_about, event_note, is_deleting, items, name, text, uid};
use crate::oracle::objects::Objects;
use crate::trace;
use crate::users::{RESERVED_FOR, is_immediate};

/// Checks what events say of claims, in a calm world. Elsewhere, pods may be on other nodes.
pub(super) fn make_volumes_of_tolerant_pods(cluster: &Cluster, objects: &Objects) {
    if !cluster.has_no_troubles() {
        return;
    }
    for event in cluster.api.shared("events") {
        let note = event_note(&event);
        if !is_refusal(note) {
            continue;
        }
        let about = text(event_about(&event), "/uid");
        let Some(claim) = objects.claims.iter().find(|claim| uid(claim) == about) else {
            continue;
        };
        let time = text(&event, "/firstTimestamp");
        let mut users = objects.users(claim);
        if !is_immediate(text(claim, "/spec/storageClassName"))
            && let Some(pod) = users.find(|pod| was_tolerant(pod, time))
        {
            trace::violation(format!(
                "refused on a reserved node: claim {}, and its pod {} tolerates that: {note}",
                name(claim),
                name(pod)
            ));
        }
    }
}

/// True if a message says that a claim gets no volume on a reserved node.
fn is_refusal(message: &str) -> bool {
    message.contains("the selected node ")
        && message.contains(&format!(" has the taint {RESERVED_FOR}"))
}

/// True if a pod that tolerates reserved nodes was there at this time, to the second. The scheduler
/// chooses such a node for no other pod.
fn was_tolerant(pod: &Value, time: &str) -> bool {
    let mut tolerations = items(pod, "/spec/tolerations");
    tolerations.any(|one| one["key"] == RESERVED_FOR)
        && !is_deleting(pod)
        && text(pod, "/metadata/creationTimestamp") <= time
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::before(RESERVED_FOR, "2026-01-01T00:00:01Z", true)]
    #[case::in_the_same_second(RESERVED_FOR, "2026-01-01T00:00:02Z", true)]
    #[case::later(RESERVED_FOR, "2026-01-01T00:00:03Z", false)]
    #[case::of_something_else("other", "2026-01-01T00:00:01Z", false)]
    fn pods_that_tolerate_a_reserved_node(
        #[case] key: &str,
        #[case] created: &str,
        #[case] expected: bool,
    ) {
        let pod = json!({"metadata": {"creationTimestamp": created},
            "spec": {"tolerations": [{"key": key, "operator": "Exists"}]}});
        assert_eq!(was_tolerant(&pod, "2026-01-01T00:00:02Z"), expected);
    }

    #[test]
    fn refusals_of_a_reserved_node() {
        let refused = format!(
            "failed to provision volume with StorageClass \"ext4\": the selected node n1 has the \
             taint {RESERVED_FOR}=some:NoSchedule, and no pending pod can run there"
        );
        for (message, expected) in [
            (refused.as_str(), true),
            ("the selected node n1 is cordoned", false),
            (
                "no node has room for 1Mi: n1 has the taint simulator/reserved-for=some",
                false,
            ),
        ] {
            assert_eq!(is_refusal(message), expected, "{message}");
        }
    }
}
