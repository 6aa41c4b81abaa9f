//! The driver is killed between any two of its effects, and at moments in between; it is started
//! again, the orchestrator repeats its calls, and everything that was ever answered OK must be
//! there, whole, with nothing left over.
//!
//! `HOSTLOOP_CRASH_ONLY=WORD` walks only through the scenarios that have the word in their names.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostloop_test::arena::{Arena, Ended, caught};
use hostloop_test::data;
use hostloop_test::driver::{Driver, DriverSpec};
use hostloop_test::leaks::Leaks;
use hostloop_test::machine;
use hostloop_test::namespace::Namespace;
use hostloop_test::pools::{GIB, PoolFixture, PoolKind, state_dir};
use hostloop_test::scenarios::{LONG, SCENARIOS, Scenario};
use hostloop_test::scratch::Scratch;

/// Minimum number of kills in a full run, slightly below the actual one. Detects a walk that ends
/// early.
const AT_LEAST: usize = 1500;

/// Minimum number of kills in a scenario, whose act has at least one call with several effects.
const AT_LEAST_EACH: usize = 3;

/// How long after the last answer an effect of the act may still run.
const LATE: Duration = Duration::from_secs(1);

/// Random-time kills per long scenario, spread evenly over the time the act takes undisturbed.
const MOMENTS: u32 = 8;

/// No scenario has this many effects: a walk that goes on is not making progress.
const TOO_MANY: usize = 400;

/// What one walk did.
#[derive(Default)]
struct Walk {
    /// The effect the driver was killed at → how often.
    kills: BTreeMap<String, usize>,
}

impl Walk {
    fn killed(&mut self, log: &str) {
        let at = log.lines().rev().find_map(|line| {
            let rest = line.split_once("fail point at ")?.1;
            Some(rest.split(':').next()?.to_owned())
        });
        let at = at.unwrap_or_else(|| "(a moment)".to_owned());
        *self.kills.entry(at).or_default() += 1;
    }

    fn count(&self) -> usize {
        self.kills.values().sum()
    }
}

#[derive(Clone, Copy, Debug)]
enum Task {
    /// Killed before each of the act's effects in turn.
    Effects(Scenario),
    /// Killed at moments spread over the act.
    Moments(Scenario),
    /// Killed while a pool is opened for the first time.
    Opening(PoolKind),
    /// Killed while a node without state opens a pool with data.
    Adopting(PoolKind),
}

impl Task {
    fn name(&self) -> String {
        match self {
            Task::Effects(s) => format!("{} on {}", s.name, s.pool.name()),
            Task::Moments(s) => format!("{} on {}, at any moment", s.name, s.pool.name()),
            Task::Opening(pool) => format!("open {}", pool.name()),
            Task::Adopting(pool) => format!("adopt {}", pool.name()),
        }
    }

    async fn run(self) -> Walk {
        match self {
            Task::Effects(scenario) => walk_effects(scenario).await,
            Task::Moments(scenario) => walk_moments(scenario).await,
            Task::Opening(pool) => walk_opening(pool).await,
            Task::Adopting(pool) => walk_adopting(pool).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_answered_survives_every_kill() {
    machine::require();
    let only = std::env::var("HOSTLOOP_CRASH_ONLY").unwrap_or_default();
    let adopted = [PoolKind::Ext4, PoolKind::Image, PoolKind::Device];
    let tasks: VecDeque<Task> = (PoolKind::ALL.into_iter().map(Task::Opening))
        .chain(adopted.into_iter().map(Task::Adopting))
        .chain(LONG.iter().copied().map(Task::Moments))
        .chain(SCENARIOS.iter().copied().map(Task::Effects))
        .filter(|task| task.name().contains(&only))
        .collect();
    assert!(!tasks.is_empty(), "no scenario has {only:?} in its name");
    let queue = Arc::new(Mutex::new(tasks));
    let workers: Vec<_> = (0..2).map(|_| tokio::spawn(work(queue.clone()))).collect();
    let mut kills = BTreeMap::<String, usize>::new();
    let mut failures = Vec::new();
    for worker in workers {
        for (name, result) in worker.await.expect("a worker catches its panics") {
            match result {
                Ok(walk) => {
                    let count = walk.count();
                    if count < AT_LEAST_EACH {
                        failures.push(format!("{name}: only {count} kills"));
                    }
                    for (at, number) in walk.kills {
                        *kills.entry(at).or_default() += number;
                    }
                }
                Err(why) => failures.push(format!("{name}: {why}")),
            }
        }
    }
    println!("killed before each effect:");
    for (at, number) in &kills {
        println!("{number:6}  {at}");
    }
    let total: usize = kills.values().sum();
    println!("{total} kills in all");
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    assert!(
        !only.is_empty() || total >= AT_LEAST,
        "only {total} kills, not {AT_LEAST}"
    );
}

async fn work(queue: Arc<Mutex<VecDeque<Task>>>) -> Vec<(String, Result<Walk, String>)> {
    let mut results = Vec::new();
    loop {
        let next = queue
            .lock()
            .expect("no worker panics with the queue")
            .pop_front();
        let Some(task) = next else {
            return results;
        };
        let (name, begin) = (task.name(), Instant::now());
        let result = caught(task.run()).await;
        let seconds = begin.elapsed().as_secs_f32();
        match &result {
            Ok(walk) => println!("{:4} kills  {seconds:5.1} s  {name}", walk.count()),
            Err(_) => println!("FAILED     {seconds:5.1} s  {name}"),
        }
        results.push((name, result));
    }
}

async fn walk_effects(scenario: Scenario) -> Walk {
    let mut walk = Walk::default();
    let mut arena = Arena::new(scenario).await;
    let mut effect = 0;
    loop {
        arena.prepare().await;
        arena.stop();
        // The effects of the start come first; dying in them leaves the situation as it was.
        loop {
            assert!(effect < TOO_MANY, "no end of effects");
            match arena
                .start_disturbed(format!("effect={effect}*off->1*return(kill)"))
                .await
            {
                Ok(()) => break,
                Err(dead) if dead.killed() => {
                    walk.killed(&dead.log);
                    effect += 1;
                }
                Err(dead) => panic!("the driver ended by itself: {}\n{}", dead.status, dead.log),
            }
        }
        let mut ended = arena.act().await;
        if matches!(ended, Ended::Done) && arena.driver_mut().wait_ended(LATE).is_some() {
            ended = Ended::Died(scenario.act.len());
        }
        match ended {
            Ended::Done => {
                // This driver would still die at a later effect: go on with another.
                arena.stop();
                arena.start().await;
                arena.finish(scenario.act.len()).await;
                return walk;
            }
            Ended::Died(at) => {
                walk.killed(&arena.driver().log());
                let place = format!("killed before effect {effect} (step {at})");
                let rest = async {
                    arena.recover(at).await;
                    arena.finish(at).await;
                };
                caught(rest)
                    .await
                    .unwrap_or_else(|why| panic!("{place}: {why}"));
                effect += 1;
            }
            Ended::Failed(at, status) => {
                panic!("before effect {effect}, step {at} was answered {status:?} by itself")
            }
        }
    }
}

async fn walk_moments(scenario: Scenario) -> Walk {
    let mut walk = Walk::default();
    let mut arena = Arena::new(scenario).await;
    arena.prepare().await;
    let begin = Instant::now();
    assert!(
        matches!(arena.act().await, Ended::Done),
        "the act fails undisturbed"
    );
    let takes = begin.elapsed();
    arena.finish(scenario.act.len()).await;
    for moment in 0..MOMENTS {
        arena.prepare().await;
        let delay = takes * (2 * moment + 1) / (2 * MOMENTS);
        let pid = nix::unistd::Pid::from_raw(arena.driver().pid() as i32);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)
        });
        let ended = arena.act().await;
        killer
            .join()
            .expect("the killer does not panic")
            .expect("the driver was alive");
        let at = match ended {
            Ended::Done => scenario.act.len(),
            Ended::Died(at) => at,
            Ended::Failed(at, status) => panic!("step {at} was answered {status:?} by itself"),
        };
        arena.driver_mut().wait_ended(Duration::from_secs(10));
        walk.killed("");
        let place = format!("killed after {delay:?} of {takes:?} (step {at})");
        let rest = async {
            arena.recover(at).await;
            arena.finish(at).await;
        };
        caught(rest)
            .await
            .unwrap_or_else(|why| panic!("{place}: {why}"));
    }
    walk
}

