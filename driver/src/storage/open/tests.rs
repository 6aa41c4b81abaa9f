use std::path::PathBuf;

use rstest::rstest;

use super::pool_directory::{Verdict, verdict};
use super::pool_lock::has_no_locks;
use super::*;
use crate::kernel::Mounts;
use crate::storage::{Error, PoolId, VolumeHandle};
use crate::testkit::{Site, new};

#[test]
fn verdicts() {
    let (a, b) = (PoolId::generate(), PoolId::generate());
    let table = [
        (None, None, true, Verdict::Initialise),
        (None, None, false, Verdict::Foreign),
        (None, Some(a), false, Verdict::Open(a)),
        (Some(a), Some(a), false, Verdict::Open(a)),
        (Some(a), Some(b), false, Verdict::Other(b)),
        (Some(a), None, true, Verdict::Missing),
        (Some(a), None, false, Verdict::Missing),
    ];
    for (known, found, empty, want) in table {
        assert_eq!(
            verdict(known, found, empty),
            want,
            "{known:?} {found:?} {empty}"
        );
    }
}

/// Opens the pools: the first one is missing, for this reason.
fn assert_missing(site: &mut Site, why: &str) {
    site.open();
    let missing = site.why_missing();
    assert!(missing.contains(why), "{missing}");
}

/// Opening the pools fails, and the error says all this.
fn refusal(site: &Site, says: &[&str]) -> Error {
    let refused = site.try_open().map(drop).unwrap_err();
    let why = refused.to_string();
    for words in says {
        assert!(why.contains(words), "{why}");
    }
    refused
}

#[test]
fn a_pool_keeps_its_identity() {
    let mut site = Site::fake(&["a", "b"]);
    let (a, b) = (site.named("a").id(), site.named("b").id());
    assert_ne!(a, b);
    let pools = site.open();
    assert_eq!(pools.with_id(a).unwrap().name(), "a");
    assert_eq!(pools.named(None).unwrap().id(), a);
    assert_eq!(pools.name_of(b).as_deref(), Some("b"));
    pools.named(Some("b")).unwrap().alive().unwrap();
    refused!(pools.named(Some("c")), Error::UnknownPool(_));
    refused!(pools.with_id(PoolId::generate()), Error::ForeignPool(_));

    // The pool keeps its identity even if the node's registry is lost.
    std::fs::remove_dir_all(&site.options.state_dir).unwrap();
    assert_eq!(site.open().named(None).unwrap().id(), a);
}

/// A process that hangs on one pool's disk keeps its locks on all pools after it is killed.
#[test]
fn a_known_pool_that_is_locked_holds_up_no_other() {
    let mut site = Site::fake(&["a", "b"]);
    let made = site.make("one");
    site.close();
    let lock = std::fs::File::open(site.path("lock")).unwrap();
    lock.try_lock().unwrap();
    assert_missing(&mut site, "another process");
    site.named("b");
    drop(lock);
    site.tend();
    assert_eq!(site.pools().volumes(), [made]);
}

#[test]
fn a_known_pool_that_is_not_there_is_missing_and_comes_back() {
    let mut site = Site::fake(&["a", "b"]);
    let made = site.make("one");
    let handle = VolumeHandle::Id(made.id);
    site.close();
    let (real, away) = (site.path(""), site.root().join("away"));
    std::fs::rename(&real, &away).unwrap();
    for (empty, why) in [(false, "is not there"), (true, "is it mounted?")] {
        if empty {
            // A mount point without its filesystem looks like an empty directory.
            std::fs::create_dir(&real).unwrap();
        }
        assert_missing(&mut site, why);
        let pools = site.pools();
        let inline = VolumeHandle::Inline(format!("csi-{}", "00".repeat(32)));
        for unavailable in [
            pools.volume(&handle).map(drop),
            pools.volume(&inline).map(drop),
            pools.delete_volume(&made.id),
            pools.named(Some("a")).map(drop),
            pools.complete(),
        ] {
            assert!(matches!(unavailable, Err(Error::Unavailable { name, .. }) if name == "a"));
        }
        // The other pool keeps working, and a foreign pool ID stays foreign.
        site.create_in("b", new(why));
        refused!(pools.with_id(PoolId::generate()), Error::ForeignPool(_));
        assert_eq!(real.exists(), empty, "nothing was made");
        site.tend();
        assert!(pools.volume(&handle).is_err());
    }
    std::fs::remove_dir(&real).unwrap();
    std::fs::rename(&away, &real).unwrap();
    site.tend();
    assert_eq!(site.volume(made.id), made);
    assert_eq!(site.pools().volumes().len(), 3);
}

