//! Any effect may meet a full pool. The call ends in a clear RESOURCE_EXHAUSTED, no data is lost,
//! the driver goes on, and the same call succeeds once there is space.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_test::PATIENCE;
use hostloop_test::arena::{Arena, Ended};
use hostloop_test::client::{Csi, map, mounted, new_volume};
use hostloop_test::driver::DriverSpec;
use hostloop_test::leaks::Leaks;
use hostloop_test::machine;
use hostloop_test::pools::{MIB, PoolFixture, PoolKind, used_bytes};
use hostloop_test::scenarios::{SCENARIOS, Scenario, create, publish};
use hostloop_test::scratch::Scratch;
use hostloop_test::steps::{Spec, Step};
use hostloop_test::world::World;
use tonic::{Code, Status};

use crate::walk::{REPEATS, TOO_MANY, Walk, after, is_passing, sample, walk_all};
use hostloop_test::requests::{delete, id_of};

/// One scenario per call and per way a pool copies; a crash test walks through the rest.
const INJECTED: [(&str, PoolKind); 23] = [
    ("create ext4", PoolKind::Ext4),
    ("create thick", PoolKind::Xfs),
    ("restore", PoolKind::Ext4),
    ("restore thick", PoolKind::Xfs),
    ("clone in use", PoolKind::Xfs),
    ("stage ext4", PoolKind::Ext4),
    ("stage block", PoolKind::Ext4),
    ("publish read-only", PoolKind::Xfs),
    ("publish inline", PoolKind::Ext4),
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
    ("a life", PoolKind::Xfs),
    ("a life, mounts stay", PoolKind::Device),
];

/// How long after the last answer an effect of the act may still run.
const LATE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_effect_may_meet_a_full_pool() {
    machine::require();
    let chosen = |s: &&Scenario| INJECTED.contains(&(s.name, s.pool));
    let scenarios: Vec<_> = SCENARIOS.iter().filter(chosen).copied().collect();
    assert_eq!(
        scenarios.len(),
        INJECTED.len(),
        "every name above is a scenario's"
    );
    let walks = scenarios
        .into_iter()
        .map(|one| (one.to_string(), one.effects, walk(one)));
    let walks = sample(walks.collect());
    println!(
        "ENOSPC injected at {} effects",
        walk_all(walks).await.count()
    );
}

