//! The log lines about a claim, from the pods of all nodes and of the controller.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{AsyncBufRead, AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};
use tokio::time::timeout;

use super::NAME_LABEL;
use super::api::{self, AT_ONCE, ApiError, Call};
use super::cluster::Cluster;
use super::log_line::LogLine;
use super::subject::Subject;

/// The labels of the pods of the DaemonSet and of the Deployment.
const PODS: &str = "app.kubernetes.io/name in (hostloop,hostloop-controller)";
/// The value of the pods' label for the Deployment.
pub(super) const CONTROLLER: &str = "hostloop-controller";
/// How long reading the log of one pod may take.
const DEADLINE: Duration = Duration::from_secs(60);

/// A pod with a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPod {
    /// The node's name, or `controller`.
    pub(super) source: String,
    /// The pod's name.
    pub(super) name: String,
    /// The container with the log.
    pub(super) container: String,
    /// True if the container ran before, and has an earlier log.
    pub(super) restarted: bool,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogEntry {
    /// When the container wrote it.
    pub(super) at: Timestamp,
    /// The node's name, or `controller`.
    pub(super) source: String,
    /// The line.
    pub(super) text: String,
}

/// The lines that were found, and the pods with a log that can't be read.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// By time.
    pub(super) entries: Vec<LogEntry>,
    /// The time of the last line of each pod, by the pod's name. It need not be about the claim.
    pub(super) last: BTreeMap<String, Timestamp>,
    /// The time from which on the logs of all pods have lines. `None` if they have none at all.
    pub(super) complete_from: Option<Timestamp>,
    /// The pod's source and the error.
    pub(super) unread: Vec<(String, ApiError)>,
}

/// The lines of one pod about a claim.
#[derive(Default)]
struct PodLog {
    entries: Vec<LogEntry>,
    /// The time of the first line.
    first: Option<Timestamp>,
    /// The time of the last line.
    last: Option<Timestamp>,
}

/// Lists the pods of the DaemonSet and of the controller.
pub(super) async fn pods(cluster: &Cluster) -> Result<Vec<Pod>, ApiError> {
    api::list(&cluster.system(), ListParams::default().labels(PODS)).await
}

/// Lists the pods with a log: those of the nodes by name, then the controller's.
pub(super) async fn log_pods(cluster: &Cluster) -> Result<Vec<LogPod>, ApiError> {
    let pods = pods(cluster).await?;
    let mut found: Vec<(bool, LogPod)> = pods.iter().filter_map(LogPod::of).collect();
    found.sort_by(|(a_leads, a), (b_leads, b)| {
        (a_leads, &a.source, &a.name).cmp(&(b_leads, &b.source, &b.name))
    });
    Ok(found.into_iter().map(|(_, pod)| pod).collect())
}

/// Reads the lines about a claim in the logs of these pods, by time.
pub(super) async fn read(
    cluster: &Cluster,
    pods: &[LogPod],
    subject: &Subject,
    since: Option<Duration>,
) -> Lines {
    let logs = pods.iter().map(|pod| async move {
        let read = timeout(DEADLINE, read_pod(cluster, pod, subject, since)).await;
        let read = read.unwrap_or_else(|_| {
            Err(ApiError::Timeout {
                call: call(cluster, &pod.name),
            })
        });
        (pod, read)
    });
    let mut lines = Lines::default();
    let mut logs = futures::stream::iter(logs).buffered(AT_ONCE);
    while let Some((pod, log)) = logs.next().await {
        match log {
            Ok(log) => {
                lines.entries.extend(log.entries);
                lines.complete_from = lines.complete_from.max(log.first);
                lines
                    .last
                    .extend(log.last.map(|last| (pod.name.clone(), last)));
            }
            Err(error) => lines.unread.push((pod.source.clone(), error)),
        }
    }
    // The sort is stable: lines of one pod with the same time keep their order.
    lines.entries.sort_by_key(|entry| entry.at);
    lines
}

async fn read_pod(
    cluster: &Cluster,
    pod: &LogPod,
    subject: &Subject,
    since: Option<Duration>,
) -> Result<PodLog, ApiError> {
    let params = pod.params(since);
    let mut earlier = PodLog::default();
    if pod.restarted {
        let params = LogParams {
            previous: true,
            ..params.clone()
        };
        // Kubelet may have removed the earlier log.
        if let Ok(stream) = cluster.system::<Pod>().log_stream(&pod.name, &params).await {
            earlier = collect(stream, pod, subject).await.unwrap_or_default();
        }
    }
    let stream = cluster
        .system::<Pod>()
        .log_stream(&pod.name, &params)
        .await
        .map_err(|error| failed(cluster, pod, error))?;
    let log = collect(stream, pod, subject).await;
    let mut log = log.map_err(|error| failed(cluster, pod, kube::Error::ReadEvents(error)))?;
    log.entries.splice(0..0, earlier.entries);
    log.first = earlier.first.or(log.first);
    log.last = log.last.or(earlier.last);
    Ok(log)
}