/// The names and contents of the files in a directory.
fn files(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    let content = |path: PathBuf| (path.clone(), std::fs::read(path).ok());
    paths.into_iter().map(content).collect()
}

/// The change to a known pool while the driver is down, and why the pool is missing then.
#[rstest]
#[case::another_pool(|s: &mut Site| s.specs[0].path = s.specs[1].path.clone(), "not the one this")]
#[case::no_volumes(|s: &mut Site| std::fs::remove_dir(s.path("volumes")).unwrap(), "volumes")]
#[case::no_identity(|s: &mut Site| std::fs::remove_file(s.path("pool.json")).unwrap(), "pool.json")]
#[case::empty_identity(|s: &mut Site| identify(s, ""), "pool.json")]
#[case::no_id(|s: &mut Site| identify(s, "{}"), "pool.json")]
#[case::newer(
    |s: &mut Site| identify(s, r#"{"schema": 9, "id": "00", "name": "a"}"#), "pool.json"
)]
#[case::a_directory_to_wipe(|s: &mut Site| s.specs[0].wipe = true, "wipe needs a block device")]
#[case::an_image(
    |s: &mut Site| s.specs[0].image_bytes = Some(300 << 20), "this pool was a directory"
)]
fn a_known_pool_that_is_not_as_it_was_is_missing_and_stays_untouched(
    #[case] change: fn(&mut Site),
    #[case] why: &str,
) {
    let mut site = Site::fake(&["a", "b"]);
    site.close();
    change(&mut site);
    site.specs.truncate(1);
    let before = files(&site.path(""));
    assert_missing(&mut site, why);
    assert_eq!(files(&site.path("")), before);
}

#[test]
fn a_missing_pool_says_where_it_was() {
    let mut site = Site::fake(&["a"]);
    let before = format!("this pool was at {} before", site.specs[0].path.display());
    site.close();
    let empty = site.root().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (path, why) in [
        (site.root().join("none"), "is not there"),
        (empty, "holds no pool.json"),
    ] {
        site.specs[0].path = path;
        assert_missing(&mut site, &format!("{why}: {before}"));
    }
}

fn identify(site: &Site, identity: &str) {
    std::fs::write(site.path("pool.json"), identity).unwrap();
}

#[test]
fn a_path_that_can_not_become_a_pool_is_refused() {
    let mut site = Site::fake(&["a"]);
    let file = site.root().join("file");
    std::fs::write(&file, "x").unwrap();
    let full = site.root().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("precious"), "x").unwrap();
    site.specs[0].name = "new".into();
    for (path, wipe, why) in [
        (file, false, "neither"),
        (full.clone(), false, "is not a pool"),
        ("/dev/null".into(), false, "neither"),
        (full.clone(), true, "wipe needs a block device"),
    ] {
        site.specs[0].path = path;
        site.specs[0].wipe = wipe;
        let refused = refusal(&site, &[why]);
        assert!(matches!(refused, Error::Refused(_)), "{refused}");
    }
    assert_eq!(std::fs::read_dir(full).unwrap().count(), 1);
    site.specs[0].path = "/dev/hostloop-no-such-device".into();
    assert_missing(&mut site, "is not there");
}

#[test]
fn a_name_or_path_configured_twice_is_refused() {
    let mut site = Site::fake(&["a"]);
    site.close();
    let again = site.specs[0].clone();
    site.specs.push(again);
    refused!(site.try_open().map(drop), Error::Refused(_));
    // One directory under two pool names. Under the known name, a lock would not be an error.
    site.specs[1].name = "b".into();
    for _ in 0..2 {
        refusal(&site, &["is configured as two pools"]);
        site.specs.reverse();
    }
}

