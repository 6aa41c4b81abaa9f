//! Sends each node's report of `hostloop status` whenever it differs, and the maps of images'
//! blocks.
//!
//! Maps are only read while there is a page or a recording.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use hostloop_report::image_map::ImageMap;
use hostloop_report::status::Report;
use serde_json::Value;
use tokio::time::sleep;

use super::Out;
use super::block_maps::{BlockMaps, Image};
use super::local_pools::LocalPools;
use super::message::Message;
use super::pods::{self, WatchedPods};
use crate::cluster::Cluster;
use crate::node_pods::{self, EventPod, NodePod};

/// The pauses between two looks. A report costs a node some milliseconds for each volume.
struct Pause {
    shortest: Duration,
    /// A pause is this many times as long as the look before it.
    factor: u32,
}

/// A node spends at most a tenth of the time on looks.
const OF_CLUSTER: Pause = Pause {
    shortest: Duration::from_secs(3),
    factor: 9,
};
/// The person looks at a machine of their own.
const OF_MACHINE: Pause = Pause {
    shortest: Duration::from_millis(500),
    factor: 3,
};
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Where reports come from.
pub(super) enum Nodes {
    /// From the node pods of a cluster.
    Cluster(Cluster, WatchedPods),
    /// From this machine.
    Local(LocalPools),
    /// From nowhere: a socket alone has none.
    None,
}

/// Sends reports and maps until the task is dropped.
pub(super) async fn send(mut nodes: Nodes, out: Out) {
    let mut known = KnownReports::default();
    loop {
        let (took, pause) = match &mut nodes {
            Nodes::Cluster(cluster, pods) => {
                let Some(pods) = pods::found(pods).await else {
                    return;
                };
                (
                    of_cluster(cluster, pods, &out, &mut known).await,
                    OF_CLUSTER,
                )
            }
            Nodes::Local(pools) => (of_machine(pools, &out, &mut known).await, OF_MACHINE),
            Nodes::None => return,
        };
        sleep(pause.after(took)).await;
    }
}

impl Pause {
    /// The pause after a look that took a node this long.
    fn after(&self, took: Duration) -> Duration {
        took.saturating_mul(self.factor)
            .clamp(self.shortest, LONGEST_PAUSE)
    }
}

/// The newest report of each node, as the page has it, and the maps of its images.
#[derive(Default)]
pub(super) struct KnownReports {
    reports: BTreeMap<String, Value>,
    maps: BlockMaps,
}

impl KnownReports {
    /// Sends a report if it is new.
    pub(super) fn report(&mut self, out: &Out, node: &str, report: &Report) {
        for gone in self.maps.see(node, Image::all(report)) {
            out.history.add(Message::no_extents(node, &gone));
        }
        out.verdict_facts.report(node, Some(report));
        let Ok(shown) = serde_json::to_value(report) else {
            return;
        };
        let shown = for_page(shown);
        if self.reports.get(node) != Some(&shown) {
            out.history.add(Message::report(node, &shown));
            self.reports.insert(node.to_owned(), shown);
        }
    }

    /// Sends the maps that a node answered, or why there are none.
    fn answered(
        &mut self,
        out: &Out,
        node: &str,
        asked: &[String],
        maps: Result<Vec<ImageMap>, String>,
    ) {
        let about = match node {
            "" => "the blocks of images".to_owned(),
            node => format!("the blocks of images of node {node}"),
        };
        let problem = match &maps {
            Err(problem) => Some(problem),
            Ok(maps) => maps.iter().find_map(|map| map.problem.as_ref()),
        };
        match problem {
            Some(problem) => out.problems.found(&about, problem),
            None => out.problems.solved(&about),
        }
        for (volume, extents) in self.maps.answered(node, asked, maps.unwrap_or_default()) {
            out.history.add(Message::extents(node, &volume, &extents));
        }
        const ROOM: &str = "the blocks of further images";
        match self.maps.left_out() {
            0 => out.problems.solved(ROOM),
            n => out.problems.found(
                ROOM,
                &format!("{n} images have no map: the others' maps are too large"),
            ),
        }
    }
}

