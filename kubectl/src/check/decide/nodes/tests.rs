use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::check::decide::testing::{good, machine, marks, node_pod, object};
use crate::check::facts::Unknown;
use crate::check::line::Mark::*;

fn pod(node: &str, changes: Value) -> Pod {
    let mut pod: Value = node_pod(node);
    json_patch::merge(&mut pod, &changes);
    object(pod)
}

fn pods(facts: &Facts) -> PodsByNode<'_> {
    pods_by_node(facts.pods.as_ref().unwrap())
}

fn not_ready(waiting: Value) -> Value {
    json!({"status": {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "hostloop", "image": "img", "state": waiting}],
    }})
}

#[rstest]
#[case::image(json!({"waiting": {"reason": "ErrImageNeverPull"}}), "ErrImageNeverPull", "load")]
#[case::pull(json!({"waiting": {"reason": "ImagePullBackOff", "message": "no\nmore"}}), "(no)",
    "registry")]
#[case::crash(json!({"waiting": {"reason": "CrashLoopBackOff"}}), "CrashLoop", "--previous")]
#[case::starting(json!({"running": {}}), "is not ready", "recovers")]
#[case::creating(json!({"waiting": {"reason": "ContainerCreating"}}), "Creating", "describe pod")]
fn pods_that_are_not_ready(#[case] state: Value, #[case] text: &str, #[case] advice: &str) {
    let mut facts = good();
    facts.pods = Ok(vec![pod("n1", not_ready(state)), node_pod("n2")]);
    let lines = ready(&pods(&facts), "hostloop");
    assert_eq!(marks(&lines), [Failed]);
    assert!(lines[0].text.contains(text), "{lines:?}");
    assert!(
        lines[0].advice.as_ref().unwrap().contains(advice),
        "{lines:?}"
    );
}

#[test]
fn the_error_of_a_pod_that_keeps_failing() {
    let mut state = not_ready(json!({"waiting": {
        "reason": "CrashLoopBackOff", "message": "back-off 10s"}}));
    state["status"]["containerStatuses"][0]["lastState"] =
        json!({"terminated": {"exitCode": 1, "message": "no disk"}});
    let mut facts = good();
    facts.pods = Ok(vec![pod("n1", state)]);
    let lines = ready(&pods(&facts), "hostloop");
    assert!(
        lines[0].text.ends_with("CrashLoopBackOff (no disk)"),
        "{lines:?}"
    );
}

#[test]
fn pods_that_are_missing_or_going() {
    let mut facts = good();
    facts.pods = Ok(vec![node_pod("n1")]);
    let sets = facts.daemon_sets.clone().unwrap();
    let lines = scheduled(&sets, &pods(&facts), "hostloop");
    assert_eq!(marks(&lines), [Failed]);
    assert!(lines[0].text.starts_with("1 of 2 nodes"), "{lines:?}");

    let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    facts.pods = Ok(vec![pod("n1", going), node_pod("n2")]);
    let lines = ready(&pods(&facts), "hostloop");
    assert!(lines[0].text.contains("being deleted"), "{lines:?}");

    facts.daemon_sets = Ok(vec![]);
    assert_eq!(marks(&super::lines(&facts)), [Failed]);
    facts.daemon_sets = Ok(vec![object(
        json!({"status": {"desiredNumberScheduled": 0}}),
    )]);
    facts.pods = Ok(vec![]);
    assert!(super::lines(&facts)[0].text.contains("selects no node"));
}

#[test]
fn all_missing_rights_are_named_at_once() {
    let no = |right: &str| Unknown::Forbidden(right.to_owned());
    let mut facts = good();
    facts.daemon_sets = Err(no("list daemonsets"));
    assert_eq!(marks(&super::lines(&facts)), [Skipped]);
    facts.pods = Err(no("list pods"));
    let lines = super::lines(&facts);
    assert_eq!(marks(&lines), [Skipped, Skipped]);
    assert!(
        lines[1].text.ends_with("you may not list pods"),
        "{lines:?}"
    );
}

#[test]
fn pods_of_others_are_not_node_pods() {
    let owners = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}]);
    let stranger = pod("n3", json!({"metadata": {"ownerReferences": owners}}));
    let pods = [stranger, node_pod("n1")];
    assert_eq!(pods_by_node(&pods).into_keys().collect::<Vec<_>>(), ["n1"]);
}

