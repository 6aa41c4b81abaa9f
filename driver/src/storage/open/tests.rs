use super::pool_directory::{Verdict, judge};
use super::*;
use crate::kernel::Kernel;
use crate::storage::{PoolId, VolumeHandle};
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
            judge(known, found, empty),
            want,
            "{known:?} {found:?} {empty}"
        );
    }
}

/// The reason why the first pool is missing.
fn missing(pools: &Pools) -> String {
    pools.slots().remove(0).state.unwrap_err()
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
    assert!(matches!(pools.named(Some("c")), Err(Error::UnknownPool(_))));
    refused!(pools.with_id(PoolId::generate()), Error::ForeignPool(_));

    // The pool keeps its identity even if the node's registry is lost.
    std::fs::remove_dir_all(&site.options.state_dir).unwrap();
    assert_eq!(site.open().named(None).unwrap().id(), a);
}

#[test]
fn a_second_process_is_refused() {
    let mut site = Site::fake(&["a"]);
    let other = site.dir.path().join("other");
    let known = std::mem::replace(&mut site.options.state_dir, other);
    refused!(site.try_open().map(drop), Error::Locked { .. });
    // A killed driver that cannot end may still lock a known pool, so that pool is missing.
    site.options.state_dir = known;
    let why = missing(&site.try_open().unwrap());
    assert!(why.contains("another process"), "{why}");
    site.close();
    site.try_open().unwrap();
}

/// A process that hangs on one pool's disk keeps its locks on all pools after it is killed.
#[test]
fn a_known_pool_that_is_locked_holds_up_no_other() {
    let mut site = Site::fake(&["a", "b"]);
    let made = site.make("one");
    site.close();
    let lock = std::fs::File::open(site.path("lock")).unwrap();
    lock.try_lock().unwrap();
    let pools = site.open();
    assert!(missing(pools).contains("another process"));
    pools.named(Some("b")).unwrap();
    drop(lock);
    pools.retry_missing();
    assert_eq!(pools.volumes(), [made]);
}

#[test]
fn a_known_pool_that_is_not_there_is_missing_and_comes_back() {
    let mut site = Site::fake(&["a", "b"]);
    let made = site.make("one");
    let handle = VolumeHandle::Id(made.id);
    site.close();
    let (real, away) = (site.path(""), site.dir.path().join("away"));
    std::fs::rename(&real, &away).unwrap();
    for empty in [false, true] {
        if empty {
            // A mount point without its filesystem looks like an empty directory.
            std::fs::create_dir(&real).unwrap();
        }
        let pools = site.open();
        let why = missing(pools);
        assert!(
            why.contains(if empty {
                "is it mounted?"
            } else {
                "is not there"
            }),
            "{why}"
        );
        let unavailable = |e: &Error| matches!(e, Error::Unavailable { name, .. } if name == "a");
        assert!(unavailable(&pools.volume(&handle).unwrap_err()));
        assert!(unavailable(&pools.delete_volume(&made.id).unwrap_err()));
        assert!(unavailable(&pools.named(Some("a")).unwrap_err()));
        assert!(unavailable(&pools.complete().unwrap_err()));
        let inline = VolumeHandle::Inline(format!("csi-{}", "00".repeat(32)));
        assert!(unavailable(&pools.volume(&inline).unwrap_err()));
        // The other pool keeps working, and a foreign pool ID stays foreign.
        pools
            .create_volume(&pools.named(Some("b")).unwrap(), new(&empty.to_string()))
            .unwrap();
        refused!(pools.with_id(PoolId::generate()), Error::ForeignPool(_));
        assert_eq!(real.exists(), empty, "nothing was made");
        pools.retry_missing();
        assert!(pools.volume(&handle).is_err());
    }
    std::fs::remove_dir(&real).unwrap();
    std::fs::rename(&away, &real).unwrap();
    site.pools().retry_missing();
    assert_eq!(site.pools().volume(&handle).unwrap().id, made.id);
    assert_eq!(site.pools().volumes().len(), 3);
}

#[test]
fn the_wrong_pool_is_a_missing_one() {
    let mut site = Site::fake(&["a", "b"]);
    site.close();
    site.specs[0].path = site.specs[1].path.clone();
    site.specs.truncate(1);
    let why = missing(site.open());
    assert!(why.contains("not the one this node knows"), "{why}");
}

