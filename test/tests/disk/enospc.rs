//! No room left, wherever that can happen: a clear RESOURCE_EXHAUSTED, nothing lost, the service
//! goes on, and the same call succeeds once there is room.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::arena::{Arena, Ended, caught};
use hostloop_test::client::{Csi, map, mounted, new_volume};
use hostloop_test::driver::DriverSpec;
use hostloop_test::leaks::Leaks;
use hostloop_test::machine;
use hostloop_test::pools::{MIB, PoolFixture, PoolKind};
use hostloop_test::scenarios::{SCENARIOS, Scenario};
use hostloop_test::scratch::Scratch;
use hostloop_test::steps::{Spec, Step};
use hostloop_test::world::World;
use tonic::{Code, Status};

/// One scenario per call and per way a pool copies; a crash test walks through the rest.
const INJECTED: [(&str, PoolKind); 20] = [
    ("create ext4", PoolKind::Ext4),
    ("create thick", PoolKind::Xfs),
    ("restore", PoolKind::Ext4),
    ("restore thick", PoolKind::Xfs),
    ("clone in use", PoolKind::Xfs),
    ("stage ext4", PoolKind::Ext4),
    ("stage block", PoolKind::Ext4),
    ("publish read-only", PoolKind::Xfs),
    ("publish inline, mounts stay", PoolKind::Device),
    ("expand ext4", PoolKind::Ext4),
    ("expand unused", PoolKind::Xfs),
    ("modify to thick", PoolKind::Xfs),
    ("snapshot", PoolKind::Ext4),
    ("snapshot", PoolKind::Xfs),
    ("group", PoolKind::Xfs),
    ("unstage", PoolKind::Ext4),
    ("delete group", PoolKind::Xfs),
    ("snapshot", PoolKind::Btrfs),
    ("group, mounts stay", PoolKind::Btrfs),
    ("a life", PoolKind::Image),
];

/// Minimum number of effects that meet a full pool, slightly below the actual one.
const AT_LEAST: usize = 500;

/// No scenario has this many effects.
const TOO_MANY: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_effect_may_meet_a_full_pool() {
    machine::require();
    let chosen = |s: &&Scenario| INJECTED.contains(&(s.name, s.pool));
    let scenarios: VecDeque<_> = SCENARIOS.iter().filter(chosen).copied().collect();
    assert_eq!(
        scenarios.len(),
        INJECTED.len(),
        "every name above is a scenario's"
    );
    let queue = Arc::new(Mutex::new(scenarios));
    let workers: Vec<_> = (0..2).map(|_| tokio::spawn(work(queue.clone()))).collect();
    let (mut injected, mut failures) = (0, Vec::new());
    for worker in workers {
        for (name, result) in worker.await.expect("a worker catches its panics") {
            match result {
                Ok(number) => injected += number,
                Err(why) => failures.push(format!("{name}: {why}")),
            }
        }
    }
    println!("ENOSPC injected at {injected} effects");
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    assert!(injected >= AT_LEAST, "only {injected} effects met");
}

type Results = Vec<(String, Result<usize, String>)>;

async fn work(queue: Arc<Mutex<VecDeque<Scenario>>>) -> Results {
    let mut results = Vec::new();
    loop {
        let next = queue
            .lock()
            .expect("no worker panics with the queue")
            .pop_front();
        let Some(scenario) = next else {
            return results;
        };
        let name = format!("{} on {}", scenario.name, scenario.pool.name());
        let result = caught(walk(scenario)).await;
        match &result {
            Ok(number) => println!("{number:4} effects  {name}"),
            Err(_) => println!("FAILED        {name}"),
        }
        results.push((name, result));
    }
}

