use std::collections::BTreeSet;

use super::*;
use crate::FileId;

static EMPTY: BTreeSet<u32> = BTreeSet::new();

fn device(minor: u32, ino: u64) -> LoopInfo {
    LoopInfo {
        minor,
        backing: Some(FileId { dev: 1, ino }),
        ..LoopInfo::default()
    }
}

fn silent(minor: u32) -> LoopInfo {
    LoopInfo {
        minor,
        ..LoopInfo::default()
    }
}

/// Devices that were listed once, with nothing left to query.
fn listed(devices: &[LoopInfo]) -> Loops {
    let mut loops = Loops::default();
    let query = loops.note(DeviceChanges::Loops(vec![]), LoopScope::All);
    assert_eq!(query, Query::All(0), "the first look lists all devices");
    loops.learn(query, devices.to_vec());
    loops
}

fn all(known: &KnownLoops) -> Vec<LoopInfo> {
    known.table.iter().cloned().collect()
}

fn minors(query: &Query) -> Option<Vec<u32>> {
    match query {
        Query::All(_) => None,
        Query::These(minors) => Some(minors.iter().map(|(minor, _)| *minor).collect()),
    }
}

#[test]
fn only_changed_devices_are_queried() {
    // Known devices; messages; expected query; answers; expected list.
    let table = [
        (
            vec![device(1, 1)],
            vec![],
            vec![],
            vec![],
            vec![device(1, 1)],
        ),
        (
            vec![device(1, 1)],
            vec![3],
            vec![3],
            vec![device(3, 3)],
            vec![device(1, 1), device(3, 3)],
        ),
        (
            vec![device(1, 1)],
            vec![1, 1],
            vec![1],
            vec![device(1, 2)],
            vec![device(1, 2)],
        ),
        (vec![device(1, 1)], vec![1], vec![1], vec![], vec![]),
        (vec![], vec![2], vec![2], vec![silent(2)], vec![silent(2)]),
    ];
    for (known, messages, expected, answers, list) in table {
        let mut loops = listed(&known);
        let query = loops.note(DeviceChanges::Loops(messages), LoopScope::All);
        assert_eq!(minors(&query), Some(expected), "{known:?}");
        assert_eq!(all(&loops.learn(query, answers)), list);
    }
}

#[test]
fn a_device_that_does_not_report_its_file_is_queried_each_time() {
    let mut loops = listed(&[silent(1), device(2, 2)]);
    for _ in 0..2 {
        let query = loops.note(DeviceChanges::Loops(vec![]), LoopScope::All);
        assert_eq!(minors(&query), Some(vec![1]));
        loops.learn(query, vec![silent(1)]);
    }
    let query = loops.note(DeviceChanges::Loops(vec![]), LoopScope::All);
    loops.learn(query, vec![device(1, 1)]);
    assert_eq!(
        minors(&loops.note(DeviceChanges::Loops(vec![]), LoopScope::All)),
        Some(vec![])
    );
}

#[test]
fn a_change_of_stand_ins_queries_only_the_devices_over_them() {
    fn next(loops: &mut Loops) -> Query {
        loops.note(DeviceChanges::Loops(vec![]), LoopScope::All)
    }
    let file = |ino| Some(vec![FileId { dev: 1, ino }]);
    let mut loops = listed(&[device(1, 1), device(2, 2)]);
    loops.follow_stand_ins(0, Some(vec![]));
    assert_eq!(minors(&next(&mut loops)), Some(vec![]));
    loops.follow_stand_ins(1, file(2));
    let query = next(&mut loops);
    assert_eq!(minors(&query), Some(vec![2]));
    // The answer may be of before the next change.
    loops.follow_stand_ins(2, file(7));
    loops.learn(query, vec![device(2, 7)]);
    let query = next(&mut loops);
    assert_eq!(minors(&query), Some(vec![2]));
    loops.learn(query, vec![device(2, 8)]);
    assert_eq!(minors(&next(&mut loops)), Some(vec![]));

    loops.follow_stand_ins(1000, None);
    let query = next(&mut loops);
    assert_eq!(minors(&query), None, "too many");
    loops.follow_stand_ins(1001, file(8));
    loops.learn(query, vec![device(2, 8)]);
    assert_eq!(
        minors(&next(&mut loops)),
        None,
        "that list may be of before"
    );
}

#[test]
fn a_device_of_another_image_is_queried_when_it_is_needed() {
    let path = |volume: &str| format!("/pool/volumes/vol-a-{volume}/image");
    let seen = LoopInfo {
        backing_path: path("2"),
        ..silent(5)
    };
    let of = |directory| LoopScope::Image {
        directory,
        minors: &EMPTY,
    };
    let none = || DeviceChanges::Loops(vec![]);
    let mut loops = listed(&[]);
    let query = loops.note(DeviceChanges::Loops(vec![5]), of("vol-a-1"));
    assert_eq!(minors(&query), Some(vec![5]), "its path is not known yet");
    assert_eq!(
        all(&loops.learn(query, vec![seen.clone()])),
        vec![seen.clone()]
    );
    let recorded = BTreeSet::from([5]);
    let with_minor = LoopScope::Image {
        directory: "vol-a-1",
        minors: &recorded,
    };
    for (scope, asked) in [
        (of("vol-a-1"), vec![]),
        (of("vol-a-3"), vec![]),
        (of("vol-a-2"), vec![5]),
        (with_minor, vec![5]),
        (LoopScope::All, vec![5]),
    ] {
        assert_eq!(minors(&loops.note(none(), scope)), Some(asked), "{scope:?}");
    }
    let query = loops.note(none(), LoopScope::All);
    // A look for another image meanwhile reads the path after that.
    let late = loops.note(DeviceChanges::Loops(vec![5]), of("vol-a-1"));
    assert_eq!(minors(&late), Some(vec![5]), "it changed again");
    let whole = LoopInfo {
        backing_path: path("2"),
        ..device(5, 2)
    };
    loops.learn(query, vec![whole.clone()]);
    assert_eq!(minors(&loops.note(none(), of("vol-a-1"))), Some(vec![5]));
    assert_eq!(
        all(&loops.learn(late, vec![seen.clone()])),
        vec![seen.clone()]
    );
    let query = loops.note(none(), of("vol-a-2"));
    assert_eq!(
        all(&loops.learn(query.clone(), vec![whole.clone()])),
        vec![whole.clone()]
    );
    // The path of the same message comes late, and is older than the whole answer.
    assert_eq!(all(&loops.learn(query, vec![seen])), [whole]);
    assert_eq!(minors(&loops.note(none(), LoopScope::All)), Some(vec![]));
}

