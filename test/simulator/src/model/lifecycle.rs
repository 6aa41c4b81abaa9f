//! The node lifecycle controller: it finds out that a node does not answer, keeps new pods from it,
//! and deletes those that are there. They stay until their kubelet returns.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::attach_detach::is_out_of_service;
use super::view::{
    Model, Step, View, has_ended, is_deleting, is_ready, items, name, namespace, taints_beside,
    text, uid, with_condition,
};
use crate::heartbeats::Heartbeats;

const WHO: &str = "node-controller";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The time without a sign of life after which a node's state is unknown.
const GRACE: Duration = Duration::from_secs(40);

/// How long a pod stays on an unreachable node, unless it says something else. The API server of a
/// real cluster writes this toleration into each pod.
const PATIENCE: Duration = Duration::from_secs(300);

/// The node lifecycle controller, with the eviction of pods.
pub(crate) struct Lifecycle {
    heartbeats: Heartbeats,
    /// Since when pods tolerate their node, by UID. As in the real controller, this begins again
    /// when the controller starts.
    tolerating: BTreeMap<String, Instant>,
}

impl Lifecycle {
    pub(crate) fn new(heartbeats: Heartbeats) -> Lifecycle {
        Lifecycle {
            heartbeats,
            tolerating: BTreeMap::new(),
        }
    }

    fn is_away(&self, node: &Value, now: Instant) -> bool {
        let last = self.heartbeats.last(name(node));
        last.is_some_and(|last| now - last >= GRACE)
    }

    /// Deletes the pods that tolerate their node no longer.
    fn evict(&mut self, view: &View, now: Instant) -> Vec<Step> {
        let on_tainted = view.all("pods").filter(|pod| {
            let node = view.get("nodes", "", text(pod, "/spec/nodeName"));
            node.is_some_and(|node| taint(node, "NoExecute").is_some() || is_out_of_service(node))
                && !is_deleting(pod)
                && !has_ended(pod)
        });
        let pods: Vec<&Value> = on_tainted.collect();
        self.tolerating
            .retain(|known, _| pods.iter().any(|pod| uid(pod) == known));
        let mut steps = Vec::new();
        for pod in pods {
            let since = *self.tolerating.entry(uid(pod).to_owned()).or_insert(now);
            let node = view.get("nodes", "", text(pod, "/spec/nodeName"));
            let patience = node.map_or(Some(PATIENCE), |node| stays(pod, node));
            if patience.is_some_and(|patience| now - since >= patience) {
                let place = format!("{}/{}", namespace(pod), name(pod));
                let message = format!("Marking for deletion Pod {place}");
                let reason = ("Normal", "TaintManagerEviction");
                steps.push(Step::event(
                    "taint-eviction-controller",
                    pod,
                    reason,
                    &message,
                ));
                steps.push(Step::delete("pods", pod));
            }
        }
        steps
    }
}

impl Model for Lifecycle {
    const KINDS: &[&str] = &["nodes", "pods"];
    const PERIOD: Duration = Duration::from_secs(5);

    fn decide(&mut self, view: &View, now: Instant) -> Vec<Step> {
        let away = view.all("nodes").filter(|node| self.is_away(node, now));
        let mut steps: Vec<Step> = away.flat_map(mark).collect();
        // If all nodes are away, the fault may be the controller's own.
        let is_any_ready = view.all("nodes").any(is_ready);
        steps.extend(
            view.all("nodes")
                .filter_map(|node| set_taints(node, is_any_ready)),
        );
        steps.extend(self.evict(view, now));
        steps
    }
}

/// The status of a node's condition Ready.
fn readiness(node: &Value) -> &str {
    let mut conditions = items(node, "/status/conditions");
    let ready = conditions.find(|one| one["type"] == "Ready");
    ready.map_or("Unknown", |ready| text(ready, "/status"))
}

/// Marks a node that does not answer.
fn mark(node: &Value) -> Vec<Step> {
    if readiness(node) == "Unknown" {
        return Vec::new();
    }
    let unknown = json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
        "message": "Kubelet stopped posting node status."});
    let message = format!("Node {} status is now: NodeNotReady", name(node));
    vec![
        Step::status("nodes", node, with_condition(node, unknown)),
        Step::event(WHO, node, ("Normal", "NodeNotReady"), &message),
    ]
}

/// The taint of an unreachable node with this effect.
fn taint<'a>(node: &'a Value, effect: &str) -> Option<&'a Value> {
    items(node, "/spec/taints")
        .find(|taint| taint["key"] == UNREACHABLE && taint["effect"] == *effect)
}

/// Gives a node the taints of its state. `executes` says whether pods leave an unreachable node.
fn set_taints(node: &Value, executes: bool) -> Option<Step> {
    let is_unreachable = readiness(node) == "Unknown";
    let wanted = [
        ("NoSchedule", is_unreachable),
        ("NoExecute", is_unreachable && executes),
    ];
    if wanted
        .iter()
        .all(|(effect, is_wanted)| taint(node, effect).is_some() == *is_wanted)
    {
        return None;
    }
    let others = taints_beside(node, UNREACHABLE).into_iter();
    let ours = wanted.iter().filter(|(_, is_wanted)| *is_wanted);
    let ours = ours.map(|(effect, _)| json!({"key": UNREACHABLE, "effect": effect}));
    let taints: Vec<Value> = others.chain(ours).collect();
    Some(Step::merge(
        "nodes",
        node,
        json!({"spec": {"taints": taints}}),
    ))
}

/// How long a pod stays on a node that its pods have to leave; `None` without end.
fn stays(pod: &Value, node: &Value) -> Option<Duration> {
    let is_patient = items(pod, "/spec/tolerations")
        .any(|one| text(one, "/key").is_empty() && one["operator"] == "Exists");
    if is_out_of_service(node) && !is_patient {
        return Some(Duration::ZERO);
    }
    patience(pod)
}

/// How long a pod stays on an unreachable node; `None` without end.
fn patience(pod: &Value) -> Option<Duration> {
    let mut own = items(pod, "/spec/tolerations").filter(|one| {
        let key = text(one, "/key");
        let is_key = key == UNREACHABLE || key.is_empty() && one["operator"] == "Exists";
        is_key && ["", "NoExecute"].contains(&text(one, "/effect"))
    });
    match own.next() {
        None => Some(PATIENCE),
        Some(own) => own["tolerationSeconds"].as_u64().map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests;
