use std::collections::BTreeMap;

use futures::future::join_all;

use super::*;

const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", "n5"];

/// Number of claims placed on each node.
fn counts(rig: &Rig, claims: &[String]) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for node in claims.iter().filter_map(|claim| rig.node_of(claim)) {
        *counts.entry(node).or_default() += 1;
    }
    counts
}

fn claims(rig: &Rig, number: usize) -> Vec<String> {
    let names: Vec<_> = (0..number).map(|n| format!("c{n:03}")).collect();
    for name in &names {
        rig.claim(name, "now", json!({}));
    }
    names
}

/// Places 500 claims of 10 bytes at once, without updates of capacity objects.
#[tokio::test]
async fn no_node_gets_more_than_it_has() {
    let rig = Rig::new(&NODES);
    // 520 claims fit, by node: 200, 150, 100, 50, 20.
    let room = [2000, 1500, 1000, 500, 209];
    for (node, room) in NODES.into_iter().zip(room) {
        rig.room(node, "now", room);
    }
    let names = claims(&rig, 500);
    let worked = join_all(names.iter().map(|name| rig.work(name))).await;
    assert!(worked.iter().all(|outcome| *outcome == Outcome::Done));
    let counts = counts(&rig, &names);
    assert_eq!(counts.values().sum::<i64>(), 500);
    for (node, room) in NODES.into_iter().zip(room) {
        assert!(counts[node] * 10 <= room, "{counts:?}");
    }
    assert_eq!(rig.world.api.writes().len(), 500);
}

/// Volumes are created and capacity objects updated while other claims are placed.
#[tokio::test]
async fn reservations_hold_while_nodes_publish_room() {
    let rig = Rig::new(&NODES);
    for node in NODES {
        rig.room(node, "now", 1050);
    }
    let names = claims(&rig, 500);
    let mut made: BTreeMap<String, i64> = BTreeMap::new();
    for (turn, some) in names.chunks(25).enumerate() {
        join_all(some.iter().map(|name| rig.work(name))).await;
        // Most claims get their volumes at once, the last 5 of each turn never.
        for name in &some[..20] {
            let node = rig.node_of(name).expect("a node");
            rig.volume(&format!("pv-{name}"), &node, &format!("h-{name}"), name);
            rig.work(name).await;
            *made.entry(node).or_default() += 10;
        }
        for (number, node) in NODES.into_iter().enumerate() {
            // Only some nodes update their capacity objects in each turn.
            if (turn + number) % 3 == 0 {
                rig.room(node, "now", 1050 - made.get(node).copied().unwrap_or(0));
            }
        }
    }
    let counts = counts(&rig, &names);
    assert_eq!(counts.values().sum::<i64>(), 500, "{counts:?}");
    assert!(counts.values().all(|count| *count <= 105), "{counts:?}");
}
