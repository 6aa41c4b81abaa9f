//! The placement table for the API server.

use std::sync::atomic::Ordering;

use super::*;
use crate::placement::choosing::keep_table::Kept;

const PATH: &str = "configmaps/places";

fn place() -> TableName {
    TableName {
        namespace: "ns".to_owned(),
        name: "places".to_owned(),
    }
}

/// A rig with a ConfigMap that has this data.
fn rig(data: Value) -> Rig {
    let rig = Rig::new(&["n1", "n2"]);
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "places", "namespace": "ns"},
        "data": data});
    rig.world.api.put(object);
    rig
}

impl Rig {
    /// Checks the tables at once, after a change.
    async fn keep_changed(&self, kept: &mut Kept) {
        self.choosing.changes.fetch_add(1, Ordering::SeqCst);
        self.keep(kept).await;
    }

    async fn keep(&self, kept: &mut Kept) {
        let keeping = self.choosing.keep(&place(), kept).await;
        keeping.expect("it is kept");
    }

    /// The table of each class in the ConfigMap: its size, and the number of turns of each node.
    fn tables(&self) -> Vec<(String, String, [usize; 2])> {
        let object = self.world.api.get(PATH).expect("the ConfigMap");
        let data = object["data"].as_object().cloned().unwrap_or_default();
        let tables = data.into_iter().map(|(class, text)| {
            let words: Vec<_> = text.as_str().expect("a text").split(' ').collect();
            let turns = ["n1", "n2"].map(|node| words.iter().filter(|word| **word == node).count());
            (class, words[0].to_owned(), turns)
        });
        tables.collect()
    }

    fn writes(&self) -> usize {
        self.world.api.writes().len()
    }
}

fn of_now(size: &str, turns: [usize; 2]) -> Vec<(String, String, [usize; 2])> {
    vec![("now".to_owned(), size.to_owned(), turns)]
}

#[tokio::test(start_paused = true)]
async fn a_table_has_the_nodes_that_the_leader_would_choose() {
    let rig = rig(json!({"of-an-earlier-leader": "7 n9"}));
    let mut kept = Kept::default();
    for class in ["now", "late"] {
        rig.room("n1", class, 5120);
        rig.room("n2", class, 5120);
    }
    rig.keep(&mut kept).await;
    assert_eq!(rig.tables(), of_now("20", [128, 128]));
    assert_eq!(rig.writes(), 1);

    // A table that holds is not written again.
    for seconds in [0, 10, 70] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        rig.keep(&mut kept).await;
        assert_eq!(rig.writes(), 0, "{seconds}");
    }
    // Assigned claims count. The table still holds, and a more even one follows after a while.
    let on_n1 = json!({"metadata": {"annotations": {SELECTED_NODE: "n1"}},
        "spec": {"resources": {"requests": {"storage": "520"}}}});
    rig.claim("a", "now", on_n1.clone());
    rig.work("a").await;
    rig.world.api.writes();
    rig.keep(&mut kept).await;
    assert_eq!(rig.writes(), 0);
    tokio::time::advance(Duration::from_secs(70)).await;
    rig.keep(&mut kept).await;
    // 9720 bytes are left. Of these, n1 has 520 less than n2, which is 28 turns.
    assert_eq!(rig.tables(), of_now("18", [114, 142]));
    assert_eq!(rig.writes(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_table_that_does_not_hold_is_replaced_at_once() {
    let rig = rig(json!({}));
    let mut kept = Kept::default();
    rig.room("n1", "now", 5120);
    rig.room("n2", "now", 5120);
    rig.keep(&mut kept).await;
    assert_eq!(rig.tables(), of_now("20", [128, 128]));
    rig.node("n2", json!({"unschedulable": true}));
    rig.keep_changed(&mut kept).await;
    assert_eq!(rig.tables(), of_now("10", [256, 0]));
    rig.room("n1", "now", 2559);
    rig.keep_changed(&mut kept).await;
    assert_eq!(rig.tables(), of_now("4", [256, 0]));
    rig.room("n1", "now", 0);
    rig.keep_changed(&mut kept).await;
    assert_eq!(rig.tables(), []);
    assert_eq!(rig.writes(), 4);
}

/// A ConfigMap that others overwrite is restored after a while.
#[tokio::test(start_paused = true)]
async fn writes_of_other_clients_are_corrected() {
    let rig = rig(json!({}));
    let mut kept = Kept::default();
    rig.room("n1", "now", 5120);
    rig.keep(&mut kept).await;
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "places", "namespace": "ns"},
        "data": {"now": "99999999 n2", "other": "1 n1"}});
    rig.world.api.put(object);
    tokio::time::advance(Duration::from_secs(61)).await;
    rig.keep(&mut kept).await;
    assert_eq!(rig.tables(), of_now("10", [256, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_write_is_repeated() {
    let rig = rig(json!({}));
    let mut kept = Kept::default();
    rig.room("n1", "now", 5120);
    rig.world.api.refuse(PATH, 500);
    let failed = rig.choosing.keep(&place(), &mut kept).await;
    failed.expect_err("the server refuses");
    rig.keep(&mut kept).await;
    assert_eq!(rig.tables(), of_now("10", [256, 0]));
    let nowhere = TableName {
        name: "elsewhere".to_owned(),
        ..place()
    };
    let failed = rig.choosing.keep(&nowhere, &mut Kept::default()).await;
    let error = failed.expect_err("no ConfigMap").to_string();
    assert_eq!(error, "get ConfigMap ns/elsewhere: not found");
}

#[tokio::test]
async fn a_follower_writes_no_table() {
    let mut rig = Rig::new(&["n1"]);
    rig.room("n1", "now", 5120);
    rig.follow();
    let object = json!({"kind": "ConfigMap", "metadata": {"name": "places", "namespace": "ns"}});
    rig.world.api.put(object);
    rig.keep(&mut Kept::default()).await;
    assert_eq!(rig.writes(), 0);
}
