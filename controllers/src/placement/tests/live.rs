//! Reconciles triggered by watch events, with all queues running.

use super::*;

impl Rig {
    /// Runs all queues. Their retries come after the end of the test, so that a retry can't hide a
    /// missed event.
    fn begin(&mut self) {
        let common = &mut self.world.context.common;
        common.retry_interval_start = Some(Duration::from_secs(3600));
        common.retry_interval_max = Some(Duration::from_secs(3600));
        self.restart();
        self.choosing.listen();
        self.labelling.listen();
        tokio::spawn(self.choosing.clone().work());
        tokio::spawn(self.labelling.clone().work());
    }

    /// Checks the node of a claim after the queues had some time.
    async fn expect(&self, claim: &str, node: Option<&str>) {
        settle().await;
        assert_eq!(self.node_of(claim).as_deref(), node, "{claim}");
    }
}

/// Gives the queues some time.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
async fn more_room_wakes_claims() {
    let mut rig = Rig::with_room(&[("n1", 5)]);
    rig.node("n2", json!({}));
    rig.begin();
    rig.claim("a", "now", json!({}));
    rig.expect("a", None).await;
    rig.room("n1", "now", 4);
    rig.expect("a", None).await;
    rig.room("n1", "now", 50);
    rig.expect("a", Some("n1")).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_wake_claims() {
    let cordoned = || json!({"unschedulable": true});
    let mut rig = Rig::with_room(&[("n1", 50)]);
    rig.node("n1", cordoned());
    rig.begin();
    rig.claim("a", "now", json!({}));
    rig.expect("a", None).await;
    rig.bare_node("n1", json!({}));
    rig.expect("a", Some("n1")).await;
    // A node can become unfit again.
    rig.bare_node("n1", cordoned());
    settle().await;
    rig.claim("b", "now", json!({}));
    rig.expect("b", None).await;
}

#[tokio::test(start_paused = true)]
async fn sources_and_classes_wake_claims() {
    let mut rig = Rig::new(&["n1"]);
    rig.room("n1", "new", 50);
    rig.begin();
    let source = json!({"kind": "PersistentVolumeClaim", "name": "data"});
    rig.claim("a", "late", json!({"spec": {"dataSource": source}}));
    rig.claim("data", "late", json!({}));
    rig.claim("b", "new", json!({}));
    rig.expect("a", None).await;
    rig.expect("b", None).await;
    rig.volume("v", "n1", "h", "data");
    rig.claim("data", "late", json!({"spec": {"volumeName": "v"}}));
    rig.class("new", "Immediate");
    rig.expect("a", Some("n1")).await;
    rig.expect("b", Some("n1")).await;
}

#[tokio::test(start_paused = true)]
async fn existing_objects_are_labelled_when_their_node_is_known() {
    let mut rig = Rig::new(&["n1"]);
    rig.volume("v", "n1", "vol-1", "a");
    rig.volume("w", "n2", "vol-2", "b");
    rig.begin();
    let source = json!({"snapshotHandle": "snap-pooln2-1"});
    rig.content("c", source, json!({}));
    settle().await;
    assert_eq!(rig.world.api.writes(), ["v"]);
    assert_eq!(rig.labels("persistentvolumes/v"), json!({NODE_LABEL: "n1"}));
    rig.node("n2", json!({}));
    rig.room("n2", "now", 5);
    settle().await;
    assert_eq!(rig.world.api.writes().len(), 2);
    assert_eq!(rig.labels("contents/c"), json!({MANAGED_BY: "n2"}));
    assert_eq!(rig.labels("persistentvolumes/w"), json!({NODE_LABEL: "n2"}));
}

/// A stolen node may change its pools all the time. Only what has no label is looked at, rarely.
#[tokio::test(start_paused = true)]
async fn changes_of_pools_queue_nothing_that_has_a_label() {
    const CHANGES: u64 = 100;
    const LABELLED: usize = 50;
    let mut rig = Rig::with_room(&[("n1", 5)]);
    for number in 0..LABELLED {
        let (name, handle) = (format!("v{number}"), format!("vol-{number}"));
        rig.volume(&name, "n1", &handle, &format!("c{number}"));
        rig.content(
            &name,
            json!({"volumeHandle": handle}),
            json!({MANAGED_BY: "n1"}),
        );
    }
    rig.begin();
    rig.content("new", json!({"snapshotHandle": "snap-late-1"}), json!({}));
    settle().await;
    let before = rig.world.context.metrics.all_queues().adds;
    for number in 0..CHANGES {
        rig.room_in(&format!("p{number}"), "n1", "now", 5);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // Each change is noted, and a few times the only content without a label is looked at.
    let added = rig.world.context.metrics.all_queues().adds - before;
    assert!(added < CHANGES + 20, "{added} keys");
    rig.room_in("late", "n1", "now", 5);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(rig.labels("contents/new"), json!({MANAGED_BY: "n1"}));
}
