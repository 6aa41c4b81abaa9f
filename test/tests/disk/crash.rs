//! The driver is killed before each of its effects, and at moments in between. It starts again, and
//! the orchestrator repeats its calls. Then everything that was ever answered OK must be complete,
//! and nothing else may be left.
//!
//! `HOSTLOOP_CRASH_ONLY=WORD` walks through the scenarios that have the word in their names, also
//! through those that are not in the sample.
//!
//! [`shared`] has the volumes that several nodes use.

mod shared;

use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use hostloop_test::PATIENCE;
use hostloop_test::arena::{Arena, Ended};
use hostloop_test::client::new_volume;
use hostloop_test::data;
use hostloop_test::driver::{Dead, Driver, DriverSpec};
use hostloop_test::leaks::Leaks;
use hostloop_test::machine;
use hostloop_test::namespace::Namespace;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind, state_dir};
use hostloop_test::scenarios::{LONG, SCENARIOS, Scenario};
use hostloop_test::scratch::Scratch;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::walk::{REPEATS, TOO_MANY, Walk, after, assert_known, is_passing, sample, walk_all};
use hostloop_test::requests::{delete, id_of};

/// The pools that are opened for the first time, each with the number of effects of its opening.
const OPENED: [(PoolKind, usize); 5] = [
    (PoolKind::Ext4, 28),
    (PoolKind::Xfs, 28),
    (PoolKind::Btrfs, 29),
    (PoolKind::Image, 47),
    (PoolKind::Device, 41),
];

/// The pools that are adopted, each with the number of effects of its opening.
const ADOPTED: [(PoolKind, usize); 3] = [
    (PoolKind::Ext4, 16),
    (PoolKind::Image, 32),
    (PoolKind::Device, 28),
];

/// The number of effects of a start with a known pool.
fn start_effects(pool: PoolKind) -> usize {
    if pool == PoolKind::Image { 9 } else { 5 }
}

/// The effects before each of which a driver is killed, whatever the machine is. Others depend on what
/// it can do, such as growing a mounted ext4, or on time.
const EFFECTS: [&str; 33] = [
    "bind",
    "file.allocate",
    "file.clone",
    "file.copy",
    "file.create",
    "file.mkdir",
    "file.no-cow",
    "file.rename",
    "file.rmdir",
    "file.scratch",
    "file.set-len",
    "file.sync",
    "file.unlink",
    "file.unshare",
    "file.write",
    "freeze",
    "grow",
    "loop.attach",
    "loop.detach",
    "loop.direct-io",
    "loop.flush",
    "loop.grow",
    "loop.read-ahead",
    "mkfs",
    "mount",
    "mount.retries",
    "remount",
    "target.create",
    "target.mkdir",
    "target.rmdir",
    "target.unlink",
    "thaw",
    "unmount",
];

/// How long after the last answer an effect of the act may still run.
const LATE: Duration = Duration::from_secs(5);

/// Random-time kills per long scenario, spread evenly over the time the act takes undisturbed.
const MOMENTS: u32 = 8;

