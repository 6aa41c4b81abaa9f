//! The nodes' leader is paused at the worst moment, or there is none.

use std::collections::BTreeSet;
use std::time::Duration;

use hostloop_test::PATIENCE;
use hostloop_test::fleet::patience::in_time;
use hostloop_test::fleet::storm::SELECTED_NODE;
use hostloop_test::fleet::{Binding, Fleet, Member};
use kube::ResourceExt;

use crate::ghost::{haunted, renews, until_led};
use crate::{accounts, beside_others, claims, cluster, ends, patience, steady, up, writes};

/// The number of claims with a node.
async fn assigned(fleet: &Fleet) -> usize {
    let claims = fleet.all_claims().await;
    let with_node = claims
        .iter()
        .filter(|claim| claim.annotations().contains_key(SELECTED_NODE));
    with_node.count()
}

async fn until_assigned(fleet: &Fleet, count: usize) {
    in_time("claims with nodes", patience(), async || {
        match assigned(fleet).await {
            some if some >= count => Ok(()),
            some => Err(format!("{some} of {count}")),
        }
    })
    .await;
}

async fn leader(fleet: &Fleet) -> &Member {
    in_time("a leader", PATIENCE, async || {
        let leader = fleet.leader().await;
        leader.ok_or_else(|| "there is none".to_owned())
    })
    .await
}

/// Waits until another node leads.
async fn other_leader<'a>(fleet: &'a Fleet, old: &Member) -> &'a Member {
    in_time("another leader", PATIENCE, async || {
        let leader = fleet.leader().await;
        let leader = leader.filter(|leader| leader.node != old.node);
        leader.ok_or_else(|| format!("still {}", old.node))
    })
    .await
}

/// The leader is paused until its lease expires and another leads. After it resumes, it knows that
/// it no longer leads.
#[tokio::test(flavor = "multi_thread")]
async fn paused_past_its_lease() {
    let _turn = beside_others().await;
    let count = claims() / 2;
    let names = ["paused-a", "paused-b", "paused-c"];
    let (users, files, _dir) = accounts(&names).await;
    let fleet = up(steady("paused", names.len()).kubeconfigs(files)).await;
    let old = leader(&fleet).await;
    let storm = fleet.storm(Binding::Immediate, 0..count);
    let pausing = async {
        until_assigned(&fleet, count / 10).await;
        old.pause();
        other_leader(&fleet, old).await;
    };
    tokio::join!(storm, pausing);
    until_assigned(&fleet, count).await;
    let number = fleet.members.iter().position(|m| m.node == old.node);
    let user = &users[number.expect("it is one of them")];
    let before = cluster().await.audit();
    old.resume();
    // Enough time for it to see that another node holds the lease, and to try its pending work.
    tokio::time::sleep(Duration::from_secs(5)).await;
    fleet.storm(Binding::Immediate, count..count + 20).await;
    fleet.bound(count + 20, patience()).await;
    let since = cluster().await.audit().since(&before);
    let wrote: BTreeSet<_> = since
        .of(user)
        .into_iter()
        .filter(|r| writes(r) && matches!(r.resource.as_str(), "persistentvolumeclaims" | "leases"))
        .map(|r| format!("{} {} {}", r.verb, r.resource, r.name))
        .collect();
    assert!(
        wrote.is_empty(),
        "a node that does not lead wrote {wrote:?}"
    );
    assert_ne!(leader(&fleet).await.node, old.node);
    ends(fleet, count + 20).await;
}

/// The lease has a holder that does no leader's work for minutes. Nodes still make the volumes for
/// which the scheduler chose them. Decisions that need a leader wait for one.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_nodes_serve_themselves() {
    const COUNT: usize = 20;
    let _turn = beside_others().await;
    let now = "2026-01-01T00:00:00.000000Z";
    let fleet = haunted("leaderless", 3, now).await;
    fleet.start(Duration::ZERO).await;
    let working = async {
        fleet.storm(Binding::Wait, 0..COUNT).await;
        fleet.bound(COUNT, patience()).await;
        fleet.each_once(patience()).await;
        fleet.storm(Binding::Immediate, 0..COUNT).await;
    };
    tokio::select! {
        () = working => {}
        () = renews(&fleet, now) => {}
    }
    until_led(&fleet).await;
    ends(fleet, 2 * COUNT).await;
}
