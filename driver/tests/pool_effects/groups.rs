//! Groups with members that can't be moved to `trash/`, or not for good. Until they are, the record
//! of the group stays: after a power cut, only it says that they must go.

use std::fs::read_dir;
use std::path::Path;
use std::sync::mpsc::channel;

use hostloop_driver::storage::GroupId;

use super::*;
use crate::testkit::PATIENCE;

/// What keeps the last member of a deleted group from `trash/`: its rename or its fsync.
const DELETIONS: [(&str, &str); 2] = [
    ("file.rename", "2*off->return(EIO)"),
    ("file.sync", "4*off->return(EIO)"),
];

/// Two volumes in the first and the last of these pools.
fn two_volumes(pools: &[&str]) -> (Site, [VolumeId; 2]) {
    let site = Site::fake(pools);
    let last = pools[pools.len() - 1];
    let volumes = [
        site.create(new("one", None)).id,
        site.create_in(last, new("two", None)).id,
    ];
    (site, volumes)
}

fn group(site: &Site, volumes: &[VolumeId; 2]) -> Result<Arc<GroupRecord>> {
    let none = BTreeMap::new();
    site.pools().create_group("group", volumes, &none)
}

/// How often a group of two pools comes to this failpoint.
fn count_of_group(point: &str) -> usize {
    let (site, volumes) = two_volumes(&["a", "b"]);
    count(point, || drop(group(&site, &volumes).unwrap()))
}

#[track_caller]
fn assert_fails(site: &Site, volumes: &[VolumeId; 2], what: &str) {
    let failed = group(site, volumes);
    assert!(failed.is_err(), "{what}: {failed:?}");
}

/// Tends the pools, or begins another process.
fn go_on(site: &mut Site, dies: bool) {
    if dies {
        site.close();
        site.open();
    } else {
        site.tend();
    }
}

/// The number of entries in a directory.
fn entries(path: &Path) -> usize {
    read_dir(path).unwrap().count()
}

/// Checks that no pool has a snapshot, or anything that is not in its place.
fn assert_nothing_left(site: &Site, pools: &[&str], what: &str) {
    for pool in pools {
        for directory in ["snapshots", "groups", "incoming", "trash"] {
            let at = site.root().join(pool).join(directory);
            assert_eq!(entries(&at), 0, "{what}: {}", at.display());
        }
    }
    assert!(site.pools().snapshots().is_empty(), "{what}");
    let noted = site.pools().noted_problems();
    assert!(noted.is_empty(), "{what}: {noted:?}");
}

/// Whatever the driver removes meanwhile, and whether the process ends before the disk is sound.
#[test]
fn the_record_of_a_deleted_group_stays_as_long_as_a_member() {
    let _scenario = fail::FailScenario::setup();
    for pools in [&["a"][..], &["a", "b"]] {
        for (point, action) in DELETIONS {
            for dies in [false, true] {
                let what = format!("{pools:?}, {point}, dies: {dies}");
                let (mut site, volumes) = two_volumes(pools);
                let group = group(&site, &volumes).unwrap();
                let record = site.root().join(format!("a/trash/{}", group.id));
                fail::cfg(point, action).unwrap();
                site.pools().delete_group(&group.id).unwrap();
                for _ in 0..2 {
                    assert!(record.exists(), "{what}");
                    site.tend();
                }
                assert!(record.exists(), "{what}");
                fail::remove(point);
                go_on(&mut site, dies);
                assert_nothing_left(&site, pools, &what);
            }
        }
    }
}

/// One start does not have the pool of a member in its configuration.
#[test]
fn the_record_of_a_deleted_group_waits_for_a_pool_that_is_not_configured() {
    let _scenario = fail::FailScenario::setup();
    let pools = ["a", "b"];
    let (mut site, volumes) = two_volumes(&pools);
    let group = group(&site, &volumes).unwrap();
    let record = site.root().join(format!("a/trash/{}", group.id));
    let (point, action) = DELETIONS[0];
    fail::cfg(point, action).unwrap();
    site.pools().delete_group(&group.id).unwrap();
    site.close();
    fail::remove(point);

    let b = site.specs.remove(1);
    site.open();
    for _ in 0..2 {
        site.tend();
        assert!(record.exists());
        let noted = site.pools().noted_problems();
        let [waits] = &noted[..] else {
            panic!("{noted:?}");
        };
        let waits = waits.to_string();
        assert!(waits.contains("is not configured"), "{waits}");
    }
    site.close();
    site.specs.push(b);
    site.open();
    assert_nothing_left(&site, &pools, "with both pools");
}