#[test]
fn only_the_devices_of_the_last_answers_are_not_old() {
    let old = |known: KnownLoops| {
        known
            .old(known.iter())
            .iter()
            .map(|info| info.minor)
            .collect::<Vec<_>>()
    };
    let none = || DeviceChanges::Loops(vec![]);
    let mut loops = Loops::default();
    let query = loops.note(none(), LoopScope::All);
    assert_eq!(old(loops.learn(query, vec![device(1, 1), silent(2)])), [2]);
    let query = loops.note(DeviceChanges::Loops(vec![3, 4]), LoopScope::All);
    assert_eq!(
        old(loops.learn(query, vec![silent(2), device(3, 3)])),
        [1, 2]
    );
    let query = loops.note(none(), LoopScope::All);
    assert_eq!(old(loops.learn(query, vec![silent(2)])), [1, 2, 3]);
    // The device changes again during its query, and another call has the later answer.
    let first = loops.note(DeviceChanges::Loops(vec![1]), LoopScope::All);
    let second = loops.note(DeviceChanges::Loops(vec![1]), LoopScope::All);
    assert_eq!(old(loops.learn(first.clone(), vec![device(1, 2)])), [1, 3]);
    assert_eq!(old(loops.learn(second, vec![device(1, 3)])), [3]);
    assert_eq!(old(loops.learn(first, vec![device(1, 2)])), [1, 3]);
}

#[test]
fn lost_messages_list_all_devices() {
    let mut loops = listed(&[device(1, 1)]);
    let query = loops.note(DeviceChanges::Unknown, LoopScope::All);
    assert_eq!(minors(&query), None);
    assert_eq!(all(&loops.learn(query, vec![device(2, 2)])), [device(2, 2)]);
    assert_eq!(
        minors(&loops.note(DeviceChanges::Loops(vec![]), LoopScope::All)),
        Some(vec![])
    );
}

#[test]
fn messages_lost_during_a_listing_list_again() {
    let mut loops = listed(&[]);
    let first = loops.note(DeviceChanges::Unknown, LoopScope::All);
    assert_eq!(
        minors(&loops.note(DeviceChanges::Unknown, LoopScope::All)),
        None
    );
    loops.learn(first, vec![device(1, 1)]);
    assert_eq!(
        minors(&loops.note(DeviceChanges::Loops(vec![]), LoopScope::All)),
        None
    );
}

#[test]
fn a_device_that_changes_during_a_query_is_queried_again() {
    // The answers of the first query, of all devices or of one, are older than the second message.
    for lost in [true, false] {
        let mut loops = listed(&[device(1, 1)]);
        let changes = if lost {
            DeviceChanges::Unknown
        } else {
            DeviceChanges::Loops(vec![1])
        };
        let first = loops.note(changes, LoopScope::All);
        let second = loops.note(DeviceChanges::Loops(vec![1]), LoopScope::All);
        loops.learn(first, vec![device(1, 2)]);
        let third = loops.note(DeviceChanges::Loops(vec![]), LoopScope::All);
        assert_eq!(minors(&third), Some(vec![1]), "lost: {lost}");
        assert_eq!(all(&loops.learn(third, vec![device(1, 3)])), [device(1, 3)]);
        // An answer to an older query comes last, and has nothing new.
        if !lost {
            assert_eq!(
                all(&loops.learn(second, vec![device(1, 2)])),
                [device(1, 3)]
            );
        }
    }
}

/// No change of the mount table announces the answer. Where mounts have no IDs to ask for them
/// alone, only the whole table shows it.
#[test]
fn a_whole_table_is_read_again_while_a_btrfs_in_it_is_unknown() {
    let mut mounts = KnownMounts::read(0, MountQueries::Table).unwrap();
    let at = Path::new("/no/mount/of/this/machine");
    let line = format!("30 1 0:99 / {} rw - btrfs none rw\n", at.display());
    mounts.table = MountTable::parse(line.as_bytes()).unwrap();
    assert_eq!(mounts.table.of_any_loop().count(), 1);
    mounts.read_whole = None;
    mounts.follow(&[]).unwrap();
    assert!(mounts.table.at(at).is_none(), "{:?}", mounts.table);
    assert!(!mounts.table.entries.is_empty());

    // It was read just now, and a btrfs that never answers must not slow down each look. Other
    // programs may change the mounts meanwhile, but not each time.
    assert!(mounts.read_whole.is_some());
    let is_kept = (0..100).any(|_| {
        mounts.table = MountTable::parse(line.as_bytes()).unwrap();
        mounts.read_whole = Some(Instant::now());
        mounts.follow(&[]).unwrap();
        mounts.table.at(at).is_some()
    });
    assert!(is_kept);
}
