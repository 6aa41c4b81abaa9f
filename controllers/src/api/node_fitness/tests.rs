use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::testing::{read, with};

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

fn node(change: Value) -> Node {
    let node = json!({"metadata": {"name": "n1", "labels": {"zone": "a"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    read(with(node, change))
}

fn taint(key: &str, value: &str, effect: &str) -> Value {
    json!({"key": key, "value": value, "effect": effect})
}

fn tainted_node(taints: &[Value]) -> Node {
    node(json!({"spec": {"taints": taints}}))
}

fn class(allowed: Value) -> StorageClass {
    read(json!({"metadata": {"name": "c"}, "provisioner": "d", "allowedTopologies": allowed}))
}

fn allowed(zone: &str) -> Value {
    json!([{"matchLabelExpressions": [{"key": "zone", "values": [zone]}]}])
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"status": {"conditions": [{"type": kind, "status": status}]}})
}

#[rstest]
#[case::well(json!({}), None)]
#[case::silent(json!({"status": {"conditions": []}}), None)]
#[case::cordoned(json!({"spec": {"unschedulable": true}}), Some(UnfitNode::Cordoned))]
#[case::not_ready(condition("Ready", "False"), Some(UnfitNode::NotReady))]
#[case::lost(condition("Ready", "Unknown"), Some(UnfitNode::NotReady))]
#[case::full(condition("DiskPressure", "True"), Some(UnfitNode::DiskPressure))]
#[case::not_full(condition("DiskPressure", "False"), None)]
#[case::out_of_service(
    json!({"spec": {"taints": [taint(node::OUT_OF_SERVICE, "", "NoExecute")]}}),
    Some(UnfitNode::OutOfService)
)]
#[case::deleted(
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
    Some(UnfitNode::Deleting)
)]
fn what_a_node_says_of_itself(#[case] change: Value, #[case] expected: Option<UnfitNode>) {
    let node = node(change);
    assert_eq!(unfit(&node, &class(Value::Null)), expected);
    assert_eq!(unfit(&node, &class(allowed("a"))), expected);
    assert_eq!(unfit_for_copy(&node, &class(Value::Null)), expected);
}

/// Taints where the class or a source has chosen the node, and elsewhere.
#[rstest]
#[case(
    CONTROL_PLANE,
    "",
    "NoSchedule",
    Some("node-role.kubernetes.io/control-plane:NoSchedule")
)]
#[case("team", "gpu", "NoExecute", Some("team=gpu:NoExecute"))]
#[case("team", "gpu", "PreferNoSchedule", None)]
#[case(
    "node.kubernetes.io/x",
    "",
    "NoSchedule",
    Some("node.kubernetes.io/x:NoSchedule")
)]
// The condition Ready counts.
#[case("node.kubernetes.io/not-ready", "", "NoExecute", None)]
#[case("node.kubernetes.io/unreachable", "", "NoSchedule", None)]
fn taints_count_unless_the_node_was_chosen(
    #[case] key: &str,
    #[case] value: &str,
    #[case] effect: &str,
    #[case] expected: Option<&str>,
) {
    let node = tainted_node(&[taint(key, value, effect)]);
    let expected = expected.map(|taint| UnfitNode::Tainted(taint.to_owned()));
    assert_eq!(unfit(&node, &class(Value::Null)), expected);
    assert_eq!(unfit(&node, &class(json!([]))), expected);
    assert_eq!(unfit(&node, &class(allowed("a"))), None);
    assert_eq!(
        unfit(&node, &class(allowed("b"))),
        Some(UnfitNode::NotAllowed)
    );
    assert_eq!(unfit_for_copy(&node, &class(Value::Null)), None);
    assert_eq!(
        unfit_for_copy(&node, &class(allowed("b"))),
        Some(UnfitNode::NotAllowed)
    );
}