/// The fail points that kill the driver before this effect.
fn kill_before(effect: usize) -> String {
    format!("effect={effect}*off->1*return(kill)")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_answered_survives_every_kill() {
    machine::require();
    let only = std::env::var("HOSTLOOP_CRASH_ONLY").unwrap_or_default();
    let mut tasks: Vec<(String, usize, BoxFuture<'static, Walk>)> = Vec::new();
    for (pool, effects) in OPENED {
        tasks.push((
            format!("open {}", pool.name()),
            effects,
            walk_opening(pool).boxed(),
        ));
    }
    for (pool, effects) in ADOPTED {
        tasks.push((
            format!("adopt {}", pool.name()),
            effects,
            walk_adopting(pool).boxed(),
        ));
    }
    for scenario in LONG {
        let name = format!("{scenario}, at any moment");
        tasks.push((name, MOMENTS as usize, walk_moments(*scenario).boxed()));
    }
    for scenario in SCENARIOS {
        let effects = start_effects(scenario.pool) + scenario.effects;
        tasks.push((
            scenario.to_string(),
            effects,
            walk_effects(*scenario).boxed(),
        ));
    }
    assert_known(&tasks);
    if only.is_empty() {
        tasks = sample(tasks);
    }
    tasks.retain(|(name, ..)| name.contains(&only));
    assert!(!tasks.is_empty(), "no scenario has {only:?} in its name");
    let walked = walk_all(tasks).await;
    println!("{} kills in all", walked.count());
    let mut missed = EFFECTS.to_vec();
    missed.retain(|effect| !walked.has_met(effect));
    assert!(
        !only.is_empty() || missed.is_empty(),
        "no driver was killed before {missed:?}"
    );
}

/// The driver is killed before each of the act's effects in turn.
async fn walk_effects(scenario: Scenario) -> Walk {
    let mut walk = Walk::default();
    let mut arena = Arena::new(scenario).await;
    let (mut effect, mut repeats) = (0, 0);
    loop {
        arena.prepare().await;
        arena.stop();
        // The start's effects come first. A death in one of them leaves the situation unchanged.
        loop {
            assert!(effect < TOO_MANY, "no end of effects");
            let Err(dead) = arena.start_disturbed(kill_before(effect)).await else {
                break;
            };
            walk.killed(&dead);
            effect += 1;
        }
        let mut ended = arena.act().await;
        if matches!(ended, Ended::Done) && arena.driver_mut().wait_ended(LATE).is_some() {
            ended = Ended::Died(scenario.act.len());
        }
        let at = match ended {
            Ended::Done => match arena.stop_disturbed() {
                Ok(()) => {
                    // That driver would have died at a later effect, so another one replaces it.
                    arena.start().await;
                    arena.finish(scenario.act.len()).await;
                    return walk;
                }
                // Its disk was so slow that an effect of the act came this late.
                Err(dead) => {
                    walk.killed(&dead);
                    scenario.act.len()
                }
            },
            Ended::Died(at) => {
                walk.disturbed(&arena.driver().log());
                at
            }
            Ended::Failed(at, status) => {
                let place = format!("before effect {effect}, step {at} was answered {status:?}");
                repeats += 1;
                assert!(
                    is_passing(&status) && repeats <= REPEATS,
                    "{place} by itself"
                );
                after(&place, recover(&mut arena, at)).await;
                continue;
            }
        };
        let place = format!("killed before effect {effect} (step {at})");
        after(&place, recover(&mut arena, at)).await;
        effect += 1;
    }
}

async fn recover(arena: &mut Arena, at: usize) {
    arena.recover(at).await;
    arena.finish(at).await;
}

/// The driver is killed at moments spread over the act.
async fn walk_moments(scenario: Scenario) -> Walk {
    let mut walk = Walk::default();
    let mut arena = Arena::new(scenario).await;
    arena.prepare().await;
    let begin = Instant::now();
    assert!(
        matches!(arena.act().await, Ended::Done),
        "the act fails undisturbed"
    );
    let (takes, mut repeats) = (begin.elapsed(), 0);
    arena.finish(scenario.act.len()).await;
    for moment in 0..MOMENTS {
        arena.prepare().await;
        let delay = takes * (2 * moment + 1) / (2 * MOMENTS);
        let pid = Pid::from_raw(arena.driver().pid() as i32);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            kill(pid, Signal::SIGKILL)
        });
        let ended = arena.act().await;
        let killed = killer.join().expect("the killer does not panic");
        killed.expect("the driver was alive");
        let at = match ended {
            Ended::Done => scenario.act.len(),
            Ended::Died(at) => at,
            // The driver was killed after this answer.
            Ended::Failed(at, status) => {
                repeats += 1;
                assert!(
                    is_passing(&status) && repeats <= REPEATS,
                    "step {at} was answered {status:?} by itself"
                );
                at
            }
        };
        arena.driver_mut().wait_ended(PATIENCE);
        walk.disturbed("");
        let place = format!("killed after {delay:?} of {takes:?} (step {at})");
        after(&place, recover(&mut arena, at)).await;
    }
    walk
}

