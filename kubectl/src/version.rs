//! `version`: of this program, and of hostloop's pods in the cluster.

use std::io;
use std::process::ExitCode;

use hostloop_terminal::columns::or_dash;
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::words;
use hostloop_terminal::terminal;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::Serialize;

use super::NAME_LABEL;
use super::api::ApiError;
use super::cluster::{self, Cluster, ClusterArgs};
use super::output::{self, OutputArgs, TextForm};
use super::pod_logs::{self, CONTROLLER};

/// Arguments of `version`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "A pod's version is the tag of its image.")]
pub struct Args {
    /// Only this program's version, without a cluster
    #[arg(long)]
    client: bool,

    #[command(flatten)]
    output: OutputArgs,
}

/// Why `version` failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The pods can't be listed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The output can't be written.
    #[error("printing: {0}")]
    Print(#[from] io::Error),
}

/// The data of the output. Names and meanings are stable; fields may be added.
#[derive(Debug, PartialEq, Serialize)]
struct Versions {
    /// This program's.
    client: &'static str,
    /// Those of the pods; null with `--client`, or if they can't be listed.
    pods: Option<Vec<PodVersion>>,
}

/// The version of a pod.
#[derive(Debug, PartialEq, Serialize)]
struct PodVersion {
    /// `node` or `controller`.
    part: &'static str,
    node: Option<String>,
    pod: String,
    /// The tag of the image; null if it has none.
    version: Option<String>,
    image: String,
}

pub(super) async fn run(args: &Args, flags: &ClusterArgs) -> Result<ExitCode, Error> {
    let listed = if args.client {
        Ok(None)
    } else {
        pods(flags).await.map(Some)
    };
    let (pods, failed) = match listed {
        Ok(pods) => (pods, None),
        Err(error) => (None, Some(error)),
    };
    let versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        pods,
    };
    let lines = match args.output.document(&versions, || versions.names())? {
        Some(lines) => lines,
        None => versions.text(args.output.text_form()),
    };
    let ended = output::end(terminal::print(&lines))?;
    failed.map_or(Ok(ended), Err)
}

async fn pods(flags: &ClusterArgs) -> Result<Vec<PodVersion>, Error> {
    let cluster = Cluster::connect(flags).await?;
    let mut pods: Vec<PodVersion> = pod_logs::pods(&cluster)
        .await?
        .iter()
        .map(PodVersion::of)
        .collect();
    pods.sort_by(|a, b| (a.part, &a.node, &a.pod).cmp(&(b.part, &b.node, &b.pod)));
    Ok(pods)
}

impl PodVersion {
    fn of(pod: &Pod) -> PodVersion {
        let label = pod.labels().get(NAME_LABEL.0).map(String::as_str);
        let is_controller = label == Some(CONTROLLER);
        let spec = pod.spec.as_ref();
        let containers = spec
            .map(|spec| spec.containers.as_slice())
            .unwrap_or_default();
        let own = containers
            .iter()
            .find(|container| Some(container.name.as_str()) == label);
        let image = own.or(containers.first());
        let image = image.and_then(|container| container.image.clone());
        let image = image.unwrap_or_default();
        PodVersion {
            part: if is_controller { "controller" } else { "node" },
            node: spec.and_then(|spec| spec.node_name.clone()),
            pod: pod.name_any(),
            version: tag(&image).map(str::to_owned),
            image,
        }
    }
}

/// The tag of an image.
fn tag(image: &str) -> Option<&str> {
    let without_digest = image.split('@').next().unwrap_or_default();
    let (_, name) = without_digest
        .rsplit_once('/')
        .unwrap_or(("", without_digest));
    name.split_once(':').map(|(_, tag)| tag)
}

impl Versions {
    /// The objects for `-o name`.
    fn names(&self) -> Vec<String> {
        let pods = self.pods.iter().flatten();
        pods.map(|pod| format!("pod/{}", pod.pod)).collect()
    }

    fn text(&self, form: TextForm) -> Vec<String> {
        let mut page = Page::new(form.width, 0);
        page.no_headers = form.no_headers;
        if !form.no_headers || self.pods.is_none() {
            page.lines.push(format!("Client  {}", self.client));
        }
        let mut cells: Vec<Cell<PodVersion>> = Vec::new();
        cells.extend::<[Cell<PodVersion>; 4]>([
            (words("PART"), |pod, _| pod.part.to_owned()),
            (words("NODE"), |pod, _| or_dash(pod.node.clone())),
            (words("VERSION"), |pod, _| or_dash(pod.version.clone())),
            (words("POD"), |pod, _| pod.pod.clone()),
        ]);
        if form.is_wide {
            cells.push((words("IMAGE"), |pod, _| or_dash(Some(pod.image.clone()))));
        }
        page.table("Pods", &cells, self.pods.iter().flatten());
        page.lines
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::test_objects::{plain, read};

    #[rstest]
    #[case::tag("registry.example.com/hostloop:0.2.0", Some("0.2.0"))]
    #[case::port("registry.example.com:5000/hostloop", None)]
    #[case::port_and_tag("localhost:5000/a/hostloop:dev", Some("dev"))]
    #[case::digest("hostloop@sha256:0123", None)]
    #[case::tag_and_digest("hostloop:0.2.0@sha256:0123", Some("0.2.0"))]
    #[case::none("", None)]
    fn tags(#[case] image: &str, #[case] version: Option<&str>) {
        assert_eq!(tag(image), version);
    }

    fn versions() -> Versions {
        let pod = |label: &str, name: &str| {
            let image = "example.com/hostloop:0.2.0";
            PodVersion::of(&read(json!({
                "metadata": {"name": name, "labels": {"app.kubernetes.io/name": label}},
                "spec": {"nodeName": "n1", "containers": [
                    {"name": "other", "image": "x:1"}, {"name": label, "image": image},
                ]},
            })))
        };
        Versions {
            client: "0.2.0",
            pods: Some(vec![pod(CONTROLLER, "c"), pod("hostloop", "h")]),
        }
    }

    #[test]
    fn of_the_client_and_of_the_pods() {
        assert_eq!(
            plain(&versions().text(TextForm::default())),
            [
                "Client  0.2.0",
                "",
                "Pods",
                "  PART        NODE  VERSION  POD",
                "  controller  n1    0.2.0    c",
                "  node        n1    0.2.0    h",
            ]
        );
        assert_eq!(versions().names(), ["pod/c", "pod/h"]);
        let alone = Versions {
            pods: None,
            ..versions()
        };
        assert_eq!(plain(&alone.text(TextForm::default())), ["Client  0.2.0"]);
    }
}
