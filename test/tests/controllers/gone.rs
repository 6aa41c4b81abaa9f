//! Cleanup after a deleted node, and of unknown volumes.

use std::time::Duration;

use hostloop_test::client::new_volume;
use hostloop_test::front::FrontSpec;
use hostloop_test::front::objects::{self, Place, with};
use serde_json::{Value, json};

use crate::{LABEL, Rig, SELECTED_NODE, annotation};

/// The controllers as on the first node, which leads.
fn spec(name: &str, controllers: &str) -> FrontSpec {
    let node = format!("--node-name={name}-{}-n0", std::process::id());
    let args = [
        "--node-deployment",
        "--leader-election=false",
        "--gone-node-grace=3s",
        "--orphan-grace=2s",
        "--orphan-interval=1s",
        "--retry-interval-max=1s",
        &node,
    ];
    FrontSpec::new(name, controllers).args(&args)
}

/// A volume on a node. Its claim is gone unless `change` says otherwise.
async fn volume(rig: &Rig, name: &str, node: &str, change: Value) -> Place {
    let matching = json!([{"key": rig.key, "operator": "In", "values": [node]}]);
    let provisioned = json!({
        "metadata": {
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
            "annotations": {"pv.kubernetes.io/provisioned-by": rig.driver_name},
        },
        "spec": {
            "storageClassName": rig.name,
            "claimRef": {"namespace": rig.namespace, "name": "none", "uid": "none"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": matching}]}},
        },
    });
    let (name, handle) = (format!("{name}-{}", rig.name), format!("far-{name}"));
    let volume = objects::volume(&name, &rig.driver_name, &handle, provisioned);
    Place::of_object(&rig.objects.create(with(volume, change)).await)
}

fn phase(phase: &'static str) -> impl Fn(&Value) -> bool {
    move |object| object["status"]["phase"] == phase
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_deleted() {
    let rig = Rig::up(spec("gone", "provisioner,attacher,gone-nodes").nodes(2)).await;
    let node = rig.nodes[1].clone();
    let given_up = volume(&rig, "given-up", &node, json!({})).await;
    let retain = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let retained = volume(&rig, "retained", &node, retain).await;
    for at in [&given_up, &retained] {
        rig.until(at, "released", phase("Released")).await;
    }
    let of_claim = json!({"spec": {"claimRef": {"name": "data", "uid": null}}});
    let bound = volume(&rig, "bound", &node, of_claim).await;
    let of_volume = json!({"spec": {"volumeName": bound.name}});
    rig.bound_claim("data", of_volume).await;

    let class = rig.late_class().await;
    let waiting = json!({
        "metadata": {
            "annotations": {SELECTED_NODE: node}, "labels": {LABEL: node},
        },
        "spec": {"storageClassName": class},
    });
    rig.claim("waiting", waiting).await;
    let provisioner = "volume.kubernetes.io/storage-provisioner";
    let is_ours = |claim: &Value| !annotation(claim, provisioner).is_null();
    let waiting = rig.claim_at("waiting");
    rig.until(&waiting, "the driver's", is_ours).await;

    let finalizer = format!("external-attacher/{}", rig.driver_name.replace('.', "-"));
    let attachment = format!("va-{}", rig.name);
    let mut attachment = objects::attachment(&attachment, &rig.driver_name, &node, &retained.name);
    attachment["metadata"]["finalizers"] = json!([finalizer]);
    let attachment = Place::of_object(&rig.create(attachment).await);
    rig.objects.delete(&attachment).await;
    let room = objects::capacity(&rig.namespace, &rig.driver_name, &class, &rig.key, &node);
    let room = Place::of_object(&rig.create(room).await);

    // While the Node exists, no other node touches its objects.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for at in [&given_up, &retained, &bound, &attachment, &room] {
        assert!(rig.objects.get(at).await.is_some(), "{at}");
    }
    rig.objects.delete(&rig.at("Node", &node)).await;
    for at in [&given_up, &attachment, &room] {
        rig.until_gone(at).await;
    }
    rig.noted(&given_up, "NodeGone", &[&node]).await;
    let is_cleared = |claim: &Value| {
        let label = &claim["metadata"]["labels"][LABEL];
        annotation(claim, SELECTED_NODE).is_null() && label.is_null()
    };
    rig.until(&waiting, "free to go anywhere", is_cleared).await;
    let data = rig.claim_at("data");
    rig.warned(&data, "NodeGone", &["delete the claim"]).await;
    for (at, phase) in [(&retained, "Released"), (&bound, "Bound")] {
        let there = rig.objects.get(at).await.expect("it is kept");
        assert_eq!(there["status"]["phase"], phase, "{at}");
        assert!(there["metadata"]["deletionTimestamp"].is_null(), "{at}");
    }
    // Once the user deletes the claim, the volume is deleted.
    rig.delete(data).await;
    rig.until_gone(&bound).await;
    let deleted = rig.driver.count("DeleteVolume");
    assert_eq!(deleted, 0, "the volume is another node's");
    let free = json!({"metadata": {"finalizers": null}});
    rig.objects.merge(&retained, free).await;
    rig.delete(retained).await;
    rig.down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_without_an_object_has_a_warning() {
    let rig = Rig::up(spec("orphan", "provisioner,orphans")).await;
    let selected = json!({"metadata": {"annotations": {SELECTED_NODE: rig.nodes[0]}}});
    rig.bound_claim("data", selected).await;
    let orphan = rig.driver.add_volume(new_volume("left-behind", 1 << 30));
    let node = rig.at("Node", &rig.nodes[0]);
    let message = rig.warned(&node, "OrphanedVolumes", &[&orphan.id]).await;
    assert!(!message.contains(','), "one volume: {message}");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(rig.driver.volume(&orphan.id).is_some(), "it is kept");
    rig.driver.lose_volume(&orphan.id);
    rig.down().await;
}
