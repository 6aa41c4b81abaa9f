use std::os::unix::fs::FileExt;

use rstest::rstest;

use super::*;
use crate::storage::scan::Contents;
use crate::storage::{Error, NewVolume, Source};
use crate::testkit::{MI, Site, new};

fn new_from(source: Source, name: &str) -> NewVolume {
    NewVolume {
        source: Some(source),
        ..new(name)
    }
}

/// Two pools share a filesystem with other users, so figures are compared with a wide margin.
#[test]
fn two_pools_on_one_filesystem_promise_it_once() {
    let site = Site::fake(&["a", "b"]);
    let (a, b) = (site.named("a"), site.named("b"));
    let available = |pool: &Arc<Pool>| pool.capacity(Provisioning::Thin).unwrap().available;
    let all = available(&b);
    let sized = |name: &str, capacity_bytes: u64| NewVolume {
        capacity_bytes: capacity_bytes - capacity_bytes % 4096,
        ..new(name)
    };
    let half = site.create_in("a", sized("one", all / 2));
    assert!(available(&a) < all / 8 * 5, "{}", available(&a));
    assert!(available(&b) < all / 8 * 5, "{} of {all}", available(&b));
    let more = site.pools().create_volume(&b, sized("two", all / 4 * 3));
    refused!(more, Error::NoRoom { .. });
    site.create_in("b", sized("two", all / 4));
    assert!(available(&a) < all / 8 * 3, "{}", available(&a));

    site.pools().delete_volume(&half.id).unwrap();
    assert!(available(&a) > all / 8 * 5, "{}", available(&a));
    assert!(available(&b) > all / 8 * 5, "{}", available(&b));
}

/// In a pool with other files on its filesystem, a volume and those restored from its snapshots count
/// once, also when what was between them is deleted.
#[test]
fn a_family_counts_once_without_the_snapshots_between() {
    let mut site = Site::fake(&["a"]);
    site.kernel.set_reflinks(true);
    site.open();
    let held = |site: &Site| capacity::held(&site.pool().images().unwrap(), true);
    let volume = site.make("one");
    let image = site.pools().open_image(&volume, true).unwrap();
    image.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    let of_one = held(&site);
    assert!(of_one >= 1 << 20);

    let mut last = volume;
    for name in ["two", "three"] {
        let snapshot = site.snapshot(&last, name);
        let restored = site.create(new_from(Source::Snapshot(snapshot.id), name));
        site.pools().delete_snapshot(&snapshot.id).unwrap();
        assert_eq!(held(&site), of_one, "{name}");
        last = restored;
    }
    site.create(new_from(Source::Volume(last.id), "clone"));
    site.pools().delete_volume(&last.id).unwrap();
    assert_eq!(held(&site), of_one);
    site.close();
    site.open();
    assert_eq!(held(&site), of_one);
    // `hostloop status` counts as the driver does.
    let mut contents = Contents::read(&*site.kernel, site.pool().root()).unwrap();
    contents.reflinks = Some(true);
    assert_eq!(contents.held_bytes(), of_one);
    contents.reflinks = Some(false);
    let apart = allocated(&site.pool().images().unwrap());
    assert_eq!(contents.held_bytes(), apart);
}

/// Two copies of a volume in another pool share no blocks, and a copy of one of them shares its own.
#[test]
fn copies_from_another_pool_are_families_of_their_own() {
    let mut site = Site::fake(&["a", "b"]);
    site.kernel.set_reflinks(true);
    site.open();
    let volume = site.create_in("a", new("one"));
    let image = site.pools().open_image(&volume, true).unwrap();
    image.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    image.sync_all().unwrap();
    let [two, _three] =
        ["two", "three"].map(|name| site.create_in("b", new_from(Source::Volume(volume.id), name)));
    let images = || site.named("b").images().unwrap();
    let both = allocated(&images());
    assert!(both >= 2 << 20, "{both}");
    assert_eq!(capacity::held(&images(), true), both);
    let snapshot = site.snapshot(&two, "snap");
    assert_eq!(snapshot.ancestor, None);
    assert_eq!(capacity::held(&images(), true), both);
}