/// A pool is opened for the first time: each time a fresh one, killed one effect later.
async fn walk_opening(kind: PoolKind) -> Walk {
    let mut walk = Walk::default();
    for effect in 0..TOO_MANY {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, kind, GIB);
        let first = Namespace::new(&scratch);
        let kill = DriverSpec::new(&scratch, &[&pool])
            .failpoints(format!("effect={effect}*off->1*return(kill)"))
            .inside(&first)
            .try_start();
        match kill {
            Ok(_) => return walk,
            Err(dead) if dead.killed() => walk.killed(&dead.log),
            Err(dead) => panic!("the driver ended by itself: {}\n{}", dead.status, dead.log),
        }
        drop(first);
        let second = Namespace::new(&scratch);
        let driver = DriverSpec::new(&scratch, &[&pool]).inside(&second).start();
        let leaks = Leaks::before(&scratch, &[&pool], &driver);
        let csi = driver.csi().await;
        let request = hostloop_test::client::new_volume("pvc-first", 32 << 20);
        let made = csi.ok(request).await.volume.expect("a volume is answered");
        csi.ok(hostloop_proto::csi::DeleteVolumeRequest {
            volume_id: made.volume_id,
            ..Default::default()
        })
        .await;
        leaks.assert_none(&[&pool], &driver);
        driver.stop();
    }
    panic!("no end of effects while a pool is opened")
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
    let driver = start(&namespace, String::new()).expect("it serves");
    let request = hostloop_test::client::new_volume("pvc-kept", 32 << 20);
    let made = driver.csi().await.ok(request).await.volume;
    let volume = made.expect("a volume is answered").volume_id;
    let written = data::write(&image(&driver, &volume), 1);
    driver.stop();
    drop(namespace);
    for effect in 0..TOO_MANY {
        let state = state_dir(&scratch).join("pools.json");
        std::fs::remove_file(state).expect("the pool was known");
        let first = Namespace::new(&scratch);
        match start(&first, format!("effect={effect}*off->1*return(kill)")) {
            Ok(_) => return walk,
            Err(dead) if dead.killed() => walk.killed(&dead.log),
            Err(dead) => panic!("the driver ended by itself: {}\n{}", dead.status, dead.log),
        }
        // With mount propagation, mounts outlive the container as well; an image's loop device, too.
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
        let driver = start(&third, String::new())
            .unwrap_or_else(|dead| panic!("after effect {effect}: {}", dead.log));
        let read = data::read(&image(&driver, &volume));
        assert_eq!(read, written, "the data is another after effect {effect}");
        let listed = hostloop_proto::csi::ListVolumesRequest::default();
        let listed = driver.csi().await.ok(listed).await.entries;
        assert_eq!(listed.len(), 1, "after effect {effect}");
        driver.stop();
    }
    panic!("no end of effects while a pool is adopted")
}
