use super::ground::{Verdict, judge};
use super::*;
use crate::pool::testing::{Fixture, new};
use crate::pool::{PoolId, VolumeHandle};
use crate::sys::Kernel;

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

/// Why the first pool is missing.
fn missing(pools: &Pools) -> String {
    pools.slots().remove(0).state.unwrap_err()
}

#[test]
fn a_pool_keeps_its_identity() {
    let mut fixture = Fixture::new(&["a", "b"]);
    let (a, b) = (fixture.pool("a").id(), fixture.pool("b").id());
    assert_ne!(a, b);
    let pools = fixture.open();
    assert_eq!(pools.with_id(a).unwrap().name(), "a");
    assert_eq!(pools.named(None).unwrap().id(), a);
    assert_eq!(pools.name_of(b).as_deref(), Some("b"));
    pools.named(Some("b")).unwrap().alive().unwrap();
    assert!(matches!(pools.named(Some("c")), Err(Error::UnknownPool(_))));
    let foreign = pools.with_id(PoolId::generate());
    assert!(matches!(foreign, Err(Error::ForeignPool(_))), "{foreign:?}");

    // Also where this node has forgotten it: an identity is in the pool itself.
    std::fs::remove_dir_all(&fixture.options.state_dir).unwrap();
    assert_eq!(fixture.open().named(None).unwrap().id(), a);
}

#[test]
fn a_second_process_is_refused() {
    let mut fixture = Fixture::new(&["a"]);
    let other = fixture.dir.path().join("other");
    let known = std::mem::replace(&mut fixture.options.state_dir, other);
    let second = fixture.try_open().map(drop);
    assert!(matches!(second, Err(Error::Locked { .. })), "{second:?}");
    // A killed driver that cannot end may still lock a known pool, so that pool is missing.
    fixture.options.state_dir = known;
    let why = missing(&fixture.try_open().unwrap());
    assert!(why.contains("another process"), "{why}");
    fixture.close();
    fixture.try_open().unwrap();
}

/// A process that hangs in one pool's disk keeps its locks on all of them after its death.
#[test]
fn a_known_pool_that_is_locked_holds_up_no_other() {
    let mut fixture = Fixture::new(&["a", "b"]);
    let made = fixture.make("one");
    fixture.close();
    let lock = std::fs::File::open(fixture.path("lock")).unwrap();
    lock.try_lock().unwrap();
    let pools = fixture.open();
    assert!(missing(pools).contains("another process"));
    pools.named(Some("b")).unwrap();
    drop(lock);
    pools.retry_missing();
    assert_eq!(pools.volumes(), [made]);
}

#[test]
fn a_known_pool_that_is_not_there_is_missing_and_comes_back() {
    let mut fixture = Fixture::new(&["a", "b"]);
    let made = fixture.make("one");
    let handle = VolumeHandle::Id(made.id);
    fixture.close();
    let (real, away) = (fixture.path(""), fixture.dir.path().join("away"));
    std::fs::rename(&real, &away).unwrap();
    for empty in [false, true] {
        if empty {
            // As a mount point whose filesystem is not mounted yet.
            std::fs::create_dir(&real).unwrap();
        }
        let pools = fixture.open();
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
        // The other pool goes on, and a stranger's ID is still a stranger's.
        pools
            .create_volume(&pools.named(Some("b")).unwrap(), new(&empty.to_string()))
            .unwrap();
        let foreign = pools.with_id(PoolId::generate());
        assert!(matches!(foreign, Err(Error::ForeignPool(_))), "{foreign:?}");
        assert_eq!(real.exists(), empty, "nothing was made");
        pools.retry_missing();
        assert!(pools.volume(&handle).is_err());
    }
    std::fs::remove_dir(&real).unwrap();
    std::fs::rename(&away, &real).unwrap();
    fixture.pools().retry_missing();
    assert_eq!(fixture.pools().volume(&handle).unwrap().id, made.id);
    assert_eq!(fixture.pools().volumes().len(), 3);
}

#[test]
fn the_wrong_pool_is_a_missing_one() {
    let mut fixture = Fixture::new(&["a", "b"]);
    fixture.close();
    fixture.specs[0].path = fixture.specs[1].path.clone();
    fixture.specs.truncate(1);
    let why = missing(fixture.open());
    assert!(why.contains("not the one this node knows"), "{why}");
}

#[test]
fn a_known_pool_without_its_volumes_is_missing() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.close();
    std::fs::remove_dir(fixture.path("volumes")).unwrap();
    let why = missing(fixture.open());
    assert!(why.contains("volumes"), "{why}");
    assert!(!fixture.path("volumes").exists());
}

