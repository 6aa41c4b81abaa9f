//! The DaemonSet's pods, and their registration with kubelet.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;

use super::container::runs_driver;
use super::{Part, driver_container, flag, known};
use crate::check::facts::Facts;
use crate::check::line::{Line, names};
use crate::distribution::{Distribution, KUBELET_DIR};
use crate::volume_objects::{condition, is_of_daemon_set};

mod labels;
mod waiting;

/// The version of this program.
const PROGRAM: &str = env!("CARGO_PKG_VERSION");

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let pods = known("Pods", &facts.pods);
    let sets = match known("DaemonSet", &facts.daemon_sets) {
        Ok(sets) => sets,
        // A person asks for all missing rights at once.
        Err(line) => return std::iter::once(line).chain(pods.err()).collect(),
    };
    if sets.is_empty() {
        return vec![Line::failed(
            format!("Namespace {} has no DaemonSet of hostloop", facts.namespace),
            "hostloop is not installed: kubectl hostloop install. If it is in another namespace, \
             set --system-namespace.",
        )];
    }
    let pods = match pods {
        Ok(pods) => pods_by_node(pods),
        Err(line) => return vec![line],
    };
    let mut lines = scheduled(sets, &pods, &facts.namespace);
    lines.extend(ready(&pods, &facts.namespace));
    lines.extend(image(&pods, &facts.namespace));
    lines.extend(version(&pods, facts));
    lines.extend(registered(&pods, facts).unwrap_or_else(|line| vec![line]));
    lines
}

/// The node pods, by node.
type PodsByNode<'a> = BTreeMap<&'a str, &'a Pod>;

/// The pods of DaemonSets that run the driver, by node.
pub(in crate::check) fn pods_by_node(pods: &[Pod]) -> PodsByNode<'_> {
    pods.iter()
        .filter(|pod| is_of_daemon_set(pod) && has_driver(pod))
        .filter_map(|pod| Some((pod.spec.as_ref()?.node_name.as_deref()?, pod)))
        .collect()
}

fn has_driver(pod: &Pod) -> bool {
    pod.spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .any(runs_driver)
}

/// True if a pod is ready and stays.
pub(in crate::check) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready", "True").is_some() && pod.metadata.deletion_timestamp.is_none()
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn scheduled(sets: &[DaemonSet], pods: &PodsByNode<'_>, namespace: &str) -> Vec<Line> {
    let wanted = sets.iter().filter_map(|set| set.status.as_ref());
    let wanted: i32 = wanted.map(|status| status.desired_number_scheduled).sum();
    let wanted = usize::try_from(wanted).unwrap_or_default();
    match (wanted, pods.len()) {
        (0, _) => vec![Line::failed(
            "The DaemonSet selects no node",
            "Look at its nodeSelector and at the labels of the nodes.",
        )],
        (wanted, pods) if pods < wanted => vec![Line::failed(
            format!(
                "{} of {wanted} nodes have no pod of hostloop",
                wanted - pods
            ),
            format!(
                "Look at: kubectl -n {namespace} describe daemonsets -l \
                 app.kubernetes.io/name=hostloop"
            ),
        )],
        _ => Vec::new(),
    }
}

fn ready(pods: &PodsByNode<'_>, namespace: &str) -> Vec<Line> {
    let (ready, not_ready): (Vec<_>, Vec<_>) = pods.iter().partition(|(_, pod)| is_ready(pod));
    let mut lines: Vec<Line> = not_ready
        .into_iter()
        .map(|(node, pod)| waiting::line(node, pod, namespace))
        .collect();
    if lines.is_empty() && !ready.is_empty() {
        let nodes = names(ready.iter().map(|(node, _)| **node));
        lines.push(Line::ok(format!("The pods are ready: {nodes}")));
    }
    lines
}

fn image(pods: &PodsByNode<'_>, namespace: &str) -> Vec<Line> {
    let images = images(pods);
    match images.iter().collect::<Vec<_>>().as_slice() {
        [] => Vec::new(),
        [(image, _)] => vec![Line::ok(format!("All pods run the image {image}"))],
        several => {
            let each = several
                .iter()
                .map(|(image, nodes)| format!("{image} on {}", names(*nodes)));
            vec![Line::failed(
                format!(
                    "The pods run different images: {}",
                    each.collect::<Vec<_>>().join("; ")
                ),
                format!(
                    "An update is under way, or is stuck. Look at: kubectl -n {namespace} rollout \
                     status daemonset -l app.kubernetes.io/name=hostloop"
                ),
            )]
        }
    }
}