#[rstest]
#[case::beside(
    "/var/lib/hostloop",
    "/var/lib/kubelet/plugins/hostloop.csi.dev",
    false
)]
#[case::beneath(
    "/var/lib/kubelet/pool",
    "/var/lib/kubelet/plugins/hostloop.csi.dev",
    true
)]
#[case::elsewhere("/data/kubelet/plugins/x/pool", "/data/kubelet/plugins/x", true)]
#[case::similar("/var/lib/kubelet-pool", "/var/lib/kubelet/plugins/x", false)]
#[case::without_kubelet("/srv/state/pool", "/srv/state", false)]
fn a_pool_beneath_kubelets_directory_gets_a_warning(
    #[case] pool: &str,
    #[case] state_dir: &str,
    #[case] expected: bool,
) {
    let warning = beneath_kubelet(pool.as_ref(), state_dir.as_ref());
    assert_eq!(warning.is_some(), expected, "{warning:?}");
}

/// NFS without lockd, and filesystems in user space without the call.
#[rstest]
#[case::nfs_without_lockd(libc::ENOLCK, true)]
#[case::no_such_call(libc::ENOSYS, true)]
#[case::not_supported(libc::EOPNOTSUPP, true)]
#[case::taken(libc::EWOULDBLOCK, false)]
#[case::broken(libc::EIO, false)]
fn a_filesystem_without_locks_is_told_from_a_taken_one(#[case] errno: i32, #[case] expected: bool) {
    assert_eq!(
        has_no_locks(rustix::io::Errno::from_raw_os_error(errno)),
        expected
    );
}

#[test]
fn an_interrupted_first_start_is_completed() {
    let mut site = Site::fake(&["a"]);
    for (i, leftovers) in ["", "lock", "lock .pool.json.new", "lost+found"]
        .iter()
        .enumerate()
    {
        site.specs[0].name = format!("n{i}");
        site.specs[0].path = site.root().join(format!("new{i}"));
        std::fs::create_dir_all(site.path("")).unwrap();
        for name in leftovers.split_whitespace() {
            std::fs::write(site.path(name), "").unwrap();
        }
        site.open().named(None).unwrap();
    }
    // Only an identity: the process died before it made the directories.
    site.close();
    for kind in ["volumes", "snapshots", "groups"] {
        std::fs::remove_dir(site.path(kind)).unwrap();
    }
    std::fs::remove_dir_all(&site.options.state_dir).unwrap();
    site.open().named(None).unwrap();
}

#[test]
fn an_open_pool_without_its_identity_does_not_answer() {
    let site = Site::fake(&["a"]);
    std::fs::remove_file(site.path("pool.json")).unwrap();
    let gone = site.pool().alive().unwrap_err().to_string();
    assert!(gone.contains("pool.json is gone"), "{gone}");
    let volume = site.pools().create_volume(&site.pool(), new("one"));
    refused!(volume, Error::Unavailable { .. });
}

#[test]
fn an_open_pool_with_another_directory_at_its_path_takes_no_volume() {
    let site = Site::fake(&["a"]);
    let (path, aside) = (site.path(""), site.root().join("aside"));
    std::fs::rename(&path, &aside).unwrap();
    for says in ["is not there any more", "is something else now"] {
        let volume = site.pools().create_volume(&site.pool(), new("one"));
        let why = volume.map(drop).unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
        std::fs::create_dir_all(&path).unwrap();
    }
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    site.make("one");
}

