use std::collections::BTreeSet;
use std::time::Instant;

use hostloop_fake_api::FakeApi;
use serde_json::{Value, json};

use super::*;
use crate::test_objects::PATIENCE;
use crate::test_objects::{cluster_of, node_pod};

/// The messages until one contains a word.
async fn until(out: &Out, word: &str) -> Vec<Value> {
    let start = Instant::now();
    loop {
        let texts = out.history.all().texts;
        if texts.iter().any(|text| text.contains(word)) {
            return texts
                .iter()
                .map(|text| serde_json::from_str(text).unwrap())
                .collect();
        }
        assert!(start.elapsed() < PATIENCE, "no {word:?} in {texts:#?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_missing_right_is_a_line_and_the_rest_goes_on() {
    const PODS: &str = "/api/v1/namespaces/hostloop/pods";
    let api = FakeApi::default();
    let claim = json!({"spec": {"volumeName": "pv"}});
    api.set(
        "/api/v1/namespaces/demo/persistentvolumeclaims/data",
        claim.clone(),
    );
    api.set(
        "/api/v1/namespaces/demo/persistentvolumeclaims/theirs",
        json!({}),
    );
    api.set("/api/v1/namespaces/other/persistentvolumeclaims/far", claim);
    api.set(
        "/api/v1/persistentvolumes/pv",
        json!({"spec": {"csi": {"driver": "hostloop.csi.dev", "volumeHandle": "v"}}}),
    );
    api.set(PODS, node_pod("hostloop-a", "n1"));
    // Claims only in the namespace of the person, attachments nowhere, and no command in pods.
    api.hide("/api/v1/persistentvolumeclaims", 403);
    api.hide("/apis/storage.k8s.io/v1/volumeattachments", 403);
    api.hide(&format!("{PODS}/hostloop-a/exec"), 403);
    let out = Out::new();
    let join = Join::of_cluster(&cluster_of(&api), &out);
    until(&out, "the report of node n1").await;
    until(&out, "the events of node n1").await;
    until(&out, "watching volumeattachments").await;
    until(&out, "\"key\":\"pv\"").await;
    let messages = until(&out, "demo/data").await;
    drop(join);

    // The events, the charts and the reports share one list of pods.
    let is_list = |request: &String| request.starts_with(&format!("GET {PODS}?"));
    let lists: BTreeSet<String> = api.requests().into_iter().filter(is_list).collect();
    assert_eq!(lists.len(), 1, "{lists:?}");

    let problem = |about: &str| -> String {
        let found = messages
            .iter()
            .find(|m| m["type"] == "problem" && m["about"] == about);
        found.unwrap_or_else(|| panic!("no {about:?}"))["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let attachments = problem("watching volumeattachments.storage.k8s.io");
    assert!(
        attachments.contains("you may not list volumeattachments"),
        "{attachments}"
    );
    for about in ["the events of node n1", "the report of node n1"] {
        assert!(problem(about).contains("you may not create pods/exec in namespace hostloop"));
    }
    let others = problem("watching persistentvolumeclaims");
    assert!(
        others.contains("list persistentvolumeclaims in the whole cluster"),
        "{others}"
    );
    let claims: Vec<_> = messages
        .iter()
        .filter(|message| message["kind"] == "PersistentVolumeClaim")
        .map(|message| message["key"].as_str().unwrap())
        .collect();
    assert_eq!(claims, ["demo/data"]);
    // The kinds of snapshots are not served, which is not a problem.
    assert!(
        !messages
            .iter()
            .any(|message| message.to_string().contains("snapshot"))
    );
}

#[tokio::test]
async fn a_pod_that_goes_is_a_problem_until_its_node_has_another() {
    let api = FakeApi::default();
    const PODS: &str = "/api/v1/namespaces/hostloop/pods";
    api.set(PODS, node_pod("hostloop-a", "n1"));
    let out = Out::new();
    let join = Join::of_cluster(&cluster_of(&api), &out);
    assert!(
        join.hello().contains("\"driver\":\"hostloop.csi.dev\""),
        "{}",
        join.hello()
    );
    until(&out, "the events of node n1").await;
    api.take("pods/hostloop-a");
    until(&out, "pod hostloop-a is gone").await;
    until(&out, "there are no pods of hostloop in namespace hostloop").await;
    drop(join);
}

#[tokio::test]
async fn a_driver_without_a_cluster() {
    let out = Out::new();
    let directory = tempfile::tempdir().unwrap();
    let endpoint = directory.path().join("csi.sock");
    let join = Join::of_driver(&arguments(&[]), &endpoint, &out);
    let messages = until(&out, "csi.events.sock").await;
    assert_eq!(messages[0]["type"], "problem");
    assert!(
        join.hello().contains("\"endpoint\":\"unix:///"),
        "{}",
        join.hello()
    );
    let listener = tokio::net::UnixListener::bind(directory.path().join("csi.events.sock"));
    let process = hostloop_events::serve::Process {
        process: "node".to_owned(),
        node: Some("n1".to_owned()),
        version: "1".to_owned(),
    };
    let stop = std::future::pending();
    tokio::spawn(hostloop_events::serve::serve(
        listener.unwrap(),
        process,
        stop,
    ));
    hostloop_events::work::lease("lease-of-this-test", true);
    let messages = until(&out, "lease-of-this-test").await;
    let event = messages
        .iter()
        .find(|m| m["event"]["about"] == "lease-of-this-test")
        .unwrap();
    assert_eq!(
        (&event["node"], &event["event"]["name"]),
        (&json!("n1"), &json!("acquired"))
    );
    assert!(messages.iter().any(|message| message["type"] == "solved"));
}

#[test]
fn the_page_of_a_file_replaces_the_one_of_the_build() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "<p>changed").unwrap();
    let path = file.path().to_str().unwrap();
    assert_eq!(page(&arguments(&["--page", path])).unwrap(), "<p>changed");
    let missing = page(&arguments(&["--page", "/nowhere"]))
        .unwrap_err()
        .to_string();
    assert!(missing.starts_with("page /nowhere: "), "{missing}");
    match page(&arguments(&[])) {
        Ok(built_in) => assert!(built_in.contains("<!--recording-->")),
        Err(none) => assert!(matches!(none, Error::NoPage), "{none}"),
    }
}

fn arguments(words: &[&str]) -> Args {
    use clap::{Args as _, FromArgMatches};
    let command = Args::augment_args(clap::Command::new("ui"));
    let matches = command.get_matches_from([&["ui"], words].concat());
    Args::from_arg_matches(&matches).unwrap()
}
