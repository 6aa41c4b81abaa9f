use serde_json::json;

use super::*;
use crate::testing::{affinity, node_scope, read};

fn here() -> Scope {
    node_scope("n1", "t/node")
}

fn volume(affinity: serde_json::Value) -> PersistentVolume {
    read(json!({"metadata": {"name": "v"}, "spec": {"nodeAffinity": affinity}}))
}

#[test]
fn volumes_by_affinity() {
    let term = |key: &str, operator: &str, values: &[&str]| {
        json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]}})
    };
    let named = |operator: &str, name: &str| {
        json!({"required": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": operator, "values": [name]}]}]}})
    };
    let here_or_zone = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]},
        {"matchExpressions": [{"key": "t/node", "operator": "In", "values": ["n1"]}]}]}});
    let there_in_zone = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "zone", "operator": "In", "values": ["z"]},
        {"key": "t/node", "operator": "In", "values": ["n2"]}]}]}});
    for (affinity, holds) in [
        (json!(null), None),
        (json!({}), None),
        (term("t/node", "In", &["n1"]), Some(true)),
        (term("t/node", "In", &["n2", "n1"]), Some(true)),
        (term("t/node", "In", &["n2"]), Some(false)),
        (term("t/node", "NotIn", &["n1"]), Some(false)),
        (term("t/node", "Exists", &[]), Some(true)),
        (term("t/node", "DoesNotExist", &[]), Some(false)),
        // Labels outside the driver's topology are unknown.
        (term("zone", "In", &["z"]), None),
        (term("zone", "Exists", &[]), None),
        (named("In", "n1"), Some(true)),
        (named("In", "n2"), Some(false)),
        (named("NotIn", "n2"), Some(true)),
        (here_or_zone, Some(true)),
        (there_in_zone, Some(false)),
        (json!({"required": {"nodeSelectorTerms": []}}), Some(false)),
        (
            json!({"required": {"nodeSelectorTerms": [{}]}}),
            Some(false),
        ),
    ] {
        let volume = volume(affinity.clone());
        assert_eq!(here().holds(&volume), holds, "{affinity}");
        assert_eq!(here().has_volume(&volume), holds != Some(false));
        assert!(Scope::Cluster.has_volume(&volume));
    }
}

#[test]
fn contents_by_label_and_source() {
    let there = volume(affinity("t/node", &["n2"]));
    let label = |node: &str| BTreeMap::from([(MANAGED_BY.to_owned(), node.to_owned())]);
    for (labels, source, within) in [
        (label("n1"), Some(&there), true),
        (label("n2"), None, false),
        (BTreeMap::new(), Some(&there), false),
        (BTreeMap::new(), None, true),
    ] {
        assert_eq!(here().has_content(&labels, source), within, "{labels:?}");
    }
}