#[test]
fn a_known_pool_without_its_volumes_is_missing() {
    let mut site = Site::fake(&["a"]);
    site.close();
    std::fs::remove_dir(site.path("volumes")).unwrap();
    let why = missing(site.open());
    assert!(why.contains("volumes"), "{why}");
    assert!(!site.path("volumes").exists());
}

#[test]
fn what_is_no_pool_is_refused() {
    let mut site = Site::fake(&["a"]);
    let file = site.dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let full = site.dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("precious"), "x").unwrap();
    for (path, why) in [
        (file, "neither"),
        (full.clone(), "is no pool"),
        ("/dev/null".into(), "neither"),
    ] {
        site.specs[0].name = "new".into();
        site.specs[0].path = path;
        let refused = site.try_open().map(drop).unwrap_err();
        assert!(
            matches!(&refused, Error::Refused(what) if what.contains(why)),
            "{refused}"
        );
    }
    assert_eq!(std::fs::read_dir(full).unwrap().count(), 1);
    site.specs[0].path = "/dev/hostloop-no-such-device".into();
    let why = missing(&site.try_open().unwrap());
    assert!(why.contains("is not there"), "{why}");
}

#[test]
fn configured_twice_is_refused() {
    let mut site = Site::fake(&["a"]);
    site.close();
    let again = site.specs[0].clone();
    site.specs.push(again);
    assert!(matches!(site.try_open().map(drop), Err(Error::Refused(_))));
    // One directory under two pool names. Under the known name, a lock would not be an error.
    site.specs[1].name = "b".into();
    for _ in 0..2 {
        let refused = site.try_open().map(drop).unwrap_err();
        let why = refused.to_string();
        assert!(why.contains("is configured as two pools"), "{why}");
        site.specs.reverse();
    }
}

#[test]
fn a_first_start_that_was_cut_short_goes_on() {
    let mut site = Site::fake(&["a"]);
    for leftovers in [
        &[][..],
        &["lock"],
        &["lock", ".pool.json.new"],
        &["lost+found"],
    ] {
        let path = site.dir.path().join(format!("new{}", leftovers.len()));
        site.specs[0].name = format!("n{}-{}", leftovers.len(), leftovers.concat().len());
        site.specs[0].path = path.clone();
        std::fs::create_dir_all(&path).unwrap();
        for name in leftovers {
            std::fs::write(path.join(name), "").unwrap();
        }
        site.open().named(None).unwrap();
    }
    // Only an identity: the process died before it made the directories.
    site.close();
    let path = site.path("");
    for shelf in ["volumes", "snapshots", "groups"] {
        std::fs::remove_dir(path.join(shelf)).unwrap();
    }
    std::fs::remove_dir_all(&site.options.state_dir).unwrap();
    site.open().named(None).unwrap();
}

