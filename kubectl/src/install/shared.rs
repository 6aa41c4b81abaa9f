//! Which nodes share a kernel: what the ConfigMap names, and when it may go.

use std::collections::BTreeSet;

use hostloop_api_objects::constants::{MAX_SHARING_NODE_NAME, MAX_SHARING_NODES, is_name};
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::ResourceExt;

use super::Error;
use super::survey::Survey;
use crate::Cluster;
use crate::api::Objects;
use crate::distribution::Distribution;
use crate::manifests::Kernels;
use crate::output;
use crate::volume_objects::{handle, is_shared};

/// The name of the first kernel.
const KERNEL: &str = "kernel";

/// The label of a node's operating system, and the driver's.
const OS: (&str, &str) = ("kubernetes.io/os", "linux");

/// The nodes that `--shared` names; none if they follow from the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedNodes(Vec<String>);

/// Parses the names of nodes between commas.
pub(super) fn nodes(word: &str) -> Result<SharedNodes, String> {
    let names = word.split(',').filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    match names.iter().find(|name| !is_name(name)) {
        Some(wrong) => Err(format!("{wrong:?} is not the name of a node")),
        None => Ok(SharedNodes(names)),
    }
}

/// Why the nodes that share a kernel are not known.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// Nothing says which nodes these are.
    #[error(
        "--shared: {distribution} does not say which nodes are containers over one kernel: name them, as \
         in --shared=NODE,NODE"
    )]
    Unknown { distribution: String },
    /// There is no cluster to look at.
    #[error(
        "--shared: without a cluster, the nodes that share a kernel are not known: name them, as in \
         --shared=NODE,NODE"
    )]
    NoCluster,
    /// A volume has a term for each of them.
    #[error(
        "--shared: {found} nodes, and at most {most} can share a kernel: name those that do",
        most = MAX_SHARING_NODES
    )]
    TooMany { found: usize },
    /// With such a name in the list, no node would share anything.
    #[error(
        "--shared: the name of node {node} has more than {most} characters, so it can't share a kernel: \
         name those that do",
        most = MAX_SHARING_NODE_NAME
    )]
    LongName { node: String },
    /// New nodes might have any of these kernels.
    #[error(
        "ConfigMap hostloop-kernels has several kernels, and none of them names {node}: add it to its \
         kernel there, and install again"
    )]
    Several { node: String },
    /// Their nodes could no longer use them.
    #[error("{}", sentence(.0))]
    InUse(Vec<String>),
}

/// The nodes of each kernel. What is installed stays: a node that is stopped has no Node object for a
/// time, and must not lose its place.
pub(super) fn decide(
    requested: &SharedNodes,
    survey: Option<&Survey>,
) -> Result<Kernels, SharedError> {
    let installed = survey.and_then(|survey| survey.kernels.clone());
    let found = match (requested.0.as_slice(), survey) {
        ([], None) => return Err(SharedError::NoCluster),
        ([], Some(survey)) => by_cluster(survey, installed.is_some())?,
        (named, _) => named.iter().cloned().collect(),
    };
    with_nodes(installed.unwrap_or_default(), found)
}

/// The nodes of a cluster that is made of containers. Elsewhere the person has named them before.
fn by_cluster(survey: &Survey, is_installed: bool) -> Result<BTreeSet<String>, SharedError> {
    match survey.distribution {
        Distribution::Kind | Distribution::Minikube => Ok(node_names(&survey.nodes)),
        _ if is_installed => Ok(BTreeSet::new()),
        other => Err(SharedError::Unknown {
            distribution: other.to_string(),
        }),
    }
}

/// The nodes that the driver's pods run on.
fn node_names(nodes: &[Node]) -> BTreeSet<String> {
    let served = nodes
        .iter()
        .filter(|node| node.labels().get(OS.0).is_none_or(|os| os == OS.1));
    served.map(ResourceExt::name_any).collect()
}

/// The kernels with these nodes, too. Those that no kernel names join the only one.
fn with_nodes(mut kernels: Kernels, found: BTreeSet<String>) -> Result<Kernels, SharedError> {
    if let Some(node) = found.iter().find(|node| node.len() > MAX_SHARING_NODE_NAME) {
        return Err(SharedError::LongName { node: node.clone() });
    }
    let known: BTreeSet<String> = kernels.values().flat_map(|nodes| words(nodes)).collect();
    let new = found.iter().find(|node| !known.contains(*node)).cloned();
    if let Some(node) = new {
        if kernels.len() > 1 {
            return Err(SharedError::Several { node });
        }
        let only = kernels.pop_first();
        let (name, nodes) = only.unwrap_or_else(|| (KERNEL.to_owned(), String::new()));
        let all: BTreeSet<String> = words(&nodes).chain(found).collect();
        kernels.insert(name, Vec::from_iter(all).join(" "));
    }
    match kernels.values().map(|nodes| words(nodes).count()).max() {
        Some(found) if found > MAX_SHARING_NODES => Err(SharedError::TooMany { found }),
        _ => Ok(kernels),
    }
}

