//! What waits after a quiet time: claims without a volume, pods that do not run, and snapshots that
//! are not ready. Something said at it tells its user what to do. Once that is done, nothing waits.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{collection, is_deleting, name, text, uid};
use crate::oracle::advice::{
    Advice, claims, gives_up, helps_claim, is_pending, is_stuck, said_of_snapshot, unready,
};
use crate::oracle::capacity::{available, provisioning};
use crate::oracle::claims::waits_for_others;
use crate::oracle::departures::is_out_of_reach;
use crate::oracle::objects::{Objects, state};
use crate::users::{ENOUGH, ENOUGH_OF, bytes, is_immediate, requested};
use crate::{filesystems, messages, trace};

/// Checks all that waits.
pub(super) fn check(cluster: &Cluster, objects: &Objects, advice: Advice) {
    for claim in objects.claims.iter().filter(|claim| is_pending(claim)) {
        restores_as_its_source_was(objects, claim);
        if waits_for_pod(objects, claim) || waits_for_others(claim) {
            continue;
        }
        if advice == Advice::Followed {
            unbound(cluster, objects, claim);
        } else {
            is_explained(cluster, objects, claim);
        }
    }
    for pod in objects.pods.iter().filter(|pod| is_stuck(pod)) {
        // What is said at the claim counts.
        if claims(objects, pod).flatten().any(is_pending) {
            continue;
        }
        if advice == Advice::Followed || !gives_up(cluster, objects, pod) {
            trace::violation(format!(
                "pod not running: {}, and {}: {}; {}",
                name(pod),
                what_is_wrong(advice),
                said_of_pod(cluster, objects, pod),
                state(pod)
            ));
        }
    }
    let snapshots = objects.snapshots.iter();
    let open = snapshots
        .filter(|snapshot| !is_deleting(snapshot) && snapshot["status"]["readyToUse"] != true);
    for snapshot in open {
        // What is said at the group of a member counts.
        if objects.group_of(snapshot).is_some() {
            continue;
        }
        let is_out_of_reach = is_out_of_reach(cluster, objects, snapshot);
        let said = said_of_snapshot(objects, snapshot);
        if let Some(why) = unready(is_out_of_reach, &said, advice) {
            trace::violation(format!(
                "snapshot {} is not ready, and {why}: {}; {}",
                name(snapshot),
                state(snapshot),
                objects.history(snapshot)
            ));
        }
    }
}

fn what_is_wrong(advice: Advice) -> &'static str {
    match advice {
        Advice::Open => "nothing says what to do",
        Advice::Followed => "all advice was followed",
    }
}

/// True if a claim waits for its first pod.
fn waits_for_pod(objects: &Objects, claim: &Value) -> bool {
    !is_immediate(text(claim, "/spec/storageClassName")) && objects.users(claim).next().is_none()
}

/// Checks that the user of a claim without a volume learns what to do.
fn is_explained(cluster: &Cluster, objects: &Objects, claim: &Value) {
    if helps_claim(cluster, objects, claim) {
        return;
    }
    let what = if objects.reasons(claim).is_empty() {
        "nothing says why"
    } else {
        "nothing says what to do"
    };
    trace::violation(format!(
        "claim {} is pending, and {what}: {}; {}",
        name(claim),
        state(claim),
        objects.history(claim)
    ));
}

/// Reports a claim without a volume although all advice was followed, unless a cause excuses it.
fn unbound(cluster: &Cluster, objects: &Objects, claim: &Value) {
    if !is_excused(cluster, objects, claim) {
        trace::violation(format!(
            "not bound: claim {}, although all advice was followed: {}; {}",
            name(claim),
            state(claim),
            objects.history(claim)
        ));
    }
}

/// True if a claim may have no volume although all advice was followed. There are three causes:
///
/// - No pool has room, even for the smallest volume of its class. No advice makes room.
/// - Its only pods wait for another claim for which no pool has room. Until then, no node is
///   selected.
/// - Its only pods wait for another claim that gets its volume from others, and not for them.
fn is_excused(cluster: &Cluster, objects: &Objects, claim: &Value) -> bool {
    if lacks_room(cluster, claim) {
        return true;
    }
    let mut users = objects.users(claim);
    !is_immediate(text(claim, "/spec/storageClassName"))
        && users.all(|pod| {
            claims(objects, pod).flatten().any(|other| {
                uid(other) != uid(claim)
                    && is_pending(other)
                    && (keeps_pods_waiting(other) || lacks_room(cluster, other))
            })
        })
}

