//! What is found, what is repaired, and what is left alone.

use std::fs;

use hostloop_driver::inspect::Error;
use hostloop_driver::inspect::fsck::{CLEAN, Kind, Outcome, PROBLEMS, REPAIRED, examine};
use hostloop_driver::kernel::Kernel;

use super::rig::{MI, Rig, attach, rig, volume};

fn look(rig: &Rig, repair: bool) -> Outcome {
    examine(&rig.specs, &rig.options, rig.kernel.clone(), repair).unwrap()
}

fn kinds(problems: &[hostloop_driver::inspect::fsck::Problem]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = problems.iter().map(|p| p.kind).collect();
    kinds.sort();
    kinds
}

#[test]
fn repairs_what_recovery_repairs_and_nothing_else() {
    let rig = rig(&["p=DIR/p"]);
    let record = volume(&rig.start(), "data", 64 * MI);
    assert_eq!(look(&rig, false).code(), CLEAN);

    let pool = &rig.specs[0].path;
    let image = pool.join(format!("volumes/{}/image", record.id));
    let leftover = record.id.to_string().replace("vol-", "snap-");
    for area in ["incoming", "trash"] {
        let dir = pool.join(area).join(&leftover);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("image"), "bytes").unwrap();
    }
    drop(attach(&rig, &image));

    let found = look(&rig, false);
    let expected = [Kind::Leftover, Kind::Leftover, Kind::LoopUnused];
    assert_eq!(kinds(&found.problems), expected, "{found:?}");
    assert_eq!(found.code(), PROBLEMS);

    let repaired = look(&rig, true);
    assert_eq!(kinds(&repaired.repaired), expected, "{repaired:?}");
    assert_eq!((repaired.problems.len(), repaired.code()), (0, REPAIRED));
    assert_eq!(rig.loops_over(&fs::File::open(&image).unwrap()), 0);
    assert_eq!(look(&rig, true).code(), CLEAN);
}

#[test]
fn leaves_alone_what_could_be_data() {
    let rig = rig(&["p=DIR/p"]);
    let pools = rig.start();
    let (one, two) = (volume(&pools, "one", MI), volume(&pools, "two", MI));
    drop(pools);
    let pool = &rig.specs[0].path;
    let of = |id: &dyn std::fmt::Display, file: &str| pool.join(format!("volumes/{id}/{file}"));
    fs::write(of(&one.id, "volume.json"), "{").unwrap();
    fs::remove_file(of(&two.id, "image")).unwrap();
    fs::write(pool.join("volumes/notes"), "mine").unwrap();

    let expected = [Kind::RecordUnreadable, Kind::Stranger, Kind::ImageMissing];
    for repair in [false, true] {
        let found = look(&rig, repair);
        assert_eq!(kinds(&found.problems), expected, "{found:?}");
        assert_eq!(found.code(), PROBLEMS);
    }
    assert_eq!(fs::read_to_string(of(&one.id, "volume.json")).unwrap(), "{");
    assert!(of(&one.id, "image").exists() && of(&two.id, "volume.json").exists());
    let notes = fs::read_to_string(pool.join("volumes/notes"));
    assert_eq!(notes.unwrap(), "mine");
}

#[test]
fn looks_beside_a_driver_and_repairs_only_without_one() {
    let rig = rig(&["p=DIR/p"]);
    let pools = rig.start();
    let record = volume(&pools, "data", MI);
    let image = rig.specs[0].path.join(format!("volumes/{}/image", record.id));
    drop(attach(&rig, &image));
    assert_eq!(kinds(&look(&rig, false).problems), [Kind::LoopUnused]);
    let refused = examine(&rig.specs, &rig.options, rig.kernel.clone(), true);
    let Err(Error::Repair(refused)) = refused else {
        panic!("{refused:?}");
    };
    assert!(refused.to_string().contains("another process"), "{refused}");
    drop(pools);
    assert_eq!(look(&rig, true).code(), REPAIRED);
}

#[test]
fn a_loop_over_a_deleted_image_is_found() {
    let rig = rig(&["p=DIR/p"]);
    let record = volume(&rig.start(), "data", MI);
    let dir = rig.specs[0].path.join(format!("volumes/{}", record.id));
    let device = attach(&rig, &dir.join("image"));
    for file in ["image", "volume.json"] {
        fs::remove_file(dir.join(file)).unwrap();
    }
    fs::remove_dir(&dir).unwrap();
    let found = look(&rig, false);
    assert_eq!(kinds(&found.problems), [Kind::LoopOverDeleted], "{found:?}");
    let object = device.path().display().to_string();
    assert_eq!(found.problems[0].object, object);
    let info = rig.kernel.loop_info(device.minor).unwrap().unwrap();
    drop(device);
    rig.kernel.loop_release(&info).unwrap();
    assert_eq!(look(&rig, false).code(), CLEAN);
}

#[test]
fn a_missing_pool_is_a_problem_and_is_not_made() {
    let rig = rig(&["p=DIR/p"]);
    let found = look(&rig, true);
    assert_eq!(kinds(&found.problems), [Kind::PoolMissing]);
    assert_eq!(fs::read_dir(&rig.specs[0].path).unwrap().count(), 0);
}
