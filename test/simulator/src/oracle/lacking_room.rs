//! A pool that lacks room for a request says how much it can promise, and that is less than the request.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::model::view::{event_note, uid};
use crate::oracle::objects::Objects;
use crate::{messages, trace};

/// Checks what events say, and what kubelets complain about.
pub(super) fn is_less_than_requested(cluster: &Cluster, objects: &Objects) {
    let events = cluster.api.shared("events");
    let notes = events.iter().map(|event| event_note(event));
    let mut said: BTreeSet<String> = notes.map(str::to_owned).collect();
    for pod in &objects.pods {
        said.extend(cluster.complaints(uid(pod)));
    }
    for message in said.iter().filter(|message| is_false(message)) {
        trace::violation(format!("refused where there is room: {message}"));
    }
}

/// True if a message says that a pool lacks room for what it could promise.
fn is_false(message: &str) -> bool {
    messages::lacking_room(message).is_some_and(|[requested, left]| left >= requested)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(requested: &str, left: &str) -> String {
        format!(
            "failed to provision volume with StorageClass \"ext4\": rpc error: code = \
             ResourceExhausted desc = pool pool has no room for {requested}: it can promise {left} \
             more. Delete volumes or snapshots, or raise --overcommit"
        )
    }

    #[test]
    fn what_is_left_is_compared_with_what_is_requested() {
        let gib = "1 GiB (1073741824 bytes)";
        for (message, expected) in [
            (message(gib, "1 GiB (1073737728 bytes)"), false),
            (message(gib, "0 bytes"), false),
            (message(gib, gib), true),
            (message("512 bytes", "1 MiB (1048576 bytes)"), true),
            (
                "no node has room for 1Gi: n1 has 1Gi left".to_owned(),
                false,
            ),
            ("the disk has no room for a thick volume".to_owned(), false),
        ] {
            assert_eq!(is_false(&message), expected, "{message}");
        }
        let small = messages::lacking_room(&message(gib, "7 bytes"));
        assert_eq!(small, Some([1 << 30, 7]));
    }
}
