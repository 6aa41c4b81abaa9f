//! The cluster-wide tasks in a separate process without a driver, and nodes that run none of them.

use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::fleet::storm::SELECTED_NODE;
use hostloop_test::fleet::{Binding, Fleet, FleetSpec};
use hostloop_test::front::objects::Place;
use hostloop_test::front::wait::until;
use kube::ResourceExt;
use serde_json::Value;

use crate::LABEL;

/// The capacity objects of a node.
async fn rooms_of(fleet: &Fleet, node: &str) -> Vec<Value> {
    let kind = "CSIStorageCapacity";
    let mut rooms = fleet.objects.list(kind, &fleet.namespace).await;
    rooms.retain(|room| room["nodeTopology"]["matchLabels"][&fleet.key] == node);
    rooms
}

/// Without a leader, no node takes the lease, selects a node for a claim or cleans up after a
/// deleted node. The leader does all of it, without a driver.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_of_its_own_does_what_nodes_do_not() {
    const COUNT: usize = 12;
    let plane = crate::plane(false).await;
    let spec = FleetSpec::new("apart", 3).leader_apart();
    let fleet = spec.args(&["--gone-node-grace=3s"]);
    let fleet = fleet.up(&plane.kubeconfig()).await;
    fleet.start(Duration::ZERO).await;
    fleet.ready(PATIENCE).await;
    fleet.storm(Binding::Immediate, 0..COUNT).await;
    let (gone, left) = (&fleet.members[2], &fleet.members[..2]);
    gone.kill();
    fleet
        .objects
        .delete(&Place::of("Node", "", &gone.node))
        .await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(fleet.objects.get(&fleet.lease()).await.is_none());
    for claim in fleet.all_claims().await {
        assert!(!claim.annotations().contains_key(SELECTED_NODE));
    }
    assert!(!rooms_of(&fleet, &gone.node).await.is_empty());

    let controller = fleet.controller.as_ref().expect("it is apart");
    controller.start();
    fleet.bound(COUNT, PATIENCE).await;
    for volume in fleet.all_volumes().await {
        let node = fleet.node_of(&volume).expect("it is on a node");
        assert!(left.iter().any(|member| member.node == node), "{node}");
        // The label is added after the object is created.
        let at = Place::of("PersistentVolume", "", &volume.name_any());
        let labelled = |volume: &Value| volume["metadata"]["labels"][LABEL] == *node;
        fleet
            .objects
            .until(&at, PATIENCE, labelled)
            .await
            .expect("it has its label");
    }
    let tidied = || async { rooms_of(&fleet, &gone.node).await.is_empty().then_some(()) };
    until(PATIENCE, tidied).await.expect("its room is gone");
    let lease = fleet.objects.get(&fleet.lease()).await.expect("a lease");
    assert_eq!(lease["spec"]["holderIdentity"], controller.name());
    let metrics = controller.metrics();
    assert!(
        !metrics.contains("csi_sidecar_operations_seconds_count{"),
        "{metrics}"
    );

    // Nodes do not take the lease after the leader has stopped either.
    controller.stop();
    let held = fleet.objects.get(&fleet.lease()).await.expect("a lease");
    assert_eq!(held["spec"]["holderIdentity"], "", "given up");
    tokio::time::sleep(Duration::from_secs(8)).await;
    let now = fleet.objects.get(&fleet.lease()).await.expect("a lease");
    assert_eq!(
        now["metadata"]["resourceVersion"],
        held["metadata"]["resourceVersion"]
    );
    controller.start();
    fleet.each_once(PATIENCE).await;
    fleet.clear(PATIENCE).await;
    fleet.down().await;
}