/// The report without mount options, which may be secret. Times that change with each write are
/// left out, too.
fn for_page(mut report: Value) -> Value {
    for (list, field) in [
        ("mounts", "options"),
        ("volumes", "written_ns"),
        ("snapshots", "written_ns"),
    ] {
        let items = report.get_mut(list).and_then(Value::as_array_mut);
        for item in items.into_iter().flatten().filter_map(Value::as_object_mut) {
            item.remove(field);
        }
    }
    report
}

/// Returns how long the slowest node took.
async fn of_cluster(
    cluster: &Cluster,
    pods: Vec<EventPod>,
    out: &Out,
    known: &mut KnownReports,
) -> Duration {
    let mut took = Duration::ZERO;
    let of_nodes = pods.into_iter().filter(|pod| pod.process == "node");
    let pods: Vec<NodePod> = of_nodes.map(|pod| pod.pod).collect();
    let names: BTreeSet<&str> = pods.iter().map(|pod| pod.node.as_str()).collect();
    known.maps.keep(&names);
    out.verdict_facts.keep(&names);
    for report in node_pods::reports(cluster, &pods).await {
        let about = format!("the report of node {}", report.node);
        match report.report {
            Ok(found) => {
                took = took.max(report.took);
                out.problems.solved(&about);
                known.report(out, &report.node, &found);
            }
            Err(error) => {
                out.problems.found(&about, &error.to_string());
                out.verdict_facts.report(&report.node, None);
            }
        }
    }
    if out.is_watched() {
        let due = pods.iter().map(|pod| (pod, known.maps.due(&pod.node)));
        let due: Vec<_> = due.filter(|(_, ids)| !ids.is_empty()).collect();
        let answers = node_pods::image_maps(cluster, &due).await;
        for ((pod, ids), maps) in due.iter().zip(answers) {
            known.answered(out, &pod.node, ids, maps.map_err(|error| error.to_string()));
        }
    }
    took
}

/// Returns how long it took.
async fn of_machine(pools: &LocalPools, out: &Out, known: &mut KnownReports) -> Duration {
    const ABOUT: &str = "the report of this machine";
    let started = Instant::now();
    let report = pools.report().await;
    // The driver's events name the node. Until they do, and without a driver, it has no name.
    let node = out.node.get().cloned().unwrap_or_default();
    match report {
        Ok(report) => {
            out.problems.solved(ABOUT);
            known.report(out, &node, &report);
        }
        Err(error) => {
            out.problems.found(ABOUT, &error.to_string());
            out.verdict_facts.report(&node, None);
        }
    }
    let took = started.elapsed();
    let names = BTreeSet::from([node.as_str()]);
    known.maps.keep(&names);
    out.verdict_facts.keep(&names);
    let ids = known.maps.due(&node);
    if out.is_watched() && !ids.is_empty() {
        let maps = pools.image_maps(&ids).await;
        known.answered(out, &node, &ids, maps.map_err(|error| error.to_string()));
    }
    took
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mount_options_and_times_of_writes_are_not_passed_on() {
        let report = json!({"pools": [], "mounts": [{"path": "/p", "options": ["password=x"]}],
            "volumes": [{"id": "v", "written_ns": 1}], "snapshots": [{"id": "s", "written_ns": 1}]});
        let passed = json!({"pools": [], "mounts": [{"path": "/p"}], "volumes": [{"id": "v"}],
            "snapshots": [{"id": "s"}]});
        assert_eq!(for_page(report), passed);
        assert_eq!(for_page(json!({})), json!({}));
    }

    #[test]
    fn a_pause_is_longer_than_the_look_before_it() {
        for (pause, took, expected) in [
            (OF_CLUSTER, 0, 3000),
            (OF_CLUSTER, 300, 3000),
            (OF_CLUSTER, 1000, 9000),
            (OF_MACHINE, 5, 500),
            (OF_MACHINE, 1000, 3000),
            (OF_MACHINE, 90_000, 60_000),
        ] {
            let after = pause.after(Duration::from_millis(took));
            assert_eq!(after, Duration::from_millis(expected), "{took}");
        }
    }
}
