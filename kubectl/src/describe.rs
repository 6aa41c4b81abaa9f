//! `describe`: everything about one claim, snapshot or group, or the inline volumes of one pod.
//!
//! Only what helps is shown: no annotations, parameters, attributes or mount options, which may
//! have secrets.

use std::io;
use std::process::ExitCode;

use hostloop_report::clock::now_ns;
use hostloop_terminal::terminal;

use super::api::ApiError;
use super::cluster::Cluster;
use super::log_line::{LogLine, LoggedCall};
use super::node_pods::{self, NodeReport};
use super::output;
use super::pod_logs;
use super::status::{ClusterFacts, ClusterReport, join};
use super::target::{Target, TargetArgs, TargetError};
use super::verdict::FailedCalls;
use super::volume_objects::VolumeObjects;

mod history;
mod render;

pub(super) use history::{Moment, history};
pub(super) use render::moments;

/// The number of calls that are shown, the newest.
const CALLS: usize = 20;

/// Arguments of `describe`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: TargetArgs,
}

/// Why `describe` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words name no object.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The API server can't be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// There is no such object.
    #[error(
        "{0} does not exist in namespace {1}; `kubectl hostloop status -A` shows those of all \
         namespaces"
    )]
    NotFound(String, String),
    /// There is no such claim. A name without a kind is taken for a claim's.
    #[error(
        "{0} does not exist in namespace {1}; `kubectl hostloop status -A` shows those of all \
         namespaces, and other kinds are named as snapshot/NAME, group/NAME or pod/NAME"
    )]
    NoClaim(String, String),
    /// The object can't be read.
    #[error("{0} in namespace {1}: {2}")]
    Unreadable(String, String, String),
    /// The object is another driver's.
    #[error("{0} is not of driver {1}; set --driver-name if hostloop has another name")]
    NotOurs(String, String),
    /// The pod has no such inline volume.
    #[error("{0} has no {1} of driver {2}; describe its claims by their own names")]
    NoInline(String, String, String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// What is known about the target.
struct Facts {
    target: Target,
    objects: VolumeObjects,
    /// The rows of `status` about the claim and its snapshots, the snapshot, or the inline volumes.
    report: ClusterReport,
    /// The reports of the nodes that may have it.
    nodes: Vec<NodeReport>,
    /// The newest calls about it, in order of time.
    calls: Vec<LoggedCall>,
    now_ns: u64,
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    let facts = gather(&args.target.target()?, cluster).await?;
    let lines = render::text(&facts, terminal::width());
    Ok(output::end(terminal::print(&lines))?)
}

async fn gather(target: &Target, cluster: &Cluster) -> Result<Facts, Error> {
    let mut objects = target.gather(cluster).await?;
    if !target.is_in(&objects) {
        let (what, namespace) = (target.to_string(), cluster.namespace.clone());
        return Err(match (objects.missing.into_iter().next(), target) {
            (Some(why), _) => Error::Unreadable(what, namespace, why),
            (None, Target::Claim(_)) => Error::NoClaim(what, namespace),
            (None, _) => Error::NotFound(what, namespace),
        });
    }
    target.complete(cluster, &mut objects).await;
    let known = joined(target, &objects, &[], cluster, 0);
    let is_ours = match target {
        Target::Snapshot(_) | Target::Group(_) => !known.snapshots.is_empty(),
        Target::Claim(_) | Target::Inline(..) => !known.volumes.is_empty(),
    };
    if let (false, Target::Inline(_, volume)) = (is_ours, target) {
        let volume = volume
            .iter()
            .map(|name| format!(" {name}"))
            .collect::<String>();
        let (what, driver) = (
            format!("inline volume{volume}"),
            cluster.driver_name.clone(),
        );
        return Err(Error::NoInline(target.to_string(), what, driver));
    }
    if !is_ours && objects.missing.is_empty() {
        return Err(Error::NotOurs(
            target.to_string(),
            cluster.driver_name.clone(),
        ));
    }
    let wanted = node_of(&known);

    let pods = node_pods::node_pods(cluster).await;
    let mut pods = objects.noted(pods);
    if let Some(node) = wanted.filter(|node| pods.iter().any(|pod| pod.node == *node)) {
        pods.retain(|pod| pod.node == node);
    }
    let nodes = node_pods::reports(cluster, &pods).await;
    let calls = calls(target, cluster, &mut objects, wanted).await;
    let now_ns = now_ns();
    let report = joined(target, &objects, &nodes, cluster, now_ns);
    if let Target::Snapshot(_) | Target::Group(_) = target {
        keep_snapshot(&mut objects);
    }
    Ok(Facts {
        target: target.clone(),
        objects,
        report,
        nodes,
        calls,
        now_ns,
    })
}

/// The rows about the target.
fn joined(
    target: &Target,
    objects: &VolumeObjects,
    nodes: &[NodeReport],
    cluster: &Cluster,
    now_ns: u64,
) -> ClusterReport {
    let (driver, namespace) = (&cluster.driver_name, Some(&*cluster.namespace));
    let mut report = join(&ClusterFacts {
        objects,
        nodes,
        driver,
        namespace,
        failed_calls: &FailedCalls::default(),
        now_ns,
    });
    match target {
        Target::Claim(name) => report
            .volumes
            .retain(|row| row.claim.as_ref() == Some(name)),
        Target::Inline(_, volume) => report.volumes.retain(|row| {
            row.inline.is_some()
                && volume
                    .as_ref()
                    .is_none_or(|v| row.inline.as_ref() == Some(v))
        }),
        Target::Snapshot(name) => {
            report.volumes.clear();
            report
                .snapshots
                .retain(|row| row.name.as_ref() == Some(name));
        }
        Target::Group(name) => {
            report.volumes.clear();
            report
                .snapshots
                .retain(|row| row.group.as_ref() == Some(name));
        }
    }
    report
}

/// Drops what is about the claims of snapshots.
fn keep_snapshot(objects: &mut VolumeObjects) {
    objects.claims.clear();
    objects.volumes.clear();
    objects.events.retain(|event| {
        let kind = event.involved_object.kind.as_deref().unwrap_or_default();
        kind.starts_with("VolumeSnapshot") || kind.starts_with("VolumeGroupSnapshot")
    });
}

/// The node that the objects name.
fn node_of(report: &ClusterReport) -> Option<&str> {
    let volume = report.volumes.iter().find_map(|row| row.node.as_deref());
    volume.or_else(|| report.snapshots.iter().find_map(|row| row.node.as_deref()))
}

/// The newest calls about the target in the log of its node.
async fn calls(
    target: &Target,
    cluster: &Cluster,
    objects: &mut VolumeObjects,
    node: Option<&str>,
) -> Vec<LoggedCall> {
    let subject = target.subject(cluster, objects);
    let pods = pod_logs::log_pods(cluster).await;
    let mut pods = objects.noted(pods);
    if let Some(node) = node.filter(|node| pods.iter().any(|pod| pod.source == *node)) {
        pods.retain(|pod| pod.source == node);
    }
    let lines = pod_logs::read(cluster, &pods, &subject, None).await;
    let unread = lines.unread.iter();
    objects
        .missing
        .extend(unread.map(|(source, error)| format!("log of {source}: {error}")));
    newest(lines.entries.iter().map(|entry| entry.text.as_str()))
}

/// The newest calls among log lines that are in order of time.
fn newest<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<LoggedCall> {
    let mut calls: Vec<LoggedCall> = lines
        .filter_map(|line| LogLine::parse(line)?.call())
        .collect();
    calls.drain(..calls.len().saturating_sub(CALLS));
    calls
}

#[cfg(test)]
mod hostile_text;
#[cfg(test)]
mod tests;
