use super::*;
use crate::sys::FileId;

fn device(minor: u32, direct_io: bool) -> LoopInfo {
    LoopInfo {
        minor,
        backing: Some(FileId { dev: 1, ino: 2 }),
        autoclear: true,
        direct_io,
        ..LoopInfo::default()
    }
}

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

/// A thin ext4 volume, staged and mounted, with nothing wrong.
fn sound() -> VolumeFacts {
    VolumeFacts {
        pool: pool(),
        direct_io: true,
        loops: vec![device(3, true)],
        staged: Some(Staged {
            path: "/stage".into(),
            minor: Some(3),
            formatted: true,
            mounted: true,
            ..Staged::default()
        }),
        filesystem: Some(Filesystem {
            options: vec!["rw".to_owned()],
            errors: None,
        }),
        ..VolumeFacts::default()
    }
}

fn options(words: &[&str]) -> Option<Filesystem> {
    Some(Filesystem {
        options: words.iter().map(|w| w.to_string()).collect(),
        errors: None,
    })
}

/// What has been done to a sound volume, and what is to be said of it.
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
            "not in use",
            |f| {
                *f = VolumeFacts {
                    pool: pool(),
                    ..VolumeFacts::default()
                }
            },
            &[],
        ),
        (
            "pool missing, and nothing else is known then",
            |f| {
                f.pool.missing = Some("not mounted".into());
                f.loops.clear();
            },
            &[(Inaccessible, "PoolGone")],
        ),
        (
            "pool silent",
            |f| f.pool.silent = Some("EIO".into()),
            &[(Inaccessible, "PoolGone")],
        ),
        (
            "image missing",
            |f| {
                *f = VolumeFacts {
                    pool: pool(),
                    image: Image::Missing { held_by: vec![] },
                    ..VolumeFacts::default()
                }
            },
            &[(DataLoss, "ImageMissing")],
        ),
        (
            "image deleted under a device",
            |f| {
                f.image = Image::Missing { held_by: vec![3] };
                f.loops.clear();
                f.filesystem = None;
            },
            &[(DataLoss, "ImageDeleted")],
        ),
        (
            "image cut off",
            |f| f.image = Image::Short("has 1".into()),
            &[(DataLoss, "ImageTruncated")],
        ),
        (
            "image unreadable",
            |f| {
                f.image = Image::Unreadable("EIO".into());
                f.loops.clear();
                f.filesystem = None;
            },
            &[(Inaccessible, "ImageUnreadable")],
        ),
        (
            "loop device lost",
            |f| {
                f.loops.clear();
                f.filesystem = None;
            },
            &[(Inaccessible, "LoopDeviceLost")],
        ),
        (
            "staging has not come to the device",
            |f| {
                f.loops.clear();
                f.filesystem = None;
                f.staged.as_mut().unwrap().minor = None;
            },
            &[],
        ),
        (
            "a filesystem is being made",
            |f| {
                f.filesystem = None;
                let staged = f.staged.as_mut().unwrap();
                staged.mounted = false;
                staged.formatted = false;
            },
            &[],
        ),
        (
            "not mounted any more",
            |f| {
                f.filesystem = None;
                f.staged.as_mut().unwrap().mounted = false;
            },
            &[(Inaccessible, "NotMounted")],
        ),
        (
            "a mounted volume may come back at another device",
            |f| f.loops[0].minor = 4,
            &[],
        ),
        (
            "a raw one may not",
            |f| {
                f.loops[0].minor = 4;
                f.filesystem = None;
                f.staged.as_mut().unwrap().block = true;
            },
            &[(Inaccessible, "LoopDeviceLost")],
        ),
        (
            "a read-only device of a raw one lost",
            |f| {
                f.filesystem = None;
                let staged = f.staged.as_mut().unwrap();
                staged.block = true;
                staged.lost_targets = vec!["/pod/x".into()];
            },
            &[(Inaccessible, "LoopDeviceLost")],
        ),
        (
            "attached twice",
            |f| f.loops.push(device(9, true)),
            &[(Degraded, "AttachedTwice")],
        ),
        (
            "shows a part of its image",
            |f| f.loops[0].offset = 4096,
            &[(Inaccessible, "DeviceChanged")],
        ),
        (
            "has other blocks than it was attached with",
            |f| f.loops[0].block_size = 512,
            &[(Inaccessible, "DeviceChanged")],
        ),
        (
            "direct I/O lost",
            |f| f.loops[0].direct_io = false,
            &[(Degraded, "DirectIOLost")],
        ),
        (
            "direct I/O not asked for",
            |f| {
                f.loops[0].direct_io = false;
                f.direct_io = false;
            },
            &[],
        ),
        (
            "read-only",
            |f| f.filesystem = options(&["ro"]),
            &[(Inaccessible, "FilesystemReadOnly")],
        ),
        (
            "read-only after an error, on newer kernels",
            |f| f.filesystem = options(&["rw", "emergency_ro"]),
            &[(Inaccessible, "FilesystemReadOnly")],
        ),
        (
            "read-only as asked",
            |f| {
                f.filesystem = options(&["ro"]);
                f.staged.as_mut().unwrap().read_only = true;
            },
            &[],
        ),
        (
            "shut down",
            |f| f.filesystem = options(&["rw", "shutdown"]),
            &[(Inaccessible, "FilesystemShutDown")],
        ),
        (
            "errors",
            |f| f.filesystem.as_mut().unwrap().errors = Some("3 errors".into()),
            &[(Degraded, "FilesystemErrors")],
        ),
        (
            "frozen",
            |f| f.frozen_too_long = Some(Duration::from_secs(60)),
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
                f.loops[0].direct_io = false;
                f.filesystem = options(&["ro"]);
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
        // Nothing kept free: the last hundredth.
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
    // A clock that was set back says nothing.
    let ahead = SystemTime::now() + Duration::from_secs(100);
    assert_eq!(
        overdue(
            ahead.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64,
            limit
        ),
        None
    );
}
