use super::*;
use crate::storage::{About, VolumeHandle};
use crate::testkit::{Site, new};

/// The damage to a record, the expected message, and whether the name stays readable.
type Damage = (fn(&str) -> String, &'static str, bool);

const DAMAGE: [Damage; 7] = [
    (|_| String::new(), "is not a readable record", false),
    (
        |s| s[..s.len() / 2].to_owned(),
        "is not a readable record",
        false,
    ),
    (
        |s| s.replace("\"schema\": 1", "\"schema\": 2"),
        "has schema 2; this build reads up to 1",
        true,
    ),
    (
        |s| s.replace("\"schema\": 1", "\"schema\": 2, \"novelty\": {}"),
        "has schema 2; this build reads up to 1",
        true,
    ),
    (
        |s| s.replace("\"schema\": 1", "\"schema\": 0"),
        "has the unknown schema 0",
        true,
    ),
    (
        |s| s.replace("\"schema\": 1", "\"schema\": 1, \"novelty\": 1"),
        "unknown field `novelty`",
        true,
    ),
    (
        |s| s.replace("\"created_ns\": ", "\"created_ns\": -"),
        "is not a readable record",
        true,
    ),
];

#[test]
fn a_record_that_does_not_say_so_is_of_a_volume_that_was_used() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    assert!(made.fresh);
    let path = site.path(format!("volumes/{}/volume.json", made.id));
    let record = std::fs::read_to_string(&path).unwrap();
    let silent = record.replace("  \"fresh\": true,\n", "");
    assert_ne!(silent, record);
    std::fs::write(&path, silent).unwrap();
    site.open();
    let read = site.pools().volume(&VolumeHandle::Id(made.id)).unwrap();
    assert!(!read.fresh);
}

#[test]
fn a_damaged_record_is_kept_and_in_the_way() {
    for (i, (damage, why, name_is_readable)) in DAMAGE.into_iter().enumerate() {
        let mut site = Site::fake(&["a"]);
        let made = site.make("one");
        site.make("two");
        let path = site.path(format!("volumes/{}/volume.json", made.id));
        let damaged = damage(&std::fs::read_to_string(&path).unwrap());
        std::fs::write(&path, &damaged).unwrap();

        site.open();
        let pools = site.pools();
        let handle = VolumeHandle::Id(made.id);
        let found = pools.volume(&handle).unwrap_err();
        assert!(
            matches!(&found, Error::Corrupt { path: p, .. } if *p == path),
            "{i}: {found}"
        );
        assert!(found.to_string().contains(why), "{i}: {found}");
        refused!(pools.delete_volume(&made.id), Error::Corrupt { .. }, "{i}");
        assert_eq!(pools.volumes().len(), 1, "{i}");
        let again = pools.create_volume(&site.named("a"), new("one"));
        assert_eq!(again.is_err(), name_is_readable, "{i}: {again:?}");
        let findings = pools.findings();
        assert_eq!(findings.len(), 1, "{i}: {findings:?}");
        assert_eq!(findings[0].about, About::Volume(made.id), "{i}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged, "{i}");
    }
}

#[test]
fn a_missing_record_is_no_missing_volume() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    std::fs::remove_file(site.path(format!("volumes/{}/volume.json", made.id))).unwrap();
    refused!(
        site.open().volume(&VolumeHandle::Id(made.id)),
        Error::Corrupt { .. }
    );
    assert!(site.path(format!("volumes/{}/image", made.id)).exists());
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
    assert_eq!(pools.findings().len(), 4, "{:?}", pools.findings());
    let found = pools
        .volume(&VolumeHandle::Id(copy))
        .unwrap_err()
        .to_string();
    assert!(
        found.contains(&format!("is the record of {}", made.id)),
        "{found}"
    );
    assert_eq!(site.entries().len(), 5);
}

#[test]
fn records_read_back_as_written() {
    let site = Site::fake(&["a"]);
    let mut record = (*site.make("a \"name\" with / and \n and ü")).clone();
    record.parameters.insert("pool".into(), "default".into());
    record.inline = Some("csi-0".into());
    let read: VolumeRecord = decode(&encode(&record, "volume.json").unwrap(), record.id).unwrap();
    assert_eq!(read, record);
}

#[test]
fn a_record_that_cannot_be_written_leaves_what_was_there() {
    use std::os::unix::ffi::OsStringExt;
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let path = site.path(format!("volumes/{}/volume.json", made.id));
    let before = std::fs::read_to_string(&path).unwrap();
    let not_utf8 = PathBuf::from(std::ffi::OsString::from_vec(vec![b'/', 0xff]));
    let updated = site.pools().update_volume(&made.id, |record| {
        record.stage = Some(crate::storage::Stage {
            path: not_utf8.clone(),
            capability: crate::testkit::mounted(),
            minor: None,
            read_only_loops: Default::default(),
        });
    });
    let error = updated.unwrap_err();
    assert!(matches!(error, Error::Unwritable { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    let handle = VolumeHandle::Id(made.id);
    assert_eq!(site.pools().volume(&handle).unwrap(), made);
    assert_eq!(site.open().volume(&handle).unwrap(), made);
}
