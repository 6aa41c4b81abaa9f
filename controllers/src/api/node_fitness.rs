//! Whether a node may get a volume that no pod was scheduled for, and whether a pod can run on a
//! node. The leader and the nodes decide by the same rules.

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::api::pod::{Pod, PodSpec};
use crate::api::{node, topology};

/// The taint of a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Kubernetes sets these taints by the condition `Ready`, which counts in their place.
const NOT_READY: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];

/// Why a node gets no volume that no pod was scheduled for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnfitNode {
    #[error("is being deleted")]
    Deleting,
    #[error("is out of service")]
    OutOfService,
    /// The condition `Ready` is not `True`: kubelet reports a problem, or no longer reports at all.
    #[error("is not ready")]
    NotReady,
    #[error("is cordoned")]
    Cordoned,
    #[error("is under disk pressure")]
    DiskPressure,
    #[error("is not in the class's allowedTopologies")]
    NotAllowed,
    /// An ordinary pod, without tolerations of its own, can't be scheduled there.
    #[error("has the taint {0}")]
    Tainted(String),
}

/// Why a node gets no volume of a class that no pod was scheduled for. Where the class has
/// `allowedTopologies`, its administrator has chosen the nodes, and their taints do not count.
pub(crate) fn unfit(node: &Node, class: &StorageClass) -> Option<UnfitNode> {
    let is_chosen = class
        .allowed_topologies
        .as_ref()
        .is_some_and(|allowed| !allowed.is_empty());
    unfit_for_copy(node, class).or_else(|| tainted(node).filter(|_| !is_chosen))
}

/// Why a node gets no copy of a volume or snapshot that it has. No other node can make the copy, so
/// taints do not count.
pub(crate) fn unfit_for_copy(node: &Node, class: &StorageClass) -> Option<UnfitNode> {
    let allowed = class.allowed_topologies.as_deref().unwrap_or_default();
    of_itself(node)
        .or_else(|| (!topology::allows(allowed, node.labels())).then_some(UnfitNode::NotAllowed))
}

/// True if a change of a node is irrelevant for all claims, like a heartbeat.
pub(crate) fn is_same(old: &Node, new: &Node) -> bool {
    of_itself(old) == of_itself(new)
        && tainted(old) == tainted(new)
        && old.metadata.labels == new.metadata.labels
}

/// True if a pod is on the node, or may still be scheduled there by what it tolerates and selects.
pub(crate) fn can_run(pod: &Pod, on: &Node) -> bool {
    let Some(spec) = pod.spec.as_ref().filter(|_| !is_deleting(&pod.metadata)) else {
        return false;
    };
    if let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) {
        return node == on.name_any();
    }
    let cordon = Taint {
        key: UNSCHEDULABLE.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    (!is_cordoned(on) || tolerates(spec, &cordon))
        && taints(on).all(|taint| tolerates(spec, taint))
        && is_selected(pod, on)
}

fn tolerates(pod: &PodSpec, taint: &Taint) -> bool {
    pod.tolerations.iter().any(|one| is_tolerated(taint, one))
}

/// True if a pod's `nodeSelector` and its required node affinity admit a node.
fn is_selected(pod: &Pod, node: &Node) -> bool {
    let spec = pod.spec.as_ref();
    let mut selector = spec.iter().flat_map(|spec| &spec.node_selector);
    let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    selector.all(|(key, value)| node.labels().get(key) == Some(value))
        && required.is_none_or(|one| node::fits(node, &one.node_selector_terms))
}

/// Why a node gets no volumes, apart from its taints and the class.
fn of_itself(node: &Node) -> Option<UnfitNode> {
    // A condition that the node never reported excludes nothing.
    let is_unready = node::condition(node, "Ready").is_some_and(|is| is != "True");
    let is_pressed = node::condition(node, "DiskPressure") == Some("True");
    [
        (is_deleting(&node.metadata), UnfitNode::Deleting),
        (node::is_out_of_service(node), UnfitNode::OutOfService),
        (is_unready, UnfitNode::NotReady),
        (is_cordoned(node), UnfitNode::Cordoned),
        (is_pressed, UnfitNode::DiskPressure),
    ]
    .into_iter()
    .find_map(|(is, unfit)| is.then_some(unfit))
}

fn is_deleting(of: &ObjectMeta) -> bool {
    of.deletion_timestamp.is_some()
}

fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// The first taint that keeps ordinary pods off a node.
fn tainted(node: &Node) -> Option<UnfitNode> {
    let taint = taints(node).next()?;
    let value = taint.value.as_deref().unwrap_or_default();
    let equals = if value.is_empty() { "" } else { "=" };
    Some(UnfitNode::Tainted(format!(
        "{}{equals}{value}:{}",
        taint.key, taint.effect
    )))
}

/// The taints that keep pods without tolerations off a node.
fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let all = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    all.filter(|taint| {
        ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str())
            && !NOT_READY.contains(&taint.key.as_str())
    })
}

/// Kubernetes' rule: an absent effect or key tolerates all of them. Only the default operator,
/// `Equal`, compares the value here. Any other operator, such as `Exists`, counts as tolerating:
/// what newer ones compare is left to the scheduler.
fn is_tolerated(taint: &Taint, toleration: &Toleration) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    let has_value = match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            taint.value.as_deref().unwrap_or_default()
                == toleration.value.as_deref().unwrap_or_default()
        }
        _ => true,
    };
    has_value
        && (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
}

#[cfg(test)]
mod tests;
