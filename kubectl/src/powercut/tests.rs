use hostloop_fake_api::FakeApi;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::Command;
use crate::fault::tests::{claim, drive, fault_of};
use crate::test_objects::{cluster_of, parsed, read, writes};

fn args(words: &str) -> Args {
    let Command::Powercut(args) = parsed(&format!("powercut {words}")).unwrap().command else {
        panic!("{words}");
    };
    args
}

fn pod(name: &str, claims: &[&str]) -> Value {
    let volumes: Vec<Value> = claims
        .iter()
        .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "demo", "uid": format!("uid-{name}")},
        "spec": {"containers": [], "volumes": volumes},
        "status": {"phase": "Running"},
    })
}

/// The claims `data` and `logs` of `app=db`, the pods `db-0` and `db-1` that use them, and a pod that
/// does not.
fn application() -> FakeApi {
    let api = FakeApi::default();
    for name in ["data", "logs"] {
        api.put(claim(name));
    }
    api.put(pod("db-0", &["data", "logs"]));
    api.put(pod("db-1", &["logs"]));
    api.put(pod("web", &["other"]));
    api
}

/// Runs the command beside a driver.
async fn answered(
    api: &FakeApi,
    words: &str,
    begun: fn(&str) -> &'static str,
    ended: &'static str,
) -> Result<ExitCode, Error> {
    let (args, cluster) = (args(words), cluster_of(api));
    tokio::select! {
        ended = run(&args, &cluster) => ended,
        never = drive(api.clone(), begun, ended) => match never {},
    }
}