async fn walk(scenario: Scenario) -> usize {
    let mut arena = Arena::new(scenario).await;
    let mut injected = 0;
    for effect in 0..TOO_MANY {
        arena.prepare().await;
        arena.stop();
        let failpoints = format!("effect={effect}*off->1*return(ENOSPC)->off");
        let struck = |arena: &Arena| arena.driver().log().contains("fail point at");
        match arena.start_disturbed(failpoints).await {
            Ok(()) if struck(&arena) => {
                // An effect of the start. The pool may have stayed closed: start again.
                arena.stop();
                arena.start().await;
            }
            Ok(()) => {}
            // Ending with an error is a fair answer to a full disk at the start.
            Err(_) => arena.start().await,
        }
        let place = format!("no room at effect {effect}");
        let ended = arena.act().await;
        let met = struck(&arena);
        if !met {
            // This driver would still meet a full pool later: go on with another.
            arena.stop();
            arena.start().await;
        }
        let at = match ended {
            Ended::Done => scenario.act.len(),
            Ended::Failed(at, status) => {
                assert_clear(&place, &status);
                at
            }
            Ended::Died(at) => panic!("{place}: the driver died of it in step {at}"),
        };
        let rest = async {
            arena.put_up(at).await;
            arena.finish(at).await;
        };
        caught(rest)
            .await
            .unwrap_or_else(|why| panic!("{place}, step {at}: {why}"));
        if met {
            injected += 1;
        } else if injected > 0 {
            return injected;
        }
    }
    panic!("no end of effects")
}

fn assert_clear(what: &str, status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{what}: {status:?}");
    let clear = ["no room", "no space", "full"];
    let said = status.message().to_lowercase();
    assert!(
        clear.iter().any(|words| said.contains(words)),
        "{what}: {said:?} is not clear"
    );
}

/// A pool of this size, so full that nothing can be written any more.
struct FullPool {
    ballast: PathBuf,
}

