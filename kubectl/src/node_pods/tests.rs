use hostloop_fake_api::FakeApi;
use serde_json::{Value, json};

use super::*;
use crate::test_objects::{cluster_of, node_pod, read};

const PODS: &str = "/api/v1/namespaces/hostloop/pods";

/// A node pod with a container in this state.
fn pod(name: &str, node: &str, state: Value) -> Value {
    let mut pod = node_pod(name, node);
    pod["status"]["containerStatuses"][0]["state"] = state;
    pod
}

#[test]
fn containers_that_run_no_command() {
    for (state, why) in [
        (json!({"running": {}}), None),
        (
            json!({"waiting": {"reason": "CrashLoopBackOff"}}),
            Some("CrashLoopBackOff"),
        ),
        (json!({"waiting": {}}), Some("its container waits")),
        (json!({"terminated": {"exitCode": 3}}), Some("exit code 3")),
        (
            json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            Some("OOMKilled"),
        ),
    ] {
        let pod: Pod = read(pod("a", "n1", state));
        assert_eq!(NodePod::of(&pod).unwrap().not_running.as_deref(), why);
    }
    let mut failing = pod(
        "a",
        "n1",
        json!({"waiting": {"reason": "CrashLoopBackOff"}}),
    );
    failing["status"]["containerStatuses"][0]["lastState"] =
        json!({"terminated": {"exitCode": 1, "message": "no disk"}});
    assert_eq!(
        NodePod::of(&read(failing)).unwrap().not_running.as_deref(),
        Some("CrashLoopBackOff: no disk")
    );
    let mut pending: Pod = read(pod("a", "n1", json!({"running": {}})));
    pending.status.as_mut().unwrap().container_statuses = None;
    pending.status.as_mut().unwrap().phase = Some("Pending".to_owned());
    assert_eq!(
        NodePod::of(&pending).unwrap().not_running.as_deref(),
        Some("Pending")
    );
    pending.status = None;
    assert_eq!(
        NodePod::of(&pending).unwrap().not_running.as_deref(),
        Some("it has no status")
    );
}

#[test]
fn the_command_runs_the_containers_program() {
    let mut pod = pod("a", "n1", json!({"running": {}}));
    for (command, words) in [
        (Value::Null, "hostloop status --json"),
        (json!(["/bin/h", "run"]), "/bin/h status --json"),
    ] {
        pod["spec"]["containers"][0]["command"] = command;
        let pod = NodePod::of(&read(pod.clone())).unwrap();
        assert_eq!(pod.status_command().join(" "), words);
    }
}

#[tokio::test]
async fn a_node_without_an_answer_does_not_stop_the_others() {
    let api = FakeApi::default();
    let running = || json!({"running": {}});
    api.set(PODS, pod("hostloop-b", "n2", running()));
    api.set(
        PODS,
        pod(
            "hostloop-a",
            "n1",
            json!({"waiting": {"reason": "ImagePullBackOff"}}),
        ),
    );
    api.set(PODS, pod("hostloop-c", "n3", running()));
    api.hide(&format!("{PODS}/hostloop-b/exec"), 403);
    api.answer(&format!("{PODS}/hostloop-c/exec"), 200, "not a websocket");
    let cluster = cluster_of(&api);
    let pods = node_pods(&cluster).await.unwrap();
    let reports = reports(&cluster, &pods).await;
    let lines: Vec<String> = reports
        .iter()
        .map(|r| format!("{} {}: {}", r.node, r.pod, r.report.as_ref().unwrap_err()))
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(
        lines[0],
        "n1 hostloop-a: pod hostloop-a does not run: ImagePullBackOff"
    );
    assert_eq!(
        lines[1],
        "n2 hostloop-b: you may not create pods/exec in namespace hostloop; ask for this right, \
         or choose another --context"
    );
    assert!(
        lines[2].contains("failed to switch protocol: 200"),
        "{}",
        lines[2]
    );

    let requests = api.requests();
    assert!(requests[0].contains("labelSelector=app.kubernetes.io%2Fname%3Dhostloop"));
    assert_eq!(
        requests.len(),
        3,
        "the pod that does not run is not asked: {requests:?}"
    );
    let exec = requests
        .iter()
        .find(|request| request.contains("hostloop-b/exec"))
        .unwrap();
    assert!(exec.contains("container=hostloop"), "{exec}");
    assert!(
        exec.contains("command=hostloop&command=status&command=--json"),
        "{exec}"
    );
}
