//! The pods with events, and `hostloop events` in them.

use std::time::Duration;

use hostloop_report::events::Request;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;
use kube::api::AttachedProcess;
use tokio::time::timeout;

use super::{NodeError, NodePod, read};
use crate::NAME_LABEL;
use crate::api::ApiError;
use crate::cluster::Cluster;
use crate::pod_logs::{self, CONTROLLER};

/// How long the end of a command may take.
const END: Duration = Duration::from_secs(5);

/// A pod with events.
#[derive(Clone, Debug)]
pub(crate) struct EventPod {
    pub(crate) pod: NodePod,
    /// `node` or `controller`.
    pub(crate) process: &'static str,
    pub(crate) metrics_port: Option<i32>,
}

/// Lists the pods with events: those of the nodes, and the controller's.
pub(crate) async fn event_pods(cluster: &Cluster) -> Result<Vec<EventPod>, ApiError> {
    let found = pod_logs::pods(cluster).await?;
    Ok(found.iter().filter_map(EventPod::of).collect())
}

impl EventPod {
    fn of(pod: &Pod) -> Option<EventPod> {
        let is_controller = pod
            .labels()
            .get(NAME_LABEL.0)
            .is_some_and(|name| name == CONTROLLER);
        let read = NodePod::of(pod)?;
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let container = containers
            .into_iter()
            .find(|one| one.name == read.container)?;
        Some(EventPod {
            process: if is_controller { "controller" } else { "node" },
            metrics_port: port(container),
            pod: read,
        })
    }

    /// `hostloop events` for a request.
    fn command(&self, request: &Request) -> Vec<String> {
        let mut command = self.pod.command(&["events"]);
        command.extend(["--follow", "--json", "--until-eof"].map(str::to_owned));
        command.push(format!("--from={}", request.from));
        command.push(format!("--boot={}", request.boot));
        command
    }

    /// Runs `hostloop events` in the pod. It ends with its standard input.
    pub(crate) async fn follow(
        &self,
        cluster: &Cluster,
        request: &Request,
    ) -> Result<AttachedProcess, NodeError> {
        self.pod.start(cluster, &self.command(request)).await
    }
}

/// The port of a container that is named for metrics.
fn port(container: &Container) -> Option<i32> {
    let mut ports = container.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some("metrics"))?;
    Some(port.container_port)
}

/// What a command printed that failed, or its status.
pub(crate) async fn why_it_failed(mut process: AttachedProcess) -> String {
    let (status, stderr) = (process.take_status(), process.stderr());
    let ended = timeout(END, async {
        let printed = read(stderr).await.unwrap_or_default();
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        (printed, status.and_then(|status| status.message))
    });
    let (printed, message) = ended.await.unwrap_or_default();
    match printed.trim() {
        "" => message.unwrap_or_else(|| "it gave no reason".to_owned()),
        printed => printed.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_command_asks_for_the_events_from_there_on() {
        let request = Request {
            from: 7,
            boot: "b".to_owned(),
            follow: true,
        };
        for (name, process) in [("hostloop", "node"), ("hostloop-controller", "controller")] {
            let pod = json!({
                "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": name}},
                "spec": {"containers": [{"name": name}]},
            });
            let pod = EventPod::of(&serde_json::from_value(pod).unwrap()).unwrap();
            assert_eq!(pod.process, process);
            assert_eq!(
                pod.command(&request).join(" "),
                "hostloop events --follow --json --until-eof --from=7 --boot=b"
            );
        }
    }
}
