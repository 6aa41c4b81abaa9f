use hostloop_fake_api::FakeApi;
use serde_json::{Value, json};

use super::*;
use crate::test_objects::{self, cluster_of, has};

const PODS_PATH: &str = "/api/v1/namespaces/hostloop/pods";

fn pod(name: &str, label: &str, node: &str, restarts: u32) -> Value {
    let mut pod = test_objects::pod(label, name, node);
    pod["spec"]["containers"] = json!([{"name": "side"}, {"name": label}]);
    pod["status"]["containerStatuses"][0]["restartCount"] = json!(restarts);
    pod
}

/// A line as the server sends it, with its own time before the driver's.
fn line(second: u32, text: &str) -> String {
    let time = format!("2026-01-02T03:04:{second:02}.5Z");
    format!("{time} {time}  INFO h: {text}\n")
}

fn texts(lines: &Lines) -> Vec<String> {
    let entries = lines.entries.iter();
    entries
        .map(|entry| {
            let (_, text) = entry.text.rsplit_once(": ").unwrap_or(("", &entry.text));
            format!("{} {text}", entry.source)
        })
        .collect()
}

#[tokio::test]
async fn lines_of_all_pods_by_time() {
    let api = FakeApi::default();
    let mut waiting = pod("hostloop-w", "hostloop", "n3", 0);
    waiting["status"] = json!({"phase": "Pending"});
    api.set(
        PODS_PATH,
        pod("hostloop-controller-x", "hostloop-controller", "n1", 0),
    );
    api.set(PODS_PATH, pod("hostloop-b", "hostloop", "n2", 0));
    api.set(PODS_PATH, pod("hostloop-a", "hostloop", "n1", 0));
    api.set(PODS_PATH, waiting);
    let log = |name: &str| format!("{PODS_PATH}/{name}/log");
    let of_a = [
        line(1, "a demo/data"),
        line(4, "b demo/data"),
        line(5, "c demo/other"),
    ]
    .concat();
    api.answer(&log("hostloop-a"), 200, of_a);
    api.answer(&log("hostloop-b"), 200, line(3, "d demo/data"));
    api.answer(&log("hostloop-controller-x"), 200, line(2, "e demo/data"));
    let cluster = cluster_of(&api);
    let pods = log_pods(&cluster).await.unwrap();
    let sources: Vec<&str> = pods.iter().map(|pod| pod.source.as_str()).collect();
    assert_eq!(sources, ["n1", "n2", "controller"]);

    let subject = Subject::named("demo", "data");
    let since = Some(Duration::from_millis(90_500));
    let lines = read(&cluster, &pods, &subject, since).await;
    assert_eq!(
        texts(&lines),
        [
            "n1 a demo/data",
            "controller e demo/data",
            "n2 d demo/data",
            "n1 b demo/data"
        ]
    );
    assert!(lines.unread.is_empty());
    let last = lines.last.get("hostloop-a").map(ToString::to_string);
    assert_eq!(
        last.as_deref(),
        Some("2026-01-02T03:04:05.5Z"),
        "of all lines of the pod"
    );
    assert_eq!(
        lines.complete_from.map(|at| at.to_string()).as_deref(),
        Some("2026-01-02T03:04:03.5Z"),
        "the log of n2 is the last to begin"
    );
    let requests = api.requests();
    let request = requests
        .iter()
        .find(|request| request.contains("hostloop-a/log"))
        .unwrap();
    has(
        request,
        &["container=hostloop", "sinceSeconds=90", "timestamps=true"],
    );
}

#[tokio::test]
async fn a_log_without_a_right_does_not_stop_the_others() {
    let api = FakeApi::default();
    api.set(PODS_PATH, pod("a", "hostloop", "n1", 0));
    api.set(PODS_PATH, pod("b", "hostloop", "n2", 0));
    api.hide(&format!("{PODS_PATH}/a/log"), 403);
    api.answer(&format!("{PODS_PATH}/b/log"), 200, line(1, "demo/data"));
    let cluster = cluster_of(&api);
    let pods = log_pods(&cluster).await.unwrap();
    let lines = read(&cluster, &pods, &Subject::named("demo", "data"), None).await;
    assert_eq!(texts(&lines), ["n2 demo/data"]);
    let unread: Vec<String> = lines
        .unread
        .iter()
        .map(|(source, error)| format!("{source}: {error}"))
        .collect();
    assert_eq!(
        unread,
        [
            "n1: you may not get pods/log in namespace hostloop; ask for this right, or choose \
             another --context"
        ]
    );
}

#[tokio::test]
async fn a_restarted_container_has_two_logs() {
    let api = FakeApi::default();
    api.set(PODS_PATH, pod("a", "hostloop", "n1", 1));
    api.answer(&format!("{PODS_PATH}/a/log"), 200, line(1, "demo/data"));
    let cluster = cluster_of(&api);
    let pods = log_pods(&cluster).await.unwrap();
    read(&cluster, &pods, &Subject::named("demo", "data"), None).await;
    let requests = api.requests();
    let logs: Vec<bool> = requests[1..]
        .iter()
        .map(|r| r.contains("previous=true"))
        .collect();
    assert_eq!(logs, [true, false]);
}

#[tokio::test]
async fn followed_lines_are_not_repeated() {
    let api = FakeApi::default();
    api.set(PODS_PATH, pod("a", "hostloop", "n1", 0));
    let log = [line(1, "old demo/data"), line(2, "new demo/data")].concat();
    api.answer(&format!("{PODS_PATH}/a/log"), 200, log);
    let cluster = cluster_of(&api);
    let pods = log_pods(&cluster).await.unwrap();
    let mut found = Vec::new();
    let from = Some("2026-01-02T03:04:01.5Z".parse().unwrap());
    let subject = Subject::named("demo", "data");
    follow(&cluster, &pods[0], &subject, from, |entry| {
        found.push(entry.text)
    })
    .await
    .unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].ends_with("new demo/data"), "{found:?}");
    let requests = api.requests();
    assert!(requests[1].contains("follow=true"), "{requests:?}");
}

#[test]
fn other_lines_continue_the_one_before() {
    let subject = Subject::named("demo", "data");
    let mut selector = LineSelector::new(&subject);
    let time = "2026-01-02T03:04:05Z";
    for (text, selected) in [
        ("  at the start", false),
        ("2026-01-02T03:04:05Z ERROR h: panic: demo/data", true),
        ("  0: main", true),
        ("", true),
        ("2026-01-02T03:04:05Z  INFO h: other", false),
        ("  1: main", false),
        ("  2: demo/data", true),
    ] {
        let line = format!("{time} {text}");
        let got = selector.select(&line);
        assert_eq!(
            got.map(|(_, text)| text),
            selected.then_some(text),
            "{text:?}"
        );
    }
    assert_eq!(selector.select("no time demo/data"), None);
}
