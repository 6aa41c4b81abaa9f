//! Reads the node account's roles from the API server.

use std::collections::BTreeSet;

use hostloop_test::cluster::Cluster;
use serde_json::Value;

/// All verbs and resources that roles grant the account, without those this run of the test grants:
/// in its namespaces, or bound under its name. A subresource follows a slash.
pub(crate) fn of_the_node_account(cluster: &Cluster, run: &str) -> BTreeSet<(String, String)> {
    let list = |kinds: &str| -> Vec<Value> {
        let listed = cluster.kubectl(&["get", kinds, "--all-namespaces", "--output", "json"]);
        let listed: Value = serde_json::from_str(&listed).expect("kubectl prints JSON");
        listed["items"].as_array().expect("a list has items").clone()
    };
    let bindings = list("clusterrolebindings,rolebindings");
    let roles = list("clusterroles,roles");
    let mut granted = BTreeSet::new();
    let of_run = |field: &Value| field.as_str().is_some_and(|name| name.starts_with(run));
    let granting = bindings.iter().filter(|binding| {
        let metadata = &binding["metadata"];
        is_of_the_account(binding) && !of_run(&metadata["namespace"]) && !of_run(&metadata["name"])
    });
    for binding in granting {
        let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
        let role = roles.iter().find(|role| {
            let here = role["metadata"]["namespace"] == binding["metadata"]["namespace"];
            role["kind"] == *kind
                && role["metadata"]["name"] == *name
                && (here || *kind == "ClusterRole")
        });
        let role = role.unwrap_or_else(|| panic!("there is no {kind} {name}"));
        for rule in role["rules"].as_array().into_iter().flatten() {
            for verb in words(&rule["verbs"]) {
                let resources = words(&rule["resources"]);
                granted.extend(resources.map(|resource| (verb.clone(), resource)));
            }
        }
    }
    assert!(!granted.is_empty(), "the account is bound to a role");
    granted
}

fn is_of_the_account(binding: &Value) -> bool {
    let subjects = binding["subjects"].as_array().into_iter().flatten();
    subjects.into_iter().any(|subject| {
        subject["kind"] == "ServiceAccount"
            && subject["name"] == "hostloop"
            && subject["namespace"] == "hostloop"
    })
}

fn words(list: &Value) -> impl Iterator<Item = String> {
    let all = list.as_array().cloned().unwrap_or_default();
    all.into_iter().filter_map(|word| word.as_str().map(str::to_owned))
}