/// The last member is in its place, without an fsync, and can't be moved to `trash/` at first.
#[test]
fn a_group_that_failed_with_its_last_member_leaves_nothing() {
    let _scenario = fail::FailScenario::setup();
    let pools = ["a", "b"];
    let [syncs, renames] = ["file.sync", "file.rename"].map(count_of_group);
    // The last fsync and the last rename are those of the group. The two renames to `trash/` that
    // the member begins fail, and perhaps the one that the group begins.
    let sync = format!("{}*off->1*return(EIO)->off", syncs - 2);
    let rename = format!("{}*off->2*return(EIO)", renames - 1);
    for (then, dies) in [
        ("->off", true),
        ("->1*off->1*return(EIO)->off", false),
        ("->1*off->1*return(EIO)->off", true),
    ] {
        let what = format!("{then}, dies: {dies}");
        let (mut site, volumes) = two_volumes(&pools);
        fail::cfg("file.sync", &sync).unwrap();
        fail::cfg("file.rename", &format!("{rename}{then}")).unwrap();
        assert_fails(&site, &volumes, &what);
        let [records, member] = ["a/incoming", "b/snapshots"].map(|at| site.root().join(at));
        let is_left = entries(&member) > 0;
        assert_eq!(is_left, then != "->off", "{what}");
        assert_eq!(entries(&records) > 0, is_left, "{what}");
        for point in ["file.sync", "file.rename"] {
            fail::remove(point);
        }
        go_on(&mut site, dies);
        assert_nothing_left(&site, &pools, &what);
    }
}

/// The record of the group is in its place, without an fsync, and can't leave it at first.
#[test]
fn a_group_that_failed_in_its_place_is_whole_or_gone_after_a_death() {
    let _scenario = fail::FailScenario::setup();
    let pools = ["a", "b"];
    let [syncs, renames] = ["file.sync", "file.rename"].map(count_of_group);
    // The last fsync is that of `groups/`, and the renames after those of the group lead to
    // `trash/`.
    let sync = format!("{}*off->1*return(EIO)->off", syncs - 1);
    for then in [
        "1*return(EIO)->2*off->return(EIO)",
        "2*return(EIO)->1*off->return(EIO)",
        "2*return(EIO)->off",
    ] {
        for (tended, dies) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("{then}, tended: {tended}, dies: {dies}");
            let (mut site, volumes) = two_volumes(&pools);
            fail::cfg("file.sync", &sync).unwrap();
            fail::cfg("file.rename", &format!("{renames}*off->{then}")).unwrap();
            assert_fails(&site, &volumes, &what);
            if tended {
                site.tend();
            }
            for point in ["file.sync", "file.rename"] {
                fail::remove(point);
            }
            if dies {
                site.close();
                site.open();
                delete_whole(&site, &what);
            } else {
                site.tend();
            }
            assert_nothing_left(&site, &pools, &what);
        }
    }
}

/// The record of the group has not reached its place, and the rename that takes it out of there
/// fails, too.
#[test]
fn a_group_that_never_was_in_its_place_leaves_nothing() {
    let _scenario = fail::FailScenario::setup();
    let pools = ["a", "b"];
    let renames = count_of_group("file.rename");
    for (failures, is_left) in [(2, false), (3, true)] {
        let what = format!("{failures} failures");
        let (site, volumes) = two_volumes(&pools);
        // The last rename is that of the group.
        let action = format!("{}*off->{failures}*return(EIO)->off", renames - 1);
        fail::cfg("file.rename", &action).unwrap();
        assert_fails(&site, &volumes, &what);
        fail::remove("file.rename");
        let records = site.root().join("a/incoming");
        assert_eq!(entries(&records) > 0, is_left, "{what}");
        site.tend();
        assert_nothing_left(&site, &pools, &what);
    }
}

