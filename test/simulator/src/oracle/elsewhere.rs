//! A claim waits for room on no node while another one has it. If a node refuses a volume for lack of
//! room, the scheduler chooses again.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::machine::Machine;
use crate::model::view::{SELECTED_NODE, annotation, claims_of, name, text};
use crate::oracle::advice::{claims, is_pending, is_stuck};
use crate::oracle::capacity::{available, provisioning};
use crate::oracle::claims::waits_for_others;
use crate::oracle::objects::{Objects, capacities_of, has_source, state};
use crate::oracle::sources::said_last;
use crate::trace;
use crate::users::{bytes, is_immediate, requested};

/// Words of a refusal for lack of room.
const FULL: &str = "code = ResourceExhausted";

/// More than a claim needs, so that a node has room for it beyond doubt.
const LITTLE: u64 = 64 << 20;

/// Checks after a quiet time the pods that wait for one claim alone. The volume may be made on any node.
pub(super) fn have_no_room(cluster: &Cluster, objects: &Objects) {
    let events = cluster.api.shared("events");
    for pod in objects.pods.iter().filter(|pod| is_stuck(pod)) {
        let Some(claim) = only_claim(objects, pod) else {
            continue;
        };
        let refusal = said_last(&events, claim).filter(|said| said.contains(FULL));
        let node = annotation(claim, SELECTED_NODE);
        let (Some(refusal), Some(node), true) = (refusal, node, may_move(claim)) else {
            continue;
        };
        let Some(full) = cluster.machine_named(node) else {
            continue;
        };
        let other = cluster.machines.iter().find(|other| {
            other.name() != node && takes_pods(cluster, other) && has_room(cluster, other, claim)
        });
        if let Some(other) = other.filter(|_| lacks_room(cluster, full, claim)) {
            trace::violation(format!(
                "waits at a full node: claim {} is for {node}, and {} has room: {refusal}; {}",
                name(claim),
                other.name(),
                state(claim)
            ));
        }
    }
}

/// The only claim of a pod that may go to any node, if no other pod has the claim.
fn only_claim<'a>(objects: &'a Objects, pod: &Value) -> Option<&'a Value> {
    let spec = &pod["spec"];
    let is_free = spec["nodeSelector"].is_null() && spec["affinity"].is_null();
    let is_only = claims_of(pod).len() == 1;
    let claim = claims(objects, pod).flatten().next();
    claim.filter(|claim| is_free && is_only && objects.users(claim).count() == 1)
}

/// True if the volume of a claim without one may be made on any node.
fn may_move(claim: &Value) -> bool {
    is_pending(claim)
        && !is_immediate(text(claim, "/spec/storageClassName"))
        && !has_source(claim)
        && !waits_for_others(claim)
}

/// True if pods may go to a node.
fn takes_pods(cluster: &Cluster, machine: &Machine) -> bool {
    !machine.is_away() && !machine.is_out_of_service && cluster.bars.since(machine.name()).is_none()
}

/// True if a node has room for a claim, and says so.
fn has_room(cluster: &Cluster, machine: &Machine, claim: &Value) -> bool {
    let needed = requested(claim) + LITTLE;
    let class = text(claim, "/spec/storageClassName");
    let capacities = capacities_of(cluster, machine.name());
    left(cluster, machine, claim).is_some_and(|left| left >= needed)
        && capacities
            .iter()
            .any(|capacity| is_published(capacity, class, needed))
}

/// True if a capacity object says that there is so much room for a class.
fn is_published(capacity: &Value, class: &str, needed: u64) -> bool {
    text(capacity, "/storageClassName") == class
        && bytes(&capacity["capacity"]) >= needed
        && bytes(&capacity["maximumVolumeSize"]) >= needed
}

/// True if a node has no room for a claim.
fn lacks_room(cluster: &Cluster, machine: &Machine, claim: &Value) -> bool {
    left(cluster, machine, claim).is_some_and(|left| left < requested(claim))
}

/// The bytes that a node can promise to a claim, if its driver lives.
fn left(cluster: &Cluster, machine: &Machine, claim: &Value) -> Option<u64> {
    let class = text(claim, "/spec/storageClassName");
    let attributes = text(claim, "/spec/volumeAttributesClassName");
    available(machine, provisioning(cluster, class, attributes))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::new(json!({"storageClassName": "ext4"}), true)]
    #[case::immediate(json!({"storageClassName": "ext4-now"}), false)]
    #[case::copy(
        json!({"storageClassName": "ext4", "dataSource": {"kind": "VolumeSnapshot"}}), false)]
    #[case::named(json!({"storageClassName": "ext4", "volumeName": "v"}), false)]
    fn claims_that_may_go_to_any_node(#[case] spec: Value, #[case] expected: bool) {
        let claim = json!({"spec": spec, "status": {"phase": "Pending"}});
        assert_eq!(may_move(&claim), expected);
        let bound = json!({"spec": spec, "status": {"phase": "Bound"}});
        assert!(!may_move(&bound));
    }

    #[rstest]
    #[case::enough("ext4", "10Mi", "10Mi", true)]
    #[case::of_another_class("xfs", "10Mi", "10Mi", false)]
    #[case::too_little("ext4", "9Mi", "9Mi", false)]
    #[case::in_parts("ext4", "10Mi", "9Mi", false)]
    fn published_room(
        #[case] class: &str,
        #[case] capacity: &str,
        #[case] largest: &str,
        #[case] expected: bool,
    ) {
        let object = json!({"storageClassName": class, "capacity": capacity,
            "maximumVolumeSize": largest});
        assert_eq!(is_published(&object, "ext4", 10 << 20), expected);
    }
}
