//! Why a pod is not ready, and what to do.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::check::line::Line;
use crate::container_end::last_error;

/// A line about a pod that is not ready.
pub(super) fn line(node: &str, pod: &Pod, namespace: &str) -> Line {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if pod.metadata.deletion_timestamp.is_some() {
        return Line::failed(
            format!("Pod {name} on node {node} is being deleted"),
            "Its successor starts when it has ended. Run the check again.",
        );
    }
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    let status = statuses.into_iter().next();
    let (reason, message) = status.map(reason).unwrap_or_default();
    let because = match reason {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    Line::failed(
        format!(
            "Pod {name} on node {node} is not ready{because}{}",
            cut(&message)
        ),
        advice(reason, name, namespace, status.map_or("", |s| &s.image)),
    )
}

/// The reason and message of a container that does not run. Its own error says more than how long
/// kubelet waits.
fn reason(status: &ContainerStatus) -> (&str, Cow<'_, str>) {
    let waiting = status
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref());
    let reason = waiting
        .and_then(|waiting| waiting.reason.as_deref())
        .unwrap_or_default();
    let message = waiting
        .and_then(|waiting| waiting.message.as_deref())
        .unwrap_or_default();
    let error = last_error(status).filter(|_| reason == "CrashLoopBackOff");
    (reason, error.map_or(Cow::Borrowed(message), Cow::Owned))
}

/// The first line of a message, shortened, after a space.
fn cut(message: &str) -> String {
    const LONGEST: usize = 240;
    let line = message.lines().next().unwrap_or_default();
    match line.chars().count() {
        0 => String::new(),
        n if n <= LONGEST => format!(" ({line})"),
        _ => format!(" ({}…)", line.chars().take(LONGEST).collect::<String>()),
    }
}

fn advice(reason: &str, name: &str, namespace: &str, image: &str) -> String {
    match reason {
        "ErrImageNeverPull" => format!(
            "The node does not have the image {image}. Load it into each node: kubectl hostloop \
             load (kind, minikube), or ctr --namespace k8s.io images import"
        ),
        "ErrImagePull" | "ImagePullBackOff" => format!(
            "The node can't pull {image}. Check the image's name, the registry and its pull secret."
        ),
        "CrashLoopBackOff" => {
            format!("Its log says why: kubectl -n {namespace} logs {name} --previous")
        }
        "" => format!(
            "At its start it recovers its pools. If it stays so: kubectl -n {namespace} logs {name}"
        ),
        _ => format!("The events say why: kubectl -n {namespace} describe pod {name}"),
    }
}
