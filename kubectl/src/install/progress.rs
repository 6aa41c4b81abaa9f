//! How far each node is, by the cluster's objects.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt;

use crate::container_end::last_error;
use crate::volume_objects::{condition, is_of_daemon_set};

/// The annotation of a DaemonSet, and the label of its pods, with the generation of the template.
const GENERATION: (&str, &str) = (
    "deprecated.daemonset.template.generation",
    "pod-template-generation",
);

/// How far a pod is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// The pod of the earlier version is still there.
    Old,
    /// The pod is not ready, and the cluster says why.
    Waiting(String),
    /// The process of this pod ends again and again, the last time with this error.
    Failing { pod: String, why: String },
    /// The pod is not ready.
    Starting,
    /// The pod is ready, and kubelet has not registered the driver.
    Registering,
    /// The node can be used.
    Ready,
}

/// What is looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct RolloutObjects {
    pub(super) daemon_set: DaemonSet,
    pub(super) controller: Deployment,
    /// The pods of both.
    pub(super) pods: Vec<Pod>,
    pub(super) csi_nodes: Vec<CSINode>,
}

/// The state of each pod, by node; the controller's has no node's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) nodes: BTreeMap<String, PodState>,
    pub(super) controller: Option<PodState>,
    /// The number of nodes that are to have a pod.
    pub(super) expected: usize,
    /// True if the cluster acts by the newest version of both workloads.
    pub(super) is_observed: bool,
}

impl Progress {
    /// Judges what was looked at. `driver` is the driver's name.
    pub(super) fn of(look: &RolloutObjects, driver: &str) -> Progress {
        let meta = &look.daemon_set.metadata;
        let status = look.daemon_set.status.clone().unwrap_or_default();
        let observed = status.observed_generation.unwrap_or_default();
        let generation = look.daemon_set.annotations().get(GENERATION.0);
        let mut progress = Progress {
            expected: usize::try_from(status.desired_number_scheduled).unwrap_or_default(),
            is_observed: observed >= meta.generation.unwrap_or_default()
                && is_current(&look.controller),
            ..Progress::default()
        };
        for pod in look
            .pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        {
            if !is_of_daemon_set(pod) {
                progress.controller = Some(ready_or_why(pod));
                continue;
            }
            let Some(node) = node_of(pod) else {
                continue;
            };
            let is_old = match (pod.labels().get(GENERATION.1), generation) {
                (Some(of_pod), Some(newest)) => of_pod != newest,
                _ => false,
            };
            let state = match ready_or_why(pod) {
                _ if is_old => PodState::Old,
                PodState::Ready if !is_registered(look, &node, driver) => PodState::Registering,
                state => state,
            };
            progress.nodes.insert(node, state);
        }
        progress
    }

    /// True if every node can be used, and the controller runs.
    pub(super) fn is_done(&self) -> bool {
        self.is_observed
            && self.nodes.len() >= self.expected
            && self.controller == Some(PodState::Ready)
            && self.nodes.values().all(|state| *state == PodState::Ready)
    }
}

/// True if kubelet has registered the driver on this node.
fn is_registered(look: &RolloutObjects, node: &str, driver: &str) -> bool {
    let node = look.csi_nodes.iter().find(|one| one.name_any() == node);
    node.is_some_and(|node| node.spec.drivers.iter().any(|one| one.name == driver))
}

/// True if the Deployment's pods are those of its newest version.
fn is_current(deployment: &Deployment) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    let observed = status.observed_generation.unwrap_or_default();
    observed >= deployment.metadata.generation.unwrap_or_default()
        && status.updated_replicas == status.replicas
}

/// The node that a pod of the DaemonSet is made for. Before it is scheduled, its affinity names it.
fn node_of(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if let Some(node) = spec.node_name.as_ref().filter(|node| !node.is_empty()) {
        return Some(node.clone());
    }
    let required = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = required
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    fields
        .filter(|field| field.key == "metadata.name")
        .find_map(|field| field.values.as_ref()?.first().cloned())
}

/// Whether a pod is ready, or what the cluster says about it.
fn ready_or_why(pod: &Pod) -> PodState {
    if condition(pod, "Ready", "True").is_some() {
        return PodState::Ready;
    }
    if let Some(unscheduled) = condition(pod, "PodScheduled", "False") {
        return PodState::Waiting(unscheduled.message.clone().unwrap_or_default());
    }
    let mut statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    statuses
        .find_map(|container| why(pod, container))
        .unwrap_or(PodState::Starting)
}

