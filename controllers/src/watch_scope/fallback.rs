//! Widens a node's watches while there is no leader.

use std::time::Duration;

use tokio::time::Instant;

use crate::cache::WatchScope;
use crate::cache::store::fraction;
use crate::client::lease::LeaderObservation;
use crate::controller::Context;

/// How long a leader must be missing or present before the watch scope changes. Jitter adds up to
/// the same time again.
const PATIENCE: Duration = Duration::from_secs(60);

/// When to change the watch scope if nothing else changes, and to what. `chance` is in 0..1.
fn due(
    watch_scope: WatchScope,
    sight: LeaderObservation,
    chance: f64,
) -> Option<(Instant, WatchScope)> {
    let other = match (watch_scope, sight.led) {
        (WatchScope::Narrow, false) => WatchScope::Whole,
        (WatchScope::Whole, true) => WatchScope::Narrow,
        _ => return None,
    };
    let wait = PATIENCE + PATIENCE.mul_f64(chance);
    Some((sight.since + wait, other))
}

/// Changes the watch scope until `context.stop`.
pub(super) async fn run(context: &Context) {
    let (caches, mut leader) = (&context.caches, context.leader.clone());
    let followed = async {
        let mut luck = fraction();
        loop {
            let due = due(caches.watch_scope(), leader.sight(), luck);
            let turned = async {
                match due {
                    Some((at, watch_scope)) => {
                        tokio::time::sleep_until(at).await;
                        watch_scope
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                watch_scope = turned => {
                    tracing::info!(?watch_scope, "watch scope changed");
                    caches.set_watch_scope(watch_scope);
                    luck = fraction();
                }
                () = leader.sight_changed() => {}
            }
        }
    };
    context.stop.run_until_cancelled(followed).await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cache::Caches;
    use crate::client::Leadership;
    use crate::testing::World;

    #[tokio::test(start_paused = true)]
    async fn watch_scopes_follow_leaders_late() {
        use WatchScope::{Narrow, Whole};
        let since = Instant::now();
        for (watch_scope, led, chance, expected) in [
            (Narrow, true, 0.0, None),
            (Narrow, false, 0.0, Some((60, Whole))),
            (Narrow, false, 0.5, Some((90, Whole))),
            (Whole, false, 0.5, None),
            (Whole, true, 0.0, Some((60, Narrow))),
            (Whole, true, 0.99, Some((119, Narrow))),
        ] {
            let due = due(watch_scope, LeaderObservation { led, since }, chance);
            let due =
                due.map(|(at, watch_scope)| (at.duration_since(since).as_secs(), watch_scope));
            assert_eq!(due, expected, "{watch_scope:?} {led} {chance}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_comes_back_soon_changes_nothing() {
        let (_until, sight, leader) = Leadership::seen();
        let mut context = World::new(&[]).context;
        context.caches = Arc::new(Caches::unwatched());
        context.caches.set_watch_scope(WatchScope::Narrow);
        context.leader = leader;
        let seen = |led| {
            let since = Instant::now();
            sight.send_replace(LeaderObservation { led, since });
        };
        let wait = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let caches = context.caches.clone();
        let running = tokio::spawn(async move { run(&context).await });
        wait(50).await;
        seen(true);
        wait(300).await;
        assert_eq!(caches.watch_scope(), WatchScope::Narrow);
        seen(false);
        wait(55).await;
        assert_eq!(caches.watch_scope(), WatchScope::Narrow);
        wait(70).await;
        assert_eq!(caches.watch_scope(), WatchScope::Whole);
        seen(true);
        wait(55).await;
        assert_eq!(caches.watch_scope(), WatchScope::Whole);
        wait(70).await;
        assert_eq!(caches.watch_scope(), WatchScope::Narrow);
        running.abort();
    }
}