#[test]
fn what_is_no_pool_is_refused() {
    let mut fixture = Fixture::new(&["a"]);
    let file = fixture.dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let full = fixture.dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("precious"), "x").unwrap();
    for (path, why) in [
        (file, "neither"),
        (full.clone(), "is no pool"),
        ("/dev/null".into(), "neither"),
    ] {
        fixture.specs[0].name = "new".into();
        fixture.specs[0].path = path;
        let refused = fixture.try_open().map(drop).unwrap_err();
        assert!(
            matches!(&refused, Error::Refused(what) if what.contains(why)),
            "{refused}"
        );
    }
    assert_eq!(std::fs::read_dir(full).unwrap().count(), 1);
    fixture.specs[0].path = "/dev/hostloop-no-such-device".into();
    let why = missing(&fixture.try_open().unwrap());
    assert!(why.contains("is not there"), "{why}");
}

#[test]
fn configured_twice_is_refused() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.close();
    let again = fixture.specs[0].clone();
    fixture.specs.push(again);
    assert!(matches!(
        fixture.try_open().map(drop),
        Err(Error::Refused(_))
    ));
    // One directory under two names. Under the known one a lock would be no error.
    fixture.specs[1].name = "b".into();
    for _ in 0..2 {
        let refused = fixture.try_open().map(drop).unwrap_err();
        let why = refused.to_string();
        assert!(why.contains("is configured as two pools"), "{why}");
        fixture.specs.reverse();
    }
}

#[test]
fn a_first_start_that_was_cut_short_goes_on() {
    let mut fixture = Fixture::new(&["a"]);
    for leftovers in [
        &[][..],
        &["lock"],
        &["lock", ".pool.json.new"],
        &["lost+found"],
    ] {
        let path = fixture.dir.path().join(format!("new{}", leftovers.len()));
        fixture.specs[0].name = format!("n{}-{}", leftovers.len(), leftovers.concat().len());
        fixture.specs[0].path = path.clone();
        std::fs::create_dir_all(&path).unwrap();
        for name in leftovers {
            std::fs::write(path.join(name), "").unwrap();
        }
        fixture.open().named(None).unwrap();
    }
    // An identity and nothing else: it died before the directories were made.
    fixture.close();
    let path = fixture.path("");
    for shelf in ["volumes", "snapshots", "groups"] {
        std::fs::remove_dir(path.join(shelf)).unwrap();
    }
    std::fs::remove_dir_all(&fixture.options.state_dir).unwrap();
    fixture.open().named(None).unwrap();
}