/// Earlier builds can't read a record with an ancestor.
#[rstest]
#[case::a_directory("a=DIR/a", true, true)]
#[case::without_reflinks("a=DIR/a", false, false)]
#[case::alone_on_its_filesystem("a=DIR/a,image=300Mi", true, false)]
fn only_copies_of_copies_that_count_by_family_record_an_ancestor(
    #[case] pool: &str,
    #[case] reflinks: bool,
    #[case] recorded: bool,
) {
    let mut site: Site = Site::new(&[pool]);
    site.kernel.set_reflinks(reflinks);
    site.open();
    let volume = site.make("one");
    let snapshot = site.snapshot(&volume, "two");
    let clone = site.create(new_from(Source::Volume(volume.id), "three"));
    assert_eq!(snapshot.ancestor, None);
    assert_eq!(clone.ancestor, None);
    let expected = recorded.then(|| Box::new(volume.id.uuid()));
    let restored = site.create(new_from(Source::Snapshot(snapshot.id), "four"));
    assert_eq!(restored.ancestor, expected);
    for copied in [clone, restored] {
        let name = copied.name.to_string();
        let snapshot = site.snapshot(&copied, &format!("of-{name}"));
        assert_eq!(snapshot.ancestor, expected, "{name}");
        let clone = new_from(Source::Volume(copied.id), &format!("from-{name}"));
        let clone = site.create(clone);
        assert_eq!(clone.ancestor, expected, "{name}");
    }
}

/// Concurrent reservations never promise more space than the filesystem has.
#[test]
fn promises_at_once_are_of_one_book() {
    let site = Site::fake(&["a", "b"]);
    let pools = [site.named("a"), site.named("b")];
    let all = pools[0].capacity(Provisioning::Thin).unwrap().available;
    let request = SpaceRequest {
        promise: all / 8 * 3,
        ..SpaceRequest::default()
    };
    let barrier = &std::sync::Barrier::new(8);
    let held = std::thread::scope(|scope| {
        let ask = |i: usize| {
            let pool = &pools[i % 2];
            scope.spawn(move || {
                barrier.wait();
                let held = pool.reserve(request);
                // No reservation is dropped before all were attempted.
                barrier.wait();
                held.is_ok()
            })
        };
        let asked: Vec<_> = (0..8).map(ask).collect();
        let answers = asked.into_iter().map(|asked| asked.join().unwrap());
        answers.filter(|held| *held).count()
    });
    assert!((1..=2).contains(&held), "{held} of three eighths each");
}

/// An image holds 60 and its host has 50 left. 110 can be promised in total, however much is
/// promised and written already. (All figures exclude the filesystem's own blocks.)
#[test]
fn an_image_is_room_once() {
    let (held, left): (u64, u64) = (60, 50);
    for promised in 0..=110 {
        for written in 0..=promised.min(held) {
            let unused = held - written;
            let ours = held.min(promised) - counted_twice(held, promised, unused);
            let room = left + unused + ours;
            assert_eq!(room, 110, "{promised} promised, {written} written");
        }
    }
}

/// The usage of a filesystem of 1 GiB with this much free.
fn with_free(usage: FsUsage, free_bytes: u64) -> FsUsage {
    FsUsage {
        total_bytes: 1 << 30,
        free_bytes,
        available_bytes: free_bytes,
        ..usage
    }
}

/// What the filesystem of the first pool itself uses.
fn overhead(site: &Site) -> u64 {
    site.pool().space.get().unwrap().overhead()
}

/// What was deleted before the opening, or before the death of an earlier process.
#[test]
fn what_is_freed_after_the_opening_is_not_of_the_filesystem_itself() {
    let mut site: Site = Site::new(&["a=DIR/a,image=300Mi"]);
    let freeing = Arc::new(AtomicU64::new(0));
    let of_disk = Arc::clone(&freeing);
    site.kernel.set_disk(move |_, usage| {
        let free_bytes = 512 * MI - of_disk.load(Ordering::Relaxed);
        with_free(usage, free_bytes)
    });
    site.open();
    let expected = overhead(&site);
    freeing.store(64 * MI, Ordering::Relaxed);
    site.open();
    // Later, more is used by images that are being made, and is being freed.
    for (still, more) in [(64, 64), (16, 16), (0, 0), (32, 0)] {
        freeing.store(still * MI, Ordering::Relaxed);
        site.tend();
        assert_eq!(overhead(&site), expected + more * MI, "{still}");
    }
}

/// The filesystem may have had it only after another image had lost as much.
#[test]
fn what_an_image_gets_during_a_measurement_is_left_out() {
    let mut site: Site = Site::new(&["a=DIR/a,image=300Mi"]);
    site.kernel.set_disk(|_, usage| with_free(usage, 512 * MI));
    site.open();
    assert_eq!(overhead(&site), 512 * MI);
    let [full, growing] = ["full", "growing"].map(|name| {
        let volume = site.make(name);
        site.pools().open_image(&volume, true).unwrap()
    });
    full.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    full.sync_all().unwrap();
    site.kernel.set_disk(move |_, usage| {
        growing.write_all_at(&vec![1; 1 << 20], 0).unwrap();
        growing.sync_all().unwrap();
        with_free(usage, 511 * MI)
    });
    site.tend();
    let left = overhead(&site);
    assert!(left > 512 * MI - MI / 2, "{left}");
}
