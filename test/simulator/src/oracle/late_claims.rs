//! A claim that comes after the deletion of its source gets nothing of it. Only the claims from before
//! may keep a deleted snapshot or claim.

use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{is_deleting, name, namespace, text, uid};
use crate::oracle::ownership::is_named_after_claim;
use crate::trace;

/// Checks that no volume was made for such a claim. Only in a calm world does each process know of a
/// deletion at once.
pub(super) fn check(cluster: &Cluster, volumes: &[Arc<Value>], claims: &[Arc<Value>]) {
    if cluster.only_node().is_none() {
        return;
    }
    let snapshots = cluster.api.shared("volumesnapshots");
    let sources = snapshots.iter().chain(claims);
    for source in sources.filter(|source| is_deleting(source)) {
        for claim in claims.iter().filter(|claim| is_too_late(claim, source)) {
            if let Some(volume) = volumes.iter().find(|volume| is_made_for(volume, claim)) {
                trace::violation(format!(
                    "from a deleted source: {} was made for claim {}, which came after the \
                     deletion of {} {}",
                    name(volume),
                    name(claim),
                    text(source, "/kind"),
                    name(source)
                ));
            }
        }
    }
}

/// True if a claim came after the deletion of this source. Times have whole seconds.
fn is_too_late(claim: &Value, source: &Value) -> bool {
    let wanted = &claim["spec"]["dataSource"];
    wanted["kind"] == *text(source, "/kind")
        && wanted["name"] == *name(source)
        && namespace(claim) == namespace(source)
        && text(claim, "/metadata/creationTimestamp") > text(source, "/metadata/deletionTimestamp")
}

/// True if a volume was made for a claim, and was not there before.
fn is_made_for(volume: &Value, claim: &Value) -> bool {
    is_named_after_claim(volume) && text(volume, "/spec/claimRef/uid") == uid(claim)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::DRIVER;
    use crate::model::view::PROVISIONED_BY;

    #[test]
    fn claims_after_the_deletion_of_their_source() {
        const BEFORE: &str = "2026-01-01T00:00:07Z";
        const AT: &str = "2026-01-01T00:00:08Z";
        const AFTER: &str = "2026-01-01T00:00:10Z";
        let source = json!({"kind": "VolumeSnapshot", "metadata": {"name": "s1",
            "namespace": "u", "deletionTimestamp": AT}});
        for (created, kind, named, namespace, expected) in [
            (AFTER, "VolumeSnapshot", "s1", "u", true),
            (AT, "VolumeSnapshot", "s1", "u", false),
            (BEFORE, "VolumeSnapshot", "s1", "u", false),
            (AFTER, "PersistentVolumeClaim", "s1", "u", false),
            (AFTER, "VolumeSnapshot", "s2", "u", false),
            (AFTER, "VolumeSnapshot", "s1", "v", false),
        ] {
            let claim = json!({"metadata": {"name": "c1", "namespace": namespace,
                    "creationTimestamp": created},
                "spec": {"dataSource": {"kind": kind, "name": named}}});
            assert_eq!(is_too_late(&claim, &source), expected, "{claim}");
        }
    }

    #[test]
    fn volumes_that_were_made_for_a_claim() {
        let claim = json!({"metadata": {"name": "c1", "uid": "1"}});
        for (named, user, expected) in [
            ("hostloop-1", "1", true),
            ("hostloop-2", "1", false),
            ("hostloop-2", "2", false),
        ] {
            let volume = json!({"metadata": {"name": named,
                    "annotations": {PROVISIONED_BY: DRIVER}},
                "spec": {"storageClassName": "ext4", "claimRef": {"uid": user}}});
            assert_eq!(is_made_for(&volume, &claim), expected, "{volume}");
        }
    }
}