#[test]
fn images_must_be_equal() {
    let mut facts = good();
    assert_eq!(marks(&image(&pods(&facts), "hostloop")), [Passed]);
    let other = json!({"spec": {"containers": [{"name": "hostloop", "image": "r/hostloop:0.0.1",
        "args": ["run"]}]}});
    facts.pods = Ok(vec![node_pod("n1"), pod("n2", other)]);
    let lines = image(&pods(&facts), "hostloop");
    assert_eq!(marks(&lines), [Failed]);
    assert!(
        lines[0].text.contains("r/hostloop:0.0.1 on n2"),
        "{lines:?}"
    );
}

#[test]
fn versions_come_from_the_pods_or_else_from_tags() {
    let mut facts = good();
    assert_eq!(marks(&version(&pods(&facts), &facts)), [Passed]);
    let mut machine = machine();
    if let Ok(report) = &mut machine.report {
        report.version = "9.9.9".into();
    }
    facts.machines.insert("n1".into(), machine);
    let lines = version(&pods(&facts), &facts);
    assert_eq!(marks(&lines), [Warning]);
    assert!(lines[0].text.contains("run version 9.9.9"), "{lines:?}");
    facts.machines.clear();
    assert_eq!(marks(&version(&pods(&facts), &facts)), [Passed]);
}

#[rstest]
#[case("hostloop.csi.dev/hostloop:0.1.0", Some("0.1.0"))]
#[case("registry:5000/hostloop:v0.2.0@sha256:00", Some("0.2.0"))]
#[case("registry:5000/hostloop", None)]
#[case("hostloop:latest", None)]
#[case("hostloop@sha256:00", None)]
fn tags(#[case] image: &str, #[case] expected: Option<&str>) {
    assert_eq!(tag(image), expected);
}

#[test]
fn registration_proves_the_directory() {
    let mut facts = good();
    let lines = registered(&pods(&facts), &facts).unwrap();
    assert_eq!(marks(&lines), [Passed, Passed]);
    assert_eq!(
        lines[1].text,
        "Kubelet's directory is right: /var/lib/kubelet"
    );

    facts
        .csi_nodes
        .as_mut()
        .unwrap()
        .retain(|n| n.metadata.name.as_deref() != Some("n2"));
    let lines = registered(&pods(&facts), &facts).unwrap();
    assert_eq!(marks(&lines), [Passed, Failed]);
    assert!(
        lines[1].advice.as_ref().unwrap().contains("--root-dir"),
        "{lines:?}"
    );

    facts.nodes = Ok(vec![object(json!({
        "metadata": {"name": "n2", "labels": {"microk8s.io/cluster": "true"}},
    }))]);
    let lines = registered(&pods(&facts), &facts).unwrap();
    let dir = "--kubelet-dir /var/snap/microk8s/common/var/lib/kubelet";
    assert!(lines[1].advice.as_ref().unwrap().contains(dir), "{lines:?}");

    // A pod that is not ready has its own line.
    facts.pods = Ok(vec![node_pod("n1"), pod("n2", not_ready(json!({})))]);
    assert_eq!(
        marks(&registered(&pods(&facts), &facts).unwrap()),
        [Passed, Passed]
    );
    facts.csi_nodes = Err(Unknown::Forbidden("list csinodes".into()));
    assert_eq!(registered(&pods(&facts), &facts).unwrap_err().mark, Skipped);
}

#[rstest]
#[case::whole(json!({"topology.hostloop.csi.dev/node": "n1", "zone": "a"}), None)]
#[case::another_zone(json!({"topology.hostloop.csi.dev/node": "n1", "zone": "b"}), None)]
#[case::lost(json!({"zone": "a"}), Some("has lost its topology label topology.hostloop"))]
#[case::zone(json!({"topology.hostloop.csi.dev/node": "n1"}), Some("has lost its topology label zone"))]
#[case::changed(json!({"topology.hostloop.csi.dev/node": "n2", "zone": "a"}), Some("is n2, not n1"))]
fn topology_labels(#[case] labels: Value, #[case] said: Option<&str>) {
    let mut facts = good();
    facts.nodes = Ok(vec![object(
        json!({"metadata": {"name": "n1", "labels": labels}}),
    )]);
    let keys = ["topology.hostloop.csi.dev/node", "zone"];
    let driver = json!({"name": facts.driver, "nodeID": "n1", "topologyKeys": keys});
    let csi_node = json!({"metadata": {"name": "n1"}, "spec": {"drivers": [driver]}});
    facts.csi_nodes = Ok(vec![object(csi_node)]);
    facts.pods = Ok(vec![node_pod("n1")]);
    let lines = registered(&pods(&facts), &facts).unwrap();
    let wrong: Vec<_> = lines.iter().filter(|line| line.mark == Failed).collect();
    assert_eq!(wrong.len(), usize::from(said.is_some()), "{lines:?}");
    for line in wrong {
        assert!(line.text.contains(said.unwrap()), "{lines:?}");
    }
}
