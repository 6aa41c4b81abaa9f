//! What comes from outside as text is parsed before it is used: whatever it is, parsing ends, and
//! what is taken for an ID reads back as the same text and nothing that a path could stumble over.

use std::path::Path;

use hostloop_driver::pool::{GroupId, PoolId, SnapshotId, VolumeHandle, VolumeId};
use hostloop_driver::request;
use hostloop_driver::sys::MountTable;
use proptest::collection::vec;
use proptest::prelude::*;

/// How a string reads as each kind of ID.
fn as_ids(text: &str) -> Vec<String> {
    let ids = [
        text.parse::<PoolId>().map(|id| id.to_string()).ok(),
        text.parse::<VolumeId>().map(|id| id.to_string()).ok(),
        text.parse::<SnapshotId>().map(|id| id.to_string()).ok(),
        text.parse::<GroupId>().map(|id| id.to_string()).ok(),
        text.parse::<VolumeHandle>().map(|id| id.to_string()).ok(),
    ];
    ids.into_iter().flatten().collect()
}

/// What is taken has one spelling, fits where CSI puts it, and is one plain component of a path.
fn check(text: &str) -> Result<(), TestCaseError> {
    for id in as_ids(text) {
        prop_assert_eq!(&id, text, "an ID has one spelling");
        prop_assert!(id.len() <= 128);
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        prop_assert!(id.bytes().all(plain), "{id:?} is not plain");
    }
    Ok(())
}

/// An ID of some kind.
fn an_id() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(()).prop_map(|()| VolumeId::generate(PoolId::generate()).to_string()),
        Just(()).prop_map(|()| SnapshotId::generate(PoolId::generate()).to_string()),
        Just(()).prop_map(|()| GroupId::generate(PoolId::generate()).to_string()),
        Just(()).prop_map(|()| PoolId::generate().to_string()),
        "csi-[0-9a-f]{64}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_text_is_judged(text in any::<String>()) {
        check(&text)?;
    }

    #[test]
    fn text_like_an_id_is_judged(
        text in "(vol|snap|group|csi)?-?[0-9a-fA-F./\\-]{0,20}-?[0-9a-fA-F\u{0}\n]{0,70}",
    ) {
        check(&text)?;
    }

    #[test]
    fn an_id_is_taken(id in an_id()) {
        prop_assert!(!as_ids(&id).is_empty());
        check(&id)?;
    }

    #[test]
    fn an_id_with_one_change_is_judged(
        id in an_id(),
        at in any::<prop::sample::Index>(),
        with in any::<char>(),
        insert in any::<bool>(),
    ) {
        let mut chars: Vec<char> = id.chars().collect();
        let at = at.index(chars.len());
        match insert {
            true => chars.insert(at, with),
            false => chars[at] = with,
        }
        check(&chars.into_iter().collect::<String>())?;
    }

    #[test]
    fn any_mount_table_is_judged(text in vec(any::<u8>(), 0..400)) {
        let _ = MountTable::parse(&text);
    }

    #[test]
    fn text_like_a_mount_table_is_judged(
        text in "([0-9]{1,3} ){2}[0-9:]{0,5} /[a-z\\\\0-9]{0,9} /[a-z\\\\0-9]{0,9} (rw|ro)( [a-z:0-9]{0,5}){0,2} ?-? [a-z]{0,4} [/a-z0-9\\\\]{0,9} [a-z,]{0,9}\n?",
    ) {
        if let Ok(table) = MountTable::parse(text.as_bytes()) {
            for entry in &table.entries {
                prop_assert!(table.at(&entry.mount_point).is_some());
                let _ = entry.loop_minor();
            }
        }
    }

    #[test]
    fn any_path_is_judged(text in any::<String>()) {
        if let Ok(path) = request::path("target_path", &text) {
            prop_assert!(path.is_absolute());
            prop_assert!(path.file_name().is_some());
            prop_assert!(!path.components().any(|c| c == std::path::Component::ParentDir));
            prop_assert_ne!(path.as_path(), Path::new("/"));
        }
    }

    #[test]
    fn any_name_is_judged(text in any::<String>()) {
        if let Ok(name) = request::name("name", &text) {
            prop_assert_eq!(name, &text);
            prop_assert!(!name.is_empty() && name.len() <= 128 && !name.contains('\0'));
        }
    }
}