fn names(api: &FakeApi) -> Vec<String> {
    let pods = api.all("pods");
    let names = pods.iter().map(|pod| pod["metadata"]["name"].as_str());
    names.map(|name| name.unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_application_crashes() {
    let api = application();
    answered(
        &api,
        "-l app=db --delete-pods",
        |_| "FaultInjected",
        "FaultHealed",
    )
    .await
    .unwrap();
    let cuts = [
        "PATCH demo/persistentvolumeclaims/data",
        "PATCH demo/persistentvolumeclaims/logs",
    ];
    let deletions = ["DELETE demo/pods/db-0", "DELETE demo/pods/db-1"];
    // Those of one step are sent at the same time, in any order.
    let mut written = writes(&api);
    for step in written.chunks_mut(2) {
        step.sort();
    }
    let expected = [&cuts[..], &deletions, &cuts].concat();
    assert_eq!(written, expected);
    assert_eq!(names(&api), ["web"]);
    assert_eq!(
        (fault_of(&api, "data"), fault_of(&api, "logs")),
        (None, None)
    );
    // Two cuts, and two ends.
    assert_eq!(api.all("events").len(), 4);
}

/// It would have the fault of its class without that.
#[tokio::test(start_paused = true)]
async fn a_claim_that_asked_for_none_asks_for_none_again() {
    type Begun = fn(&str) -> &'static str;
    let cases: [(Begun, bool); 2] = [(|_| "FaultInjected", true), (|_| "FaultRefused", false)];
    for (begun, succeeds) in cases {
        let api = application();
        let mut without = claim("data");
        without["metadata"]["annotations"]["hostloop.csi.dev/fault"] = json!("none");
        api.put(without);
        let ended = answered(&api, "data --delete-pods", begun, "FaultHealed").await;
        assert_eq!(ended.is_ok(), succeeds, "{ended:?}");
        assert_eq!(fault_of(&api, "data").as_deref(), Some("none"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_cut_alone_keeps_the_pods_and_the_annotation() {
    let api = application();
    answered(&api, "data", |_| "FaultInjected", "FaultHealed")
        .await
        .unwrap();
    assert_eq!(fault_of(&api, "data").as_deref(), Some("powercut"));
    assert_eq!(names(&api).len(), 3);
}

/// A part of an application is not cut without the rest.
#[tokio::test(start_paused = true)]
async fn one_claim_that_is_not_cut_ends_it() {
    let api = application();
    let cut = answered(
        &api,
        "data logs --delete-pods",
        |name| match name {
            "logs" => "FaultRefused",
            _ => "FaultInjected",
        },
        "FaultNeedsRestage",
    );
    let error = cut.await.unwrap_err();
    assert!(
        matches!(&error, Error::NotCut(names) if names == "logs"),
        "{error}"
    );
    assert_eq!(
        (fault_of(&api, "data"), fault_of(&api, "logs")),
        (None, None)
    );
    assert_eq!(names(&api).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_volume_without_pods_has_nothing_to_lose() {
    let api = application();
    answered(
        &api,
        "data logs --delete-pods",
        |name| match name {
            "logs" => "FaultWaiting",
            _ => "FaultInjected",
        },
        "FaultHealed",
    )
    .await
    .unwrap();
    assert_eq!(fault_of(&api, "logs"), None);
}

/// Nothing is said any more of a claim that ends with its pod, and nothing is waited for.
#[tokio::test(start_paused = true)]
async fn an_ephemeral_claim_ends_with_its_pod() {
    let api = application();
    let mut ephemeral = claim("data");
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "db-0", "uid": "uid-db-0"});
    ephemeral["metadata"]["ownerReferences"] = json!([owner]);
    api.put(ephemeral);
    answered(
        &api,
        "data logs --delete-pods",
        |_| "FaultInjected",
        "FaultHealed",
    )
    .await
    .unwrap();
    let claims = api.all("persistentvolumeclaims");
    assert_eq!(claims.len(), 1, "{claims:?}");
    assert_eq!(fault_of(&api, "logs"), None);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_other_pods_keep_is_named() {
    let api = application();
    let cut = answered(
        &api,
        "data --delete-pods",
        |_| "FaultInjected",
        "FaultNeedsRestage",
    );
    let error = cut.await.unwrap_err();
    assert!(
        matches!(&error, Error::StillMounted(names) if names == "data"),
        "{error}"
    );
}

/// As long as they are there, the volume keeps its fault: a btrfs could go on in place.
#[tokio::test(start_paused = true)]
async fn pods_that_do_not_end_are_named() {
    let api = application();
    let mut slow = pod("db-0", &["data"]);
    slow["metadata"]["finalizers"] = json!(["example.com/slow"]);
    api.put(slow);
    let cut = answered(
        &api,
        "data --delete-pods --timeout 20s",
        |_| "FaultInjected",
        "FaultHealed",
    );
    let error = cut.await.unwrap_err().to_string();
    assert!(
        error.starts_with("pods that do not end within 20 s: db-0. Once they are gone: kubectl"),
        "{error}"
    );
    assert_eq!(fault_of(&api, "data").as_deref(), Some("powercut"));
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_the_pods_are_deleted_after_the_cut() {
    let api = application();
    answered(
        &api,
        "data --delete-pods --now --wait=false",
        |_| "FaultInjected",
        "FaultHealed",
    )
    .await
    .unwrap();
    assert_eq!(names(&api), ["db-1", "web"]);
    assert_eq!(fault_of(&api, "data").as_deref(), Some("powercut"));
    assert_eq!(api.all("events").len(), 1);
}

#[tokio::test]
async fn what_changes_nothing() {
    let api = application();
    api.put(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "new", "namespace": "demo"}, "spec": {}}));
    let cluster = cluster_of(&api);
    for (words, succeeds) in [
        ("data new --delete-pods", false),
        ("missing", false),
        ("data --delete-pods --dry-run=client", true),
        ("-l app=db --dry-run=client -o json", true),
    ] {
        let ended = run(&args(words), &cluster).await;
        assert_eq!(ended.is_ok(), succeeds, "{words}: {ended:?}");
    }
    assert_eq!(writes(&api), Vec::<String>::new());
}

#[rstest]
#[case::first(None, "powercut")]
#[case::after_another_fault(Some("gone"), "powercut")]
#[case::again(Some("powercut"), "powercut,seed=1")]
#[case::once_more(Some("powercut,seed=1"), "powercut,seed=2")]
#[case::after_a_mistake(Some("pwercut"), "powercut")]
fn each_cut_is_a_new_one(#[case] before: Option<&str>, #[case] expected: &str) {
    let claim = read(json!({"metadata": {
        "annotations": before.map(|before| json!({"hostloop.csi.dev/fault": before})),
    }}));
    assert_eq!(next_cut(&claim).to_string(), expected);
}

#[test]
fn lines_of_the_steps() {
    assert_eq!(is_cut(2), "The power of 2 claims is cut");
    assert_eq!(are_deleted(2), "2 pods deleted");
    assert_eq!(are_deleted(1), "1 pod deleted");
}

#[rstest]
#[case::own("data --delete-pods", None)]
#[case::now("data --delete-pods --now", Some(1))]
#[case::force("data --delete-pods --force", Some(0))]
fn grace_periods(#[case] words: &str, #[case] expected: Option<u32>) {
    assert_eq!(args(words).grace(), expected);
}

/// They say how pods are deleted, and names and labels are not both taken.
#[rstest]
#[case::force("data --force")]
#[case::now("data --now")]
#[case::both("data --delete-pods --now --force")]
#[case::names_and_labels("data -l app=db")]
#[case::no_claim("--delete-pods")]
fn refused_lines(#[case] words: &str) {
    assert!(parsed(&format!("powercut {words}")).is_err());
}
