//! The protections of claims, volumes and attributes classes: a finalizer keeps a claim while a pod
//! uses it, a volume while it is bound, and a class while a claim or a volume names it. A condition
//! of a claim says whether no pod needs it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::view::{
    Model, Step, View, claims_of, condition, has_ended, has_finalizer, is_deleting, is_for_pod,
    items, name, namespace, text, with_condition, without_finalizer,
};

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
const ATTRIBUTES: &str = "volumeattributesclasses";
const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const ATTRIBUTES_FINALIZER: &str = "kubernetes.io/vac-protection";

/// All protections.
pub(crate) struct Protection;

impl Model for Protection {
    const KINDS: &[&str] = &[CLAIMS, VOLUMES, ATTRIBUTES, "pods"];
    const PERIOD: Duration = Duration::from_secs(600);

    fn decide(&mut self, view: &View, _: Instant) -> Vec<Step> {
        let claims = view.all(CLAIMS).filter_map(|claim| {
            protect(CLAIMS, claim, CLAIM_FINALIZER, || {
                is_claim_used(view, claim)
            })
            .or_else(|| tell_use(view, claim))
        });
        let volumes = view.all(VOLUMES).filter_map(|volume| {
            let is_bound = || text(volume, "/status/phase") == "Bound";
            protect(VOLUMES, volume, VOLUME_FINALIZER, is_bound)
        });
        let classes = view.all(ATTRIBUTES).filter_map(|class| {
            protect(ATTRIBUTES, class, ATTRIBUTES_FINALIZER, || {
                is_class_used(view, class)
            })
        });
        claims.chain(volumes).chain(classes).collect()
    }
}

/// Adds the finalizer to an object that lives, and takes it from one that is deleted and not used.
fn protect(
    plural: &str,
    object: &Value,
    finalizer: &str,
    is_used: impl Fn() -> bool,
) -> Option<Step> {
    let finalizers = match (is_deleting(object), has_finalizer(object, finalizer)) {
        (true, true) if !is_used() => without_finalizer(object, finalizer),
        (false, false) => {
            let others = items(object, "/metadata/finalizers").cloned();
            others.chain([json!(finalizer)]).collect()
        }
        _ => return None,
    };
    Some(Step::merge(
        plural,
        object,
        json!({"metadata": {"finalizers": finalizers}}),
    ))
}

/// True if a claim or a volume names an attributes class.
fn is_class_used(view: &View, class: &Value) -> bool {
    let by_claim = [
        "/spec/volumeAttributesClassName",
        "/status/currentVolumeAttributesClassName",
        "/status/modifyVolumeStatus/targetVolumeAttributesClassName",
    ];
    let [of_object, ..] = by_claim;
    view.all(CLAIMS)
        .any(|claim| by_claim.iter().any(|at| text(claim, at) == name(class)))
        || view
            .all(VOLUMES)
            .any(|volume| text(volume, of_object) == name(class))
}

/// Sets the condition `Unused` of a bound claim, as Kubernetes does since 1.37 (gate
/// `PersistentVolumeClaimUnusedSinceTime`).
fn tell_use(view: &View, claim: &Value) -> Option<Step> {
    if is_deleting(claim) || text(claim, "/status/phase") != "Bound" {
        return None;
    }
    let is_needed = pods_with(view, claim).any(|pod| !has_ended(pod));
    let (status, reason) = if is_needed {
        ("False", "PodUsingPVC")
    } else {
        ("True", "NoPodsUsingPVC")
    };
    if condition(claim, "Unused") == Some(status) {
        return None;
    }
    let unused = json!({"type": "Unused", "status": status, "reason": reason});
    Some(Step::status(CLAIMS, claim, with_condition(claim, unused)))
}

/// True if a pod on a node uses a claim, even one that has ended.
fn is_claim_used(view: &View, claim: &Value) -> bool {
    pods_with(view, claim).any(|pod| !text(pod, "/spec/nodeName").is_empty())
}

/// The pods that name a claim, or for which it was made.
fn pods_with<'v>(view: &'v View, claim: &'v Value) -> impl Iterator<Item = &'v Value> {
    view.all("pods").filter(move |pod| {
        let uses = |(used, is_ephemeral): &(String, bool)| {
            used == name(claim) && (!is_ephemeral || is_for_pod(claim, pod))
        };
        namespace(pod) == namespace(claim) && claims_of(pod).iter().any(uses)
    })
}