impl FullPool {
    fn fill(dir: &Path) -> FullPool {
        let ballast = dir.join("ballast");
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&ballast)
            .expect("the ballast can be made");
        // Large pieces first, then small ones into what is left.
        for piece in [8 << 20, 1 << 20, 64 << 10, 4 << 10] {
            let bytes = vec![0xa5; piece];
            while file
                .write_all(&bytes)
                .and_then(|()| file.sync_data())
                .is_ok()
            {}
        }
        FullPool { ballast }
    }

    fn make_room(self) {
        std::fs::remove_file(&self.ballast).expect("the ballast can be removed");
        let dir = self.ballast.parent().expect("it is in a directory");
        let dir = File::open(dir).expect("the pool's filesystem is there");
        nix::unistd::syncfs(&dir).expect("it can be synced");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_ext4_pool() {
    full_pool(PoolKind::Ext4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_xfs_pool() {
    full_pool(PoolKind::Xfs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_btrfs_pool() {
    full_pool(PoolKind::Btrfs).await;
}

const EXT4: Spec = Spec::fs("ext4", 32);

/// What was there before the pool filled up: `used` is published and has data in it, `staged` was
/// never formatted, `idle` waits.
const BEFORE: &[Step] = &[
    Step::Create {
        volume: "used",
        spec: EXT4,
        from: None,
    },
    Step::Attach("used"),
    Step::Stage("used"),
    Step::Publish {
        volume: "used",
        target: "pod",
        read_only: false,
    },
    Step::Write("used"),
    Step::Create {
        volume: "fresh",
        spec: EXT4,
        from: None,
    },
    Step::Attach("fresh"),
    Step::Create {
        volume: "idle",
        spec: EXT4,
        from: None,
    },
    Step::Create {
        volume: "doomed",
        spec: EXT4,
        from: None,
    },
    Step::Snapshot {
        snapshot: "old",
        volume: "used",
    },
    Step::Snapshot {
        snapshot: "doomed",
        volume: "doomed",
    },
];

/// What is asked of the full pool, in turn; each either succeeds or is refused for want of room.
const ASKED: &[Step] = &[
    Step::Create {
        volume: "thin",
        spec: EXT4,
        from: None,
    },
    Step::Create {
        volume: "thick",
        spec: EXT4.with(&[("provisioning", "thick")]),
        from: None,
    },
    Step::Snapshot {
        snapshot: "new",
        volume: "idle",
    },
    Step::Group {
        group: "g",
        volumes: &["idle"],
    },
    Step::Expand {
        volume: "idle",
        mib: 64,
    },
    Step::Modify {
        volume: "idle",
        parameters: &[("provisioning", "thick")],
    },
    Step::Attach("idle"),
    Step::Stage("fresh"),
];

/// What must succeed on a full pool: the ways out of it.
const WAYS_OUT: &[Step] = &[
    Step::Unpublish {
        volume: "used",
        target: "pod",
    },
    Step::Unstage("used"),
    Step::DeleteSnapshot("doomed"),
    Step::Delete("doomed"),
];

async fn full_pool(kind: PoolKind) {
    machine::require();
    let scratch = Scratch::new();
    let pool = PoolFixture::new(&scratch, kind, 512 * MIB);
    // Promises are not what is tested here.
    let driver = DriverSpec::new(&scratch, &[&pool])
        .args(["--overcommit", "100", "--reserve", "0"])
        .start();
    let leaks = Leaks::before(&scratch, &[&pool], &driver);
    let csi = driver.csi().await;
    let mut world = World::new(scratch.dir("kubelet"));
    world.insist_all(&driver, &csi, BEFORE).await;

    let full = FullPool::fill(pool.mount().expect("the test mounted it"));
    let mut refused = Vec::new();
    for step in ASKED {
        if let Err(status) = world.apply(&driver, &csi, *step).await {
            assert_clear(&format!("{step:?}"), &status);
            refused.push(*step);
        }
    }
    println!(
        "{}: {} of {} refused",
        kind.name(),
        refused.len(),
        ASKED.len()
    );
    let thick = |step: &Step| {
        matches!(
            step,
            Step::Create {
                volume: "thick",
                ..
            }
        )
    };
    assert!(refused.iter().any(thick), "a thick volume on a full pool");
    world.verify_lists(&csi).await;
    for step in WAYS_OUT {
        let outcome = world.apply(&driver, &csi, *step).await;
        outcome.unwrap_or_else(|status| panic!("{step:?} on a full pool: {status:?}"));
    }

    full.make_room();
    world.insist_all(&driver, &csi, &refused).await;
    world.verify(&driver, &csi).await;
    world.tear_down(&driver, &csi).await;
    leaks.assert_none(&[&pool], &driver);
    driver.stop();
}

/// What a pool says it can promise, it promises; a byte more it refuses, and nothing is made.
#[tokio::test(flavor = "multi_thread")]
async fn what_capacity_says_can_be_had() {
    machine::require();
    for kind in [PoolKind::Xfs, PoolKind::Ext4] {
        let scratch = Scratch::new();
        let pool = PoolFixture::new(&scratch, kind, 1024 * MIB);
        let driver = DriverSpec::new(&scratch, &[&pool]).start();
        let csi = driver.csi().await;
        for thick in [false, true] {
            promise_all(&csi, thick).await;
        }
        driver.stop();
    }
}

async fn promise_all(csi: &Csi, thick: bool) {
    let provisioning = if thick { "thick" } else { "thin" };
    let parameters = map(&[("provisioning", provisioning)]);
    let capacity = csi::GetCapacityRequest {
        volume_capabilities: vec![mounted("ext4", Mode::SingleNodeWriter)],
        parameters: parameters.clone(),
        ..Default::default()
    };
    let available = csi.ok(capacity.clone()).await.available_capacity;
    let available = u64::try_from(available).expect("capacity is not negative") / 4096 * 4096;
    let ask = |name: &str, bytes| csi::CreateVolumeRequest {
        parameters: parameters.clone(),
        ..new_volume(name, bytes)
    };
    let beyond = csi.call(ask("pvc-beyond", available + 16 * MIB)).await;
    assert_clear(
        "more than there is",
        &beyond.expect_err("more than there is"),
    );
    let all = csi
        .ok(ask("pvc-all", available))
        .await
        .volume
        .expect("a volume");
    let one_more = csi.call(ask("pvc-one-more", 64 * MIB)).await;
    assert_clear("one more", &one_more.expect_err("nothing is left"));
    assert!(
        csi.ok(capacity).await.available_capacity < 64 << 20,
        "capacity after all is taken"
    );
    assert_eq!(
        csi.volume_ids().await,
        std::slice::from_ref(&all.volume_id),
        "what was refused is not there"
    );
    let volume_id = all.volume_id;
    csi.ok(csi::DeleteVolumeRequest {
        volume_id,
        secrets: BTreeMap::new(),
    })
    .await;
}
