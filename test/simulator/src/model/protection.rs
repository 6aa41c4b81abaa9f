//! The protections of claims, volumes and attributes classes: a finalizer keeps a claim while a pod
//! uses it, a volume while it is bound, and a class while a claim or a volume names it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::view::{
    Model, Step, View, claims_of, has_finalizer, is_deleting, is_for_pod, items, name, namespace,
    text, without_finalizer,
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

/// True if a pod on a node uses a claim, even one that has ended.
fn is_claim_used(view: &View, claim: &Value) -> bool {
    view.all("pods").any(|pod| {
        let uses = |(used, is_ephemeral): &(String, bool)| {
            used == name(claim) && (!is_ephemeral || is_for_pod(claim, pod))
        };
        namespace(pod) == namespace(claim)
            && !text(pod, "/spec/nodeName").is_empty()
            && claims_of(pod).iter().any(uses)
    })
}
