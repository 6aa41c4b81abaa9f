//! Which commands load an archive into a cluster.

use std::fmt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::{Args, Error};
use crate::distribution::Distribution;

/// The container engines that kind and minikube run nodes with.
const ENGINES: [&str; 3] = ["docker", "podman", "nerdctl"];

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The program and its arguments.
    pub(super) words: Vec<String>,
    /// The file that it reads as standard input.
    pub(super) input: Option<PathBuf>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))?;
        match &self.input {
            Some(input) => write!(f, " <{}", input.display()),
            None => Ok(()),
        }
    }
}

/// The commands for a cluster. `has` is true for programs on the PATH.
pub(super) fn steps(
    distribution: Distribution,
    nodes: &[Node],
    args: &Args,
    has: impl Fn(&str) -> bool,
) -> Result<Vec<Step>, Error> {
    if !distribution.has_load_command() {
        return Err(Error::OtherCluster {
            what: other_cluster(distribution),
            command: distribution.import_command(),
        });
    }
    let chosen = chosen(nodes, &args.nodes)?;
    let is_kind = distribution == Distribution::Kind;
    match nodes.first() {
        Some(node) if is_kind && has("kind") => Ok(vec![kind(node, &chosen, args)]),
        // minikube loads into all nodes.
        Some(node) if !is_kind && has("minikube") && args.nodes.is_empty() => {
            Ok(vec![minikube(node, &args.archive)])
        }
        _ => {
            let engine = engine(nodes, has).ok_or_else(|| {
                let own = if is_kind { "kind" } else { "minikube" };
                Error::NoProgram([own].into_iter().chain(ENGINES).collect())
            })?;
            Ok(chosen
                .iter()
                .map(|node| import(engine, node, &args.archive))
                .collect())
        }
    }
}

/// What a cluster is that `load` does not work on.
fn other_cluster(distribution: Distribution) -> String {
    match distribution {
        Distribution::Other => {
            "hostloop does not know this cluster's distribution: it is not kind or minikube"
                .to_owned()
        }
        known => format!("this cluster is {known}, not kind or minikube"),
    }
}

/// The nodes with these names; all if there are none.
fn chosen<'a>(nodes: &'a [Node], names: &[String]) -> Result<Vec<&'a Node>, Error> {
    if names.is_empty() {
        return Ok(nodes.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            nodes
                .iter()
                .find(|node| node.name_any() == *name)
                .ok_or_else(|| Error::NoNode {
                    name: name.clone(),
                    nodes: nodes.iter().map(|node| node.name_any()).collect(),
                })
        })
        .collect()
}

/// `kind load`, for the cluster that the node's provider ID names: `kind://ENGINE/CLUSTER/NODE`.
fn kind(node: &Node, chosen: &[&Node], args: &Args) -> Step {
    let cluster = provider(node).nth(1).unwrap_or("kind");
    let mut words = [
        "kind",
        "load",
        "image-archive",
        &path(&args.archive),
        "--name",
        cluster,
    ]
    .map(str::to_owned)
    .to_vec();
    if !args.nodes.is_empty() {
        let names: Vec<String> = chosen.iter().map(|node| node.name_any()).collect();
        words.extend(["--nodes".to_owned(), names.join(",")]);
    }
    Step { words, input: None }
}

/// `minikube image load`, for the profile that the node's label names.
fn minikube(node: &Node, archive: &Path) -> Step {
    let profile = node.labels().get("minikube.k8s.io/name");
    let profile = profile.map_or("minikube", String::as_str);
    let words = [
        "minikube",
        "--profile",
        profile,
        "image",
        "load",
        &path(archive),
    ];
    Step {
        words: words.map(str::to_owned).to_vec(),
        input: None,
    }
}

/// An import in the node's container, by the runtime that the node reports.
fn import(engine: &str, node: &Node, archive: &Path) -> Step {
    let runtime = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    let runtime = runtime
        .map(|info| info.container_runtime_version.as_str())
        .unwrap_or_default();
    let load = if runtime.starts_with("docker://") {
        "docker load"
    } else {
        "ctr --namespace k8s.io images import -"
    };
    let name = node.name_any();
    let words = [engine, "exec", "--interactive", &name]
        .into_iter()
        .chain(load.split(' '));
    Step {
        words: words.map(str::to_owned).collect(),
        input: Some(archive.to_owned()),
    }
}