/// Opens a new pool in each round. The driver is killed one effect later each time.
async fn walk_opening(kind: PoolKind) -> Walk {
    let mut walk = Walk::default();
    for effect in 0..TOO_MANY {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, kind, GIB);
        let first = Namespace::new(&scratch);
        let spec = DriverSpec::new(&scratch, &[&pool]).inside(&first);
        let started = spec.failpoints(kill_before(effect)).try_start();
        match started.map_or_else(Some, |driver| dies_opening(driver, effect)) {
            None => return walk,
            Some(dead) => walk.killed(&dead),
        }
        drop(first);
        let second = Namespace::new(&scratch);
        let mut driver = DriverSpec::new(&scratch, &[&pool]).inside(&second).start();
        until_open(&mut driver);
        let leaks = Leaks::before(&scratch, &[&pool], &driver);
        let csi = driver.csi().await;
        let made = csi.ok(new_volume("pvc-first", 32 << 20)).await;
        csi.ok(delete(&id_of(made))).await;
        leaks.assert_none(&[&pool], &driver);
        driver.stop();
    }
    panic!("no end of effects while a pool is opened")
}

/// Waits until a driver that serves has opened its pool: see [`dies_opening`].
fn until_open(driver: &mut Driver) {
    let until = Instant::now() + PATIENCE;
    while !driver.log().contains("pool open") {
        let ended = driver.wait_ended(Duration::from_millis(20));
        assert!(
            ended.is_none() && Instant::now() < until,
            "the pool is not opened:\n{}",
            driver.tail()
        );
    }
}

/// Waits until a driver that serves has opened its pool, or has died before. It may serve without
/// the pool and try again some seconds later, for example because the device was busy.
fn dies_opening(mut driver: Driver, effect: usize) -> Option<Dead> {
    let until = Instant::now() + PATIENCE;
    while !driver.log().contains("pool open") {
        let log = driver.tail();
        assert!(
            Instant::now() < until,
            "before effect {effect}, the pool is not opened:\n{log}"
        );
        if let Some(status) = driver.wait_ended(Duration::from_millis(100)) {
            println!("before effect {effect}, the driver served without its pool:\n{log}");
            return Some(Dead {
                status,
                log: driver.tail(),
            });
        }
    }
    None
}

/// A node that has lost its state opens a pool with data, and is killed one effect later each time.
/// After each kill, one mount of the filesystem fails. The next start must find all data.
async fn walk_adopting(kind: PoolKind) -> Walk {
    let mut walk = Walk::default();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, kind, GIB);
    let start = |namespace: &Namespace, failpoints: String| {
        let spec = DriverSpec::new(&scratch, &[&pool]).inside(namespace);
        spec.failpoints(failpoints).try_start()
    };
    let image = |driver: &Driver, volume: &str| {
        let image = pool.root().join("volumes").join(volume).join("image");
        driver.view(&image)
    };
    let namespace = Namespace::new(&scratch);
    let mut driver = start(&namespace, String::new()).expect("it serves");
    until_open(&mut driver);
    let csi = driver.csi().await;
    let volume = id_of(csi.ok(new_volume("pvc-kept", 32 << 20)).await);
    let written = data::write(&image(&driver, &volume), 1);
    driver.stop();
    drop(namespace);
    for effect in 0..TOO_MANY {
        let state = state_dir(&scratch).join("pools.json");
        std::fs::remove_file(state).expect("the pool was known");
        let first = Namespace::new(&scratch);
        let started = start(&first, kill_before(effect));
        match started.map_or_else(Some, |driver| dies_opening(driver, effect)) {
            None => return walk,
            Some(dead) => walk.killed(&dead),
        }
        // With mount propagation, mounts outlive the container, and so does an image's loop device.
        let next = |namespace: Namespace| match kind {
            PoolKind::Image => namespace,
            _ => {
                drop(namespace);
                Namespace::new(&scratch)
            }
        };
        // The driver may serve without the pool or refuse to start.
        let second = next(first);
        drop(start(&second, "mount=return(EIO)".to_owned()));
        let third = next(second);
        let mut driver = start(&third, String::new())
            .unwrap_or_else(|dead| panic!("after effect {effect}: {}", dead.log));
        until_open(&mut driver);
        let read = data::read(&image(&driver, &volume));
        assert_eq!(read, written, "the data is another after effect {effect}");
        let listed = driver.csi().await.volume_ids().await;
        assert_eq!(listed, [&volume[..]], "after effect {effect}");
        driver.stop();
    }
    panic!("no end of effects while a pool is adopted")
}
