//! Which node has a snapshot.

use std::sync::Arc;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::ResourceExt;

use crate::api::capacity::{keeper_of, managed_by};
use crate::cache::store::version;
use crate::csi::pools::{self, pool_of};
use crate::node_endpoint::{ANNOTATION, NodeEndpoint};

/// The endpoint of the node that has the snapshot with this handle. `node` is the node that the
/// snapshot's content names, if it names one: it and the pool in the handle must agree, because a node
/// can write another node's handle into its own content. The error says why there is none.
pub(super) fn locate(
    handle: &str,
    node: Option<&str>,
    capacities: &[Arc<CSIStorageCapacity>],
) -> Result<NodeEndpoint, String> {
    let Some(pool) = pool_of(handle) else {
        return Err(format!("its handle {handle:?} names no pool"));
    };
    let keeper = node.map(|node| managed_by(Some(node)));
    let mut found: Vec<&CSIStorageCapacity> = Vec::new();
    for object in capacities {
        let is_of_node = keeper.is_none() || keeper_of(object) == keeper.as_deref();
        if is_of_node && pools::named_by(object).iter().any(|name| name == pool) {
            found.push(object);
        }
    }
    let Some(first) = found.first().copied() else {
        let node = node.map_or_else(|| "the node".to_owned(), |node| format!("node {node}"));
        return Err(format!(
            "{node} with its pool {pool} does not report its capacity: check that its pod runs"
        ));
    };
    if found
        .iter()
        .any(|object| keeper_of(object) != keeper_of(first))
    {
        return Err(format!("several nodes report its pool {pool}"));
    }
    // After a restart, a node updates one object after the other.
    found.sort_by_key(|object| std::cmp::Reverse(version(*object)));
    let endpoint = found.into_iter().find_map(|object| {
        let text = object.annotations().get(ANNOTATION)?;
        NodeEndpoint::parse(text)
    });
    endpoint.ok_or_else(|| {
        format!(
            "the node of its pool {pool} does not serve changed blocks: run its pod with the \
             controller snapshot-metadata"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::capacity::MANAGED_BY;
    use crate::testing::read;

    fn endpoint(address: &str, digit: &str) -> String {
        format!("{address}/{}", digit.repeat(64))
    }

    fn capacity(
        node: &str,
        version: &str,
        pools: &str,
        endpoint: Option<&str>,
    ) -> Arc<CSIStorageCapacity> {
        Arc::new(read(json!({
            "metadata": {
                "name": "c", "resourceVersion": version,
                "labels": {MANAGED_BY: managed_by(Some(node))},
                "annotations": {pools::ANNOTATION: pools, ANNOTATION: endpoint.unwrap_or_default()},
            },
            "storageClassName": "a",
        })))
    }

    #[test]
    fn nodes_of_snapshots() {
        let (one, other) = (endpoint("10.0.0.1:1", "a"), endpoint("10.0.0.2:1", "b"));
        let ours = capacity("n1", "5", "p1,p2", Some(&one));
        let theirs = capacity("n2", "6", "p3", Some(&other));
        let silent = capacity("n1", "7", "p1", None);
        let old = capacity("n1", "4", "p1", Some(&other));
        let stolen = capacity("n2", "9", "p1", Some(&other));
        for (handle, node, capacities, expected) in [
            ("snap-p1-0", Some("n1"), vec![&ours, &theirs], Ok(&one)),
            ("snap-p2-0", None, vec![&ours, &theirs], Ok(&one)),
            ("snap-p3-0", Some("n2"), vec![&ours, &theirs], Ok(&other)),
            // The newest object counts, if it has an endpoint.
            ("snap-p1-0", Some("n1"), vec![&old, &ours], Ok(&one)),
            (
                "snap-p1-0",
                Some("n1"),
                vec![&silent, &old, &ours],
                Ok(&one),
            ),
            // A stolen node names another one's pool.
            ("snap-p1-0", Some("n1"), vec![&stolen, &ours], Ok(&one)),
            (
                "snap-p1-0",
                None,
                vec![&stolen, &ours],
                Err("several nodes report"),
            ),
            // A stolen node wrote another one's handle into its own content.
            (
                "snap-p1-0",
                Some("n2"),
                vec![&ours, &theirs],
                Err("does not report"),
            ),
            ("snap-p9-0", None, vec![&ours], Err("does not report")),
            ("snap-p1-0", Some("n1"), vec![], Err("does not report")),
            (
                "snap-p1-0",
                Some("n1"),
                vec![&silent],
                Err("does not serve changed blocks"),
            ),
            ("handle", Some("n1"), vec![&ours], Err("names no pool")),
        ] {
            let capacities: Vec<_> = capacities.into_iter().cloned().collect();
            let found = locate(handle, node, &capacities).map(|found| found.to_string());
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{handle} {node:?}: {why}"),
                _ => panic!("{handle} {node:?}: {found:?}"),
            }
        }
    }
}