/// The engine that kind's provider ID names, or the first that there is.
fn engine(nodes: &[Node], has: impl Fn(&str) -> bool) -> Option<&'static str> {
    let named = nodes.first().and_then(|node| provider(node).next());
    let named = ENGINES.into_iter().find(|engine| Some(*engine) == named);
    named
        .filter(|engine| has(engine))
        .or_else(|| ENGINES.into_iter().find(|engine| has(engine)))
}

/// The parts of a node's `kind://` provider ID.
fn provider(node: &Node) -> impl Iterator<Item = &str> {
    let id = node
        .spec
        .as_ref()
        .and_then(|spec| spec.provider_id.as_deref());
    let parts = id
        .and_then(|id| id.strip_prefix("kind://"))
        .unwrap_or_default();
    parts.split('/').filter(|part| !part.is_empty())
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, provider: &str, runtime: &str) -> Node {
        let node = json!({
            "metadata": {"name": name, "labels": {"minikube.k8s.io/name": "lab"}},
            "spec": {"providerID": provider},
            "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
        });
        serde_json::from_value(node).unwrap()
    }

    fn lines(
        distribution: Distribution,
        nodes: &[&str],
        programs: &[&str],
    ) -> Result<String, String> {
        let id = |name: &str| match distribution {
            Distribution::Kind => format!("kind://podman/dev/{name}"),
            _ => String::new(),
        };
        let runtime = if distribution == Distribution::Kind {
            "containerd://2"
        } else {
            "docker://28"
        };
        let all = ["n1", "n2"].map(|name| node(name, &id(name), runtime));
        let nodes = nodes.iter().map(|name| (*name).to_owned()).collect();
        let args = Args {
            archive: PathBuf::from("target/image/hostloop.tar"),
            nodes,
            dry_run: crate::dry_run::DryRunArgs::default(),
        };
        let steps = steps(distribution, &all, &args, |program| {
            programs.contains(&program)
        });
        let lines = |steps: Vec<Step>| {
            steps
                .iter()
                .map(Step::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        };
        steps.map(lines).map_err(|error| error.to_string())
    }

    #[test]
    fn commands_by_cluster_and_programs() {
        let kind = Distribution::Kind;
        let minikube = Distribution::Minikube;
        for (distribution, nodes, programs, said) in [
            (
                kind,
                vec![],
                vec!["kind", "docker"],
                "kind load image-archive target/image/hostloop.tar --name dev",
            ),
            (
                kind,
                vec!["n2"],
                vec!["kind"],
                "kind load image-archive target/image/hostloop.tar --name dev --nodes n2",
            ),
            (
                kind,
                vec![],
                vec!["docker", "podman"],
                "podman exec --interactive n1 ctr --namespace k8s.io images import - <target/image/hostloop.tar; \
                 podman exec --interactive n2 ctr --namespace k8s.io images import - <target/image/hostloop.tar",
            ),
            (
                kind,
                vec!["n1"],
                vec!["docker"],
                "docker exec --interactive n1 ctr --namespace k8s.io images import - <target/image/hostloop.tar",
            ),
            (
                minikube,
                vec![],
                vec!["minikube"],
                "minikube --profile lab image load target/image/hostloop.tar",
            ),
            (
                minikube,
                vec!["n2"],
                vec!["minikube", "docker"],
                "docker exec --interactive n2 docker load <target/image/hostloop.tar",
            ),
        ] {
            let lines = lines(distribution, &nodes, &programs);
            assert_eq!(
                lines.as_deref(),
                Ok(said),
                "{distribution} {nodes:?} {programs:?}"
            );
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        let kind = Distribution::Kind;
        for (distribution, nodes, programs, contains) in [
            (
                kind,
                vec!["n3"],
                vec!["kind"],
                "no node \"n3\"; it has n1, n2",
            ),
            (
                kind,
                vec![],
                vec![],
                "kind, docker, podman, nerdctl; install one",
            ),
            (
                Distribution::K3s,
                vec![],
                vec![],
                "is k3s, not kind or minikube",
            ),
            (
                Distribution::Other,
                vec![],
                vec![],
                "hostloop does not know this cluster's distribution: it is not kind or minikube. On \
                 each node, run: ctr --namespace k8s.io images import - <ARCHIVE",
            ),
            (
                Distribution::K3s,
                vec![],
                vec![],
                "k3s ctr images import - <ARCHIVE",
            ),
        ] {
            let error = lines(distribution, &nodes, &programs).unwrap_err();
            assert!(error.contains(contains), "{error}");
        }
    }
}
