//! The controller of generic ephemeral volumes: it makes a claim for each of a pod's.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::view::{Model, Step, View, is_deleting, is_for_pod, items, name, namespace, text, uid};

const CLAIMS: &str = "persistentvolumeclaims";

/// The controller of generic ephemeral volumes.
pub(crate) struct Ephemeral;

impl Model for Ephemeral {
    const KINDS: &[&str] = &[CLAIMS, "pods"];
    const PERIOD: Duration = Duration::from_secs(600);

    fn decide(&mut self, view: &View, _: Instant) -> Vec<Step> {
        let alive = view.all("pods").filter(|pod| !is_deleting(pod));
        let volumes = alive.flat_map(|pod| {
            items(pod, "/spec/volumes")
                .filter(|volume| volume["ephemeral"].is_object())
                .map(move |volume| (pod, volume))
        });
        volumes
            .filter_map(|(pod, volume)| claim_for(view, pod, volume))
            .collect()
    }
}

fn claim_for(view: &View, pod: &Value, volume: &Value) -> Option<Step> {
    let claim_name = format!("{}-{}", name(pod), text(volume, "/name"));
    if let Some(claim) = view.get(CLAIMS, namespace(pod), &claim_name) {
        if is_for_pod(claim, pod) {
            return None;
        }
        let message = format!(
            "ephemeral volume {}: PVC {}/{claim_name} was not created for pod {}/{} (pod is not \
             owner)",
            text(volume, "/name"),
            namespace(pod),
            namespace(pod),
            name(pod)
        );
        let reason = ("Warning", "FailedBinding");
        return Some(Step::event("ephemeral_volume", pod, reason, &message));
    }
    let template = &volume["ephemeral"]["volumeClaimTemplate"];
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name(pod), "uid": uid(pod),
        "controller": true, "blockOwnerDeletion": true});
    let metadata = json!({"name": claim_name, "namespace": namespace(pod),
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"], "ownerReferences": [owner]});
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata,
        "spec": template["spec"]});
    Some(Step::create(CLAIMS, claim))
}
