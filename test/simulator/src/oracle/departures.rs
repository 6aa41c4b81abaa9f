//! What nodes that leave the cluster leave behind. After a while, the objects of their released
//! volumes and deleted snapshots are removed without the data. A node that returns keeps such data,
//! and reports it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{items, name, namespace, text};
use crate::oracle::objects::{Objects, handles_of_objects, volume_of};
use crate::shim;

/// How long after a node's return an object may still be removed: the latest write of a leader that
/// did not know of it.
const LATE: Duration = Duration::from_secs(300);

/// What the oracle remembers of nodes that have no object.
#[derive(Default)]
pub(super) struct Departures {
    departed: BTreeMap<&'static str, DepartedNode>,
    /// Handles of data that has lost its objects by this.
    orphans: BTreeSet<String>,
}

/// A node without an object.
struct DepartedNode {
    /// The handles of what it had then.
    handles: BTreeSet<String>,
    /// When it was first found again.
    back: Option<Duration>,
}

impl Departures {
    /// Notes which nodes are missing, and what of their data has no object.
    pub(super) fn note(&mut self, cluster: &Cluster) {
        for machine in &cluster.machines {
            let name = machine.name();
            let node = cluster.api.shared_at(&format!("/api/v1/nodes/{name}"));
            if node.is_none() {
                let departed = self.departed.entry(name).or_insert_with(|| DepartedNode {
                    handles: machine.handles(),
                    back: None,
                });
                departed.back = None;
            } else if let Some(departed) = self.departed.get_mut(name) {
                departed.back.get_or_insert(shim::now());
            }
        }
        if !self.departed.is_empty() {
            self.advance(shim::now(), &handles_of_objects(cluster));
        }
    }

    /// Finds data without an object, and forgets nodes that have been back for long.
    fn advance(&mut self, now: Duration, objects: &BTreeSet<String>) {
        let handles = self
            .departed
            .values()
            .flat_map(|departed| departed.handles.iter());
        self.orphans.extend(handles.cloned());
        self.orphans.retain(|handle| !objects.contains(handle));
        self.departed
            .retain(|_, departed| departed.back.is_none_or(|back| now < back + LATE));
    }

    /// True if this data has lost its object while its node was missing.
    pub(super) fn has_orphaned(&self, handle: &str) -> bool {
        self.orphans.contains(handle)
    }
}

/// True if a snapshot can't be taken, or be found, because its node has left for good.
pub(super) fn is_out_of_reach(cluster: &Cluster, objects: &Objects, snapshot: &Value) -> bool {
    let content = objects.content(snapshot).into_iter();
    let mut of_content = content.flat_map(|content| {
        ["/spec/source/volumeHandle", "/spec/source/snapshotHandle"].map(|at| text(content, at))
    });
    let claim = text(snapshot, "/spec/source/persistentVolumeClaimName");
    let mut claims = objects.claims.iter();
    let claim = claims.find(|one| name(one) == claim && namespace(one) == namespace(snapshot));
    of_content.any(|handle| cluster.has_lost(handle))
        || claim.is_some_and(|claim| has_lost_volume(cluster, claim))
}

/// True if a group can't be taken, because the node of a volume has left for good.
pub(super) fn is_group_out_of_reach(cluster: &Cluster, objects: &Objects, group: &Value) -> bool {
    let content = objects.group_content(group).into_iter();
    let mut handles = content.flat_map(|content| items(content, "/spec/source/volumeHandles"));
    let mut claims = objects.claims.iter().filter(|claim| selects(group, claim));
    handles.any(|handle| cluster.has_lost(text(handle, "")))
        || claims.any(|claim| has_lost_volume(cluster, claim))
}

/// True if a claim's volume is on a node that has left for good.
fn has_lost_volume(cluster: &Cluster, claim: &Value) -> bool {
    let volume = volume_of(cluster, claim);
    volume.is_some_and(|volume| cluster.has_lost(text(&volume, "/spec/csi/volumeHandle")))
}

/// True if a group selects a claim by its labels.
fn selects(group: &Value, claim: &Value) -> bool {
    let wanted = &group["spec"]["source"]["selector"]["matchLabels"];
    let mut wanted = wanted.as_object().into_iter().flatten();
    namespace(claim) == namespace(group)
        && wanted.all(|(label, value)| claim["metadata"]["labels"][label] == *value)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_group_selects_claims_of_its_namespace_by_labels() {
        let group = json!({"metadata": {"name": "g", "namespace": "u"},
            "spec": {"source": {"selector": {"matchLabels": {"group": "a"}}}}});
        for (space, labels, expected) in [
            ("u", json!({"group": "a", "other": "b"}), true),
            ("u", json!({"group": "b"}), false),
            ("u", Value::Null, false),
            ("v", json!({"group": "a"}), false),
        ] {
            let claim = json!({"metadata": {"name": "c", "namespace": space, "labels": labels}});
            assert_eq!(selects(&group, &claim), expected, "{claim}");
        }
    }

    pub(in crate::oracle) fn set(handles: &[&str]) -> BTreeSet<String> {
        handles.iter().map(|&handle| handle.to_owned()).collect()
    }

    #[test]
    fn data_of_a_node_that_left_is_orphaned_while_it_has_no_object() {
        let mut departures = Departures::default();
        let departed = DepartedNode {
            handles: set(&["a", "b"]),
            back: None,
        };
        departures.departed.insert("n1", departed);
        let second = Duration::from_secs(1);
        // When; when the node was back; which objects there are; which data is orphaned.
        for (now, back, objects, orphans) in [
            (10_u32, None, set(&["a", "b"]), set(&[])),
            (400, None, set(&["b", "c"]), set(&["a"])),
            (500, Some(500), set(&["b"]), set(&["a"])),
            (600, Some(500), set(&[]), set(&["a", "b"])),
            // Its object was only late.
            (700, Some(500), set(&["b"]), set(&["a"])),
            (900, Some(500), set(&["b"]), set(&["a"])),
            (999, Some(500), set(&[]), set(&["a"])),
        ] {
            if let Some(departed) = departures.departed.get_mut("n1") {
                departed.back = back.map(|back: u32| back * second);
            }
            departures.advance(now * second, &objects);
            assert_eq!(departures.orphans, orphans, "{now}");
        }
        assert!(departures.has_orphaned("a") && !departures.has_orphaned("b"));
        assert!(departures.departed.is_empty());
    }
}