async fn collect(
    stream: impl AsyncBufRead + Unpin,
    pod: &LogPod,
    subject: &Subject,
) -> std::io::Result<PodLog> {
    let mut selector = LineSelector::new(subject);
    let mut entries = Vec::new();
    let mut lines = stream.lines();
    while let Some(line) = lines.try_next().await? {
        if let Some((at, text)) = selector.select(&line) {
            entries.push(LogEntry {
                at,
                source: pod.source.clone(),
                text: text.to_owned(),
            });
        }
    }
    Ok(PodLog {
        entries,
        first: selector.first,
        last: selector.last,
    })
}

/// Calls `found` with each line about a claim after a time, until the log ends. Without a time, it
/// begins with the container.
pub(super) async fn follow(
    cluster: &Cluster,
    pod: &LogPod,
    subject: &Subject,
    from: Option<Timestamp>,
    mut found: impl FnMut(LogEntry),
) -> Result<(), ApiError> {
    let params = LogParams {
        follow: true,
        since_time: from,
        ..pod.params(None)
    };
    let stream = cluster
        .system::<Pod>()
        .log_stream(&pod.name, &params)
        .await
        .map_err(|error| failed(cluster, pod, error))?;
    let mut selector = LineSelector::new(subject);
    let mut lines = stream.lines();
    while let Some(line) = lines
        .try_next()
        .await
        .map_err(|error| failed(cluster, pod, kube::Error::ReadEvents(error)))?
    {
        match selector.select(&line) {
            // The server counts in whole seconds, so it sends some lines again.
            Some((at, text)) if from.is_none_or(|from| at > from) => {
                found(LogEntry {
                    at,
                    source: pod.source.clone(),
                    text: text.to_owned(),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

fn failed(cluster: &Cluster, pod: &LogPod, error: kube::Error) -> ApiError {
    ApiError::new(call(cluster, &pod.name), error)
}

fn call(cluster: &Cluster, pod: &str) -> Call {
    Call::new("get", "pods/log", Some(&cluster.system_namespace), pod)
}

impl LogPod {
    /// Reads a pod, and whether it is the controller's. `None` if it has not started.
    fn of(pod: &Pod) -> Option<(bool, LogPod)> {
        let spec = pod.spec.as_ref()?;
        let status = pod.status.as_ref()?;
        let name = pod.labels().get(NAME_LABEL.0)?;
        let container = spec
            .containers
            .iter()
            .find(|container| container.name == *name);
        let container = &container.or(spec.containers.first())?.name;
        let started = status
            .container_statuses
            .iter()
            .flatten()
            .find(|c| c.name == *container)?;
        let is_controller = name == CONTROLLER;
        let source = if is_controller {
            "controller".to_owned()
        } else {
            spec.node_name.clone().unwrap_or_default()
        };
        let pod = LogPod {
            source,
            name: pod.metadata.name.clone().unwrap_or_default(),
            container: container.clone(),
            restarted: started.restart_count > 0,
        };
        Some((is_controller, pod))
    }

    fn params(&self, since: Option<Duration>) -> LogParams {
        LogParams {
            container: Some(self.container.clone()),
            since_seconds: since
                .map(|since| i64::try_from(since.as_secs().max(1)).unwrap_or(i64::MAX)),
            timestamps: true,
            ..LogParams::default()
        }
    }
}

/// Selects the lines about a claim. A line that is not in the driver's format continues the line
/// before it.
struct LineSelector<'a> {
    subject: &'a Subject,
    /// True if the line before was selected.
    selected: bool,
    /// The time of the first line.
    first: Option<Timestamp>,
    /// The time of the last line.
    last: Option<Timestamp>,
}

impl<'a> LineSelector<'a> {
    fn new(subject: &'a Subject) -> LineSelector<'a> {
        LineSelector {
            subject,
            selected: false,
            first: None,
            last: None,
        }
    }

    /// The time and the text of a line that the server prefixed with its time; `None` if it does
    /// not concern the claim.
    fn select<'l>(&mut self, line: &'l str) -> Option<(Timestamp, &'l str)> {
        let (time, text) = line.split_once(' ').unwrap_or((line, ""));
        let at = time.parse().ok()?;
        self.first = self.first.or(Some(at));
        self.last = Some(at);
        let parsed = LogLine::parse(text);
        let concerns = self.subject.concerns(text, parsed.as_ref());
        self.selected = concerns || self.selected && parsed.is_none();
        self.selected.then_some((at, text))
    }
}

#[cfg(test)]
mod tests;
