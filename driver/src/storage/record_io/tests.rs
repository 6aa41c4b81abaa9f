use std::sync::Arc;

use rstest::rstest;

use super::*;
use crate::storage::encoding::encode;
use crate::storage::load::read_one;
use crate::storage::{About, NewVolume, Reach, Stage, VolumeHandle};
use crate::testkit::{Site, mounted, new, pairs, stage_at};

mod damaged;
mod frozen;

fn made(site: &Site, name: &str) -> (Arc<VolumeRecord>, PathBuf) {
    let made = site.make(name);
    let path = site.path(format!("volumes/{}/volume.json", made.id));
    (made, path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_volume_without_the_field_fresh_was_used() {
    let mut site = Site::fake(&["a"]);
    let (made, path) = made(&site, "one");
    assert!(made.fresh);
    let record = read(&path);
    let without = record.replace("  \"fresh\": true,\n", "");
    assert_ne!(without, record);
    std::fs::write(&path, without).unwrap();
    site.open();
    assert!(!site.volume(made.id).fresh);
}

/// Earlier builds refuse a record with a field that they do not know, and so leave the device of a
/// shared volume to its users.
#[test]
fn only_the_record_of_a_shared_volume_has_its_reach() {
    let mut site = Site::fake(&["a"]);
    let (own, path) = made(&site, "one");
    assert!(!read(&path).contains("reach"));
    let shared = site.create(NewVolume {
        reach: Reach::Kernel,
        ..new("two")
    });
    let path = site.path(format!("volumes/{}/volume.json", shared.id));
    let record = read(&path);
    assert!(record.contains("\"reach\": \"kernel\""), "{record}");
    site.open();
    let reach = [own.id, shared.id].map(|id| site.volume(id).reach);
    assert_eq!(reach, [Reach::Node, Reach::Kernel]);
    std::fs::write(&path, record.replace("kernel\"", "galaxy\"")).unwrap();
    site.open();
    let found = site.pools().volume(&VolumeHandle::Id(shared.id));
    refused!(found, Error::Corrupt { .. });
}

const SCHEMA_1: &str = "\"schema\": 1";

fn schema(record: &str, schema: &str) -> String {
    record.replace(SCHEMA_1, schema)
}

/// The damage, the message, and whether the name stays readable and so taken.
#[rstest]
#[case::empty(|_: &str| String::new(), "is not a readable record", false)]
#[case::cut_off(|s: &str| s[..s.len() / 2].to_owned(), "is not a readable record", false)]
#[case::newer(|s: &str| schema(s, r#""schema": 2"#), "has schema 2; this build reads up to 1", true)]
#[case::newer_with_a_new_field(
    |s: &str| schema(s, r#""schema": 2, "novelty": {}"#),
    "has schema 2; this build reads up to 1",
    true
)]
#[case::older(|s: &str| schema(s, r#""schema": 0"#), "has the unknown schema 0", true)]
#[case::a_new_field(
    |s: &str| schema(s, r#""schema": 1, "novelty": 1"#), "unknown field `novelty`", true
)]
#[case::a_bad_value(
    |s: &str| s.replace("\"created_ns\": ", "\"created_ns\": -"), "is not a readable record", true
)]
fn a_damaged_record_is_kept_and_in_the_way(
    #[case] damage: fn(&str) -> String,
    #[case] why: &str,
    #[case] name_is_readable: bool,
) {
    let mut site = Site::fake(&["a"]);
    let (made, path) = made(&site, "one");
    site.make("two");
    let damaged = damage(&read(&path));
    std::fs::write(&path, &damaged).unwrap();

    site.open();
    let pools = site.pools();
    let found = pools.volume(&VolumeHandle::Id(made.id)).unwrap_err();
    assert!(
        matches!(&found, Error::Corrupt { path: p, .. } if *p == path),
        "{found}"
    );
    assert!(found.to_string().contains(why), "{found}");
    refused!(pools.delete_volume(&made.id), Error::Corrupt { .. });
    assert_eq!(pools.volumes().len(), 1);
    let again = pools.create_volume(&site.pool(), new("one"));
    assert_eq!(again.is_err(), name_is_readable, "{again:?}");
    let noted = pools.noted_problems();
    assert_eq!(noted.len(), 1, "{noted:?}");
    assert_eq!(noted[0].about, About::Volume(made.id));
    assert_eq!(read(&path), damaged);
}