fn words(nodes: &str) -> impl Iterator<Item = String> {
    nodes.split_whitespace().map(str::to_owned)
}

/// Fails if nodes would stop sharing a kernel while volumes reach several of them, and names these.
/// `kernels` are those of the plan.
pub(super) async fn refuse_in_use(
    kernels: Option<&Kernels>,
    survey: &Survey,
    cluster: &Cluster,
    objects: &mut Objects,
) -> Result<(), Error> {
    if kernels.is_some() || survey.kernels.is_none() {
        return Ok(());
    }
    let volumes: Vec<PersistentVolume> = objects.list(("v1", "PersistentVolume"), "", "").await?;
    let shared: Vec<String> = volumes
        .iter()
        .filter(|volume| handle(volume, &cluster.driver_name).is_some() && is_shared(volume))
        .map(ResourceExt::name_any)
        .collect();
    if shared.is_empty() {
        Ok(())
    } else {
        Err(SharedError::InUse(shared).into())
    }
}

/// What the error says.
fn sentence(in_use: &[String]) -> String {
    format!(
        "without --shared, no nodes share a kernel, and these volumes could no longer be used:{}\n\
         Delete their claims first, or add --shared",
        output::first_lines(in_use)
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn kernels(texts: &[(&str, &str)]) -> Kernels {
        let texts = texts.iter();
        texts
            .map(|(kernel, nodes)| ((*kernel).to_owned(), (*nodes).to_owned()))
            .collect()
    }

    #[rstest]
    #[case::the_first(&[], "b a", Ok(vec![("kernel", "a b")]))]
    #[case::no_node(&[], "", Ok(vec![]))]
    #[case::a_new_one(&[("k", "a")], "b", Ok(vec![("k", "a b")]))]
    #[case::a_stopped_one_stays(&[("k", "a  b")], "a", Ok(vec![("k", "a  b")]))]
    #[case::of_several_known(&[("k", "a"), ("l", "b")], "a b", Ok(vec![("k", "a"), ("l", "b")]))]
    #[case::of_several_new(
        &[("k", "a"), ("l", "b")],
        "c",
        Err(SharedError::Several { node: "c".to_owned() })
    )]
    #[case::most(&[], "1 2 3 4 5 6 7 8 9 a b c d e f g", Ok(vec![("kernel", "1 2 3 4 5 6 7 8 9 a b c d e f g")]))]
    #[case::too_many(
        &[("k", "1 2 3 4 5 6 7 8 9 a b c d e f g")],
        "h",
        Err(SharedError::TooMany { found: 17 })
    )]
    fn nodes_join_a_kernel(
        #[case] installed: &[(&str, &str)],
        #[case] found: &str,
        #[case] expected: Result<Vec<(&str, &str)>, SharedError>,
    ) {
        let joined = with_nodes(kernels(installed), words(found).collect());
        assert_eq!(joined, expected.map(|texts| kernels(&texts)));
    }

    #[rstest]
    #[case("", Ok(vec![]))]
    #[case("a,b-2.c", Ok(vec!["a", "b-2.c"]))]
    #[case("a,,b,", Ok(vec!["a", "b"]))]
    #[case("a b", Err("\"a b\" is not the name of a node"))]
    #[case("A", Err("\"A\" is not the name of a node"))]
    fn names_are_parsed(#[case] word: &str, #[case] expected: Result<Vec<&str>, &str>) {
        let expected = expected
            .map(|names| SharedNodes(names.into_iter().map(str::to_owned).collect()))
            .map_err(str::to_owned);
        assert_eq!(nodes(word), expected);
    }

    #[test]
    fn a_node_with_a_long_name_is_refused() {
        let [longest, longer] = [128, 129].map(|length| "n".repeat(length));
        let of = |node: &String| with_nodes(Kernels::new(), BTreeSet::from([node.clone()]));
        assert!(of(&longest).is_ok());
        assert_eq!(of(&longer), Err(SharedError::LongName { node: longer }));
    }

    #[test]
    fn nodes_of_another_system_share_nothing() {
        let node = |name: &str, labels: Value| {
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
        };
        let nodes: Vec<Node> = vec![
            node("a", json!({"kubernetes.io/os": "linux"})),
            node("b", json!({})),
            node("c", json!({"kubernetes.io/os": "windows"})),
        ];
        assert_eq!(Vec::from_iter(node_names(&nodes)), ["a", "b"]);
    }

    #[test]
    fn volumes_in_use_are_named() {
        let said = SharedError::InUse(vec!["hostloop-1".to_owned()]).to_string();
        assert!(
            said.contains("could no longer be used:\n  hostloop-1\nDelete"),
            "{said}"
        );
    }
}
