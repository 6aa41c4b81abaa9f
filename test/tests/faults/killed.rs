//! Controllers that are killed with SIGKILL and started again as kubelet does.

use std::time::Duration;

use hostloop_test::dice::Dice;
use hostloop_test::fleet::Fleet;
use hostloop_test::memory::Step;
use tokio::time::Instant;

use crate::{beside_others, claims, ends, patience, spec, storms, up};

/// Nodes are killed at random moments, one after the other, while volumes are made and deleted.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_killed_at_any_moment_lose_nothing() {
    let _turn = beside_others().await;
    let half = claims() / 2;
    let fleet = up(spec("killed", 5)).await;
    // Some answers are slow, so that a kill interrupts calls.
    for member in &fleet.members {
        let slow = (0..half).map(|n| match n % 4 {
            0 => Step::Delay(Duration::from_millis(300)),
            _ => Step::Pass,
        });
        member.driver.script("CreateVolume", slow.clone());
        member.driver.script("DeleteVolume", slow);
    }
    let dice = Dice::new(7);
    let killed = while_killing(&fleet, &dice, storms(&fleet, half)).await;
    fleet.each_once(patience()).await;
    let killed_more = while_killing(&fleet, &dice, fleet.clear(patience())).await;
    println!("killed {killed} times while volumes were made, {killed_more} while deleted");
    ends(fleet, 0).await;
}

/// Kills one node after the other during the first seconds of `work`, three at least. Returns the
/// number of kills.
async fn while_killing(fleet: &Fleet, dice: &Dice, work: impl Future<Output = ()>) -> usize {
    let end = Instant::now() + Duration::from_secs(10 + claims() as u64 / 60);
    let killing = async {
        let mut killed = 0;
        while Instant::now() < end || killed < 3 {
            let pause = Duration::from_millis(200 + dice.below(600));
            tokio::time::sleep(pause).await;
            let victim = &fleet.members[dice.below(fleet.members.len() as u64) as usize];
            victim.kill();
            killed += 1;
            tokio::time::sleep(Duration::from_millis(dice.below(1_000))).await;
            victim.start();
        }
        killed
    };
    tokio::join!(work, killing).1
}
