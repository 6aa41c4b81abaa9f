use std::time::{SystemTime, UNIX_EPOCH};

use rstest::rstest;

use super::*;
use crate::diagnose::pool::SparseFile;
use crate::diagnose::{Lost, NotedFault};
use crate::kernel::FsUsage;

fn usage(available: u64) -> FsUsage {
    FsUsage {
        total_bytes: 1000,
        free_bytes: available,
        available_bytes: available,
        total_inodes: 10,
        free_inodes: 5,
        read_only: false,
    }
}

fn pool() -> PoolFacts {
    PoolFacts {
        name: "p".to_owned(),
        usage: Some(usage(500)),
        reserve_bytes: 50,
        ..PoolFacts::default()
    }
}

/// A thin volume with nothing wrong.
fn sound() -> VolumeFacts {
    VolumeFacts {
        pool: pool(),
        max_freeze: Duration::from_secs(10),
        ..VolumeFacts::default()
    }
}

/// Facts about a thin volume with one change.
fn facts(change: impl FnOnce(&mut VolumeFacts)) -> VolumeFacts {
    let mut facts = sound();
    change(&mut facts);
    facts
}

fn problems(problems: Vec<Problem>) -> VolumeFacts {
    facts(|f| f.problems = problems)
}

fn changed(minor: u32) -> Problem {
    let why = String::new();
    Problem::DeviceChanged { minor, why }
}

#[rstest]
#[case::sound(sound(), &[])]
// Nothing else is known then.
#[case::pool_missing(facts(|f| f.pool.missing = Some("x".into())), &["Inaccessible PoolGone"])]
#[case::pool_silent(
    facts(|f| {
        f.pool.silent = Some("EIO".into());
        f.problems = vec![Problem::FilesystemReadOnly];
    }),
    &["Inaccessible PoolGone"]
)]
#[case::a_problem(problems(vec![Problem::ImageMissing { held_by: vec![] }]), &["DataLoss ImageMissing"])]
#[case::once_per_reason(problems(vec![changed(3), changed(4)]), &["Inaccessible DeviceChanged"])]
#[case::errors(problems(vec![Problem::FilesystemErrors("3 errors".into())]), &["Degraded FilesystemErrors"])]
#[case::mount_options(
    problems(vec![Problem::MountOptionsRefused(vec!["rtdev".into()])]),
    &["Degraded MountOptionsRefused"]
)]
#[case::no_fault_disk(problems(vec![Problem::FaultDiskGone]), &["Inaccessible FaultDiskGone"])]
#[case::frozen(problems(vec![Problem::Frozen { since_ns: 1 }]), &["Inaccessible Frozen"])]
#[case::nearly_full(facts(|f| f.pool.usage = Some(usage(49))), &["Degraded PoolNearlyFull"])]
#[case::nearly_full_but_thick(
    facts(|f| {
        f.pool.usage = Some(usage(49));
        f.provisioning = Provisioning::Thick;
    }),
    &[]
)]
#[case::nearly_full_below(facts(|f| f.pool = below(9, 100)), &["Degraded PoolNearlyFull"])]
#[case::thick_and_nearly_full_below(
    facts(|f| {
        f.pool = below(9, 100);
        f.provisioning = Provisioning::Thick;
    }),
    &["Degraded PoolNearlyFull"]
)]
#[case::pool_image_lost(facts(|f| f.pool = lost(true)), &["DataLoss PoolImageLost"])]
#[case::pool_image_hidden(facts(|f| f.pool = lost(false)), &["Degraded PoolImageLost"])]
#[case::noted(facts(|f| f.noted = vec!["look".into()]), &["Degraded NeedsAttention"])]
#[case::all_at_once(
    facts(|f| {
        f.problems = vec![Problem::Buffered { minor: 3 }, Problem::FilesystemReadOnly];
        f.pool.usage = Some(usage(0));
    }),
    &["Degraded DirectIOLost", "Inaccessible FilesystemReadOnly", "Degraded PoolNearlyFull"]
)]
fn conditions_of_a_volume(#[case] facts: VolumeFacts, #[case] expected: &[&str]) {
    let conditions = volume_conditions(&facts);
    assert!(conditions.iter().all(|c| !c.message.is_empty()));
    let words = |c: &Condition| format!("{:?} {}", c.status, c.reason);
    let words: Vec<String> = conditions.iter().map(words).collect();
    assert_eq!(words, expected);
}

/// A healthy pool with one change.
fn with(change: impl FnOnce(&mut PoolFacts)) -> PoolFacts {
    let mut facts = pool();
    change(&mut facts);
    facts
}

/// A sparse image, of which this many bytes lack blocks, on a disk with little free space.
fn below(available: u64, lacks_bytes: u64) -> PoolFacts {
    let file = SparseFile {
        path: "/p".into(),
        lacks_bytes,
        usage: usage(available),
    };
    with(|f| f.sparse = vec![(file, 10)])
}

fn lost(data: bool) -> PoolFacts {
    let text = || "x".to_owned();
    with(|f| {
        f.lost = Some(Lost {
            reason: "PoolImageLost",
            data,
            what: text(),
            to_do: text(),
        })
    })
}

fn read_only_below() -> PoolFacts {
    let mut facts = below(500, 100);
    facts.sparse[0].0.usage.read_only = true;
    facts
}

/// Facts with a fault by request, which explains them.
fn faulty(total: bool, mut facts: PoolFacts) -> PoolFacts {
    facts.fault = Some(NotedFault {
        fault: "x,for=1s".to_owned(),
        total,
        since_ns: 1,
    });
    facts
}

