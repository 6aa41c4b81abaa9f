//! Tests of a node that watches only its own objects.

use crate::cache::scope::NODE_LABEL;
use crate::cache::store::Selector;

use super::*;

/// A rig on a node that watches only its own objects.
fn on_node() -> Rig {
    let rig = rig(here(), true);
    let caches = rig.at_work.context.caches.clone();
    let label = || Selector::label(NODE_LABEL, "n1".to_owned());
    caches.claims().note_selected(label());
    caches.volumes().note_selected(label());
    rig
}

fn assigned(source: &Value) -> Value {
    let mut claim = claim_value(Some("n1"), source);
    claim["metadata"]["labels"] = json!({NODE_LABEL: "n1"});
    claim
}

#[tokio::test]
async fn a_volume_out_of_sight_is_not_made_again() {
    let rig = on_node();
    rig.put_claim(&assigned(&Value::Null));
    rig.put_volume("elsewhere");
    // The claim existed when this process began.
    rig.at_work.in_flight.require_live_check(["u-1".to_owned()]);
    assert_eq!(rig.work().await, Outcome::Done);
    assert_eq!(rig.world.log(), [format!("GET {PV}")]);
}

#[tokio::test]
async fn a_volume_that_another_node_was_first_with_is_undone() {
    let rig = on_node();
    rig.put_claim(&assigned(&Value::Null));
    rig.put_volume("elsewhere");
    assert_eq!(rig.work().await, Outcome::Done);
    let log = rig.world.log();
    let (post, get) = (format!("POST {PV}"), format!("GET {PV}"));
    assert_eq!(log[..3], ["CreateVolume pvc-u-1", &*post, &*get], "{log:?}");
    assert!(log[3].starts_with("DeleteVolume "), "{log:?}");
    assert_eq!(log.len(), 4, "{log:?}");
}

#[tokio::test]
async fn a_new_volume_tells_its_node() {
    let rig = on_node();
    rig.put_claim(&assigned(&Value::Null));
    assert_eq!(rig.work().await, Outcome::Done);
    let post = format!("POST {PV}");
    assert_eq!(rig.world.log(), ["CreateVolume pvc-u-1", &*post]);
    let labels = rig.world.state().objects[PV]["metadata"]["labels"].clone();
    assert_eq!(labels, json!({NODE_LABEL: "n1"}));
    // Now the node's watch shows the volume.
    assert_eq!(rig.work().await, Outcome::Done);
    assert!(rig.world.log().is_empty());
}

#[tokio::test]
async fn a_node_does_not_let_snapshots_go() {
    let rig = on_node();
    assert!(rig.at_work.protection.is_none());
    rig.put_claim(&assigned(&from_snapshot()));
    rig.put_snapshot(&[SNAPSHOT_FINALIZER]);
    assert_eq!(rig.work().await, Outcome::Done);
    let log = rig.world.log();
    assert!(log.contains(&format!("POST {PV}")), "{log:?}");
    assert!(!log.contains(&format!("PATCH {SNAPSHOT}")), "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn the_leader_lets_them_go_when_the_last_claim_is_bound() {
    let rig = rig(here(), true);
    let (caches, stop) = (
        rig.at_work.context.caches.clone(),
        rig.at_work.context.stop.clone(),
    );
    let source = from_snapshot();
    let claim = |uid: &str, version: u32, phase: &str| {
        let mut claim = claim_value(None, &source);
        claim["metadata"]["name"] = json!(uid);
        claim["metadata"]["uid"] = json!(uid);
        claim["metadata"]["resourceVersion"] = json!(version.to_string());
        claim["status"] = json!({"phase": phase});
        claim
    };
    rig.world
        .state()
        .objects
        .insert(SNAPSHOT.to_owned(), snapshot(&[SNAPSHOT_FINALIZER]));
    caches
        .snapshots()
        .apply_write(read(&snapshot(&[SNAPSHOT_FINALIZER])));
    caches.claims().apply_write(read(&claim("a", 1, "Pending")));
    caches.claims().apply_write(read(&claim("b", 2, "Pending")));
    caches.claims().note_synced();
    caches.volumes().note_synced();
    caches.snapshots().note_synced();
    let mut options = Flags::parse_from(["provisioner"]).options;
    options.snapshot_orphan_sweep_interval = Duration::from_secs(3600);
    let leader = run_for_all(rig.at_work.context.clone(), options);
    let leader = tokio::spawn(leader);
    let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    wait(10).await;
    caches.claims().apply_write(read(&claim("a", 3, "Bound")));
    wait(10).await;
    assert!(rig.world.log().is_empty());
    caches.claims().apply_write(read(&claim("b", 4, "Bound")));
    wait(10).await;
    assert_eq!(rig.world.log(), [format!("PATCH {SNAPSHOT}")]);
    let finalizers = rig.world.state().objects[SNAPSHOT]["metadata"]["finalizers"].clone();
    assert_eq!(finalizers, json!([]));
    stop.cancel();
    leader.await.expect("it ends");
}
