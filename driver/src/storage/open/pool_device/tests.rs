use super::*;
use crate::storage::PoolId;

const UUID: &str = "d0f7c1a2-0000-4000-8000-000000000001";

fn filesystem(fs: FsType, uuid: &str) -> Probe {
    let uuid = uuid.to_owned();
    Probe::Filesystem { fs, uuid }
}

fn unfinished(uuid: &str) -> Probe {
    Probe::Unfinished {
        fs: FsType::Xfs,
        uuid: uuid.to_owned(),
    }
}

/// A plan as one word, and its message.
fn planned(entry: &RegisteredPool, probe: &Probe, wipe: bool) -> (&'static str, String) {
    match plan(entry, probe, wipe) {
        DevicePlan::Mount(uuid) => ("mount", uuid),
        DevicePlan::Make => ("make", String::new()),
        DevicePlan::MakeAgain(uuid) => ("make again", uuid),
        DevicePlan::Look(uuid) => ("look", uuid),
        DevicePlan::Missing(why) => ("missing", why),
        DevicePlan::Refuse(why) => ("refuse", why),
    }
}

#[test]
fn plans() {
    let xfs = |uuid| filesystem(FsType::Xfs, uuid);
    let ext4 = filesystem(FsType::Ext4, UUID);
    let other = Probe::Other("LVM2_member".into());
    let random = Probe::Unknown { offset: 7 };
    let new = RegisteredPool::default();
    let begun = RegisteredPool {
        mkfs: Some(UUID.into()),
        ..RegisteredPool::default()
    };
    // The state that version 0.1.0 left if it was killed during mkfs, or before it knew the pool.
    let old = RegisteredPool {
        fs_uuid: Some(UUID.into()),
        ..RegisteredPool::default()
    };
    let known = RegisteredPool {
        id: Some(PoolId::generate()),
        ..old.clone()
    };
    let table = [
        (&new, Probe::Blank, "make", ""),
        (&new, xfs("other"), "look", "other"),
        (&new, unfinished("other"), "refuse", "mkfs did not end"),
        (&new, ext4.clone(), "refuse", "an ext4 filesystem with UUID"),
        (&new, other.clone(), "refuse", "carries LVM2_member"),
        (&new, Probe::Ambivalent, "refuse", "more than one signature"),
        (&new, random.clone(), "refuse", "the option `wipe`"),
        (&begun, Probe::Blank, "make", ""),
        (&begun, unfinished(UUID), "make again", UUID),
        (&begun, unfinished("other"), "refuse", "mkfs did not end"),
        // This mkfs did end: even if the filesystem is damaged, it may hold data.
        (&begun, xfs(UUID), "mount", UUID),
        (&begun, xfs("other"), "look", "other"),
        (&begun, ext4.clone(), "refuse", "an ext4 filesystem"),
        (&begun, random.clone(), "refuse", "it may be encrypted"),
        (&begun, Probe::Ambivalent, "refuse", "more than one"),
        (&old, Probe::Blank, "make", ""),
        (&old, xfs(UUID), "mount", UUID),
        (&old, xfs("other"), "look", "other"),
        (&old, unfinished(UUID), "refuse", "mkfs did not end"),
        (&known, xfs(UUID), "mount", UUID),
        (&known, unfinished(UUID), "missing", "mkfs did not end"),
        (&known, Probe::Blank, "missing", "carries nothing, not"),
        (&known, random.clone(), "missing", "without a known"),
        (&known, xfs("other"), "missing", "with UUID other, not"),
        (&known, ext4.clone(), "missing", "an ext4 filesystem"),
        (&known, Probe::Other("dos".into()), "missing", "dos"),
    ];
    for (entry, probe, word, says) in table {
        let got = planned(entry, &probe, false);
        let right = got.0 == word && got.1.contains(says);
        assert!(right, "{entry:?} {probe:?}: {got:?}");
        // The option changes one thing: unknown bytes no longer prevent formatting.
        let wiped = planned(entry, &probe, true);
        match (probe == random, entry.id) {
            (true, None) => assert_eq!(wiped.0, "make", "{entry:?}"),
            _ => assert_eq!(wiped, got, "{entry:?} {probe:?}"),
        }
    }
}

/// An installation with another directory of kubelet may have it mounted, and it is not damaged then.
#[test]
fn after_a_failed_look_at_a_filesystem() {
    let device = Path::new("/dev/loop8");
    for (errno, has, lacks) in [
        (libc::EBUSY, "grep /dev/loop8 /proc/mounts", "xfs_repair"),
        (libc::EIO, "xfs_repair -n /dev/loop8", "/proc/mounts"),
    ] {
        let error = kernel::Error::errno("mount", Path::new("/at"), errno);
        let advice = after_failed_look(&error.into(), device);
        assert!(advice.contains(has), "{advice}");
        assert!(!advice.contains(lacks), "{advice}");
    }
}