fn free(available: u64, reserve_bytes: u64) -> PoolFacts {
    PoolFacts {
        usage: Some(usage(available)),
        reserve_bytes,
        ..pool()
    }
}

#[rstest]
#[case::sound(pool(), &[])]
#[case::missing(with(|f| f.missing = Some("gone".into())), &["StorageUnreachable PoolMissing"])]
#[case::silent(with(|f| f.silent = Some("EIO".into())), &["StorageUnreachable PoolGone"])]
#[case::read_only(
    with(|f| f.usage.as_mut().unwrap().read_only = true), &["StorageUnreachable PoolReadOnly"]
)]
#[case::read_only_below(read_only_below(), &["StorageUnreachable PoolReadOnly"])]
#[case::image_lost(lost(true), &["StorageUnreachable PoolImageLost"])]
#[case::full_below(below(9, 100), &["StorageDegraded PoolNearlyFull"])]
#[case::enough_below(below(10, 100), &[])]
// The image needs less than the disk has.
#[case::little_needed_below(below(9, 8), &[])]
#[case::below_the_reserve(free(49, 50), &["StorageDegraded PoolNearlyFull"])]
#[case::at_the_reserve(free(50, 50), &[])]
// Without a reserve, the last 1 % counts.
#[case::below_the_last_percent(free(9, 0), &["StorageDegraded PoolNearlyFull"])]
#[case::at_the_last_percent(free(10, 0), &[])]
#[case::noted(
    with(|f| f.noted = vec!["odd".into()]), &["StorageDegraded PoolNeedsAttention"]
)]
#[case::full_on_request(faulty(false, free(0, 50)), &["StorageDegraded FaultInjected"])]
#[case::missing_on_request(
    faulty(true, with(|f| f.missing = Some("gone".into()))), &["StorageUnreachable FaultInjected"]
)]
#[case::hanging_on_request(
    faulty(true, with(|f| f.silent = Some("late".into()))), &["StorageUnreachable FaultInjected"]
)]
#[case::lost_beside_a_fault(
    faulty(false, lost(true)),
    &["StorageDegraded FaultInjected", "StorageUnreachable PoolImageLost"]
)]
fn conditions_of_a_pool(#[case] facts: PoolFacts, #[case] expected: &[&str]) {
    let words = |p: &PoolCondition| format!("{:?} {}", p.status, p.reason);
    let words: Vec<String> = pool_conditions(&facts).iter().map(words).collect();
    assert_eq!(words, expected);
}

#[test]
fn one_entry_for_each_status_and_reason() {
    let problem = |pool: &str, reason| PoolCondition {
        pool: pool.to_owned(),
        status: StorageHealthErrorType::StorageDegraded,
        reason,
        message: "x".to_owned(),
    };
    let problems = [
        problem("a", "PoolNearlyFull"),
        problem("b", "PoolNearlyFull"),
        problem("b", "PoolNeedsAttention"),
    ];
    let merged: Vec<_> = backends(&problems)
        .into_iter()
        .map(|b| (b.reason, b.message))
        .collect();
    let expected = [
        ("PoolNearlyFull", "pool a: x; pool b: x"),
        ("PoolNeedsAttention", "pool b: x"),
    ];
    assert_eq!(merged, expected.map(|(r, m)| (r.to_owned(), m.to_owned())));
}

/// The API server refuses a whole status, and with it all of a pod's, if one condition exceeds its
/// limits: 16 conditions, 1024 bytes a message, each status and reason once.
#[test]
fn conditions_stay_within_the_limits_of_the_api_server() {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    const REASONS: [&str; 9] = ["A", "B", "C", "D", "E", "F", "G", "H", "I"];
    let of = |status| REASONS.map(|reason| Condition::new(status, reason, "ä".repeat(700)));
    let twice = Condition::new(DataLoss, "A", "again");
    let all = [of(Degraded), of(Inaccessible), of(DataLoss)].concat();
    let entries = message("v", [all, vec![twice]].concat()).health_statuses;
    let found: Vec<_> = entries
        .iter()
        .map(|e| (e.status(), e.reason.as_str()))
        .collect();
    let first = REASONS.map(|reason| (DataLoss, reason));
    let then = REASONS[..7].iter().map(|reason| (Inaccessible, *reason));
    assert_eq!(found, first.into_iter().chain(then).collect::<Vec<_>>());
    for entry in entries {
        assert_eq!(entry.message, format!("{}…", "ä".repeat(510)));
    }
}

#[test]
fn problems_of_the_storage_stay_within_the_limits_of_the_api_server() {
    use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
    let problem = |status| PoolCondition {
        pool: "p".to_owned(),
        status,
        reason: "PoolMissing",
        message: "x".repeat(600),
    };
    let problems = [StorageDegraded, StorageUnreachable].map(problem);
    let entries = backends(&[problems.clone(), problems].concat());
    let lengths: Vec<_> = entries
        .iter()
        .map(|e| (e.status(), e.message.len()))
        .collect();
    assert_eq!(
        lengths,
        [(StorageUnreachable, 1024), (StorageDegraded, 1024)]
    );
    assert!(entries.iter().all(|e| e.message.ends_with('…')));
}

#[test]
fn a_freeze_is_overdue_after_its_limit() {
    let limit = Duration::from_secs(10);
    // The third freeze is in the future: the clock was set back.
    for (seconds, expected) in [(0, false), (12, false), (-100, false), (20, true)] {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let since = (now.as_nanos() as i64 - seconds * 1_000_000_000) as u64;
        assert_eq!(is_overdue(since, limit), expected, "{seconds} s ago");
    }
}