#[test]
fn an_unreadable_identity_is_no_new_pool() {
    for damaged in ["", "{}", "{\"schema\": 9, \"id\": \"00\", \"name\": \"a\"}"] {
        let mut site = Site::fake(&["a"]);
        site.close();
        let file = site.path("pool.json");
        std::fs::write(&file, damaged).unwrap();
        let why = missing(site.open());
        assert!(why.contains("pool.json"), "{why}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), damaged);
    }
}

#[test]
fn a_pool_that_goes_away_does_not_answer() {
    let site = Site::fake(&["a"]);
    let pool = site.named("a");
    std::fs::remove_file(site.path("pool.json")).unwrap();
    let gone = pool.alive().unwrap_err().to_string();
    assert!(gone.contains("pool.json is gone"), "{gone}");
}

/// A node cloned from another node's disk image: the same content under another name.
#[test]
fn a_pool_of_another_node_is_refused_and_says_what_to_do() {
    let mut site = Site::fake(&["a"]);
    let id = site.named("a").id();
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
        let refused = site.try_open().map(drop).unwrap_err();
        assert!(matches!(refused, Error::OtherNode { .. }), "{refused}");
        let (why, note) = (refused.to_string(), site.path("node.json"));
        for says in [
            "node n1",
            "this is node n2",
            "disk image",
            note.to_str().unwrap(),
        ] {
            assert!(why.contains(says), "{why}");
        }
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
    let own = site.open().named(None).unwrap();
    assert_ne!(own.id(), id);
    assert!(site.pools().volumes().is_empty());
}

/// A process that only reads, such as `fsck`, has no node name.
#[test]
fn without_a_node_nothing_is_noted_or_refused() {
    let mut site = Site::fake(&["a"]);
    assert!(!site.path("node.json").exists());
    site.options.node_id = Some("n1".into());
    site.open();
    let note = std::fs::read_to_string(site.path("node.json")).unwrap();
    assert!(note.contains("\"n1\""), "{note}");
    site.close();
    site.options.node_id = None;
    site.open().named(None).unwrap();
}

#[test]
fn wipe_is_for_block_devices() {
    let mut site = Site::fake(&["a"]);
    site.close();
    site.specs[0].wipe = true;
    let why = missing(site.open());
    assert!(why.contains("wipe needs a block device"), "{why}");
    site.specs[0].name = "new".into();
    refused!(site.try_open().map(drop), Error::Refused(_));
}

/// Moves the site's first pool into an image, and returns its mount point.
fn in_an_image(site: &mut Site) -> std::path::PathBuf {
    site.close();
    site.specs[0].name = "img".into();
    site.specs[0].path = site.dir.path().join("img");
    site.specs[0].image_bytes = Some(300 << 20);
    site.open();
    let at = site.options.state_dir.join("pools/img");
    at.canonicalize().unwrap()
}

/// The options of the mount at a path; `None` without a mount.
fn mounted_at(site: &Site, at: &std::path::Path) -> Option<Vec<String>> {
    let mounts = site.kernel.mounts().unwrap();
    mounts.at(at).map(|mount| mount.options.clone())
}

/// Inspecting an unknown pool mounts it read-only. A process that dies then leaves the mount.
#[test]
fn a_look_that_was_cut_short_is_no_mounted_pool() {
    let mut site = Site::fake(&["a"]);
    let at = in_an_image(&mut site);
    let made = site.make("one");
    site.close();
    site.kernel.reboot();
    std::fs::remove_file(site.options.state_dir.join("pools.json")).unwrap();
    site.kernel.fail("unmount", 1, libc::EIO);
    site.try_open().map(drop).unwrap_err();
    assert_eq!(mounted_at(&site, &at).unwrap()[0], "ro");

    // While a process uses the read-only mount, the pool is not mounted over it.
    site.kernel.set_busy(&at, true);
    let why = missing(site.open());
    assert!(why.contains("mounted read-only"), "{why}");
    site.kernel.set_busy(&at, false);
    assert_eq!(site.open().volumes(), [made]);
    assert_eq!(mounted_at(&site, &at).unwrap()[0], "rw");
}

/// A pool of node n1 in an image, unmounted as after a restart of the machine.
fn of_node_one() -> (Site, std::path::PathBuf) {
    let mut site = Site::fake(&["a"]);
    site.options.node_id = Some("n1".into());
    let at = in_an_image(&mut site);
    site.close();
    site.kernel.reboot();
    (site, at)
}

/// Two nodes see one disk: the node that does not own the pool must not even replay its log.
#[test]
fn the_pool_of_another_node_is_never_mounted_for_writing() {
    let (mut site, at) = of_node_one();
    let state = site.options.state_dir.join("pools.json");
    for forgotten in [false, true] {
        if forgotten {
            std::fs::remove_file(&state).unwrap();
        }
        site.options.node_id = Some("n2".into());
        site.kernel.take_effects();
        let refused = site.try_open().map(drop).unwrap_err();
        assert!(matches!(refused, Error::OtherNode { .. }), "{refused}");
        let why = refused.to_string();
        for says in ["node n1", "mount it", "node.json"] {
            assert!(why.contains(says), "{why}");
        }
        // Only the inspection mounted it, read-only.
        let effects = site.kernel.take_effects();
        let mounts = effects.iter().filter(|op| **op == "mount").count();
        assert_eq!(mounts, 1, "{effects:?}");
        assert_eq!(mounted_at(&site, &at), None);
    }
    site.options.node_id = Some("n1".into());
    site.open();
    assert_eq!(mounted_at(&site, &at).unwrap()[0], "rw");
}

/// A known pool is mounted even if its inspection fails.
#[test]
fn a_known_pool_is_mounted_though_it_can_not_be_looked_at() {
    let (mut site, at) = of_node_one();
    site.kernel.fail("mount", 1, libc::EUCLEAN);
    site.open().named(None).unwrap();
    assert_eq!(mounted_at(&site, &at).unwrap()[0], "rw");
}
