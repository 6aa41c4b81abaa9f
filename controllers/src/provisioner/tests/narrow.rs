//! Tests of a node that watches only its own objects.

use crate::api::scope::NODE_LABEL;
use crate::cache::store::Selector;

use super::*;

const NODE: &str = "nodes/n1";

/// A rig on a node that watches only its own objects, with a claim for this node.
fn on_node(source: &Value) -> Rig {
    let rig = rig(here(), true);
    let caches = rig.world.context.caches.clone();
    let label = || Selector::label(NODE_LABEL, "n1".to_owned());
    caches.claims().note_selected(label());
    caches.volumes().note_selected(label());
    caches.attachments().note_selected(label());
    let mut claim = claim_value(Some("n1"), source);
    claim["metadata"]["labels"] = json!({NODE_LABEL: "n1"});
    rig.put_claim(&claim);
    rig
}

#[tokio::test]
async fn a_volume_outside_the_watch_is_not_created_again() {
    let rig = on_node(&Value::Null);
    rig.put_volume("elsewhere");
    // The claim existed when this process began.
    rig.at_work.in_flight.require_live_check(["u-1".to_owned()]);
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!(rig.log(), [get(PV)]);
}

#[tokio::test]
async fn a_volume_is_deleted_if_another_node_was_first() {
    let rig = on_node(&Value::Null);
    rig.put_volume("elsewhere");
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!(rig.log(), [&get(NODE), CREATE, &post(PV), &get(PV), DELETE]);
}

#[tokio::test]
async fn a_new_volume_has_its_node_s_label() {
    let rig = on_node(&Value::Null);
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!(rig.log(), [&get(NODE), CREATE, &post(PV)]);
    let volume = rig.world.api.get(PV).expect("the volume");
    assert_eq!(volume["metadata"]["labels"], json!({NODE_LABEL: "n1"}));
    // Now the node's watch shows the volume.
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.log().is_empty());
}

#[tokio::test]
async fn a_node_leaves_the_finalizers_of_snapshots() {
    let rig = on_node(&from_snapshot());
    assert!(rig.at_work.protection.is_none());
    rig.put_snapshot(&[SNAPSHOT_FINALIZER]);
    assert_eq!(rig.work().await, Outcome::Done);
    let log = rig.log();
    assert!(log.contains(&post(PV)), "{log:?}");
    assert!(!log.contains(&format!("PATCH {SNAPSHOT}")), "{log:?}");
}