/// Deletes the groups, which must have all their members.
fn delete_whole(site: &Site, what: &str) {
    for group in site.pools().groups() {
        let noted = site.pools().noted_problems();
        assert!(noted.is_empty(), "{what}: {noted:?}");
        assert_eq!(site.pools().snapshots().len(), 2, "{what}");
        site.pools().delete_group(&group.id).unwrap();
    }
}

/// What a record becomes; `None` for one that can be opened and not read.
type Damage = fn(&str) -> Option<String>;

/// The process died, and the next start can't read the record.
#[test]
fn the_record_of_a_group_that_cannot_be_read_is_kept() {
    let _scenario = fail::FailScenario::setup();
    let damages: [(&str, Damage); 3] = [
        ("unreadable", |_| None),
        ("damaged", |_| Some("{".to_owned())),
        ("newer", |record| {
            Some(record.replace("\"schema\": 1", "\"schema\": 99"))
        }),
    ];
    for (what, damage) in damages {
        let (mut site, volumes) = two_volumes(&["a"]);
        let group = group(&site, &volumes).unwrap();
        site.close();
        let entry = trashed(&site, group.id);
        let (record, away) = (entry.join("group.json"), site.root().join("away"));
        let sound = std::fs::read_to_string(&record).unwrap();
        std::fs::rename(&record, &away).unwrap();
        match damage(&sound) {
            Some(damaged) => {
                assert_ne!(damaged, sound, "{what}");
                std::fs::write(&record, damaged).unwrap();
            }
            None => std::fs::create_dir(&record).unwrap(),
        }
        let noted = site.open().noted_problems();
        let kept = noted.iter().map(ToString::to_string);
        let kept: Vec<_> = kept
            .filter(|why| why.contains("is kept: its record"))
            .collect();
        assert_eq!(kept.len(), 1, "{what}: {noted:?}");
        assert!(entry.exists(), "{what}");
        assert_eq!(site.pools().snapshots().len(), 2, "{what}");

        site.close();
        if record.is_dir() {
            std::fs::remove_dir(&record).unwrap();
        }
        std::fs::rename(&away, &record).unwrap();
        site.open();
        assert_nothing_left(&site, &["a"], what);
    }
}

/// The process died while it wrote the record, so no member was moved into place.
#[test]
fn a_part_of_a_record_under_incoming_is_removed() {
    let _scenario = fail::FailScenario::setup();
    for part in ["", "{\"schema\": 1,", "\0\0\0\0"] {
        let (mut site, volumes) = two_volumes(&["a"]);
        let made = group(&site, &volumes).unwrap();
        site.pools().delete_group(&made.id).unwrap();
        site.close();
        let entry = site.path(format!("incoming/{}", made.id));
        std::fs::create_dir(&entry).unwrap();
        std::fs::write(entry.join("group.json"), part).unwrap();
        site.open();
        assert_nothing_left(&site, &["a"], part);
    }
}

/// A pool hangs while a member of a deleted group is freed in it. The pool of the group opens, and
/// is looked after.
#[test]
fn the_upkeep_of_a_pool_waits_for_no_other() {
    let _scenario = fail::FailScenario::setup();
    let (mut site, volumes) = two_volumes(&["a", "b"]);
    let group = group(&site, &volumes).unwrap();
    site.close();
    trashed(&site, group.id);
    let (at, away) = (site.specs[0].path.clone(), site.root().join("away"));
    std::fs::rename(&at, &away).unwrap();
    site.open();
    std::fs::rename(&away, &at).unwrap();
    fail::cfg("file.unlink", "pause").unwrap();
    let (ended, tended) = channel();
    let waited = std::thread::scope(|scope| {
        let pools = site.pools();
        scope.spawn(move || {
            pools.tend(0);
            scope.spawn(move || pools.settle_groups());
            pools.tend(0);
            let _ = ended.send(());
        });
        let waited = tended.recv_timeout(PATIENCE);
        fail::remove("file.unlink");
        waited
    });
    waited.unwrap();
    site.tend();
    assert_nothing_left(&site, &["a", "b"], "in the end");
}

/// Moves a group's record to `trash/`, as its deletion does first.
fn trashed(site: &Site, id: GroupId) -> std::path::PathBuf {
    let [from, to] = ["groups", "trash"].map(|at| site.path(format!("{at}/{id}")));
    std::fs::rename(from, &to).unwrap();
    to
}
