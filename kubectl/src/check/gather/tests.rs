use hostloop_fake_api::{FakeApi, Fault};
use serde_json::json;

use super::*;
use crate::check::decide::testing::node_pod;
use crate::manifests::Version;
use crate::test_objects::cluster_of;

const STORAGE: &str = "/apis/storage.k8s.io/v1";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/hostloop/daemonsets";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A server with hostloop on one node.
fn api() -> FakeApi {
    let api = FakeApi::default();
    api.minor(33);
    api.answer(
        "/apis",
        200,
        json!({"items": [{"metadata": {"name": "snapshot.storage.k8s.io"}, "versions": [
            {"version": "v1", "resources": [{"resource": "volumesnapshots"}]},
            {"version": "v1beta1", "resources": [{"resource": "volumesnapshots"}]},
        ]}]}),
    );
    api.set(
        &format!("{STORAGE}/csidrivers/hostloop.csi.dev"),
        json!({"spec": {}}),
    );
    let class = json!({"provisioner": "hostloop.csi.dev"});
    api.set(&format!("{STORAGE}/storageclasses/hostloop-ext4"), class);
    let labels = json!({"app.kubernetes.io/name": "hostloop"});
    api.set(
        &format!("{DAEMON_SETS}/hostloop"),
        json!({"metadata": {"labels": labels}}),
    );
    let labels = json!({"app.kubernetes.io/name": "hostloop",
        "app.kubernetes.io/component": "fault-disks"});
    api.set(
        &format!("{DAEMON_SETS}/hostloop-fault-disks"),
        json!({"metadata": {"labels": labels}}),
    );
    api.set("/api/v1/namespaces/hostloop/pods", node_pod("n1"));
    api
}

async fn facts(api: &FakeApi) -> Facts {
    gather(&cluster_of(api), &mut ProgressLine::new())
        .await
        .unwrap()
}

#[tokio::test]
async fn what_the_server_answers_becomes_facts() {
    let api = api();
    let facts = facts(&api).await;
    let server = facts.server.unwrap();
    assert_eq!(
        (server.version.as_str(), server.number),
        (
            "v1.33.0",
            Version {
                major: 1,
                minor: 33
            }
        )
    );
    let served = facts.served.unwrap();
    let versions = served.versions("snapshot.storage.k8s.io", "volumesnapshots");
    assert_eq!(versions.collect::<Vec<_>>(), ["v1", "v1beta1"]);
    assert!(facts.csi_driver.unwrap().is_some());
    assert_eq!(facts.classes.unwrap().len(), 1);
    assert_eq!(facts.daemon_sets.unwrap().len(), 1);
    assert_eq!(facts.pods.unwrap().len(), 1);
    assert!(facts.rights.iter().all(|right| right.allowed == Ok(true)));
    assert!(facts.rights.len() > 50, "{}", facts.rights.len());
    // An object that does not exist, and a kind that is not served.
    assert_eq!(facts.lease, Ok(None));
    let classes = "volumesnapshotclasses.snapshot.storage.k8s.io";
    assert_eq!(
        facts.snapshot_classes.unwrap_err(),
        Unknown::NotServed(classes.to_owned())
    );
}

#[tokio::test]
async fn a_missing_right_is_a_fact_of_its_own() {
    let api = api();
    api.hide("/api/v1/nodes", 403);
    api.hide("/namespaces/hostloop/leases/hostloop-hostloop-csi-dev", 403);
    api.fault(&["POST"], REVIEWS, None, Fault::Refuse(403));
    api.hide("/pods/hostloop-n1/exec", 403);
    let facts = facts(&api).await;
    let forbidden = |text: &str| Unknown::Forbidden(text.to_owned());
    assert_eq!(
        facts.nodes.unwrap_err(),
        forbidden("list nodes in the whole cluster")
    );
    let lease = "get leases.coordination.k8s.io in namespace hostloop";
    assert_eq!(facts.lease.unwrap_err(), forbidden(lease));
    let review = "create subjectaccessreviews.authorization.k8s.io in the whole cluster";
    // One answer for each account, from one request.
    assert_eq!(facts.rights.len(), 2);
    assert!(
        facts
            .rights
            .iter()
            .all(|right| right.allowed == Err(forbidden(review)))
    );
    let reviews = api
        .requests()
        .iter()
        .filter(|path| path.contains(REVIEWS))
        .count();
    assert_eq!(reviews, 1);
    let machine = &facts.machines["n1"];
    let exec = forbidden("create pods/exec in namespace hostloop");
    assert_eq!(machine.report.as_ref().unwrap_err(), &exec);
    assert_eq!(machine.pools.as_ref().unwrap_err(), &exec);
    assert_eq!(machine.clock, None);
    assert_eq!(facts.classes.unwrap().len(), 1);
}

#[tokio::test]
async fn without_hostloop_no_rights_are_reviewed() {
    let api = api();
    api.take("daemonsets/hostloop");
    assert!(facts(&api).await.rights.is_empty());
    assert!(!api.requests().iter().any(|path| path.contains(REVIEWS)));
}

#[tokio::test]
async fn credentials_that_are_not_accepted_end_the_check() {
    let api = api();
    api.answer("/version", 401, json!({"kind": "Status", "code": 401}));
    let error = gather(&cluster_of(&api), &mut ProgressLine::new())
        .await
        .err();
    assert!(error.unwrap().contains("log in again"));
    api.answer("/version", 503, json!({}));
    let server = facts(&api).await.server;
    assert_eq!(
        server.unwrap_err(),
        Unknown::Failed("/version answers 503".to_owned())
    );
}
