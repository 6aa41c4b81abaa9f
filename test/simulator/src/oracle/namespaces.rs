//! A namespace that is deleted is gone after a quiet time, with all that was in it.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::model::view::{is_deleting, name, namespace};
use crate::oracle::objects::Objects;
use crate::trace;

/// Checks all namespaces. Whatever keeps an object waits for another one of its namespace, which is
/// deleted, too.
pub(super) fn are_gone(cluster: &Cluster, objects: &Objects) {
    let all = cluster.api.all("namespaces");
    for space in all.iter().filter(|space| is_deleting(space)) {
        trace::violation(format!(
            "namespace not gone: {} still has {:?}",
            name(space),
            left(objects, name(space))
        ));
    }
}

/// The names of the claims, pods, snapshots and groups in a namespace.
fn left<'a>(objects: &'a Objects, space: &str) -> Vec<&'a str> {
    let all = objects.claims.iter().chain(&objects.pods);
    let groups = objects.groups.iter().map(|group| &**group);
    within(all.chain(&objects.snapshots).chain(groups), space)
}

fn within<'a>(all: impl Iterator<Item = &'a Value>, space: &str) -> Vec<&'a str> {
    all.filter(|object| namespace(object) == space)
        .map(name)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_left_is_in_the_namespace() {
        let [a, b] = [("c1", "u"), ("c2", "other")]
            .map(|(name, space)| json!({"metadata": {"name": name, "namespace": space}}));
        assert_eq!(within([&a, &b].into_iter(), "u"), ["c1"]);
    }
}
