//! A node that has left for good offers no room: its capacity objects are deleted. No process is left
//! that made them, so only the leader can do it.

use crate::cluster::Cluster;
use crate::model::view::name;
use crate::oracle::objects::capacities_of;
use crate::trace;

/// Checks the capacity objects of hostloop after a quiet time.
pub(super) fn are_deleted(cluster: &Cluster) {
    let gone = cluster.machines.iter().filter(|machine| machine.is_gone());
    for node in gone.map(|machine| machine.name()) {
        for capacity in capacities_of(cluster, node) {
            trace::violation(format!(
                "not deleted: {} of node {node}, which has left for good: {}",
                name(&capacity),
                capacity["metadata"]["labels"]
            ));
        }
    }
}
