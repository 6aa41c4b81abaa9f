//! The node pods: where they are, and what `hostloop status` reports in them.
//!
//! The command runs in the pods (pods/exec). A node without an answer does not stop the others.

use std::fmt::Display;
use std::time::{Duration, Instant};

use futures::StreamExt;
use hostloop_report::image_map::ImageMap;
use hostloop_report::status::Report;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess, ListParams};
use serde::de::DeserializeOwned;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::api::{self, AT_ONCE, ApiError, Call};
use super::cluster::Cluster;
use super::container_end::last_error;

mod cut_commands;
mod event_pods;

pub(super) use cut_commands::Burst;
pub(super) use event_pods::{EventPod, event_pods, why_it_failed};

/// The label of the DaemonSet's pods, which is not the controller's.
pub(super) const NODE_PODS: &str = "app.kubernetes.io/name=hostloop";
/// The container that has the driver, and the program in it.
const PROGRAM: &str = "hostloop";

/// How long a command in a pod may take.
const DEADLINE: Duration = Duration::from_secs(20);
/// The largest output that is read. A report has about a kilobyte for each volume.
const MAX_OUTPUT: u64 = 64 << 20;
/// The size of the buffer between connection and reader.
const BUFFER: usize = 64 << 10;

/// A pod of the DaemonSet.
#[derive(Clone, Debug)]
pub(super) struct NodePod {
    /// The node; empty if the pod is not scheduled.
    pub(super) node: String,
    /// The pod's name.
    pub(super) name: String,
    /// The container with the driver.
    pub(super) container: String,
    /// Why no command can run in the container.
    pub(super) not_running: Option<String>,
    /// The program in the container. Commands of it find pools and sockets in the environment.
    pub(super) program: String,
}

/// Why a node does not report.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    /// The pod's container does not run.
    #[error("pod {0} does not run: {1}")]
    NotRunning(String, String),
    /// The API server refuses the connection to the pod.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The command takes too long.
    #[error("no answer from pod {pod} within {} s", .deadline.as_secs())]
    Late { pod: String, deadline: Duration },
    /// The output ended early.
    #[error("reading from pod {0}: {1}")]
    Read(String, String),
    /// The command failed.
    #[error("`{command}` failed in pod {pod}: {message}")]
    Failed {
        pod: String,
        /// The command and its subcommand.
        command: String,
        /// What it printed, or the status.
        message: String,
    },
    /// The output is not a report.
    #[error("the report of pod {0} is unreadable ({1}); use the program of the installed version")]
    Unreadable(String, #[source] serde_json::Error),
}

/// What a node reports.
#[derive(Debug)]
pub(super) struct NodeReport {
    pub(super) node: String,
    /// The pod that answered.
    pub(super) pod: String,
    pub(super) report: Result<Report, NodeError>,
    /// How long the node took.
    pub(super) took: Duration,
}

/// Lists the node pods, by node.
pub(super) async fn node_pods(cluster: &Cluster) -> Result<Vec<NodePod>, ApiError> {
    let found: Vec<Pod> =
        api::list(&cluster.system(), ListParams::default().labels(NODE_PODS)).await?;
    let mut found: Vec<NodePod> = found.iter().filter_map(NodePod::of).collect();
    found.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
    Ok(found)
}

/// Reads the reports of these pods, several at a time. The order stays.
pub(super) async fn reports(cluster: &Cluster, pods: &[NodePod]) -> Vec<NodeReport> {
    // A vector, because a closure in a stream would keep callers from running on another task.
    let reports: Vec<_> = pods.iter().map(|pod| node_report(cluster, pod)).collect();
    futures::stream::iter(reports)
        .buffered(AT_ONCE)
        .collect()
        .await
}

/// Reads the report of one pod, and measures how long it takes.
pub(super) async fn node_report(cluster: &Cluster, pod: &NodePod) -> NodeReport {
    let started = Instant::now();
    let report = report(cluster, pod).await;
    let took = started.elapsed();
    NodeReport {
        node: pod.node.clone(),
        pod: pod.name.clone(),
        report,
        took,
    }
}

/// Reads the maps of these images in their pods, several pods at a time. The order stays.
pub(super) async fn image_maps(
    cluster: &Cluster,
    images: &[(&NodePod, Vec<String>)],
) -> Vec<Result<Vec<ImageMap>, NodeError>> {
    let maps: Vec<_> = images
        .iter()
        .map(|(pod, ids)| maps_of(cluster, pod, ids))
        .collect();
    futures::stream::iter(maps)
        .buffered(AT_ONCE)
        .collect()
        .await
}

async fn maps_of(
    cluster: &Cluster,
    pod: &NodePod,
    ids: &[String],
) -> Result<Vec<ImageMap>, NodeError> {
    ask(cluster, pod, &pod.extents_command(ids)).await
}

/// Reads the report of one pod.
async fn report(cluster: &Cluster, pod: &NodePod) -> Result<Report, NodeError> {
    ask(cluster, pod, &pod.status_command()).await
}

/// Runs a command in a node pod, and reads the JSON that it prints if it succeeds.
pub(super) async fn ask<T: DeserializeOwned>(
    cluster: &Cluster,
    pod: &NodePod,
    command: &[String],
) -> Result<T, NodeError> {
    ask_within(cluster, pod, command, DEADLINE).await
}

/// [`ask`], for a command that may take this long.
async fn ask_within<T: DeserializeOwned>(
    cluster: &Cluster,
    pod: &NodePod,
    command: &[String],
    deadline: Duration,
) -> Result<T, NodeError> {
    let printed = timeout(deadline, output(cluster, pod, command))
        .await
        .map_err(|_| pod.late(deadline))??;
    read_json(pod, &printed)
}

