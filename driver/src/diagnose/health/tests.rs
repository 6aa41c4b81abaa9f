use super::*;
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

/// A change to a healthy volume, and the expected conditions.
type Case = (
    &'static str,
    fn(&mut VolumeFacts),
    &'static [(VolumeHealthErrorType, &'static str)],
);

#[test]
fn volumes_are_judged() {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    let cases: &[Case] = &[
        ("sound", |_| {}, &[]),
        (
            "pool missing, and nothing else is known then",
            |f| f.pool.missing = Some("not mounted".into()),
            &[(Inaccessible, "PoolGone")],
        ),
        (
            "pool silent",
            |f| {
                f.pool.silent = Some("EIO".into());
                f.issues = vec![Issue::FilesystemReadOnly];
            },
            &[(Inaccessible, "PoolGone")],
        ),
        (
            "an issue",
            |f| f.issues = vec![Issue::ImageMissing { held_by: vec![] }],
            &[(DataLoss, "ImageMissing")],
        ),
        (
            "one condition for each reason",
            |f| {
                let changed = |minor| Issue::DeviceChanged {
                    minor,
                    why: String::new(),
                };
                f.issues = vec![changed(3), changed(4)];
            },
            &[(Inaccessible, "DeviceChanged")],
        ),
        (
            "errors",
            |f| f.errors = Some("3 errors".into()),
            &[(Degraded, "FilesystemErrors")],
        ),
        (
            "frozen",
            |f| f.issues = vec![Issue::Frozen { since_ns: 1 }],
            &[(Inaccessible, "Frozen")],
        ),
        (
            "pool nearly full",
            |f| f.pool.usage = Some(usage(49)),
            &[(Degraded, "PoolNearlyFull")],
        ),
        (
            "which does not touch a thick one",
            |f| {
                f.pool.usage = Some(usage(49));
                f.provisioning = Provisioning::Thick;
            },
            &[],
        ),
        (
            "noticed",
            |f| f.findings = vec!["look".into()],
            &[(Degraded, "NeedsAttention")],
        ),
        (
            "all at once",
            |f| {
                f.issues = vec![Issue::Buffered { minor: 3 }, Issue::FilesystemReadOnly];
                f.pool.usage = Some(usage(0));
            },
            &[
                (Degraded, "DirectIOLost"),
                (Inaccessible, "FilesystemReadOnly"),
                (Degraded, "PoolNearlyFull"),
            ],
        ),
    ];
    for (what, harm, expected) in cases {
        let mut facts = sound();
        harm(&mut facts);
        let said = of_volume(&facts);
        assert!(said.iter().all(|c| !c.message.is_empty()), "{what}");
        let said: Vec<_> = said.iter().map(|c| (c.status, c.reason)).collect();
        assert_eq!(&said, expected, "{what}");
    }
}

#[test]
fn pools_are_judged() {
    use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
    type Case = (
        fn(&mut PoolFacts),
        &'static [(StorageHealthErrorType, &'static str)],
    );
    let cases: &[Case] = &[
        (|_| {}, &[]),
        (
            |f| f.missing = Some("gone".into()),
            &[(StorageUnreachable, "PoolMissing")],
        ),
        (
            |f| f.silent = Some("EIO".into()),
            &[(StorageUnreachable, "PoolGone")],
        ),
        (
            |f| f.usage.as_mut().unwrap().read_only = true,
            &[(StorageUnreachable, "PoolReadOnly")],
        ),
        (
            |f| f.usage = Some(usage(49)),
            &[(StorageDegraded, "PoolNearlyFull")],
        ),
        (|f| f.usage = Some(usage(50)), &[]),
        // Without a reserve, the last 1 % counts.
        (
            |f| {
                f.reserve_bytes = 0;
                f.usage = Some(usage(9));
            },
            &[(StorageDegraded, "PoolNearlyFull")],
        ),
        (
            |f| {
                f.reserve_bytes = 0;
                f.usage = Some(usage(10));
            },
            &[],
        ),
        (
            |f| f.findings = vec!["odd".into()],
            &[(StorageDegraded, "PoolNeedsAttention")],
        ),
    ];
    for (number, (harm, expected)) in cases.iter().enumerate() {
        let mut facts = pool();
        harm(&mut facts);
        let said: Vec<_> = of_pool(&facts)
            .iter()
            .map(|p| (p.status, p.reason))
            .collect();
        assert_eq!(&said, expected, "case {number}");
    }
}

#[test]
fn one_entry_for_each_status_and_reason() {
    let problem = |pool: &str, reason| Problem {
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
    let said: Vec<_> = backends(&problems)
        .into_iter()
        .map(|b| (b.reason, b.message))
        .collect();
    let expected = [
        ("PoolNearlyFull", "pool a: x; pool b: x"),
        ("PoolNeedsAttention", "pool b: x"),
    ];
    assert_eq!(said, expected.map(|(r, m)| (r.to_owned(), m.to_owned())));
}

#[test]
fn a_freeze_is_overdue_after_its_limit() {
    let ago = |seconds| {
        let since = SystemTime::now() - Duration::from_secs(seconds);
        since.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
    };
    let limit = Duration::from_secs(10);
    assert_eq!(overdue(ago(0), limit), None);
    assert_eq!(overdue(ago(12), limit), None);
    assert!(overdue(ago(20), limit).is_some());
    // A freeze in the future, after the clock was set back, is not overdue.
    let ahead = SystemTime::now() + Duration::from_secs(100);
    assert_eq!(
        overdue(
            ahead.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
            limit
        ),
        None
    );
}
