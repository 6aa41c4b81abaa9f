//! The sizes at rest of what grows while there is work: queues, locks, kubelet's retries and caches.
//! What a node's metrics say of its capacity objects is true.

use std::collections::BTreeMap;

use hostloop_controllers::manager::Telemetry;

use crate::cluster::Cluster;
use crate::model::view::plural;
use crate::oracle::objects::capacities_of;

/// The kinds of which a process of a node may have only a part.
const NARROWED: [&str; 8] = [
    "CSINode",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "VolumeAttachment",
    "VolumeGroupSnapshotContent",
    "VolumeSnapshotContent",
];

/// What a process's metrics say about its sizes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sizes {
    /// The number of keys that wait, by queue.
    queues: BTreeMap<String, u64>,
    /// The number of objects, by kind and by scope.
    caches: BTreeMap<(String, String), u64>,
    /// The number of capacity objects that the process needs and has.
    capacities: Option<u64>,
}

impl Sizes {
    /// Reads OpenMetrics text.
    fn of(text: &str) -> Sizes {
        let mut sizes = Sizes::default();
        for line in text.lines() {
            let Some((sample, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let Ok(value) = value.parse::<u64>() else {
                continue;
            };
            if sample.starts_with("workqueue_depth{") {
                sizes.queues.insert(label(sample, "name"), value);
            } else if sample.starts_with("hostloop_cached_objects{") {
                let key = (label(sample, "kind"), label(sample, "scope"));
                sizes.caches.insert(key, value);
            } else if sample == "csistoragecapacities_desired_current" {
                sizes.capacities = Some(value);
            }
        }
        sizes
    }

    /// What is not true of the capacity objects of a node, if there are so many.
    fn wrong_capacities(&self, there: u64) -> Option<String> {
        let said = self.capacities.filter(|said| *said != there)?;
        Some(format!(
            "its metrics say that it has {said} capacity objects, and the API server has {there}"
        ))
    }

    /// What is not at rest, if there are as many objects of a kind as `there` says.
    fn wrong(&self, is_narrow: bool, there: impl Fn(&str) -> u64) -> Vec<String> {
        let queues = self.queues.iter().filter(|(_, depth)| **depth > 0);
        let mut wrong: Vec<String> = queues
            .map(|(name, depth)| format!("{depth} keys wait in the queue {name}"))
            .collect();
        for ((kind, scope), cached) in &self.caches {
            let all = there(kind);
            let may_have_less =
                is_narrow && scope == "process" && NARROWED.contains(&kind.as_str());
            let is_right = *cached == all || may_have_less && *cached < all;
            if !is_right {
                wrong.push(format!(
                    "a cache ({scope}) has {cached} {kind}s, and the API server has {all}"
                ));
            }
        }
        wrong
    }
}

/// The value of a label in a sample.
fn label(sample: &str, name: &str) -> String {
    let begin = format!("{name}=\"");
    let value = sample.split_once(&begin).map(|(_, rest)| rest);
    let value = value.and_then(|rest| rest.split('"').next());
    value.unwrap_or_default().to_owned()
}

/// What has not its size at rest, after everything was deleted, and a quiet time.
pub(crate) fn not_at_rest(cluster: &Cluster) -> Vec<String> {
    let mut wrong = Vec::new();
    for (actor, is_narrow, telemetry) in cluster.telemetries() {
        let sizes = Sizes::of(&metrics(telemetry));
        let those = sizes.wrong(is_narrow, |kind| {
            cluster.api.shared(&plural(kind)).len() as u64
        });
        let capacities = is_narrow.then(|| capacities_of(cluster, actor).len() as u64);
        let capacities = capacities.and_then(|there| sizes.wrong_capacities(there));
        let all = those.into_iter().chain(capacities);
        wrong.extend(all.map(|one| format!("{actor}: {one}")));
    }
    for machine in &cluster.machines {
        let name = machine.name();
        if machine.is_busy() {
            wrong.push(format!("{name}: the driver works on a call"));
        }
        if !machine.kubelet.is_at_rest() {
            wrong.push(format!("{name}: kubelet has something to do"));
        }
    }
    wrong
}

fn metrics(telemetry: &Telemetry) -> String {
    let mut text = String::new();
    // A text takes all that is written to it.
    let _ = telemetry.metrics(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE workqueue_depth gauge\n\
        workqueue_depth{name=\"claims\"} 2\n\
        workqueue_depth{name=\"volumes\"} 0\n\
        workqueue_adds_total{name=\"claims\"} 9\n\
        hostloop_cached_objects{kind=\"Pod\",scope=\"process\"} 1\n\
        hostloop_cached_objects{kind=\"Pod\",scope=\"cluster\"} 3\n\
        hostloop_cached_objects{kind=\"StorageClass\",scope=\"process\"} 3\n\
        csistoragecapacities_desired_goal 5\n\
        csistoragecapacities_desired_current 4\n";

    #[test]
    fn queues_are_empty_and_caches_have_what_there_is() {
        let sizes = Sizes::of(TEXT);
        assert_eq!((sizes.queues.len(), sizes.caches.len()), (2, 3));
        for (is_narrow, pods, classes, wrong) in [
            (true, 3, 3, 1),
            (false, 3, 3, 2),
            // A cache has what is gone.
            (true, 0, 3, 3),
            (true, 3, 2, 2),
            (true, 3, 4, 2),
        ] {
            let found = sizes.wrong(is_narrow, |kind| match kind {
                "Pod" => pods,
                _ => classes,
            });
            assert_eq!(found.len(), wrong, "{found:?}");
        }
    }

    #[test]
    fn a_node_counts_its_capacity_objects() {
        let sizes = Sizes::of(TEXT);
        assert_eq!(sizes.wrong_capacities(4), None);
        assert!(sizes.wrong_capacities(5).is_some());
        assert_eq!(Sizes::default().wrong_capacities(5), None);
    }
}
