//! Bound claims have what they request of their volumes, or a cause that excuses it.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{is_deleting, name, text};
use crate::oracle::advice::Advice;
use crate::oracle::capacity::has_room;
use crate::oracle::claims;
use crate::oracle::hindered::Hindered;
use crate::oracle::lost::Lost;
use crate::oracle::objects::{Objects, volume_of};
use crate::trace;
use crate::users::{bytes, requested};

/// Checks all bound claims after a quiet time.
pub(super) fn check(
    cluster: &Cluster,
    objects: &Objects,
    (lost, hindered): (&Lost, &Hindered),
    advice: Advice,
) {
    let bound = objects.claims.iter();
    for claim in bound.filter(|claim| claim["status"]["phase"] == "Bound") {
        if !is_deleting(claim) {
            check_claim(cluster, objects, claim, (lost, hindered), advice);
        }
    }
}

fn check_claim(
    cluster: &Cluster,
    objects: &Objects,
    claim: &Value,
    (lost, hindered): (&Lost, &Hindered),
    advice: Advice,
) {
    let (name, status) = (name(claim), &claim["status"]);
    let Some(volume) = volume_of(cluster, claim) else {
        trace::violation(format!(
            "claim {name} is bound to a volume that does not exist"
        ));
        return;
    };
    claims::has_its_source(claim, &volume);
    let handle = text(&volume, "/spec/csi/volumeHandle");
    // After its node has left for good, a volume can't change.
    if cluster.has_lost(handle) {
        return;
    }
    // Without its record, the driver can't change a volume. `records` checks that it says so.
    if lost.data.contains(handle) || cluster.unreadable().contains(handle) {
        return;
    }
    let reasons = objects.reasons(claim);
    let requested = requested(claim);
    let has = bytes(&status["capacity"]["storage"]);
    if requested > has {
        let resize = text(status, "/allocatedResourceStatuses/storage");
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let by_node = resize.starts_with("NodeResize")
            || conditions.any(|one| one["type"] == "FileSystemResizePending");
        let at_mount = by_node && !cluster.uses(handle) || hindered.has(cluster, &volume);
        let explained = if advice == Advice::Followed {
            !has_room(cluster, claim, &volume)
        } else {
            !reasons.is_empty()
        };
        if !at_mount && !explained {
            trace::violation(format!(
                "not expanded: claim {name} requests {requested} and has {has} ({resize}); {}",
                objects.history(claim)
            ));
        }
    }
    let wanted = &claim["spec"]["volumeAttributesClassName"];
    let current = &status["currentVolumeAttributesClassName"];
    let is_explained = advice == Advice::Open && !reasons.is_empty();
    if !text(wanted, "").is_empty() && wanted != current && !is_explained {
        trace::violation(format!(
            "not modified: claim {name} has the attributes {current} instead of {wanted}: {}; {}",
            status["modifyVolumeStatus"],
            objects.history(claim)
        ));
    }
}
