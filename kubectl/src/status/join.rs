//! Joins what the API server knows with what the nodes report.

use std::collections::BTreeMap;

use hostloop_report::status::{PoolReport, Report, SnapshotReport, VolumeReport};

use super::report::{ClusterReport, NodeRow, PoolRow};
use crate::node_pods::NodeReport;
use crate::verdict::{FailedCalls, OnNode};
use crate::volume_objects::VolumeObjects;

mod snapshots;
mod volumes;

pub(crate) use volumes::node_of;

/// What a report of the cluster is made from.
pub(crate) struct ClusterFacts<'a> {
    /// What the API server has.
    pub(crate) objects: &'a VolumeObjects,
    /// What the nodes report.
    pub(crate) nodes: &'a [NodeReport],
    /// The driver's name.
    pub(crate) driver: &'a str,
    /// The namespace of the lists. `None` for all namespaces, and for volumes without a claim.
    pub(crate) namespace: Option<&'a str>,
    /// Calls that fail, if the processes' events are known.
    pub(crate) failed_calls: &'a FailedCalls,
    pub(crate) now_ns: u64,
}

/// Builds the report.
pub(crate) fn join(facts: &ClusterFacts<'_>) -> ClusterReport {
    let found = ReportedObjects::of(facts.nodes);
    let mut report = ClusterReport {
        nodes: facts.nodes.iter().map(node_row).collect(),
        pools: pools(facts.nodes),
        volumes: facts.volumes(&found),
        snapshots: facts.snapshots(&found),
        missing: facts.objects.missing.clone(),
    };
    report.volumes.sort_by(|a, b| {
        (a.stuck.is_none(), a.claim.is_none())
            .cmp(&(b.stuck.is_none(), b.claim.is_none()))
            .then_with(|| a.namespace.cmp(&b.namespace))
            .then_with(|| (&a.claim, &a.pods, &a.inline).cmp(&(&b.claim, &b.pods, &b.inline)))
            .then_with(|| (a.created_ns, &a.handle).cmp(&(b.created_ns, &b.handle)))
    });
    report.snapshots.sort_by(|a, b| {
        (a.stuck.is_none(), a.name.is_none())
            .cmp(&(b.stuck.is_none(), b.name.is_none()))
            .then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)))
            .then_with(|| (a.created_ns, &a.handle).cmp(&(b.created_ns, &b.handle)))
    });
    report
}

/// The volumes and snapshots in the reports of all nodes.
#[derive(Default)]
struct ReportedObjects<'a> {
    /// By ID, and by kubelet's handle if inline.
    volumes: BTreeMap<&'a str, (&'a str, &'a VolumeReport)>,
    snapshots: BTreeMap<&'a str, (&'a str, &'a SnapshotReport)>,
    reports: BTreeMap<&'a str, &'a Report>,
}

impl<'a> ReportedObjects<'a> {
    fn of(nodes: &'a [NodeReport]) -> ReportedObjects<'a> {
        let mut found = ReportedObjects::default();
        for node in nodes {
            let Ok(report) = &node.report else { continue };
            let name = node.node.as_str();
            found.reports.insert(name, report);
            for volume in &report.volumes {
                found.volumes.insert(&volume.id, (name, volume));
                if let Some(handle) = &volume.inline {
                    found.volumes.insert(handle, (name, volume));
                }
            }
            found
                .snapshots
                .extend(report.snapshots.iter().map(|s| (s.id.as_str(), (name, s))));
        }
        found
    }

    /// The volume with this handle on its node. `node` is where the API server says it is.
    fn on_node(&self, handle: Option<&str>, node: Option<&str>) -> OnNode<'a> {
        let Some(handle) = handle else {
            return OnNode::Unknown;
        };
        if let Some((_, volume)) = self.volumes.get(handle) {
            return OnNode::Known(volume);
        }
        let report = node.and_then(|node| Some((node, self.reports.get(node)?)));
        let Some((node, report)) = report else {
            return OnNode::Unknown;
        };
        let lost = report.pools.iter().find(|pool| pool.state == "missing");
        OnNode::Missing(match lost {
            Some(pool) => format!(
                "node {node} does not have it: pool {} is missing: {}",
                pool.name,
                pool.why.as_deref().unwrap_or("no reason is given")
            ),
            None => format!("node {node} does not have volume {handle}"),
        })
    }
}

fn node_row(node: &NodeReport) -> NodeRow {
    NodeRow {
        node: node.node.clone(),
        pod: node.pod.clone(),
        problem: node.report.as_ref().err().map(ToString::to_string),
        orphans: node
            .report
            .as_ref()
            .map_or(0, |report| report.orphans.len()),
    }
}

fn pools(nodes: &[NodeReport]) -> Vec<PoolRow> {
    let reports = nodes
        .iter()
        .filter_map(|node| Some((node, node.report.as_ref().ok()?)));
    let pools = reports.flat_map(|(node, report)| {
        let node = &node.node;
        report.pools.iter().map(move |pool| pool_row(node, pool))
    });
    pools.collect()
}

fn pool_row(node: &str, pool: &PoolReport) -> PoolRow {
    PoolRow {
        node: node.to_owned(),
        pool: PoolReport {
            pid: None,
            ..pool.clone()
        },
    }
}

#[cfg(test)]
mod tests;
