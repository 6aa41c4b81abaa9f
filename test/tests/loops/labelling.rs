//! The policy by which the API server labels claims by the way: what it does, and what it leaves to
//! the leader.

use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_test::front::wait::{PATIENCE, until};
use hostloop_test::front::{FrontSpec, objects};
use hostloop_test::policy;
use serde_json::{Value, json};

use crate::Rig;

const LABEL: &str = "hostloop.csi.dev/node";
const SELECTED: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// A claim whose node is chosen, once the cluster has handed it to the driver of its class.
async fn placed(rig: &Rig, name: &str, class: &str, node: &str) -> Value {
    rig.claim(name, json!({"spec": {"storageClassName": class}}))
        .await;
    select(rig, name, node).await;
    let handed = |claim: &Value| claim["metadata"]["annotations"][PROVISIONER].is_string();
    rig.until(&rig.claim_at(name), "handed to its driver", handed)
        .await
}

async fn select(rig: &Rig, name: &str, node: &str) -> Value {
    let chosen = json!({"metadata": {"annotations": {SELECTED: node}}});
    rig.objects.merge(&rig.claim_at(name), chosen).await
}

/// What is to be labelled, is, in the very write that hands it to the driver; nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_labels_claims_that_are_placed() {
    // Nobody who makes volumes.
    let rig = Rig::up(FrontSpec::new("policy", "attacher")).await;
    let wait = |change: Value| {
        let mut class = json!({"volumeBindingMode": "WaitForFirstConsumer"});
        objects::merge(&mut class, change);
        class
    };
    let (ours, others) = (format!("wait-{}", rig.name), format!("other-{}", rig.name));
    rig.class(&ours, wait(json!({}))).await;
    rig.class(&others, wait(json!({"provisioner": "other.csi.dev"})))
        .await;
    let yaml = policy::label_claims(&rig.driver_name, &rig.name);
    let (plane, apply) = (rig.plane.clone(), yaml.clone());
    let applied = tokio::task::spawn_blocking(move || plane.apply(&apply));
    applied.await.expect("it is applied");

    // It comes into force some time after it is there.
    let tries = AtomicUsize::new(0);
    let ask = || async {
        let count = tries.fetch_add(1, Ordering::Relaxed);
        let claim = placed(&rig, &format!("first-{count}"), &ours, "n1").await;
        (claim["metadata"]["labels"][LABEL] == "n1").then_some(())
    };
    let in_force = until(PATIENCE, ask).await;
    in_force.expect("claims are labelled before long");

    let long = "n".repeat(64);
    for (name, class, node, label) in [
        ("placed", &ours, "n2", json!("n2")),
        ("at-most", &ours, &long[1..], json!(&long[1..])),
        ("too-long", &ours, long.as_str(), Value::Null),
        ("another-drivers", &others, "n2", Value::Null),
    ] {
        let claim = placed(&rig, name, class, node).await;
        assert_eq!(claim["metadata"]["labels"][LABEL], label, "{name}");
    }
    // The scheduler has chosen again: that is the leader's, as is what was labelled by hand.
    let again = select(&rig, "placed", "n3").await;
    assert_eq!(again["metadata"]["labels"][LABEL], "n2");

    let plane = rig.plane.clone();
    let deleted = tokio::task::spawn_blocking(move || plane.delete(&yaml));
    deleted.await.expect("it is deleted");
    rig.down().await;
}