/// True if no node is selected for the pods of a claim until others have made its volume. Without a
/// volume in its spec, a claim that waits for its first pod does not delay the choice.
fn keeps_pods_waiting(claim: &Value) -> bool {
    let names_volume = !text(claim, "/spec/volumeName").is_empty();
    let waits_for_pod = !is_immediate(text(claim, "/spec/storageClassName")) && !names_volume;
    waits_for_others(claim) && !waits_for_pod
}

/// True if no pool has room for a claim.
fn lacks_room(cluster: &Cluster, claim: &Value) -> bool {
    let name = text(claim, "/spec/storageClassName");
    let at = format!("{}/{name}", collection("storageclasses", ""));
    // It may have come back as another one.
    let class = cluster.api.shared_at(&at).unwrap_or_default();
    let requested = requested(claim);
    let least = least_of(class["parameters"][FS].as_str().unwrap_or_default()).max(requested);
    let attributes = text(claim, "/spec/volumeAttributesClassName");
    let provisioning = provisioning(cluster, name, attributes);
    let machines = cluster.machines.iter();
    machines
        .filter_map(|machine| available(machine, provisioning))
        .all(|available| available < least)
}

/// The filesystem of a class.
const FS: &str = "csi.storage.k8s.io/fstype";

/// The bytes that the smallest volume with a filesystem takes, and a little more.
fn least_of(fs: &str) -> u64 {
    const LITTLE: u64 = 32 << 20;
    match fs {
        "xfs" | "btrfs" => filesystems::smallest(fs) + LITTLE,
        // It fits.
        _ => LITTLE,
    }
}

/// All that is said about a pod.
fn said_of_pod(cluster: &Cluster, objects: &Objects, pod: &Value) -> String {
    let complaints = cluster.complaints(uid(pod));
    format!("{} {}", complaints.join("; "), objects.history(pod))
}

/// Checks that a restore that requests as much as its source did is not too small.
fn restores_as_its_source_was(objects: &Objects, claim: &Value) {
    let annotations = &claim["metadata"]["annotations"];
    // Another source may have the name by now.
    let is_same = objects
        .source(claim)
        .is_some_and(|source| annotations[ENOUGH_OF] == uid(source));
    let requested = &claim["spec"]["resources"]["requests"]["storage"];
    let reasons = objects.reasons(claim);
    let small = reasons.iter().find(|text| messages::is_too_small(text));
    if let (Some(enough), Some(small), true) = (annotations[ENOUGH].as_str(), small, is_same)
        && bytes(requested) >= bytes(&Value::from(enough))
    {
        trace::violation(format!(
            "not restored: claim {} requests {requested}, as its source did ({enough}): {small}",
            name(claim)
        ));
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::filled_by_others("ext4-now", "Populator", "", true)]
    #[case::filled_by_others_on_a_chosen_node("ext4", "Populator", "", false)]
    #[case::named_volume("ext4", "", "other", true)]
    #[case::named_volume_of_a_class_without_pods("ext4-now", "", "other", true)]
    #[case::made_here("ext4-now", "VolumeSnapshot", "", false)]
    #[case::made_here_after_its_pod("ext4", "", "", false)]
    fn a_claim_keeps_its_pods_waiting_for_others(
        #[case] class: &str,
        #[case] source: &str,
        #[case] volume: &str,
        #[case] expected: bool,
    ) {
        let claim = json!({"spec": {"storageClassName": class, "volumeName": volume,
            "dataSourceRef": {"kind": source}}});
        assert_eq!(keeps_pods_waiting(&claim), expected);
    }

    #[test]
    fn the_smallest_volumes_of_filesystems() {
        for (fs, least) in [("ext4", 32), ("", 32), ("xfs", 332), ("btrfs", 288)] {
            assert_eq!(least_of(fs), least << 20, "{fs}");
        }
    }
}
