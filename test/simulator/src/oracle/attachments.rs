//! What is attached, or not, after a quiet time.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::foreign::is_foreign;
use crate::model::view::{is_deleting, name, text};
use crate::oracle::objects::state;
use crate::trace;
use crate::users::volume_path;

/// Checks that each attachment is done, or says why not, and that none is left that is to go.
/// Volumes with handles in `lost` are excused: their data is gone.
pub(super) fn are_settled(cluster: &Cluster, lost: &BTreeSet<String>) {
    for attachment in cluster.api.shared("volumeattachments") {
        let volume = text(&attachment, "/spec/source/persistentVolumeName");
        let Some(volume) = cluster.api.shared_at(&volume_path(volume)) else {
            continue;
        };
        if is_foreign(&volume) {
            continue;
        }
        let handle = text(&volume, "/spec/csi/volumeHandle");
        if lost.contains(handle) || cluster.has_lost(handle) {
            continue;
        }
        if let Some(problem) = problem(&attachment) {
            trace::violation(format!(
                "{problem}: {} of {}: {}",
                name(&attachment),
                name(&volume),
                state(&attachment)
            ));
        }
    }
}

/// What is wrong with an attachment.
fn problem(attachment: &Value) -> Option<&'static str> {
    if is_deleting(attachment) {
        return Some("not detached");
    }
    let is_attached = attachment["status"]["attached"] == true;
    let is_explained = !text(attachment, "/status/attachError/message").is_empty();
    (!is_attached && !is_explained).then_some("neither attached nor explained")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_attachment_is_done_or_says_why_not() {
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (metadata, status, expected) in [
            (json!({}), json!({"attached": true}), None),
            (
                json!({}),
                json!({"attached": false, "attachError": {"message": "no"}}),
                None,
            ),
            (
                json!({}),
                json!({"attached": false}),
                Some("neither attached nor explained"),
            ),
            (
                json!({}),
                json!(null),
                Some("neither attached nor explained"),
            ),
            (deleted, json!({"attached": true}), Some("not detached")),
        ] {
            let attachment = json!({"metadata": metadata, "status": status});
            assert_eq!(problem(&attachment), expected, "{attachment}");
        }
    }
}