#[rstest]
#[case::heartbeat(json!({"metadata": {"resourceVersion": "2"}}), true)]
#[case::label(json!({"metadata": {"labels": {"zone": "b"}}}), false)]
#[case::cordon(json!({"spec": {"unschedulable": true}}), false)]
#[case::taint(json!({"spec": {"taints": [taint("a", "", "NoSchedule")]}}), false)]
#[case::weak_taint(json!({"spec": {"taints": [taint("a", "", "PreferNoSchedule")]}}), true)]
#[case::not_ready(condition("Ready", "False"), false)]
fn changes_that_count(#[case] change: Value, #[case] same: bool) {
    let (was, now) = (node(json!({})), node(change));
    assert_eq!((is_same(&was, &now), is_same(&now, &was)), (same, same));
}

fn pod(spec: Value) -> Pod {
    let spec = with(json!({"containers": []}), spec);
    read(json!({"metadata": {"name": "p", "namespace": "shop"}, "spec": spec}))
}

/// Each toleration against the taint `team=gpu:NoSchedule`.
#[rstest]
#[case::none(json!([]), false)]
#[case::of_everything(json!([{"operator": "Exists"}]), true)]
#[case::of_the_key(json!([{"key": "team", "operator": "Exists"}]), true)]
#[case::of_the_value(json!([{"key": "team", "value": "gpu"}]), true)]
#[case::of_all(json!([{"key": "team", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}]), true)]
#[case::of_another_value(json!([{"key": "team", "value": "web"}]), false)]
#[case::of_no_value(json!([{"key": "team"}]), false)]
#[case::of_another_key(json!([{"key": "web", "operator": "Exists"}]), false)]
#[case::of_another_effect(json!([{"key": "team", "operator": "Exists", "effect": "NoExecute"}]), false)]
#[case::one_of_two(json!([{"key": "web"}, {"key": "team", "value": "gpu"}]), true)]
#[case::newer_operator(json!([{"key": "team", "operator": "Lt", "value": "9"}]), true)]
fn pods_tolerate_taints(#[case] tolerations: Value, #[case] expected: bool) {
    let pod = pod(json!({"tolerations": tolerations}));
    let gpu = taint("team", "gpu", "NoSchedule");
    assert_eq!(
        can_run(&pod, &tainted_node(std::slice::from_ref(&gpu))),
        expected
    );
    // Each taint needs a toleration.
    let two = [gpu, taint("disk", "", "NoSchedule")];
    let tolerates_all = tolerations == json!([{"operator": "Exists"}]);
    assert_eq!(can_run(&pod, &tainted_node(&two)), tolerates_all);
}

fn named(name: &str) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [name]}]}]}}}})
}

#[rstest]
#[case::plain(json!({}), json!({}), true)]
#[case::on_the_node(json!({"nodeName": "n1"}), json!({"unschedulable": true}), true)]
#[case::on_another(json!({"nodeName": "n2", "tolerations": [{"operator": "Exists"}]}), json!({}), false)]
#[case::cordoned(json!({}), json!({"unschedulable": true}), false)]
#[case::of_a_daemon_set(
    json!({"tolerations": [{"key": UNSCHEDULABLE, "operator": "Exists", "effect": "NoSchedule"}]}),
    json!({"unschedulable": true, "taints": [taint(UNSCHEDULABLE, "", "NoSchedule")]}),
    true
)]
#[case::selected(json!({"nodeSelector": {"zone": "a"}}), json!({}), true)]
#[case::not_selected(json!({"nodeSelector": {"zone": "b"}}), json!({}), false)]
#[case::by_name(named("n1"), json!({}), true)]
#[case::by_another_name(named("n2"), json!({}), false)]
fn pods_run_on_nodes(#[case] spec: Value, #[case] of_node: Value, #[case] expected: bool) {
    let node = node(json!({"spec": of_node}));
    let mut pod = pod(spec);
    assert_eq!(can_run(&pod, &node), expected);
    pod.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    assert!(!can_run(&pod, &node));
}
