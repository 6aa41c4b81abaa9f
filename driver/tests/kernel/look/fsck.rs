//! The problems that `fsck` finds, those that it repairs, and those that it leaves alone.

use std::fs;

use hostloop_driver::inspect::Error;
use hostloop_driver::inspect::fsck::{
    CLEAN, FsckReport, PROBLEMS, ProblemKind, REPAIRED, Repair, ReportedProblem, examine,
};
use hostloop_driver::kernel::{LoopDevices, LoopInfo};
use hostloop_driver::storage::{FreezeIntent, VolumeId};

use super::{Site, attach, site};
use crate::testkit::assert_soon;
use crate::tools::{run, until};

/// What `fsck` finds, without loop devices of other tests.
fn look(site: &Site, repair: bool) -> FsckReport {
    let mut found = examine(&site.specs, &site.options, site.kernel.clone(), repair).unwrap();
    found
        .problems
        .retain(|problem| problem.kind != ProblemKind::LoopOfOtherPool);
    found
}

fn kinds(problems: &[ReportedProblem]) -> Vec<ProblemKind> {
    let mut kinds: Vec<ProblemKind> = problems.iter().map(|p| p.kind).collect();
    kinds.sort();
    kinds
}

#[test]
fn repairs_what_recovery_repairs_and_nothing_else() {
    let mut site = site("p=DIR/p");
    let record = site.make("data");
    site.close();
    assert_eq!(look(&site, false).code(), CLEAN);

    let image = site.path(format!("volumes/{}/image", record.id));
    let leftover = record.id.to_string().replace("vol-", "snap-");
    for area in ["incoming", "trash"] {
        let dir = site.path(area).join(&leftover);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("image"), "bytes").unwrap();
    }
    drop(attach(&site, &image));

    let found = look(&site, false);
    let expected = [
        ProblemKind::Leftover,
        ProblemKind::Leftover,
        ProblemKind::LoopUnused,
    ];
    assert_eq!(kinds(&found.problems), expected, "{found:?}");
    assert_eq!(found.code(), PROBLEMS);

    let repaired = look(&site, true);
    assert_eq!(kinds(&repaired.repaired), expected, "{repaired:?}");
    assert_eq!((repaired.problems.len(), repaired.code()), (0, REPAIRED));
    // Another program can have the device open for a moment.
    assert_soon(0, || site.loops_over(&fs::File::open(&image).unwrap()));
    assert_eq!(look(&site, true).code(), CLEAN);
}

#[test]
fn leaves_alone_what_could_be_data() {
    let mut site = site("p=DIR/p");
    let [one, two] = ["one", "two"].map(|name| site.make(name).id);
    site.close();
    let of = |id: VolumeId, file: &str| site.path(format!("volumes/{id}/{file}"));
    fs::write(of(one, "volume.json"), "{").unwrap();
    fs::remove_file(of(two, "image")).unwrap();
    fs::write(site.path("volumes/notes"), "mine").unwrap();

    let expected = [
        ProblemKind::RecordUnreadable,
        ProblemKind::Stranger,
        ProblemKind::ImageMissing,
    ];
    for repair in [false, true] {
        let found = look(&site, repair);
        assert_eq!(kinds(&found.problems), expected, "{found:?}");
        assert_eq!(found.code(), PROBLEMS);
    }
    assert_eq!(fs::read_to_string(of(one, "volume.json")).unwrap(), "{");
    assert!(of(one, "image").exists() && of(two, "volume.json").exists());
    assert_eq!(
        fs::read_to_string(site.path("volumes/notes")).unwrap(),
        "mine"
    );
}

#[test]
fn the_state_of_another_boot_is_no_problem() {
    let mut site = site("p=DIR/p");
    let record = site.make("data");
    let freeze = FreezeIntent { since_ns: 1 };
    site.pools()
        .update_volume(&record.id, |r| r.freeze = Some(freeze))
        .unwrap();
    site.close();
    let entry = site.path(format!("volumes/{}", record.id));
    fs::write(entry.join(".state.json.new"), "{").unwrap();
    assert_eq!(
        kinds(&look(&site, false).problems),
        [ProblemKind::FreezeLeft]
    );
    let state = fs::read_to_string(entry.join("state.json")).unwrap();
    let boot = site.kernel.boot_id().unwrap();
    fs::write(entry.join("state.json"), state.replace(&boot, "another")).unwrap();
    assert_eq!(look(&site, false).code(), CLEAN);
}

#[test]
fn looks_beside_a_driver_and_repairs_only_without_one() {
    let mut site = site("p=DIR/p");
    drop(site.attach(&site.make("data")));
    assert_eq!(
        kinds(&look(&site, false).problems),
        [ProblemKind::LoopUnused]
    );
    let refused = examine(&site.specs, &site.options, site.kernel.clone(), true);
    let Err(Error::Repair(refused)) = refused else {
        panic!("{refused:?}");
    };
    assert!(refused.to_string().contains("another process"), "{refused}");
    site.close();
    assert_eq!(look(&site, true).code(), REPAIRED);
}

/// What deleting a cluster leaves: its pool is gone, and the loop device of a raw block volume is
/// not.
#[test]
fn a_loop_of_a_deleted_cluster_is_named_with_what_to_type() {
    let mut site = site("p=DIR/p");
    let record = site.make("data");
    let device = site.attach(&record);
    site.close();
    fs::remove_dir_all(site.path("")).unwrap();
    let mut other = super::site("q=DIR/q");
    other.close();
    let found = examine(&other.specs, &other.options, other.kernel.clone(), true).unwrap();
    let name = device.path().display().to_string();
    let named = found.problems.iter().find(|p| p.object == name).unwrap();
    assert_eq!(
        (named.kind, found.code()),
        (ProblemKind::LoopOfOtherPool, CLEAN),
        "{found:?}"
    );
    let Repair::Person(how) = &named.repair else {
        panic!("{named:?}")
    };
    assert!(how.ends_with(&format!("losetup -d {name}")), "{how}");
    assert!(named.what.contains(&record.id.to_string()), "{named:?}");

    // It may be another cluster's, so a repair leaves it attached.
    let info = site.kernel.loop_info(device.minor).unwrap().unwrap();
    drop(device);
    run("losetup", &["-d", &name]);
    until_gone(&site, &info);
}

/// Waits until the device is detached: another program can have it open for a moment.
fn until_gone(site: &Site, device: &LoopInfo) {
    until("it is detached", || {
        let now = site.kernel.loop_info(device.minor).unwrap();
        now.is_none_or(|now| !now.is_same(device))
    });
}

#[test]
fn a_loop_over_a_deleted_image_is_found() {
    let mut site = site("p=DIR/p");
    let record = site.make("data");
    let device = site.attach(&record);
    site.close();
    let dir = site.path(format!("volumes/{}", record.id));
    fs::remove_dir_all(&dir).unwrap();
    let found = look(&site, false);
    assert_eq!(
        kinds(&found.problems),
        [ProblemKind::LoopOverDeleted],
        "{found:?}"
    );
    let object = device.path().display().to_string();
    assert_eq!(found.problems[0].object, object);
    let info = site.kernel.loop_info(device.minor).unwrap().unwrap();
    drop(device);
    site.kernel.loop_release(&info).unwrap();
    until_gone(&site, &info);
    assert_eq!(look(&site, false).code(), CLEAN);
}

#[test]
fn a_missing_pool_is_a_problem_and_is_not_made() {
    let site: Site = crate::testkit::Rig::site(&["p=DIR/p"]);
    let found = look(&site, true);
    assert_eq!(kinds(&found.problems), [ProblemKind::PoolMissing]);
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), 0);
}
