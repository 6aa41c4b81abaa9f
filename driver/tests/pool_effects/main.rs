//! An error at every single effect of every operation on a pool: nothing half-made stays, what the
//! pools report is true, and doing it again works. With the feature `failpoints` only.
#![cfg(feature = "failpoints")]
#![allow(clippy::unwrap_used)] // a test's way to fail

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostloop_driver::kernel::FsType;
use hostloop_driver::storage::{
    Error, GroupRecord, NewVolume, Pools, Provisioning, Result, SnapshotRecord, Source, VolumeId,
    VolumeRecord,
};

#[path = "../testkit/mod.rs"]
mod testkit;

mod copies;
mod groups;
mod kept_bases;
mod opening;
mod powercut;
mod syncs;
mod taken_back;
mod unsynced;

use testkit::{MI, Site};

/// A pool with a volume that is mounted, one that is not, a snapshot and a group.
struct World {
    site: Site,
    mounted: VolumeId,
    minor: u32,
    idle: VolumeId,
}

impl World {
    fn new() -> World {
        World::with(site("p=DIR/pool"))
    }

    fn with(mut site: Site) -> World {
        site.open();
        let [mounted, idle] = ["mounted", "idle"].map(|name| site.create(new(name, None)));
        let at = site.root().join("stage");
        std::fs::create_dir(&at).unwrap();
        let device = site.attach(&mounted);
        testkit::make_fs(&*site.kernel, &device, FsType::Ext4);
        testkit::mount_fs(&*site.kernel, &device, &at, FsType::Ext4);
        let stage = testkit::stage_at(at, testkit::mounted(), Some(device.minor));
        site.update(mounted.id, |r| r.stage = Some(stage));
        site.snapshot(&idle, "snapshot");
        let volumes = [mounted.id, idle.id];
        let group = site
            .pools()
            .create_group("group", &volumes, &BTreeMap::new());
        group.unwrap();
        World {
            mounted: mounted.id,
            minor: device.minor,
            idle: idle.id,
            site,
        }
    }

    fn pools(&self) -> &Pools {
        self.site.pools()
    }

    fn reported(&self) -> Reported {
        let pools = self.pools();
        (pools.volumes(), pools.snapshots(), pools.groups())
    }

    /// Ends the process and starts the next one, which has no problem.
    fn restart(&mut self, context: &str) {
        self.site.close();
        fail::remove("effect");
        let problems = self.site.open().noted_problems();
        assert!(problems.is_empty(), "{context}: {problems:?}");
    }
}

type Reported = (
    Vec<Arc<VolumeRecord>>,
    Vec<Arc<SnapshotRecord>>,
    Vec<Arc<GroupRecord>>,
);

/// A pool of node n1 that is not open yet.
fn site(spec: &str) -> Site {
    let mut site = Site::new(&[spec]);
    site.options.node_id = Some("n1".to_owned());
    site
}

fn new(name: &str, source: Option<Source>) -> NewVolume {
    NewVolume {
        capacity_bytes: 2 * MI,
        source,
        ..testkit::new(name)
    }
}

