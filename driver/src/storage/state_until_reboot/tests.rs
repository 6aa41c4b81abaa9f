use rstest::rstest;

use super::*;
use crate::testkit::{Site, mounted};

const BOOT: &str = "6e6c8c2c-5b5a-4b60-8a0e-0f2f8f3b7f10";
const FREEZE: FreezeIntent = FreezeIntent { since_ns: 1 };

fn stage(path: &str) -> Option<Box<Stage>> {
    let stage = Stage {
        path: path.into(),
        capability: mounted(),
        minor: Some(3),
        read_only_loops: [("/target".into(), 4)].into(),
        disk: None,
    };
    Some(stage.into())
}

/// A staged and frozen volume.
fn record(inline: bool) -> VolumeRecord {
    let mut record = (*Site::fake(&["a"]).make("one")).clone();
    record.stage = stage("/stage");
    record.freeze = Some(FREEZE);
    record.inline = inline.then(|| "csi-0".into());
    record
}

fn text(record: &VolumeRecord) -> String {
    String::from_utf8(encode(record, BOOT).unwrap().unwrap()).unwrap()
}

/// The content of the file, and whether it counts, or why it is unreadable.
#[rstest]
#[case::as_written(|s: String| s, Ok(true))]
#[case::of_another_boot(|s: String| s.replace("6e6c", "7e6c"), Ok(false))]
#[case::empty(|_| String::new(), Err("is not readable"))]
#[case::zeros(|s: String| "\0".repeat(s.len()), Err("is not readable"))]
#[case::cut_off(|s: String| s[..s.len() / 2].to_owned(), Err("is not readable"))]
#[case::without_a_boot(|s: String| s.replace("boot", "boots"), Err("is not readable"))]
#[case::newer(|s: String| s.replace("\"schema\": 1", "\"schema\": 2"), Err("has schema 2"))]
fn a_state_counts_in_its_boot_only(
    #[case] change: fn(String) -> String,
    #[case] expected: std::result::Result<bool, &str>,
) {
    let record = record(false);
    match (decode(change(text(&record)).as_bytes(), BOOT), expected) {
        (Ok(state), Ok(counts)) => {
            let state = state.map(|state| (state.stage, state.freeze));
            assert_eq!(state, counts.then_some((record.stage, record.freeze)));
        }
        (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
        (state, expected) => panic!("{state:?}, not {expected:?}"),
    }
}

#[rstest]
#[case::volume(false, None)]
#[case::inline_volume(true, stage("/stage"))]
fn a_record_is_split_and_joined(#[case] inline: bool, #[case] kept: Option<Box<Stage>>) {
    let record = record(inline);
    let durable = record.durable();
    assert_eq!((&durable.stage, durable.freeze), (&kept, None));
    assert_eq!(durable.with_state_until_reboot(&record), record);
    // The state is that of the other record, and the rest is not.
    let mut other = record.clone();
    other.capacity_bytes += 4096;
    (other.stage, other.freeze) = (stage("/other"), None);
    let joined = other.with_state_until_reboot(&record);
    assert_eq!(joined.capacity_bytes, other.capacity_bytes);
    assert_eq!(joined.freeze, record.freeze);
    assert_eq!(
        joined.stage,
        if inline {
            other.stage
        } else {
            record.stage.clone()
        }
    );

    let dir = tempfile::tempdir().unwrap();
    let open = std::fs::File::open(dir.path()).unwrap();
    let there = || dir.path().join(FILE).exists();
    let read = |boot: &str| {
        let mut read = durable.clone();
        add(
            &mut read,
            std::os::fd::AsFd::as_fd(&open),
            Path::new(FILE),
            boot,
        );
        read
    };
    let entry = std::os::fd::AsFd::as_fd(&open);
    write(
        entry,
        Some(text(&joined.with_state_until_reboot(&record)).as_bytes()),
    )
    .unwrap();
    assert_eq!(read(BOOT), record);
    assert_eq!(read("another"), durable);
    assert!(there());
    for _ in 0..2 {
        write(entry, encode(&durable, BOOT).unwrap().as_deref()).unwrap();
        assert!(!there(), "without a state there is no file");
        assert_eq!(read(BOOT), durable);
    }
}
