//! The health in the status of claims.

use serde_json::Value;

use super::*;
use crate::api::scope::NODE_LABEL;
use crate::testing::{FakeApi, Fault};

/// How often the driver is asked, with the default of `--monitor-interval`.
const INTERVAL: u64 = 60;

/// Puts in the claim of a volume, with this status.
fn put_claim(api: &FakeApi, handle: &str, node: Option<&str>, health: Value) {
    let mut claim = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": handle, "namespace": "ns", "uid": format!("{handle}-claim")},
        "spec": {"volumeName": format!("pv-{handle}")},
        "status": {"phase": "Bound"},
    });
    if !health.is_null() {
        claim["status"]["healthStatus"] = health;
    }
    if let Some(node) = node {
        claim["metadata"]["labels"] = json!({NODE_LABEL: node});
    }
    api.put(claim);
}

/// The health in a claim's status, without the time.
fn health(run: &Run, claim: &str) -> Value {
    let path = format!("persistentvolumeclaims/{claim}");
    let claim = run.world.api.get(&path).expect("the claim is there");
    claim["status"]["healthStatus"]["healthConditions"].clone()
}

fn is_away(reason: &str) -> Value {
    json!([{"status": "Inaccessible", "reason": reason, "message": "it is away"}])
}

/// The writes of claims within the next `seconds`.
async fn writes(run: &mut Run, seconds: u64) -> Vec<String> {
    run.events(seconds).await;
    let mut writes = run.world.api.writes();
    writes.sort();
    writes
}