async fn walk(scenario: Scenario) -> Walk {
    let mut arena = Arena::new(scenario).await;
    let mut walk = Walk::default();
    let (mut effect, mut repeats) = (0, 0);
    while effect < TOO_MANY {
        arena.prepare().await;
        arena.stop();
        let failpoints = format!("effect={effect}*off->1*return(ENOSPC)->off");
        let struck = |arena: &Arena| arena.driver().log().contains("fail point at");
        let is_armed = match arena.start_disturbed(failpoints).await {
            Ok(()) if struck(&arena) => {
                // An effect of the start. The pool may have stayed closed: start again.
                arena.stop();
                arena.start().await;
                false
            }
            Ok(()) => true,
            // Ending with an error is a fair answer to a full disk at the start.
            Err(_) => {
                arena.start().await;
                false
            }
        };
        let place = format!("no room at effect {effect}");
        let ended = arena.act().await;
        let late = Instant::now() + LATE;
        while is_armed && matches!(ended, Ended::Done) && !struck(&arena) && Instant::now() < late {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let met = struck(&arena);
        if met {
            walk.disturbed(&arena.driver().log());
        } else {
            // This driver would still meet a full pool later, so another one replaces it.
            arena.stop();
            arena.start().await;
        }
        let mut by_itself = false;
        let at = match ended {
            Ended::Done => scenario.act.len(),
            Ended::Failed(at, status) => {
                by_itself = !met && is_passing(&status) && repeats < REPEATS;
                if !by_itself {
                    assert_clear(&place, &status);
                }
                at
            }
            Ended::Died(at) => panic!("{place}: the driver died of it in step {at}"),
        };
        let rest = async {
            arena.put_up(at).await;
            arena.finish(at).await;
        };
        after(&format!("{place}, step {at}"), rest).await;
        if by_itself {
            repeats += 1;
            continue;
        }
        if !met && walk.count() > 0 {
            return walk;
        }
        effect += 1;
    }
    panic!("no end of effects")
}

fn assert_clear(what: &str, status: &Status) {
    // An expansion or a modification that is refused for good has another code.
    let codes = match what {
        what if what.starts_with("Expand") => &[Code::ResourceExhausted, Code::OutOfRange],
        what if what.starts_with("Modify") => &[Code::ResourceExhausted, Code::InvalidArgument],
        _ => &[Code::ResourceExhausted][..],
    };
    assert!(codes.contains(&status.code()), "{what}: {status:?}");
    let clear = ["no room", "no space", "full"];
    let said = status.message().to_lowercase();
    assert!(
        clear.iter().any(|words| said.contains(words)),
        "{what}: {said:?} is not clear"
    );
}

/// Fills a filesystem with this file, until nothing can be written any more.
fn fill(ballast: &Path) {
    let mut file = File::options().create(true).append(true).open(ballast);
    let file = file.as_mut().expect("the ballast can be made");
    // Large pieces first, then small ones into what is left.
    for piece in [8 << 20, 1 << 20, 64 << 10, 4 << 10] {
        let bytes = vec![0xa5; piece];
        while file
            .write_all(&bytes)
            .and_then(|()| file.sync_data())
            .is_ok()
        {}
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

/// The steps before the pool is full: `used` is published and has data, `fresh` was never staged,
/// and `idle` is unused.
const BEFORE: &[Step] = &[
    create("used", EXT4),
    Step::Attach("used"),
    Step::Stage("used"),
    publish("used"),
    Step::Write("used"),
    create("fresh", EXT4),
    Step::Attach("fresh"),
    create("idle", EXT4),
    create("doomed", EXT4),
    Step::Snapshot {
        snapshot: "old",
        volume: "used",
    },
    Step::Snapshot {
        snapshot: "doomed",
        volume: "doomed",
    },
];

const THICK: Step = create("thick", EXT4.with(&[("provisioning", "thick")]));

/// The steps on the full pool, in order. Each succeeds, or is refused because there is no space.
const ASKED: &[Step] = &[
    create("thin", EXT4),
    THICK,
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
    // A copy of `idle` shares blocks with it, which no btrfs can unshare.
    Step::Modify {
        volume: "fresh",
        parameters: &[("provisioning", "thick")],
    },
    Step::Attach("idle"),
    Step::Stage("fresh"),
];

/// Steps that must succeed on a full pool, because they free its space.
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
    // The filesystem is to refuse requests, not the driver's limits on what it promises.
    let driver = DriverSpec::new(&scratch, &[&pool])
        .args(["--overcommit", "100", "--reserve", "0"])
        .start();
    let leaks = Leaks::before(&scratch, &[&pool], &driver);
    let csi = driver.csi().await;
    let mut world = World::new(scratch.dir("kubelet"));
    world.insist_all(&driver, &csi, BEFORE).await;

    let mount = pool.mount().expect("the test mounted it");
    let ballast = mount.join("ballast");
    fill(&ballast);
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
    assert!(refused.contains(&THICK), "a thick volume on a full pool");
    world.verify_lists(&csi).await;
    let deadline = Instant::now() + PATIENCE;
    for step in WAYS_OUT {
        while let Err(status) = world.apply(&driver, &csi, *step).await {
            assert!(
                is_passing(&status) && Instant::now() < deadline,
                "{step:?} on a full pool: {status:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    std::fs::remove_file(&ballast).expect("the ballast can be removed");
    used_bytes(mount);
    world.insist_all(&driver, &csi, &refused).await;
    world.verify(&driver, &csi).await;
    world.tear_down(&driver, &csi).await;
    leaks.assert_none(&[&pool], &driver);
    driver.stop();
}

/// A pool has room for a volume of its whole capacity. It refuses a larger volume, and makes none.
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
    let refuse = async |what: &str, request| {
        let refused = csi.call(request).await.expect_err(what);
        assert_clear(what, &refused);
    };
    let beyond = ask("pvc-beyond", available + 16 * MIB);
    refuse("more than there is", beyond).await;
    let all = id_of(csi.ok(ask("pvc-all", available)).await);
    refuse("one more volume", ask("pvc-one-more", 64 * MIB)).await;
    assert!(
        csi.ok(capacity).await.available_capacity < 64 << 20,
        "capacity after all is taken"
    );
    assert_eq!(
        csi.volume_ids().await,
        std::slice::from_ref(&all),
        "what was refused is not there"
    );
    csi.ok(delete(&all)).await;
}
