//! Which nodes share a kernel: what the ConfigMap says, and what the nodes see.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hostloop_api_objects::constants::MAX_SHARING_NODES;
use hostloop_report::status::KernelReport;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use super::known;
use super::machines::by_reason;
use crate::check::facts::{Facts, shared_nodes};
use crate::check::line::{Line, names};
use crate::manifests::KERNELS;
use crate::volume_objects::{handle, is_shared, makes_shared};

/// A longer period makes pods wait for attached volumes.
const SHORT: Duration = Duration::from_secs(1);

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let kernels = match known("Shared kernels", &facts.kernels) {
        Ok(Some(kernels)) => kernels,
        Ok(None) => return without_kernels(facts).into_iter().collect(),
        Err(line) => return vec![line],
    };
    let mut lines = listed(facts, kernels);
    lines.extend(attaching(facts));
    lines.extend(seen(facts, &shared_nodes(kernels)));
    lines.extend(periods(facts));
    lines
}

/// What needs nodes that share a kernel, if none do.
fn without_kernels(facts: &Facts) -> Option<Line> {
    let classes = facts.classes.iter().flatten();
    let classes = classes.filter(|class| class.provisioner == facts.driver && makes_shared(class));
    let volumes = facts.objects.iter().flat_map(|objects| &objects.volumes);
    let volumes =
        volumes.filter(|volume| handle(volume, &facts.driver).is_some() && is_shared(volume));
    let all: Vec<String> = classes
        .map(|class| format!("StorageClass {}", class.name_any()))
        .chain(volumes.map(|volume| format!("PersistentVolume {}", volume.name_any())))
        .collect();
    (!all.is_empty()).then(|| {
        Line::failed(
            format!(
                "There is no ConfigMap {KERNELS}, which these need: {}",
                names(all)
            ),
            "It says which nodes share a kernel: kubectl hostloop install --shared",
        )
    })
}

/// What the ConfigMap says, against the nodes of the cluster.
fn listed(facts: &Facts, kernels: &ConfigMap) -> Vec<Line> {
    let kernels = shared_nodes(kernels);
    let mut lines = Vec::new();
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    for (kernel, nodes) in &kernels {
        for node in nodes {
            *all.entry(*node).or_default() += 1;
        }
        if nodes.len() > MAX_SHARING_NODES {
            lines.push(Line::failed(
                format!("Kernel {kernel} has {} nodes", nodes.len()),
                format!(
                    "At most {MAX_SHARING_NODES} can share a kernel: kubectl -n {} edit configmap {KERNELS}",
                    facts.namespace
                ),
            ));
        }
    }
    let twice: Vec<&str> = all
        .iter()
        .filter(|(_, count)| **count > 1)
        .map(|(node, _)| *node)
        .collect();
    if !twice.is_empty() {
        lines.push(Line::failed(
            format!("Nodes are in several kernels: {}", names(twice)),
            format!(
                "A node has one kernel: kubectl -n {} edit configmap {KERNELS}",
                facts.namespace
            ),
        ));
    }
    let drivers = facts.machines.keys().map(String::as_str);
    let missing: Vec<&str> = drivers.filter(|node| !all.contains_key(node)).collect();
    if !missing.is_empty() {
        lines.push(Line::warning(
            format!("Nodes are in no kernel of ConfigMap {KERNELS}: {}", names(&missing)),
            format!(
                "Their pods can't use volumes with reach: kernel. If they share the kernel of the others: \
                 kubectl hostloop install --shared={}",
                missing.join(",")
            ),
        ));
    }
    lines
}

fn attaching(facts: &Facts) -> Option<Line> {
    let driver = facts.csi_driver.as_ref().ok()?.as_ref()?;
    (driver.spec.attach_required == Some(false)).then(|| {
        Line::failed(
            "Volumes are not attached, so none with reach: kernel can be made",
            "attachRequired is immutable: drain the nodes, run `kubectl delete csidriver` with the \
             driver's name, then `kubectl hostloop install --shared`.",
        )
    })
}

/// What the nodes see of each other.
fn seen(facts: &Facts, kernels: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<Line> {
    let mut reports: BTreeMap<&str, Option<&KernelReport>> = BTreeMap::new();
    for node in &facts.reports {
        if let Ok(report) = &node.report {
            reports.insert(&node.node, report.kernel.as_ref());
        }
    }
    let mut lines = Vec::new();
    for (kernel, nodes) in kernels {
        let here: Vec<(&str, Option<&KernelReport>)> = nodes
            .iter()
            .filter_map(|node| Some((*node, *reports.get(node)?)))
            .collect();
        lines.extend(of_kernel(kernel, &here));
    }
    lines
}

/// What the nodes of one kernel see of each other. Names without a node do no harm.
fn of_kernel(kernel: &str, nodes: &[(&str, Option<&KernelReport>)]) -> Vec<Line> {
    let mut lines = Vec::new();
    let silent: Vec<&str> = nodes
        .iter()
        .filter(|(_, report)| report.is_none())
        .map(|(node, _)| *node)
        .collect();
    if !silent.is_empty() {
        lines.push(Line::warning(
            format!("Nodes do not show that they have kernel {kernel}: {}", names(silent)),
            "Kubelet brings a changed ConfigMap within two minutes. If this stays, look at the log of \
             the node's pod.",
        ));
    }
    let old: Vec<&str> = nodes
        .iter()
        .filter(|(_, report)| report.is_some_and(|report| !report.shows_diskseq))
        .map(|(node, _)| *node)
        .collect();
    if !old.is_empty() {
        lines.push(Line::failed(
            format!("The kernel does not number loop devices: {}", names(old)),
            "Volumes that several nodes use need Linux 5.15 or newer.",
        ));
    }
    for (node, report) in nodes {
        let Some(report) = report else { continue };
        let others = nodes
            .iter()
            .filter(|(other, report)| other != node && report.is_some());
        let unseen: Vec<&str> = others
            .map(|(other, _)| *other)
            .filter(|other| !report.seen.iter().any(|seen| seen == other))
            .collect();
        if !unseen.is_empty() {
            lines.push(Line::failed(
                format!("{node} shares no kernel with {}", names(unseen)),
                format!(
                    "ConfigMap {KERNELS} says that it does. Nodes on another machine, and virtual machines, \
                     have kernels of their own: take them out of it. Otherwise look at the log of their \
                     pods."
                ),
            ));
        }
    }
    if lines.is_empty() && !nodes.is_empty() {
        let nodes = names(nodes.iter().map(|(node, _)| *node));
        lines.push(Line::ok(format!("Nodes share kernel {kernel}: {nodes}")));
    }
    lines
}

/// How long a pod waits for a volume that is attached already.
fn periods(facts: &Facts) -> Vec<Line> {
    let (mut long, mut unknown) = (Vec::new(), Vec::new());
    for (node, period) in &facts.status_periods {
        match period {
            Ok(period) if *period > SHORT => long.push((node, *period)),
            Ok(_) => {}
            Err(why) => unknown.push((node.as_str(), why)),
        }
    }
    let mut lines = by_reason("How often kubelet reports", unknown);
    if let Some((_, longest)) = long.iter().max_by_key(|(_, period)| *period) {
        lines.push(Line::warning(
            format!(
                "Kubelet reports what it uses only every {} s, and pods wait so long for a volume: {}",
                longest.as_secs(),
                names(long.iter().map(|(node, _)| node))
            ),
            "Make it a second. In kind's configuration: kubeadmConfigPatches: [\"{kind: \
             KubeletConfiguration, nodeStatusUpdateFrequency: 1s}\"]",
        ));
    }
    lines
}

#[cfg(test)]
mod tests;