#[test]
fn a_missing_record_is_no_missing_volume() {
    let mut site = Site::fake(&["a"]);
    let (made, path) = made(&site, "one");
    std::fs::remove_file(&path).unwrap();
    let found = site.open().volume(&VolumeHandle::Id(made.id));
    refused!(found, Error::Corrupt { .. });
    assert!(path.with_file_name("image").exists());
}

#[test]
fn strangers_are_left_alone() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let foreign = VolumeId::generate(PoolId::generate());
    for stranger in ["notes.txt", "vol-x", &foreign.to_string()] {
        std::fs::create_dir(site.path("volumes").join(stranger)).unwrap();
    }
    // The directory has a valid ID of this pool, but holds the record of another volume.
    let copy = VolumeId::generate(made.id.pool());
    let from = site.path(format!("volumes/{}", made.id));
    let to = site.path(format!("volumes/{copy}"));
    std::fs::create_dir(&to).unwrap();
    std::fs::copy(from.join("volume.json"), to.join("volume.json")).unwrap();

    let pools = site.open();
    assert_eq!(pools.volumes().len(), 1);
    assert_eq!(
        pools.noted_problems().len(),
        4,
        "{:?}",
        pools.noted_problems()
    );
    let found = pools.volume(&VolumeHandle::Id(copy)).unwrap_err();
    let why = format!("is the record of {}", made.id);
    assert!(found.to_string().contains(&why), "{found}");
    assert_eq!(site.entries().len(), 5);
}

#[test]
fn records_read_back_as_written() {
    let site = Site::fake(&["a"]);
    let mut record = (*site.make("a \"name\" with / and \n and ü")).clone();
    record.parameters = pairs("pool=default").into();
    record.inline = Some("csi-0".into());
    let read: VolumeRecord = decode(&encode(&record, "volume.json").unwrap(), record.id).unwrap();
    assert_eq!(read, record);
}

fn stage(path: &Path) -> Box<Stage> {
    stage_at(path, mounted(), None)
}

/// The blocked file, and what a change of record and state leaves on disk and in the index.
#[rstest]
#[case::record(".volume.json.new", (true, None))]
#[case::state(".state.json.new", (false, None))]
#[case::nothing("notes", (false, Some(stage("/stage".as_ref()))))]
fn a_record_is_written_before_its_state(
    #[case] blocked: &str,
    #[case] expected: (bool, Option<Box<Stage>>),
) {
    let mut site = Site::fake(&["a"]);
    let (made, path) = made(&site, "one");
    std::fs::create_dir(path.with_file_name(blocked)).unwrap();
    let updated = site.pools().update_volume(&made.id, |record| {
        record.fresh = false;
        record.stage = Some(stage("/stage".as_ref()));
    });
    assert_eq!(updated.is_ok(), expected.1.is_some(), "{updated:?}");
    let now = site.volume(made.id);
    assert_eq!((now.fresh, now.stage.clone()), expected);
    site.close();
    let pools = site.start();
    let layout = &pools.named(None).unwrap().layout;
    let stored = read_one::<VolumeRecord>(layout, made.id).unwrap();
    assert_eq!(stored, now.durable());
}

#[test]
fn a_record_that_cannot_be_written_leaves_what_was_there() {
    use std::os::unix::ffi::OsStringExt;
    let mut site = Site::fake(&["a"]);
    let (made, path) = made(&site, "one");
    let before = read(&path);
    let not_utf8 = PathBuf::from(std::ffi::OsString::from_vec(vec![b'/', 0xff]));
    let updated = site.pools().update_volume(&made.id, |record| {
        record.fresh = false;
        record.stage = Some(stage(&not_utf8));
    });
    refused!(updated, Error::Unwritable { .. });
    assert_eq!(read(&path), before);
    assert_eq!(site.volume(made.id), made);
    site.open();
    assert_eq!(site.volume(made.id), made);
}