/// Starts the watcher of node `a`. The claims of these volumes have its label.
async fn start_with_claims(fake: &Fake, volumes: &[&'static str], has_gate: bool) -> Run {
    let run = start_on_node(fake, volumes).await;
    if has_gate {
        run.world.api.store_volume_health();
    }
    for handle in volumes {
        put_claim(&run.world.api, handle, Some("a"), Value::Null);
    }
    run
}

#[tokio::test(start_paused = true)]
async fn a_claim_has_the_health_of_its_volume() {
    let fake = Fake::default();
    fake.set("bad", Answer::Ill("Gone"));
    fake.set("good", Answer::Healthy);
    let mut run = start_with_claims(&fake, &["bad", "good", "far"], true).await;
    assert_eq!(writes(&mut run, 1).await, ["bad/status"]);
    assert_eq!(health(&run, "bad"), is_away("Gone"));
    assert_eq!(
        run.world.api.lists(),
        ["persistentvolumeclaims labelSelector=hostloop.csi.dev/node=a"]
    );
    assert!(writes(&mut run, 3 * INTERVAL).await.is_empty());
    fake.set("bad", Answer::Ill("Other"));
    assert_eq!(writes(&mut run, INTERVAL).await, ["bad/status"]);
    assert_eq!(health(&run, "bad"), is_away("Other"));
    // It is not known meanwhile.
    fake.set("bad", Answer::Error);
    assert!(writes(&mut run, INTERVAL).await.is_empty());
    fake.set("bad", Answer::Healthy);
    assert_eq!(writes(&mut run, INTERVAL).await, ["bad/status"]);
    assert_eq!(health(&run, "bad"), Value::Null);
    run.ends().await;
}

/// A problem ended while no process ran. One of the claims was bound by hand, and has no label.
#[tokio::test(start_paused = true)]
async fn a_claim_does_not_keep_what_has_ended() {
    let fake = Fake::default();
    let volumes = ["well", "unlabelled", "ill"];
    fake.set("well", Answer::Healthy);
    fake.set("unlabelled", Answer::Healthy);
    fake.set("ill", Answer::Ill("Gone"));
    let mut run = start_on_node(&fake, &volumes).await;
    run.world.api.store_volume_health();
    let before = json!({"healthConditions": is_away("Gone")});
    for (handle, node) in volumes.into_iter().zip([Some("a"), None, Some("a")]) {
        put_claim(&run.world.api, handle, node, before.clone());
    }
    assert_eq!(
        writes(&mut run, 1).await,
        ["unlabelled/status", "well/status"]
    );
    assert_eq!(health(&run, "well"), Value::Null);
    assert_eq!(health(&run, "unlabelled"), Value::Null);
    assert_eq!(health(&run, "ill"), is_away("Gone"));
    // What another client has changed is written again once the claims are read.
    put_claim(&run.world.api, "ill", Some("a"), Value::Null);
    assert!(writes(&mut run, 50 * INTERVAL).await.is_empty());
    assert_eq!(writes(&mut run, 11 * INTERVAL).await, ["ill/status"]);
    run.ends().await;
}

/// Without the feature gate, the API server drops the health and changes nothing.
#[tokio::test(start_paused = true)]
async fn without_the_feature_gate_nothing_is_tried_for_an_hour() {
    let fake = Fake::default();
    fake.set("one", Answer::Ill("Gone"));
    fake.set("two", Answer::Ill("Gone"));
    let mut run = start_with_claims(&fake, &["one", "two"], false).await;
    let before = run.world.api.all("persistentvolumeclaims");
    assert_eq!(writes(&mut run, 1).await.len(), 1);
    assert_eq!(run.world.api.all("persistentvolumeclaims"), before);
    assert!(writes(&mut run, 55 * INTERVAL).await.is_empty());
    run.world.api.store_volume_health();
    assert_eq!(
        writes(&mut run, 6 * INTERVAL).await,
        ["one/status", "two/status"]
    );
    assert_eq!(health(&run, "two"), is_away("Gone"));
    run.ends().await;
}

/// A claim of the same name is not the one of the volume.
#[tokio::test(start_paused = true)]
async fn only_the_claim_of_the_volume_is_written() {
    let fake = Fake::default();
    let volumes = ["another", "unbound", "elsewhere", "gone"];
    for handle in volumes {
        fake.set(handle, Answer::Ill("Gone"));
    }
    let mut run = start_on_node(&fake, &volumes).await;
    run.world.api.store_volume_health();
    for (handle, change) in [
        ("another", json!({"metadata": {"uid": "x"}})),
        ("unbound", json!({"status": {"phase": "Pending"}})),
        ("elsewhere", json!({"spec": {"volumeName": "x"}})),
    ] {
        let claim = json!({
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": handle, "namespace": "ns", "uid": format!("{handle}-claim")},
            "spec": {"volumeName": format!("pv-{handle}")},
            "status": {"phase": "Bound"},
        });
        run.world.api.put(with(claim, change));
    }
    assert!(writes(&mut run, 10 * INTERVAL).await.is_empty());
    run.ends().await;
}

/// A node without the right, or with a claim that the admission policy keeps from it, does not ask
/// all the time. A claim that has changed is written in the next pass.
#[tokio::test(start_paused = true)]
async fn what_is_refused_is_not_tried_all_the_time() {
    for (code, tries) in [(403, 1), (409, 2), (500, 2)] {
        let fake = Fake::default();
        fake.set("one", Answer::Ill("Gone"));
        let mut run = start_with_claims(&fake, &["one"], true).await;
        let path = "persistentvolumeclaims/one/status";
        let fault = Fault::Refuse(code);
        run.world.api.fault(&["PATCH"], path, Some(1), fault);
        let all = writes(&mut run, 10 * INTERVAL).await;
        assert_eq!(all.len(), tries, "{code}: {all:?}");
        run.ends().await;
    }
}

/// The driver of a cluster does not list a volume any more that it has lost.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_listed_any_more_is_asked_for() {
    let fake = Fake::default();
    fake.state().lists = true;
    fake.set("lost", Answer::Ill("Gone"));
    fake.set("well", Answer::Ill("Gone"));
    let mut run = start_with_claims(&fake, &["lost", "well", "never"], true).await;
    assert_eq!(writes(&mut run, 1).await, ["lost/status", "well/status"]);
    fake.state().calls.clear();
    fake.state().volumes.remove("lost");
    fake.set("well", Answer::Healthy);
    assert_eq!(writes(&mut run, 300).await, ["lost/status", "well/status"]);
    let mut calls = fake.state().calls.clone();
    calls.sort();
    assert_eq!(calls, ["get lost", "get well", "list "]);
    let lost = health(&run, "lost");
    assert_eq!(lost[0]["reason"], "VolumeNotFound");
    assert_eq!(health(&run, "well"), Value::Null);
    run.ends().await;
}
