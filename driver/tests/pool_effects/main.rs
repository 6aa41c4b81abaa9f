//! An error at every single effect of every operation on a pool: nothing half-made stays, what is
//! told is true, and doing it again works. With the feature `failpoints` only.
#![cfg(feature = "failpoints")]
#![allow(clippy::unwrap_used)] // a test's way to fail

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hostloop_driver::kernel::fake::Model;
use hostloop_driver::kernel::{FsType, Kernel};
use hostloop_driver::storage::{
    Error, GroupRecord, NewVolume, PoolOptions, PoolSpec, Pools, Provisioning, Reserve, Result,
    Settings, SnapshotRecord, Source, Stage, VolumeHandle, VolumeId, VolumeRecord,
};
use tempfile::TempDir;

#[path = "../../src/testkit/mod.rs"]
mod testkit;

mod opening;

use testkit::MI;

/// A pool with a volume that is mounted, one that is not, a snapshot and a group.
struct World {
    pools: Option<Arc<Pools>>,
    kernel: Arc<Model>,
    dir: TempDir,
    mounted: VolumeId,
    minor: u32,
    idle: VolumeId,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Arc::new(Model::new());
        let pools = open(&dir, &kernel).unwrap();
        let pool = pools.named(None).unwrap();
        let [mounted, idle] =
            ["mounted", "idle"].map(|n| pools.create_volume(&pool, new(n, None)).unwrap().id);
        let minor = mount(&pools, &kernel, mounted, &dir.path().join("stage"));
        pools
            .create_snapshot(&idle, "snapshot", &BTreeMap::new())
            .unwrap();
        pools
            .create_group("group", &[mounted, idle], &BTreeMap::new())
            .unwrap();
        World {
            pools: Some(pools),
            kernel,
            dir,
            mounted,
            minor,
            idle,
        }
    }

    fn pools(&self) -> &Pools {
        self.pools.as_ref().unwrap()
    }

    fn told(&self) -> Told {
        told(self.pools())
    }

    fn entries(&self) -> Vec<PathBuf> {
        let dirs = ["volumes", "snapshots", "groups", "incoming", "trash"];
        let list = |dir| std::fs::read_dir(self.dir.path().join("pool").join(dir)).unwrap();
        let mut all: Vec<PathBuf> = dirs
            .into_iter()
            .flat_map(list)
            .map(|e| e.unwrap().path())
            .collect();
        all.sort();
        all
    }
}

type Told = (
    Vec<Arc<VolumeRecord>>,
    Vec<Arc<SnapshotRecord>>,
    Vec<Arc<GroupRecord>>,
);

fn told(pools: &Pools) -> Told {
    (pools.volumes(), pools.snapshots(), pools.groups())
}

fn open(dir: &TempDir, kernel: &Arc<Model>) -> Result<Arc<Pools>> {
    open_spec("p=DIR/pool", dir, kernel)
}

fn open_spec(spec: &str, dir: &TempDir, kernel: &Arc<Model>) -> Result<Arc<Pools>> {
    let spec = spec.replace("DIR", dir.path().to_str().unwrap());
    let spec: PoolSpec = spec.parse().unwrap();
    let options = PoolOptions {
        node_id: Some("n1".to_owned()),
        state_dir: dir.path().join("state"),
        overcommit: 1.0,
        reserve: Reserve::Bytes(0),
        max_volume_bytes: None,
        max_freeze: Duration::from_secs(5),
    };
    Pools::open(&[spec], options, kernel.clone())
}

fn new(name: &str, source: Option<Source>) -> NewVolume {
    NewVolume {
        capacity_bytes: 2 * MI,
        source,
        ..testkit::new(name)
    }
}

fn settings(provisioning: Provisioning) -> Settings {
    Settings {
        provisioning,
        ..testkit::new("").settings
    }
}

