//! The deletion of namespaces: pods first, then everything else, and the namespace at last.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::view::{Model, Step, View, is_deleting, items, name, namespace, path_of};

/// The controller of namespaces.
pub(crate) struct Namespaces;

/// Kinds in namespaces, without pods.
const OTHERS: [&str; 8] = [
    "configmaps",
    "csistoragecapacities",
    "events",
    "leases",
    "persistentvolumeclaims",
    "secrets",
    "volumegroupsnapshots",
    "volumesnapshots",
];

impl Model for Namespaces {
    const KINDS: &[&str] = &[
        "namespaces",
        "pods",
        "configmaps",
        "csistoragecapacities",
        "events",
        "leases",
        "persistentvolumeclaims",
        "secrets",
        "volumegroupsnapshots",
        "volumesnapshots",
    ];
    const PERIOD: Duration = Duration::from_secs(300);

    fn decide(&mut self, view: &View, _: Instant) -> Vec<Step> {
        let ending = view.all("namespaces").filter(|space| {
            is_deleting(space) && items(space, "/spec/finalizers").next().is_some()
        });
        ending.flat_map(|space| empty(view, space)).collect()
    }
}

/// The next steps to empty a namespace.
fn empty(view: &View, space: &Value) -> Vec<Step> {
    for kinds in [&["pods"] as &[&'static str], &OTHERS] {
        let within = kinds
            .iter()
            .flat_map(|plural| view.all(plural).map(move |object| (*plural, object)));
        let within: Vec<_> = within
            .filter(|(_, object)| namespace(object) == name(space))
            .collect();
        if !within.is_empty() {
            let left = within
                .into_iter()
                .filter(|(_, object)| !is_deleting(object));
            return left
                .map(|(plural, object)| Step::delete(plural, object))
                .collect();
        }
    }
    let mut body = space.clone();
    body["spec"]["finalizers"] = json!([]);
    let path = format!("{}/finalize", path_of("namespaces", space));
    vec![Step {
        method: "PUT",
        path,
        body,
    }]
}
