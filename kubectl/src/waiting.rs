//! Waits for objects, with a deadline. What an object lacks at the deadline is the error.

use std::time::{Duration, Instant};

use hostloop_api_objects::snapshots::VolumeSnapshot;
use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube::Api;

use crate::Cluster;
use crate::api::{self, Kind};
use crate::events;
use crate::progress_line::ProgressLine;
use crate::volume_objects::condition;

/// The pause between two looks.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// What an object shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Awaited<T> {
    /// What was waited for.
    Done(T),
    /// Not yet; the reason so far, or nothing.
    NotYet(String),
    /// Never.
    Failed(String),
}

/// A wait for one object.
pub(super) struct Waiting<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// As in "for pod x to write".
    pub(super) what: String,
    pub(super) timeout: Duration,
    /// Names of other objects. Their events may say why this one waits.
    pub(super) related: Vec<String>,
}

impl Waiting<'_> {
    /// Looks at the object until it shows what is waited for.
    pub(super) async fn until<K: Kind, T>(
        &self,
        api: &Api<K>,
        progress: &mut ProgressLine,
        look: impl Fn(&K) -> Awaited<T>,
    ) -> Result<T, String> {
        let began = Instant::now();
        loop {
            progress.show(&format!("waiting {}", self.what));
            let last = match api::get(api, self.name).await {
                Err(error) => error.to_string(),
                Ok(None) => return Err("it was deleted".to_owned()),
                Ok(Some(object)) => match look(&object) {
                    Awaited::Done(found) => return Ok(found),
                    Awaited::Failed(why) => return Err(why),
                    Awaited::NotYet(why) => why,
                },
            };
            if began.elapsed() >= self.timeout {
                return Err(self.late(last).await);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What is known at the deadline: the object's state, and the last warning about it.
    async fn late(&self, last: String) -> String {
        let warning = self.warning().await.unwrap_or_default();
        let parts = [
            format!("not within {} s", self.timeout.as_secs()),
            last,
            warning,
        ];
        parts
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("; ")
    }

    async fn warning(&self) -> Option<String> {
        let warnings = events::warnings(self.cluster, self.namespace).await;
        events::last_about(&warnings, |name| {
            name == self.name || self.related.iter().any(|related| related == name)
        })
    }
}

/// Whether a pod has ended; its node.
pub(super) fn pod_ended(pod: &Pod) -> Awaited<String> {
    let node = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let mut containers = status.container_statuses.iter().flatten();
    let state = containers.find_map(|container| container.state.as_ref());
    match status.phase.as_deref() {
        Some("Succeeded") => Awaited::Done(node),
        Some("Failed") => {
            let ended = state.and_then(|state| state.terminated.as_ref());
            let message = ended.and_then(|ended| ended.message.clone());
            let reason = ended
                .and_then(|ended| ended.reason.clone())
                .or(status.reason.clone());
            let why = message
                .or(status.message.clone())
                .or(reason)
                .unwrap_or_default();
            Awaited::Failed(format!("on node {node} it failed: {}", why.trim()))
        }
        _ => Awaited::NotYet(why_it_waits(pod, state)),
    }
}

/// Whether a pod takes commands.
pub(super) fn pod_runs(pod: &Pod) -> Awaited<()> {
    let status = pod.status.clone().unwrap_or_default();
    let mut containers = status.container_statuses.iter().flatten();
    let state = containers.find_map(|container| container.state.as_ref());
    match status.phase.as_deref() {
        Some("Running") if state.is_some_and(|state| state.running.is_some()) => Awaited::Done(()),
        Some(phase @ ("Failed" | "Succeeded")) => {
            let why = status.message.or(status.reason);
            Awaited::Failed(why.unwrap_or_else(|| format!("its phase is {phase}")))
        }
        _ => Awaited::NotYet(why_it_waits(pod, state)),
    }
}

/// Why a pod does not run yet.
fn why_it_waits(pod: &Pod, state: Option<&ContainerState>) -> String {
    let waiting = state.and_then(|state| state.waiting.as_ref()?.reason.clone());
    let unscheduled = condition(pod, "PodScheduled", "False");
    let message = unscheduled.and_then(|condition| condition.message.clone());
    waiting.or(message).unwrap_or_default()
}

/// Whether a snapshot can be restored.
pub(super) fn snapshot_ready(snapshot: &VolumeSnapshot) -> Awaited<()> {
    let status = snapshot.status.clone().unwrap_or_default();
    match status.ready_to_use {
        Some(true) => Awaited::Done(()),
        // An error may pass: the snapshotter tries again.
        _ => Awaited::NotYet(
            match (
                status.error.and_then(|e| e.message),
                status.bound_volume_snapshot_content_name,
            ) {
                (Some(error), _) => error,
                (None, None) => "no snapshot controller has given it a content".to_owned(),
                (None, Some(_)) => String::new(),
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_objects::read;

    fn failed(message: Value) -> Value {
        let state = json!({"terminated": {"reason": "Error", "message": message}});
        json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [{"state": state}]})
    }

    #[rstest]
    #[case(json!({"phase": "Succeeded"}), Awaited::Done("n1".into()))]
    #[case(json!({"phase": "Running"}), Awaited::NotYet(String::new()))]
    #[case(failed(json!("it differs\n")), Awaited::Failed("on node n1 it failed: it differs".into()))]
    #[case(failed(json!(null)), Awaited::Failed("on node n1 it failed: Error".into()))]
    #[case(json!({"phase": "Failed", "reason": "Evicted"}),
        Awaited::Failed("on node n1 it failed: Evicted".into()))]
    #[case(json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
        "message": "no node fits"}]}), Awaited::NotYet("no node fits".into()))]
    fn pods(#[case] status: Value, #[case] expected: Awaited<String>) {
        let pod: Pod = read(json!({"spec": {"nodeName": "n1"}, "status": status}));
        assert_eq!(pod_ended(&pod), expected);
    }

    #[rstest]
    #[case(json!({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}),
        Awaited::Done(()))]
    #[case(json!({"phase": "Running", "containerStatuses": [{"state": {"waiting":
        {"reason": "CrashLoopBackOff"}}}]}), Awaited::NotYet("CrashLoopBackOff".into()))]
    #[case(json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting":
        {"reason": "ImagePullBackOff"}}}]}), Awaited::NotYet("ImagePullBackOff".into()))]
    #[case(json!({"phase": "Succeeded"}), Awaited::Failed("its phase is Succeeded".into()))]
    #[case(json!({"phase": "Failed", "reason": "Evicted"}), Awaited::Failed("Evicted".into()))]
    #[case(json!({}), Awaited::NotYet(String::new()))]
    fn pods_that_take_commands(#[case] status: Value, #[case] expected: Awaited<()>) {
        let pod: Pod = read(json!({"spec": {}, "status": status}));
        assert_eq!(pod_runs(&pod), expected);
    }

    #[rstest]
    #[case(json!({"readyToUse": true}), Awaited::Done(()))]
    #[case(json!({"readyToUse": false, "boundVolumeSnapshotContentName": "c"}),
        Awaited::NotYet(String::new()))]
    #[case(json!({"error": {"message": "no room"}}), Awaited::NotYet("no room".into()))]
    #[case(json!({}), Awaited::NotYet("no snapshot controller has given it a content".into()))]
    fn snapshots(#[case] status: Value, #[case] expected: Awaited<()>) {
        let snapshot: VolumeSnapshot = read(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s"}, "spec": {"source": {}}, "status": status,
        }));
        assert_eq!(snapshot_ready(&snapshot), expected);
    }
}