#[test]
fn an_unreadable_identity_is_no_new_pool() {
    for damaged in ["", "{}", "{\"schema\": 9, \"id\": \"00\", \"name\": \"a\"}"] {
        let mut fixture = Fixture::new(&["a"]);
        fixture.close();
        let file = fixture.path("pool.json");
        std::fs::write(&file, damaged).unwrap();
        let why = missing(fixture.open());
        assert!(why.contains("pool.json"), "{why}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), damaged);
    }
}

#[test]
fn a_pool_that_goes_away_does_not_answer() {
    let fixture = Fixture::new(&["a"]);
    let pool = fixture.pool("a");
    std::fs::remove_file(fixture.path("pool.json")).unwrap();
    let gone = pool.alive().unwrap_err().to_string();
    assert!(gone.contains("pool.json is gone"), "{gone}");
}

/// A node cloned from another node's disk image: the same content under another name.
#[test]
fn a_pool_of_another_node_is_refused_and_says_what_to_do() {
    let mut fixture = Fixture::new(&["a"]);
    let id = fixture.pool("a").id();
    fixture.make("one");
    fixture.options.node_id = Some("n1".into());
    // Recorded if there is no record; later opens change nothing.
    for _ in 0..2 {
        assert_eq!(fixture.open().named(None).unwrap().id(), id);
    }
    fixture.close();
    let state = fixture.options.state_dir.join("pools.json");
    let before = std::fs::read(&state).unwrap();
    fixture.options.node_id = Some("n2".into());
    for forgotten in [false, true] {
        if forgotten {
            std::fs::remove_file(&state).unwrap();
        }
        let refused = fixture.try_open().map(drop).unwrap_err();
        assert!(matches!(refused, Error::OtherNode { .. }), "{refused}");
        let (why, note) = (refused.to_string(), fixture.path("node.json"));
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
    std::fs::remove_file(fixture.path("node.json")).unwrap();
    assert_eq!(fixture.open().named(None).unwrap().id(), id);
    fixture.close();
    // A copy: following the message gives the pool its own identity.
    fixture.options.node_id = Some("n3".into());
    std::fs::remove_dir_all(fixture.path("")).unwrap();
    std::fs::remove_file(&state).unwrap();
    let own = fixture.open().named(None).unwrap();
    assert_ne!(own.id(), id);
    assert!(fixture.pools().volumes().is_empty());
}

/// A process that only reads, such as `fsck`, has no node name.
#[test]
fn without_a_node_nothing_is_noted_or_refused() {
    let mut fixture = Fixture::new(&["a"]);
    assert!(!fixture.path("node.json").exists());
    fixture.options.node_id = Some("n1".into());
    fixture.open();
    let note = std::fs::read_to_string(fixture.path("node.json")).unwrap();
    assert!(note.contains("\"n1\""), "{note}");
    fixture.close();
    fixture.options.node_id = None;
    fixture.open().named(None).unwrap();
}

#[test]
fn wipe_is_for_block_devices() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.close();
    fixture.specs[0].wipe = true;
    let why = missing(fixture.open());
    assert!(why.contains("wipe needs a block device"), "{why}");
    fixture.specs[0].name = "new".into();
    let refused = fixture.try_open().map(drop);
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
}

/// The fixture's first pool, now in an image, and where it is mounted.
fn in_an_image(fixture: &mut Fixture) -> std::path::PathBuf {
    fixture.close();
    fixture.specs[0].name = "img".into();
    fixture.specs[0].path = fixture.dir.path().join("img");
    fixture.specs[0].image_bytes = Some(300 << 20);
    fixture.open();
    let at = fixture.options.state_dir.join("pools/img");
    at.canonicalize().unwrap()
}

/// The options of the mount at a path, if there is one.
fn mounted_at(fixture: &Fixture, at: &std::path::Path) -> Option<Vec<String>> {
    let mounts = fixture.kernel.mounts().unwrap();
    mounts.at(at).map(|mount| mount.options.clone())
}

/// A look at an unknown pool mounts it read-only. A process that dies then leaves the mount.
#[test]
fn a_look_that_was_cut_short_is_no_mounted_pool() {
    let mut fixture = Fixture::new(&["a"]);
    let at = in_an_image(&mut fixture);
    let made = fixture.make("one");
    fixture.close();
    fixture.kernel.reboot();
    std::fs::remove_file(fixture.options.state_dir.join("pools.json")).unwrap();
    fixture.kernel.fail("unmount", 1, libc::EIO);
    fixture.try_open().map(drop).unwrap_err();
    assert_eq!(mounted_at(&fixture, &at).unwrap()[0], "ro");

    // While a process uses the read-only mount, the pool is not mounted over it.
    fixture.kernel.set_busy(&at, true);
    let why = missing(fixture.open());
    assert!(why.contains("mounted read-only"), "{why}");
    fixture.kernel.set_busy(&at, false);
    assert_eq!(fixture.open().volumes(), [made]);
    assert_eq!(mounted_at(&fixture, &at).unwrap()[0], "rw");
}

/// A pool of node n1 in an image, which the machine had mounted there before it restarted.
fn of_node_one() -> (Fixture, std::path::PathBuf) {
    let mut fixture = Fixture::new(&["a"]);
    fixture.options.node_id = Some("n1".into());
    let at = in_an_image(&mut fixture);
    fixture.close();
    fixture.kernel.reboot();
    (fixture, at)
}

/// Two nodes see one disk: the one that does not have it must not even replay its log.
#[test]
fn the_pool_of_another_node_is_never_mounted_for_writing() {
    let (mut fixture, at) = of_node_one();
    let state = fixture.options.state_dir.join("pools.json");
    for forgotten in [false, true] {
        if forgotten {
            std::fs::remove_file(&state).unwrap();
        }
        fixture.options.node_id = Some("n2".into());
        fixture.kernel.take_effects();
        let refused = fixture.try_open().map(drop).unwrap_err();
        assert!(matches!(refused, Error::OtherNode { .. }), "{refused}");
        let why = refused.to_string();
        for says in ["node n1", "mount it", "node.json"] {
            assert!(why.contains(says), "{why}");
        }
        // The look's own, which is read-only.
        let effects = fixture.kernel.take_effects();
        let mounts = effects.iter().filter(|op| **op == "mount").count();
        assert_eq!(mounts, 1, "{effects:?}");
        assert_eq!(mounted_at(&fixture, &at), None);
    }
    fixture.options.node_id = Some("n1".into());
    fixture.open();
    assert_eq!(mounted_at(&fixture, &at).unwrap()[0], "rw");
}

/// That the look fails is no reason not to mount a pool that is known.
#[test]
fn a_known_pool_is_mounted_though_it_can_not_be_looked_at() {
    let (mut fixture, at) = of_node_one();
    fixture.kernel.fail("mount", 1, libc::EUCLEAN);
    fixture.open().named(None).unwrap();
    assert_eq!(mounted_at(&fixture, &at).unwrap()[0], "rw");
}