/// A node cloned from another node's disk image: the same content under another name.
#[test]
fn a_pool_of_another_node_is_refused_and_says_what_to_do() {
    let mut site = Site::fake(&["a"]);
    let id = site.pool().id();
    site.make("one");
    site.options.node_id = Some("n1".into());
    // The owner is recorded if there is none; later opens change nothing.
    for _ in 0..2 {
        assert_eq!(site.open().named(None).unwrap().id(), id);
    }
    site.close();
    let state = site.options.state_dir.join("pools.json");
    let before = std::fs::read(&state).unwrap();
    site.options.node_id = Some("n2".into());
    for forgotten in [false, true] {
        if forgotten {
            std::fs::remove_file(&state).unwrap();
        }
        let note = site.path("node.json");
        let note = note.to_str().unwrap();
        let refused = refusal(&site, &["node n1", "this is node n2", "disk image", note]);
        assert!(matches!(refused, Error::OtherNode { .. }), "{refused}");
        assert_eq!(state.exists(), !forgotten);
    }
    std::fs::write(&state, before).unwrap();
    // The same machine under a new name.
    std::fs::remove_file(site.path("node.json")).unwrap();
    assert_eq!(site.open().named(None).unwrap().id(), id);
    site.close();
    // A copy: following the message gives the pool its own identity.
    site.options.node_id = Some("n3".into());
    std::fs::remove_dir_all(site.path("")).unwrap();
    std::fs::remove_file(&state).unwrap();
    assert_ne!(site.open().named(None).unwrap().id(), id);
    assert!(site.pools().volumes().is_empty());
}

/// A process that only reads, such as `fsck`, has no node name.
#[test]
fn a_process_without_a_node_neither_records_nor_checks_the_owner() {
    let mut site = Site::fake(&["a"]);
    assert!(!site.path("node.json").exists());
    site.options.node_id = Some("n1".into());
    site.open();
    let note = std::fs::read_to_string(site.path("node.json")).unwrap();
    assert!(note.contains("\"n1\""), "{note}");
    site.options.node_id = None;
    site.open().named(None).unwrap();
}

/// A known pool is mounted even if its inspection fails.
#[test]
fn a_known_pool_is_mounted_after_a_failed_inspection() {
    let mut site: Site = Site::new(&["img=DIR/img,image=300Mi"]);
    site.options.node_id = Some("n1".into());
    site.open();
    site.close();
    site.kernel.reboot();
    site.kernel.fail("mount", 1, libc::EUCLEAN);
    site.open();
    let mounts = site.kernel.mounts().unwrap();
    let mount = mounts.at(site.pool().root()).unwrap();
    assert!(mount.options.has("rw"), "{mount:?}");
}

/// Inspecting an unknown pool mounts it read-only. A failed unmount leaves that mount.
#[test]
fn a_pool_is_not_mounted_over_its_inspection() {
    let mut site: Site = Site::new(&["img=DIR/img,image=300Mi"]);
    site.open();
    let at = site.pool().root().to_path_buf();
    let made = site.make("one");
    site.close();
    site.kernel.reboot();
    std::fs::remove_file(site.options.state_dir.join("pools.json")).unwrap();
    let read_only = |site: &Site| {
        let mounts = site.kernel.mounts().unwrap();
        mounts.at(&at).map(|mount| mount.read_only())
    };
    site.kernel.fail("unmount", 1, libc::EIO);
    site.try_open().map(drop).unwrap_err();
    assert_eq!(read_only(&site), Some(true));
    site.kernel.set_busy(&at, true);
    assert_missing(&mut site, "mounted read-only");
    site.kernel.set_busy(&at, false);
    assert_eq!(site.open().volumes(), [made]);
    assert_eq!(read_only(&site), Some(false));
}

#[test]
fn a_pool_whose_filesystem_fails_to_grow_is_opened() {
    let mut site: Site = Site::new(&["img=DIR/img,image=300Mi"]);
    site.open();
    site.specs[0].image_bytes = Some(600 << 20);
    site.kernel.fail("grow", 1, libc::EIO);
    site.open();
    let noted = site.pools().noted_problems();
    assert_eq!(noted.len(), 1, "{noted:?}");
    assert!(
        noted[0]
            .problem
            .to_string()
            .contains("of 600 MiB (629145600 bytes)"),
        "{noted:?}"
    );
    site.open();
    assert!(site.pools().noted_problems().is_empty());
}
