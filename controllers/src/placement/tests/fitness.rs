//! Tests of nodes that take no ordinary pods, and of selected nodes that can't make a volume.

use super::*;

const TAINT: &str = "node-role.kubernetes.io/control-plane";

fn tainted() -> Value {
    json!({"taints": [{"key": TAINT, "effect": "NoSchedule"}]})
}

#[tokio::test(start_paused = true)]
async fn a_claim_goes_to_no_tainted_node() {
    let mut rig = Rig::with_room(&[("n1", 9), ("n2", 100)]);
    rig.node("n2", tainted());
    rig.claim("a", "now", json!({}));
    assert_eq!(rig.work("a").await, Outcome::Failed);
    let event = "Warning ProvisioningFailed: failed to provision volume with StorageClass \"now\": \
                 no node has room for 10: n1 has 9 left, n2 has the taint \
                 node-role.kubernetes.io/control-plane:NoSchedule; it is tried again when one has \
                 more room";
    assert_eq!(rig.world.events(), [event]);
    rig.node("n2", json!({}));
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.placed("a"), on("n2"));
}

#[tokio::test]
async fn a_class_can_name_tainted_nodes() {
    let rig = Rig::with_room(&[("n1", 50), ("n2", 100)]);
    rig.node("n2", tainted());
    let allowed = json!([{"matchLabelExpressions": [{"key": "t/node", "values": ["n2"]}]}]);
    let class = json!({"kind": "StorageClass", "metadata": {"name": "now"},
        "provisioner": DRIVER, "volumeBindingMode": "Immediate", "allowedTopologies": allowed});
    rig.world.add(&rig.world.context.caches.classes(), class);
    rig.claim("a", "now", json!({}));
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert_eq!(rig.placed("a"), on("n2"));
}

/// The source is there, so no other node can make the copy.
#[tokio::test]
async fn a_copy_goes_to_its_source_on_a_tainted_node() {
    let rig = Rig::with_room(&[("n1", 100), ("n2", 100)]);
    rig.node("n2", tainted());
    rig.claim("source", "late", json!({"spec": {"volumeName": "v"}}));
    rig.volume("v", "n2", "h", "source");
    let clone =
        json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"}}});
    for (claim, class) in [("a", "now"), ("b", "late")] {
        rig.claim(claim, class, clone.clone());
        assert_eq!(rig.work(claim).await, Outcome::Done, "{class}");
        assert_eq!(rig.placed(claim), on("n2"), "{class}");
    }
}

/// No process makes a volume there, and none says why.
#[tokio::test]
async fn a_node_that_can_t_be_is_taken_from_the_claim() {
    let long = format!("{}/", "n1".repeat(5_000));
    for class in ["now", "late"] {
        for (node, why) in [
            ("bare", "a node that does not run the CSI driver"),
            ("N1", "which can't be a node's name"),
            ("../n1", "which can't be a node's name"),
            (&long, "which can't be a node's name"),
        ] {
            let mut rig = Rig::with_room(&[("n1", 100)]);
            rig.room("n1", "late", 100);
            rig.bare_node("bare", json!({}));
            rig.claim_on("a", class, node);
            let node = node.get(..63).unwrap_or(node);
            assert_eq!(rig.work("a").await, Outcome::Done, "{class} {node}");
            assert_eq!(rig.placed("a"), (None, None), "{class} {node}");
            let event = format!(
                "Warning ProvisioningFailed: the claim's annotation \
                 volume.kubernetes.io/selected-node is {node:?}, {why}: it is removed. Leave it to \
                 the scheduler and the controllers"
            );
            assert_eq!(rig.world.events(), [event], "{class} {node}");
            assert_eq!(rig.work("a").await, Outcome::Done);
            let again = if class == "now" {
                on("n1")
            } else {
                (None, None)
            };
            assert_eq!(rig.placed("a"), again, "{class} {node}");
        }
    }
}

#[tokio::test]
async fn a_node_without_the_driver_for_a_moment_keeps_its_claims() {
    let rig = Rig::with_room(&[("n1", 100), ("n2", 100)]);
    // The driver restarts: kubelet has removed it from the CSINode, and the room is published.
    let without = json!({"kind": "CSINode", "metadata": {"name": "n2"}, "spec": {"drivers": []}});
    rig.world
        .add(&rig.world.context.caches.csi_nodes(), without);
    // A node that does not exist is node cleanup's, after a grace period.
    for (claim, node) in [("a", "n2"), ("b", "gone")] {
        rig.claim_on(claim, "now", node);
        assert_eq!(rig.work(claim).await, Outcome::Done, "{node}");
        assert_eq!(rig.placed(claim), on(node));
    }
}

#[tokio::test]
async fn a_follower_leaves_a_node_that_can_t_be() {
    let mut rig = Rig::with_room(&[("n1", 100)]);
    rig.claim_on("a", "now", "N1");
    rig.follow();
    assert_eq!(rig.work("a").await, Outcome::Done);
    assert!(rig.world.api.writes().is_empty());
}

/// A user may write any text into the annotation, and another one at once.
#[tokio::test]
async fn selected_nodes_that_do_not_exist_are_not_remembered() {
    let rig = Rig::with_room(&[("n1", 100)]);
    for round in 0..1_000 {
        let node = match round % 3 {
            0 => "n1".to_owned(),
            1 => format!("n1-{round}"),
            _ => format!("{round}{}", "n".repeat(10_000)),
        };
        rig.claim_on("a", "late", &node);
        rig.work("a").await;
        let is_there = node == "n1";
        assert_eq!(
            rig.reserved(&node),
            if is_there { 10 } else { 0 },
            "{round}"
        );
        rig.claim("a", "late", json!({}));
        rig.work("a").await;
    }
    assert_eq!(rig.choosing.reservations.lock().refusals("a"), 1);
}