fn mount(pools: &Pools, kernel: &Model, id: VolumeId, at: &Path) -> u32 {
    std::fs::create_dir(at).unwrap();
    let volume = pools.volume(&VolumeHandle::Id(id)).unwrap();
    let image = pools.open_image(&volume, true).unwrap();
    let device = testkit::attach(kernel, &image, false);
    testkit::make_fs(kernel, &device, FsType::Ext4);
    testkit::mount_fs(kernel, &device, at, FsType::Ext4);
    let stage = Stage {
        path: at.to_path_buf(),
        capability: testkit::mounted(),
        minor: Some(device.minor),
        read_only_loops: BTreeMap::new(),
    };
    pools.update_volume(&id, |r| r.stage = Some(stage)).unwrap();
    device.minor
}

/// What an operation that failed may have changed.
#[derive(Clone, Copy, PartialEq)]
enum After {
    /// Nothing.
    AsBefore,
    /// It may be half gone, but not half told: doing it again ends it.
    OnItsWayOut,
    /// A record may say it already.
    Either,
}

type Operation = (&'static str, After, fn(&World) -> Result<()>);

fn create(world: &World, new: NewVolume) -> Result<()> {
    let pools = world.pools();
    pools.create_volume(&pools.named(None)?, new).map(drop)
}

const OPERATIONS: [Operation; 12] = [
    ("create thin", After::AsBefore, |w| {
        create(w, new("new", None))
    }),
    ("create thick", After::AsBefore, |w| {
        let settings = settings(Provisioning::Thick);
        create(
            w,
            NewVolume {
                settings,
                ..new("new", None)
            },
        )
    }),
    ("create from a snapshot", After::AsBefore, |w| {
        let snapshot = w.pools().snapshot_named("snapshot").unwrap().id;
        create(w, new("new", Some(Source::Snapshot(snapshot))))
    }),
    ("clone an idle volume", After::AsBefore, |w| {
        create(w, new("new", Some(Source::Volume(w.idle))))
    }),
    ("clone a mounted volume", After::Either, |w| {
        create(w, new("new", Some(Source::Volume(w.mounted))))
    }),
    ("snapshot", After::Either, |w| {
        w.pools()
            .create_snapshot(&w.mounted, "new", &BTreeMap::new())
            .map(drop)
    }),
    ("group", After::Either, |w| {
        w.pools()
            .create_group("new", &[w.idle, w.mounted], &BTreeMap::new())
            .map(drop)
    }),
    ("expand", After::Either, |w| {
        w.pools().expand_volume(&w.idle, 3 * MI).map(drop)
    }),
    ("thicken", After::Either, |w| {
        w.pools()
            .modify_volume(&w.idle, settings(Provisioning::Thick))
            .map(drop)
    }),
    ("delete", After::OnItsWayOut, |w| {
        w.pools().delete_volume(&w.idle)
    }),
    ("delete a snapshot", After::OnItsWayOut, |w| {
        let snapshot = w.pools().snapshot_named("snapshot");
        snapshot.map_or(Ok(()), |s| w.pools().delete_snapshot(&s.id))
    }),
    ("delete a group", After::OnItsWayOut, |w| {
        let group = w.pools().group_named("group");
        group.map_or(Ok(()), |g| w.pools().delete_group(&g.id))
    }),
];

/// Effects of an operation that goes well.
fn effects_of(operation: impl FnOnce() -> Result<()>) -> usize {
    let counter = Arc::new(AtomicUsize::new(0));
    let counted = counter.clone();
    fail::cfg_callback("effect", move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    let done = operation();
    fail::remove("effect");
    done.unwrap();
    counter.load(Ordering::SeqCst)
}

#[test]
fn an_error_at_every_effect() {
    let _scenario = fail::FailScenario::setup();
    let mut failures = 0;
    for (name, after, operation) in OPERATIONS {
        let world = World::new();
        let effects = effects_of(|| operation(&world));
        for n in 0..effects {
            let mut world = World::new();
            let before = (world.told(), world.entries());
            fail::cfg("effect", &format!("{n}*off->1*return(ENOSPC)->off")).unwrap();
            let done = operation(&world);
            fail::remove("effect");
            let context = format!("{name}, effect {n} of {effects}: {done:?}");
            if world.kernel.is_frozen(world.minor) {
                // Only if the thaw itself failed; and then it is known to be owed.
                let handle = VolumeHandle::Id(world.mounted);
                let record = world.pools().volume(&handle).unwrap();
                assert!(record.freeze.is_some() && done.is_err(), "{context}");
            }
            if done.is_err() {
                failures += 1;
                judge(&mut world, after, before, &context);
                let again = operation(&world);
                let done = matches!(again, Ok(()) | Err(Error::NoVolume(_)));
                assert!(done, "{context}; again: {again:?}");
            }
        }
        println!("{name}: {effects} effects");
    }
    println!("{failures} failures");
    assert!(failures > 100, "{failures}");
}

/// The process dies before an effect of making or deleting a group: nothing it tries from then on
/// happens. The next one has the group with all its members or nothing of it, and no finding.
#[test]
fn a_death_before_every_effect_of_a_group() {
    let _scenario = fail::FailScenario::setup();
    for (name, _, operation) in OPERATIONS.iter().filter(|o| o.0.ends_with("group")) {
        let effects = {
            let world = World::new();
            effects_of(|| operation(&world))
        };
        for n in 0..effects {
            let mut world = World::new();
            let before = ids(&world.told()).len();
            fail::cfg("effect", &format!("{n}*off->return(EIO)")).unwrap();
            let died = operation(&world);
            // What it still tries when it lets go does not happen either.
            world.pools = None;
            fail::remove("effect");
            let context = format!("{name}, effect {n} of {effects}: {died:?}");
            world.pools = Some(open(&world.dir, &world.kernel).unwrap());
            let findings = world.pools().findings();
            assert!(findings.is_empty(), "{context}: {findings:?}");
            let now = ids(&world.told()).len();
            // Two members and the group.
            assert!(
                now == before || now.abs_diff(before) == 3,
                "{context}: {now}"
            );
            assert_eq!(
                world.entries().len(),
                now,
                "{context}: {:?}",
                world.entries()
            );
        }
    }
}

/// After a failure: what is told, what is on disk, and what the next process makes of it.
fn judge(world: &mut World, after: After, before: (Told, Vec<PathBuf>), context: &str) {
    let told_now = world.told();
    match after {
        After::AsBefore => {
            assert_eq!(told_now, before.0, "{context}");
            assert_eq!(world.entries(), before.1, "{context}");
        }
        After::Either => {
            assert_eq!(ids(&told_now), ids(&before.0), "{context}");
            assert_eq!(world.entries(), before.1, "{context}");
        }
        After::OnItsWayOut => {}
    }
    world.pools = None;
    world.pools = Some(open(&world.dir, &world.kernel).unwrap());
    let findings = world.pools().findings();
    assert!(findings.is_empty(), "{context}: {findings:?}");
    assert!(!world.kernel.is_frozen(world.minor), "{context}");
    // The next process is told the same, less what went out half way.
    let next = ids(&world.told());
    let gone = ids(&told_now)
        .into_iter()
        .filter(|id| !next.contains(id))
        .count();
    assert!(gone == 0 || after == After::OnItsWayOut, "{context}");
    assert!(
        next.iter().all(|id| ids(&told_now).contains(id)),
        "{context}"
    );
    let told: usize = next.len();
    assert_eq!(
        world.entries().len(),
        told,
        "{context}: {:?}",
        world.entries()
    );
    if after == After::AsBefore {
        assert_eq!(world.told(), before.0, "{context}");
    }
}

fn ids(told: &Told) -> Vec<String> {
    let volumes = told.0.iter().map(|v| v.id.to_string());
    let snapshots = told.1.iter().map(|s| s.id.to_string());
    let groups = told.2.iter().map(|g| g.id.to_string());
    volumes.chain(snapshots).chain(groups).collect()
}