fn read_json<T: DeserializeOwned>(pod: &NodePod, text: &str) -> Result<T, NodeError> {
    serde_json::from_str(text).map_err(|error| NodeError::Unreadable(pod.name.clone(), error))
}

/// The standard output of a command that succeeds.
async fn output(cluster: &Cluster, pod: &NodePod, command: &[String]) -> Result<String, NodeError> {
    let mut process = pod.exec(cluster, command, false).await?;
    let status = process.take_status();
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let (stdout, stderr) = tokio::join!(read(stdout), read(stderr));
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    let stdout = stdout.map_err(|error| read_error(pod, &error))?;
    let stderr = stderr.map_err(|error| read_error(pod, &error))?;
    succeeded(pod, command, status, &stderr)?;
    Ok(stdout)
}

/// Whether a command succeeded, by its status and what it printed as an error.
fn succeeded(
    pod: &NodePod,
    command: &[String],
    status: Option<Status>,
    stderr: &str,
) -> Result<(), NodeError> {
    match status {
        None => Err(read_error(pod, &"the connection ended before the command")),
        Some(status) if status.status.as_deref() == Some("Success") => Ok(()),
        Some(status) => {
            let message = match stderr.trim() {
                "" => status.message.unwrap_or_default(),
                printed => printed.to_owned(),
            };
            let command = command
                .iter()
                .take(2)
                .cloned()
                .collect::<Vec<_>>()
                .join(" ");
            Err(NodeError::Failed {
                pod: pod.name.clone(),
                command,
                message,
            })
        }
    }
}

fn read_error(pod: &NodePod, error: &dyn Display) -> NodeError {
    NodeError::Read(pod.name.clone(), error.to_string())
}

async fn read(stream: Option<impl tokio::io::AsyncRead + Unpin>) -> std::io::Result<String> {
    let mut text = Vec::new();
    if let Some(stream) = stream {
        stream.take(MAX_OUTPUT).read_to_end(&mut text).await?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

impl NodePod {
    /// Reads a pod. `None` without containers.
    fn of(pod: &Pod) -> Option<NodePod> {
        let spec = pod.spec.as_ref()?;
        let named = spec
            .containers
            .iter()
            .find(|container| container.name == PROGRAM);
        let container = named.or_else(|| spec.containers.first())?;
        let program = container.command.iter().flatten().next();
        Some(NodePod {
            node: spec.node_name.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            container: container.name.clone(),
            not_running: not_running(pod, container),
            program: program.map_or(PROGRAM, String::as_str).to_owned(),
        })
    }

    /// Starts a command that ends with its standard input.
    async fn start(
        &self,
        cluster: &Cluster,
        command: &[String],
    ) -> Result<AttachedProcess, NodeError> {
        let started = timeout(DEADLINE, self.exec(cluster, command, true)).await;
        started.map_err(|_| self.late(DEADLINE))?
    }

    /// The error of a command that takes longer than this.
    fn late(&self, deadline: Duration) -> NodeError {
        NodeError::Late {
            pod: self.name.clone(),
            deadline,
        }
    }

    /// Starts a command in the container.
    async fn exec(
        &self,
        cluster: &Cluster,
        command: &[String],
        has_input: bool,
    ) -> Result<AttachedProcess, NodeError> {
        if let Some(why) = &self.not_running {
            return Err(NodeError::NotRunning(self.name.clone(), why.clone()));
        }
        let params = AttachParams::default()
            .container(self.container.clone())
            .stdin(has_input)
            .max_stdout_buf_size(BUFFER);
        let started = cluster
            .system::<Pod>()
            .exec(&self.name, command, &params)
            .await;
        let namespace = Some(cluster.system_namespace.as_str());
        let call = Call::new("create", "pods/exec", namespace, &self.name);
        Ok(started.map_err(|error| ApiError::new(call, error))?)
    }

    /// A command of the program in the container.
    pub(super) fn command(&self, words: &[&str]) -> Vec<String> {
        std::iter::once(self.program.as_str())
            .chain(words.iter().copied())
            .map(str::to_owned)
            .collect()
    }

    /// The command that reports pools, volumes and devices.
    fn status_command(&self) -> Vec<String> {
        self.command(&["status", "--json"])
    }

    /// The command that reports where the blocks of these images are.
    fn extents_command(&self, ids: &[String]) -> Vec<String> {
        let mut command = self.status_command();
        command.push(format!("--extents={}", ids.join(",")));
        command
    }
}

/// Why no command can run in a container.
fn not_running(pod: &Pod, container: &Container) -> Option<String> {
    let Some(status) = &pod.status else {
        return Some("it has no status".to_owned());
    };
    let mut containers = status.container_statuses.iter().flatten();
    let container = containers.find(|one| one.name == container.name);
    let state = container.and_then(|container| container.state.as_ref());
    let Some(state) = state else {
        return Some(status.phase.clone().unwrap_or_else(|| "Unknown".to_owned()));
    };
    if state.running.is_some() {
        return None;
    }
    let waiting = state
        .waiting
        .as_ref()
        .and_then(|waiting| waiting.reason.clone());
    let error = container.and_then(last_error);
    let ended = state.terminated.as_ref().map(|ended| match &ended.reason {
        Some(reason) => reason.clone(),
        None => format!("exit code {}", ended.exit_code),
    });
    let state = waiting.or(ended);
    let state = state.unwrap_or_else(|| "its container waits".to_owned());
    Some(match error {
        Some(error) => format!("{state}: {error}"),
        None => state,
    })
}

#[cfg(test)]
mod tests;