/// Why a container does not run, if that is more than "it is being started".
fn why(pod: &Pod, container: &ContainerStatus) -> Option<PodState> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| !["ContainerCreating", "PodInitializing"].contains(reason))?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let waits = format!("{reason}: {message}");
    let waits = waits.trim_end_matches(": ").to_owned();
    if reason != "CrashLoopBackOff" {
        return Some(PodState::Waiting(waits));
    }
    let error = last_error(container).map(|error| format!("{reason}: {error}"));
    Some(PodState::Failing {
        pod: pod.name_any(),
        why: error.unwrap_or(waits),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_objects::read;

    fn pod(node: &str, owner: &str, generation: &str, status: Value) -> Pod {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        read(json!({
            "metadata": {"name": "p", "labels": {"pod-template-generation": generation},
                "ownerReferences": [{"kind": owner}]},
            "spec": {"affinity": {"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": terms}}},
            "status": status,
        }))
    }

    fn waits(reason: &str, message: &str) -> Value {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        json!({"containerStatuses": [{"state": state}]})
    }

    fn ready() -> Value {
        json!({"conditions": [{"type": "Ready", "status": "True"}]})
    }

    fn look(pods: Vec<Pod>, registered: &[&str]) -> RolloutObjects {
        let daemon_set = json!({
            "metadata": {"generation": 2,
                "annotations": {"deprecated.daemonset.template.generation": "2"}},
            "status": {"desiredNumberScheduled": 1, "observedGeneration": 2},
        });
        let csi_nodes = registered.iter().map(|node| {
            read(json!({"metadata": {"name": node}, "spec": {"drivers": [{"name": "d"}]}}))
        });
        RolloutObjects {
            daemon_set: read(daemon_set),
            controller: Deployment::default(),
            csi_nodes: csi_nodes.collect(),
            pods,
        }
    }

    #[test]
    fn nodes_by_their_pods() {
        let unscheduled = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "no room"}]});
        let image = "ErrImageNeverPull: no image";
        let failing = |why: &str| PodState::Failing {
            pod: "p".to_owned(),
            why: why.to_owned(),
        };
        let mut failed = waits("CrashLoopBackOff", "back-off 10s");
        failed["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"exitCode": 1, "message": "ready\nno disk\n"}});
        for (generation, status, registered, state) in [
            ("1", ready(), true, PodState::Old),
            ("2", json!({}), false, PodState::Starting),
            (
                "2",
                unscheduled,
                false,
                PodState::Waiting("no room".to_owned()),
            ),
            (
                "2",
                waits("ContainerCreating", ""),
                false,
                PodState::Starting,
            ),
            (
                "2",
                waits("ErrImageNeverPull", "no image"),
                false,
                PodState::Waiting(image.to_owned()),
            ),
            (
                "2",
                waits("CrashLoopBackOff", "back-off 10s"),
                true,
                failing("CrashLoopBackOff: back-off 10s"),
            ),
            ("2", failed, true, failing("CrashLoopBackOff: no disk")),
            ("2", ready(), false, PodState::Registering),
            ("2", ready(), true, PodState::Ready),
        ] {
            let pods = vec![pod("n1", "DaemonSet", generation, status)];
            let registered = if registered { vec!["n1"] } else { vec![] };
            let progress = Progress::of(&look(pods, &registered), "d");
            assert_eq!(progress.nodes, BTreeMap::from([("n1".to_owned(), state)]));
        }
    }

    #[test]
    fn it_is_done_when_all_are_ready() {
        let node = || pod("n1", "DaemonSet", "2", ready());
        let controller = |status| pod("n1", "ReplicaSet", "", status);
        let is_done = |look: &RolloutObjects| Progress::of(look, "d").is_done();
        let whole = look(vec![node(), controller(ready())], &["n1"]);
        assert!(is_done(&whole));
        assert!(
            !is_done(&look(vec![node(), controller(json!({}))], &["n1"])),
            "the controller"
        );
        assert!(!is_done(&look(vec![node()], &["n1"])), "no controller");
        assert!(
            !is_done(&look(vec![node(), controller(ready())], &[])),
            "not registered"
        );
        assert!(
            !is_done(&look(vec![controller(ready())], &["n1"])),
            "no pod"
        );
        let mut older = whole.clone();
        older.daemon_set.metadata.generation = Some(3);
        assert!(!is_done(&older), "not observed");
        let mut replaced = whole.clone();
        let status = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 0});
        replaced.controller.status = read(status);
        assert!(!is_done(&replaced), "the earlier controller");
        let mut ends = whole.clone();
        ends.pods[0].metadata.deletion_timestamp = read(json!("2026-01-01T00:00:00Z"));
        assert!(!is_done(&ends), "the pod ends");
    }
}
