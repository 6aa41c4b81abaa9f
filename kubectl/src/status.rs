//! `status`: the pools, volumes and snapshots of all nodes.
//!
//! It joins objects of the API server with the reports of the nodes. Whatever part the person may
//! not read is left out, and a line says which right is missing.

use std::io;
use std::process::ExitCode;

use hostloop_report::clock::now_ns;
use hostloop_terminal::terminal;

use super::api::ApiError;
use super::cluster::Cluster;
use super::node_pods;
use super::output::{self, OutputArgs};
use super::verdict::FailedCalls;
use super::volume_objects::VolumeObjects;

mod join;
mod render;
mod report;
mod selection;
mod watch;

pub(super) use join::{ClusterFacts, join, node_of};
#[cfg(test)]
pub(super) use render::{TableStyle, text};
pub(super) use render::{not_known, reason};
pub(super) use report::{ClusterReport, SnapshotRow, VolumeRow};

/// Arguments of `status`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Only these claims, snapshots and inline volumes (pod/NAME or pod/NAME/VOLUME) [default: all
    /// of the namespace]
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Show all namespaces, and volumes without a claim
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Only claims, snapshots and pods with these labels, such as app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,

    #[command(flatten)]
    output: OutputArgs,

    /// Show it again whenever claims or pods change
    #[arg(short, long)]
    watch: bool,
}

/// Why `status` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server can't be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Nothing in a namespace has these names.
    #[error(
        "no claim, snapshot or inline volume of hostloop in namespace {0} is named {1}; \
         `kubectl hostloop status -A` shows those of all namespaces"
    )]
    NotFound(String, String),
    /// Nothing in any namespace has these names.
    #[error("no claim, snapshot or inline volume of hostloop in any namespace is named {0}")]
    NotFoundAnywhere(String),
    /// Something that may have these names can't be read.
    #[error("can't tell whether anything in {0} is named {1}: {2}")]
    Unreadable(String, String, String),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

pub(super) async fn run(args: &Args, cluster: &Cluster) -> Result<ExitCode, Error> {
    if args.watch {
        let watched = watch::run(args, cluster).await;
        return match watched {
            Err(Error::Print(error)) => Ok(output::end(Err(error))?),
            ended => ended.map(|()| ExitCode::SUCCESS),
        };
    }
    let report = report(args, cluster).await?;
    if args.output.no_headers && args.output.is_text() {
        render::unknown(&report).for_each(|note| terminal::warn(&note));
    }
    let absent = args.absent(&report);
    let is_shown =
        !report.volumes.is_empty() || !report.snapshots.is_empty() || !args.output.is_text();
    let mut code = ExitCode::SUCCESS;
    if absent.is_empty() || is_shown {
        code = output::end(terminal::print(&args.lines(&report)?))?;
    }
    if absent.is_empty() {
        return Ok(code);
    }
    let namespace = (!args.all_namespaces).then(|| cluster.namespace.clone());
    Err(not_found(namespace, absent, &report.missing))
}

/// The error about names that no row has. All namespaces are meant if there is none.
fn not_found(namespace: Option<String>, names: String, missing: &[String]) -> Error {
    if !missing.is_empty() {
        let place = namespace.map_or_else(
            || "any namespace".to_owned(),
            |namespace| format!("namespace {namespace}"),
        );
        return Error::Unreadable(place, names, missing.join("; "));
    }
    match namespace {
        Some(namespace) => Error::NotFound(namespace, names),
        None => Error::NotFoundAnywhere(names),
    }
}

/// Reads the cluster and its nodes.
async fn report(args: &Args, cluster: &Cluster) -> Result<ClusterReport, ApiError> {
    let namespace = (!args.all_namespaces).then_some(&*cluster.namespace);
    let (objects, pods) = tokio::join!(
        VolumeObjects::gather(cluster, namespace),
        node_pods::node_pods(cluster)
    );
    let mut objects = objects?;
    let pods = objects.noted(pods);
    let nodes = node_pods::reports(cluster, &pods).await;
    let mut report = join(&ClusterFacts {
        objects: &objects,
        nodes: &nodes,
        driver: &cluster.driver_name,
        namespace,
        failed_calls: &FailedCalls::default(),
        now_ns: now_ns(),
    });
    if pods.is_empty() && report.missing.is_empty() {
        let namespace = &cluster.system_namespace;
        report.missing.push(format!(
            "there are no node pods in namespace {namespace}; set --system-namespace, or install \
             hostloop with `kubectl hostloop install`"
        ));
    }
    args.select(&mut report);
    if let Some(labels) = &args.selector {
        let selected = selection::selected(cluster, namespace, labels).await?;
        selected.select(&mut report);
    }
    Ok(report)
}

impl Args {
    /// Removes the rows with other names.
    fn select(&self, report: &mut ClusterReport) {
        if self.names.is_empty() {
            return;
        }
        report
            .volumes
            .retain(|row| self.names.iter().any(|name| has_name(row, name)));
        report.snapshots.retain(|row| {
            row.name
                .as_ref()
                .is_some_and(|name| self.names.contains(name))
        });
    }

    /// The names that no row has, in a sentence. With labels, a row may only lack these.
    fn absent(&self, report: &ClusterReport) -> String {
        if self.selector.is_some() {
            return String::new();
        }
        let absent = self.names.iter().filter(|name| {
            !report.volumes.iter().any(|row| has_name(row, name))
                && !report
                    .snapshots
                    .iter()
                    .any(|row| row.name.as_ref() == Some(*name))
        });
        absent.cloned().collect::<Vec<_>>().join(", ")
    }

    /// The lines of the output.
    fn lines(&self, report: &ClusterReport) -> io::Result<Vec<String>> {
        if let Some(lines) = self.output.document(report, || report.objects())? {
            return Ok(lines);
        }
        let form = self.output.text_form();
        let look = render::TableStyle {
            width: form.width,
            wide: form.is_wide,
            no_headers: form.no_headers,
            namespaces: self.all_namespaces,
            only_objects: !self.names.is_empty() || self.selector.is_some(),
            now_ns: now_ns(),
        };
        Ok(render::text(report, look))
    }
}

/// True if a person may mean the row by this name: of the claim, the inline volume, or its pod.
fn has_name(row: &VolumeRow, name: &str) -> bool {
    let inline = row.inline_name();
    let pod = inline
        .as_deref()
        .and_then(|name| Some(name.rsplit_once('/')?.0));
    row.claim.as_deref() == Some(name) || inline.as_deref() == Some(name) || pod == Some(name)
}

#[cfg(test)]
mod tests;
