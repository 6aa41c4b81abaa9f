//! How the Job that checks a cut ended, and which log says why.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use kube::ResourceExt;

/// The end of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobEnd {
    Passed,
    /// The reason, as the cluster says it.
    Failed(String),
}

/// How a Job ended; `None` if it has not.
pub(super) fn job_end(job: &Job) -> Option<JobEnd> {
    let conditions = job.status.as_ref()?.conditions.iter().flatten();
    conditions
        .filter(|condition| condition.status == "True")
        .find_map(|condition| match condition.type_.as_str() {
            "Complete" => Some(JobEnd::Passed),
            "Failed" => {
                let words = [&condition.reason, &condition.message];
                let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
                Some(JobEnd::Failed(words.join(": ")))
            }
            _ => None,
        })
}

/// True if a container of one of the pods has begun.
pub(super) fn has_begun(pods: &[Pod]) -> bool {
    let mut states = pods.iter().flat_map(containers).filter_map(state);
    states.any(|state| state.running.is_some() || state.terminated.is_some())
}

/// The pod and the container with the log that says why a check failed: one that ended with an error,
/// else one that runs.
pub(super) fn container_with_reason(pods: &[Pod]) -> Option<(String, String)> {
    let all = pods
        .iter()
        .flat_map(|pod| containers(pod).map(move |container| (pod, container)));
    let ranked =
        all.filter_map(|(pod, container)| Some((rank(state(container)?)?, pod, container)));
    let (_, pod, container) = ranked.max_by_key(|(rank, ..)| *rank)?;
    Some((pod.name_any(), container.name.clone()))
}

/// How well the log of a container says why its Job failed; `None` if it has no log.
fn rank(state: &ContainerState) -> Option<u8> {
    match (&state.terminated, &state.running) {
        (Some(ended), _) if ended.exit_code != 0 => Some(2),
        (None, Some(_)) => Some(1),
        (Some(_), _) => Some(0),
        (None, None) => None,
    }
}

fn state(container: &ContainerStatus) -> Option<&ContainerState> {
    container.state.as_ref()
}

/// The containers of a pod, those that run first first.
fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| {
        let first = status.init_container_statuses.iter().flatten();
        first.chain(status.container_statuses.iter().flatten())
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_objects::read;

    #[rstest]
    #[case::new(json!({}), None)]
    #[case::runs(json!([{"type": "Suspended", "status": "True"}]), None)]
    #[case::about_to_end(json!([{"type": "FailureTarget", "status": "True"}]), None)]
    #[case::not(json!([{"type": "Failed", "status": "False"}]), None)]
    #[case::passed(json!([{"type": "SuccessCriteriaMet", "status": "True"},
        {"type": "Complete", "status": "True"}]), Some(JobEnd::Passed))]
    #[case::failed(json!([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded",
        "message": "too long"}]), Some(JobEnd::Failed("DeadlineExceeded: too long".to_owned())))]
    fn ends(#[case] conditions: Value, #[case] expected: Option<JobEnd>) {
        let status = match conditions {
            Value::Array(conditions) => json!({"conditions": conditions}),
            other => other,
        };
        let job: Job = read(json!({"metadata": {}, "status": status}));
        assert_eq!(job_end(&job), expected);
    }

    fn pod(init: Value, container: Value) -> Pod {
        let status = |name: &str, state: Value| {
            json!([{"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": state}])
        };
        read(json!({"metadata": {"name": "p"}, "status": {
            "initContainerStatuses": status("init", init),
            "containerStatuses": status("main", container),
        }}))
    }

    fn ended(code: i32) -> Value {
        json!({"terminated": {"exitCode": code}})
    }

    #[rstest]
    #[case::waits(json!({"waiting": {}}), json!({}), false, None)]
    #[case::runs(ended(0), json!({"running": {}}), true, Some("main"))]
    #[case::first_failed(ended(1), json!({"waiting": {}}), true, Some("init"))]
    #[case::failed(ended(0), ended(1), true, Some("main"))]
    #[case::ended(ended(0), json!({"waiting": {}}), true, Some("init"))]
    fn logs(
        #[case] init: Value,
        #[case] container: Value,
        #[case] begun: bool,
        #[case] log: Option<&str>,
    ) {
        let pods = [pod(init, container)];
        assert_eq!(has_begun(&pods), begun);
        let found = container_with_reason(&pods);
        let expected = log.map(|container| ("p".to_owned(), container.to_owned()));
        assert_eq!(found, expected);
    }
}