/// The images of the node pods, and their nodes.
fn images<'a>(pods: &PodsByNode<'a>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut images: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, pod) in pods {
        let container = pod.spec.as_ref().and_then(driver_container);
        if let Some(image) = container.and_then(|c| c.image.as_deref()) {
            images.entry(image).or_default().push(node);
        }
    }
    images
}

/// Versions of the driver: as the pods report them, or else as in the tags of their images.
fn version(pods: &PodsByNode<'_>, facts: &Facts) -> Vec<Line> {
    let machines = facts
        .machines
        .values()
        .filter_map(|machine| machine.report.as_ref().ok());
    let mut versions: BTreeSet<&str> = machines.map(|report| report.version.as_str()).collect();
    if versions.is_empty() {
        versions = images(pods).into_keys().filter_map(tag).collect();
    }
    let other: Vec<&str> = versions.iter().copied().filter(|v| *v != PROGRAM).collect();
    match (versions.is_empty(), other.is_empty()) {
        (true, _) => Vec::new(),
        (false, true) => vec![Line::ok(format!(
            "The pods run version {PROGRAM}, as this program"
        ))],
        (false, false) => vec![Line::warning(
            format!(
                "The pods run version {}, and this program is {PROGRAM}",
                other.join(", ")
            ),
            "Use the program of the same release, or update the cluster: kubectl hostloop install",
        )],
    }
}

/// The tag of an image that looks like a version.
fn tag(image: &str) -> Option<&str> {
    let image = image.split('@').next()?;
    let (_, tag) = image.rsplit('/').next()?.split_once(':')?;
    let tag = tag.strip_prefix('v').unwrap_or(tag);
    tag.starts_with(|c: char| c.is_ascii_digit()).then_some(tag)
}

fn registered(pods: &PodsByNode<'_>, facts: &Facts) -> Part {
    let nodes = known("Registration", &facts.csi_nodes)?;
    let has_driver: BTreeSet<&str> = nodes
        .iter()
        .filter(|node| {
            node.spec
                .drivers
                .iter()
                .any(|driver| driver.name == facts.driver)
        })
        .filter_map(|node| node.metadata.name.as_deref())
        .collect();
    let ready = pods
        .iter()
        .map(|(node, pod)| (*node, *pod))
        .filter(|(_, pod)| is_ready(pod));
    let (yes, no): (Vec<_>, Vec<_>) = ready.partition(|(node, _)| has_driver.contains(node));
    let mut lines = Vec::new();
    if let Some((_, pod)) = yes.first() {
        lines.push(Line::ok(format!(
            "Kubelet has registered the driver: {}",
            names(yes.iter().map(|(node, _)| *node))
        )));
        if let (Some(dir), true) = (kubelet_dir(pod), no.is_empty()) {
            lines.push(Line::ok(format!("Kubelet's directory is right: {dir}")));
        }
    }
    lines.extend(
        no.into_iter()
            .map(|(node, pod)| unregistered(node, pod, facts)),
    );
    lines.extend(yes.iter().filter_map(|(node, _)| labels::line(node, facts)));
    Ok(lines)
}

/// Kubelet's directory, as the pod is configured.
fn kubelet_dir(pod: &Pod) -> Option<String> {
    let container = pod.spec.as_ref().and_then(driver_container)?;
    let path = flag(container, "plugin-registration-path")?;
    Some(
        path.strip_suffix("/plugins_registry")
            .unwrap_or(&path)
            .to_owned(),
    )
}

fn unregistered(node: &str, pod: &Pod, facts: &Facts) -> Line {
    let dir = kubelet_dir(pod).unwrap_or_else(|| KUBELET_DIR.to_owned());
    let nodes = facts.nodes.iter().flatten();
    let likely = nodes
        .into_iter()
        .find(|n| n.metadata.name.as_deref() == Some(node))
        .map(|node| Distribution::of(node).kubelet_dir())
        .filter(|likely| *likely != dir);
    Line::failed(
        format!(
            "Kubelet of node {node} has not registered the driver of pod {}",
            name(pod)
        ),
        match likely {
            Some(likely) => format!(
                "The pod uses {dir}, and this distribution's kubelet {likely}: kubectl hostloop \
                 install --kubelet-dir {likely}"
            ),
            None => format!(
                "Kubelet's directory may not be {dir} (its flag --root-dir). If so: kubectl \
                 hostloop install --kubelet-dir DIR"
            ),
        },
    )
}

#[cfg(test)]
mod tests;