/// What an operation that failed may have changed.
#[derive(Clone, Copy, PartialEq)]
enum After {
    /// Nothing.
    AsBefore,
    /// It may be half deleted, but not half reported: doing it again completes it.
    PartlyDeleted,
    /// A record may have changed already.
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
        let mut new = new("new", None);
        new.settings.provisioning = Provisioning::Thick;
        create(w, new)
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
        let none = BTreeMap::new();
        w.pools()
            .create_snapshot(&w.mounted, "new", &none)
            .map(drop)
    }),
    ("group", After::Either, |w| {
        let volumes = [w.idle, w.mounted];
        let none = BTreeMap::new();
        w.pools().create_group("new", &volumes, &none).map(drop)
    }),
    ("expand", After::Either, |w| {
        w.pools().expand_volume(&w.idle, 3 * MI).map(drop)
    }),
    ("thicken", After::Either, |w| {
        let mut settings = testkit::new("").settings;
        settings.provisioning = Provisioning::Thick;
        w.pools().modify_volume(&w.idle, settings).map(drop)
    }),
    ("delete", After::PartlyDeleted, |w| {
        w.pools().delete_volume(&w.idle)
    }),
    ("delete a snapshot", After::PartlyDeleted, |w| {
        let snapshot = w.pools().snapshot_named("snapshot");
        snapshot.map_or(Ok(()), |s| w.pools().delete_snapshot(&s.id))
    }),
    ("delete a group", After::PartlyDeleted, |w| {
        let group = w.pools().group_named("group");
        group.map_or(Ok(()), |g| w.pools().delete_group(&g.id))
    }),
];

/// Effects of an operation that goes well.
fn effects_of(operation: impl FnOnce() -> Result<()>) -> usize {
    count("effect", || operation().unwrap())
}

/// How often an operation reaches a failpoint.
fn count(point: &str, operation: impl FnOnce()) -> usize {
    let counter = Arc::new(AtomicUsize::new(0));
    let counted = counter.clone();
    fail::cfg_callback(point, move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    operation();
    fail::remove(point);
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
            let before = (world.reported(), world.site.entries());
            fail::cfg("effect", &format!("{n}*off->1*return(ENOSPC)->off")).unwrap();
            let done = operation(&world);
            fail::remove("effect");
            let context = format!("{name}, effect {n} of {effects}: {done:?}");
            if world.site.kernel.is_frozen(world.minor) {
                // Only if the thaw itself failed; the record then has the intent.
                let record = world.site.volume(world.mounted);
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

/// The renames of an entry into its place and to `trash/` fail: it is in neither.
#[test]
fn a_new_entry_that_stays_under_incoming_is_removed_later() {
    let _scenario = fail::FailScenario::setup();
    let world = World::new();
    let before = (world.reported(), world.site.entries());
    fail::cfg("file.rename", "return(EIO)").unwrap();
    create(&world, new("new", None)).unwrap_err();
    let none = BTreeMap::new();
    let taken = world.pools().create_snapshot(&world.idle, "new", &none);
    taken.unwrap_err();
    fail::remove("file.rename");
    assert_eq!(world.site.entries().len(), before.1.len() + 2);
    world.site.tend();
    assert_eq!((world.reported(), world.site.entries()), before);
}

/// Checks after a failure what is reported, what is on disk, and what the next process finds.
fn judge(world: &mut World, after: After, before: (Reported, Vec<String>), context: &str) {
    let now = world.reported();
    if after == After::AsBefore {
        assert_eq!(now, before.0, "{context}");
    }
    if after != After::PartlyDeleted {
        assert_eq!(ids(&now), ids(&before.0), "{context}");
        assert_eq!(world.site.entries(), before.1, "{context}");
    }
    world.restart(context);
    assert!(!world.site.kernel.is_frozen(world.minor), "{context}");
    // The next process reports the same, less what was half deleted.
    let (now, next) = (ids(&now), ids(&world.reported()));
    assert!(next.iter().all(|id| now.contains(id)), "{context}");
    let all_there = next.len() == now.len();
    assert!(all_there || after == After::PartlyDeleted, "{context}");
    let entries = world.site.entries();
    assert_eq!(entries.len(), next.len(), "{context}: {entries:?}");
    if after == After::AsBefore {
        assert_eq!(world.reported(), before.0, "{context}");
    }
}

fn ids((volumes, snapshots, groups): &Reported) -> Vec<String> {
    let volumes = volumes.iter().map(|v| v.id.to_string());
    let snapshots = snapshots.iter().map(|s| s.id.to_string());
    let groups = groups.iter().map(|g| g.id.to_string());
    volumes.chain(snapshots).chain(groups).collect()
}
