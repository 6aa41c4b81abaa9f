use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rstest::rstest;

use super::*;
use crate::kernel::FsUsage;
use crate::record::Parameters;
use crate::storage::scan::Contents;
use crate::storage::{NewVolume, PoolId, Provisioning, VolumeRecord};
use crate::testkit::{MI, Site, new};

fn keeping(number: &str) -> Parameters {
    Parameters::from([(KEEP_DELETED_BASES.to_owned(), number.to_owned())])
}

/// One namespace's many small images hold up no call of another one for long.
#[test]
fn a_call_waits_for_all_of_them_together() {
    let left = Duration::from_millis(30);
    let mut freeing = FreeingTime { left };
    let began = Instant::now();
    for _ in 0..100 {
        freeing.wait(|| Ok(false)).unwrap();
    }
    let waited = began.elapsed();
    assert!(waited >= left && waited < FREEING_ALL, "{waited:?}");
}

fn take(
    site: &Site,
    volume: &VolumeRecord,
    name: &str,
    parameters: &Parameters,
) -> Arc<SnapshotRecord> {
    let taken = site.pools().create_snapshot(&volume.id, name, parameters);
    taken.unwrap()
}

/// Takes and deletes a snapshot with this number in its class.
fn deleted(site: &Site, volume: &VolumeRecord, name: &str, number: &str) -> SnapshotId {
    let id = take(site, volume, name, &keeping(number)).id;
    site.pools().delete_snapshot(&id).unwrap();
    id
}

fn kept(site: &Site) -> Vec<SnapshotId> {
    let bases = site.pools().kept_bases();
    bases.iter().map(|base| base.id).collect()
}

/// The names under `trash/`.
fn trash(site: &Site) -> Vec<String> {
    let entries = site.entries().into_iter();
    let entries = entries.filter_map(|entry| entry.strip_prefix("trash/").map(str::to_owned));
    entries.collect()
}

#[test]
fn fewer_newer_ones_are_kept_than_each_allows() {
    let table: [(&[usize], &[usize]); 7] = [
        (&[], &[]),
        (&[0], &[0]),
        (&[1], &[]),
        (&[2, 2, 2], &[2]),
        (&[1, 4, 4], &[]),
        (&[4, 1, 4], &[1]),
        (&[0, 1, 1], &[0, 2]),
    ];
    for (most, expected) in table {
        let pool = PoolId::generate();
        let ids: Vec<SnapshotId> = most.iter().map(|_| SnapshotId::generate(pool)).collect();
        let expected: Vec<SnapshotId> = expected.iter().map(|i| ids[*i]).collect();
        let found = surplus(ids.iter().copied().zip(most.iter().copied()));
        assert_eq!(found, expected, "{most:?}");
    }
}

#[test]
fn a_deleted_snapshot_keeps_its_image_and_nothing_else() {
    let mut site = Site::fake(&["a"]);
    let volume = site.make("one");
    let snapshot = take(&site, &volume, "snap", &keeping("1"));
    site.pools().delete_snapshot(&snapshot.id).unwrap();
    assert_eq!(trash(&site), [format!("kept-{}", snapshot.id)]);
    for _ in 0..2 {
        let pools = site.pools();
        assert!(pools.snapshots().is_empty());
        assert!(pools.snapshot_named("snap").is_none());
        refused!(pools.snapshot(&snapshot.id), Error::NoSnapshot(_));
        refused!(pools.delete_snapshot(&snapshot.id), Error::NoSnapshot(_));
        assert_eq!(pools.base(&snapshot.id).unwrap(), snapshot);
        let image = pools.open_base(&snapshot).unwrap();
        assert_eq!(file::length(&image).unwrap(), snapshot.size_bytes);
        // As after a restart.
        site.open();
    }
    let again = take(&site, &volume, "snap", &keeping("1"));
    assert_ne!(again.id, snapshot.id, "the name was free");
}

#[test]
fn by_default_deleted_means_deleted() {
    let site = Site::fake(&["a"]);
    let volume = site.make("one");
    for parameters in [Parameters::new(), keeping("0"), keeping("9"), keeping("+1")] {
        let snapshot = take(&site, &volume, "snap", &parameters);
        site.pools().delete_snapshot(&snapshot.id).unwrap();
        refused!(site.pools().base(&snapshot.id), Error::NoSnapshot(_));
        refused!(site.pools().open_base(&snapshot), Error::NoSnapshot(_));
        assert!(trash(&site).is_empty(), "{parameters:?}");
    }
}

#[test]
fn the_newest_ones_of_each_volume_are_kept() {
    let mut site = Site::fake(&["a"]);
    let (one, two) = (site.make("one"), site.make("two"));
    let first = take(&site, &one, "first", &keeping("2"));
    let second = deleted(&site, &one, "second", "2");
    let other = deleted(&site, &two, "other", "2");
    let third = deleted(&site, &one, "third", "2");
    // It is older than two that are kept.
    site.pools().delete_snapshot(&first.id).unwrap();
    assert_eq!(kept(&site), [second, other, third]);
    let fourth = deleted(&site, &one, "fourth", "2");
    assert_eq!(kept(&site), [other, third, fourth]);
    site.pools().delete_volume(&one.id).unwrap();
    assert_eq!(kept(&site), [other]);
    site.open();
    assert_eq!(kept(&site), [other]);
    assert_eq!(trash(&site), [format!("kept-{other}")]);
}

#[test]
fn nothing_is_kept_of_a_deleted_volume() {
    let site = Site::fake(&["a"]);
    let volume = site.make("one");
    let snapshot = take(&site, &volume, "snap", &keeping("1"));
    site.pools().delete_volume(&volume.id).unwrap();
    site.pools().delete_snapshot(&snapshot.id).unwrap();
    assert!(site.entries().is_empty());
}

/// The first try moved it, and failed at an fsync. The next one decides otherwise.
#[test]
fn a_second_try_finds_it_wherever_the_first_one_moved_it() {
    for (moved_to, volume_is_gone) in [("kept-", true), ("", false), ("", true), ("kept-", false)] {
        let site = Site::fake(&["a"]);
        let volume = site.make("one");
        let snapshot = take(&site, &volume, "snap", &keeping("1"));
        let id = snapshot.id;
        let from = site.path(format!("snapshots/{id}"));
        std::fs::rename(from, site.path(format!("trash/{moved_to}{id}"))).unwrap();
        if volume_is_gone {
            site.pools().delete_volume(&volume.id).unwrap();
        }
        site.pools().delete_snapshot(&id).unwrap();
        refused!(site.pools().snapshot(&id), Error::NoSnapshot(_));
        let context = format!("{moved_to:?} {volume_is_gone}");
        let is_kept = moved_to == "kept-" && !volume_is_gone;
        assert_eq!(kept(&site).len(), usize::from(is_kept), "{context}");
        assert_eq!(trash(&site).len(), usize::from(is_kept), "{context}");
    }
}

/// Its next deletion must not fail for good.
#[test]
fn one_that_a_person_has_copied_back_goes_with_its_snapshot() {
    let mut site = Site::fake(&["a"]);
    let volume = site.make("one");
    let id = deleted(&site, &volume, "snap", "1");
    site.close();
    let from = site.path(format!("trash/kept-{id}"));
    let to = site.path(format!("snapshots/{id}"));
    std::fs::create_dir(&to).unwrap();
    for file in ["image", "snapshot.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    site.open();
    site.pools().snapshot(&id).unwrap();
    site.pools().delete_snapshot(&id).unwrap();
    refused!(site.pools().snapshot(&id), Error::NoSnapshot(_));
    assert!(kept(&site).is_empty());
    assert!(trash(&site).is_empty());
}

/// A process may have died while it freed one, or between the deletion of a volume and theirs.
#[test]
fn a_start_frees_what_is_not_whole_or_has_no_volume() {
    for lost in ["image", "snapshot.json", "volume", "none"] {
        let mut site = Site::fake(&["a"]);
        let volume = site.make("one");
        let id = deleted(&site, &volume, "snap", "1");
        site.close();
        let entry = site.path(format!("trash/kept-{id}"));
        match lost {
            "volume" => {
                let volume = site.path(format!("volumes/{}", volume.id));
                std::fs::remove_dir_all(volume).unwrap();
            }
            "none" => {}
            file => std::fs::remove_file(entry.join(file)).unwrap(),
        }
        site.open();
        assert_eq!(entry.exists(), lost == "none", "{lost}");
        assert_eq!(kept(&site).len(), usize::from(lost == "none"), "{lost}");
        assert!(site.pools().noted_problems().is_empty(), "{lost}");
    }
}

/// Without the volume, the next start frees it.
#[test]
fn fsck_tells_it_from_a_deleted_snapshot() {
    let mut site = Site::fake(&["a"]);
    let volume = site.make("one");
    let id = deleted(&site, &volume, "snap", "1");
    let root = site.pool().root().to_path_buf();
    site.close();
    let read = || Contents::read(&*site.kernel, &root).unwrap();
    let contents = read();
    assert!(contents.leftovers.is_empty());
    assert_eq!(contents.bases.len(), 1);
    assert_eq!(contents.bases[0].id, id);
    std::fs::remove_dir_all(root.join(format!("volumes/{}", volume.id))).unwrap();
    let contents = read();
    assert!(contents.bases.is_empty());
    assert_eq!(contents.leftovers.len(), 1);
}

/// A site with room for 12 MiB, and a volume of 4 MiB with 3 MiB of data.
fn full_site() -> (Site, Arc<VolumeRecord>) {
    let mut site = Site::fake(&["a"]);
    site.specs[0].capacity_bytes = Some(12 * MI);
    site.open();
    let volume = site.make("one");
    let image = site.pools().open_image(&volume, true).unwrap();
    image.write_all_at(&vec![1; 3 << 20], 0).unwrap();
    image.sync_all().unwrap();
    (site, volume)
}

/// The pool does not share blocks, so each one promises all that it has.
#[test]
fn the_oldest_ones_go_before_anything_is_refused() {
    let (site, volume) = full_site();
    let free = site.available(Provisioning::Thin);
    let first = deleted(&site, &volume, "first", "2");
    let second = deleted(&site, &volume, "second", "2");
    assert_eq!(kept(&site), [first, second]);
    assert_eq!(site.available(Provisioning::Thin), free);

    let large = |name, bytes| NewVolume {
        capacity_bytes: bytes,
        ..new(name)
    };
    let pool = site.pool();
    let huge = site.pools().create_volume(&pool, large("huge", 9 * MI));
    refused!(huge, Error::NoRoom { .. });
    assert_eq!(kept(&site), [first, second], "they would not have helped");
    site.create(large("two", 4 * MI));
    assert_eq!(kept(&site), [second]);
    site.create(large("three", 4 * MI));
    assert!(kept(&site).is_empty());
    assert!(trash(&site).is_empty());
}

/// The pool is a directory beside other files. What an image of a deleted snapshot holds is room once:
/// it shares no blocks, or its volume has none any more.
#[rstest]
#[case::copied(false)]
#[case::larger_than_its_volume(true)]
fn capacity_is_what_there_is_without_them(#[case] shared: bool) {
    let (mut site, volume) = full_site();
    site.specs[0].capacity_bytes = None;
    let freed = Arc::new(AtomicU64::new(0));
    let more = freed.clone();
    site.kernel.set_reflinks(shared);
    site.kernel.set_disk(move |_, usage| FsUsage {
        total_bytes: 1 << 30,
        free_bytes: 512 * MI + more.load(Relaxed),
        available_bytes: 512 * MI + more.load(Relaxed),
        ..usage
    });
    site.open();
    deleted(&site, &volume, "snap", "1");
    if shared {
        let image = site.pools().open_image(&volume, true).unwrap();
        image.set_len(0).unwrap();
        image.set_len(volume.capacity_bytes).unwrap();
    }
    let with_image = site.available(Provisioning::Thin);
    freed.store(site.pool().promised_to_bases(), Relaxed);
    assert!(site.pool().drop_oldest_base());
    assert_eq!(site.available(Provisioning::Thin), with_image);
}

#[test]
fn a_namespace_gives_up_its_own_before_its_limit_counts() {
    let (mut site, volume) = full_site();
    site.options.max_snapshot_bytes_per_namespace = Some(4 * MI);
    site.specs[0].capacity_bytes = None;
    site.open();
    let of = |namespace: &str| {
        let key = "csi.storage.k8s.io/volumesnapshot/namespace";
        let mut parameters = keeping("4");
        parameters.insert(key.to_owned(), namespace.to_owned());
        parameters
    };
    let mut taken = Vec::new();
    for (name, namespace) in [("1", "one"), ("2", "other"), ("3", "one")] {
        let snapshot = take(&site, &volume, name, &of(namespace));
        site.pools().delete_snapshot(&snapshot.id).unwrap();
        taken.push(snapshot.id);
    }
    assert_eq!(kept(&site), [taken[1], taken[2]]);
}

/// Another pool may hang. Its own task frees the image.
#[test]
fn a_namespace_gives_up_its_own_in_other_pools() {
    let mut site = Site::fake(&["a", "b"]);
    site.options.max_snapshot_bytes_per_namespace = Some(4 * MI);
    site.open();
    let volumes = ["a", "b"].map(|pool| site.create_in(pool, new(pool)));
    for volume in &volumes {
        let image = site.pools().open_image(volume, true).unwrap();
        image.write_all_at(&vec![1; 3 << 20], 0).unwrap();
        image.sync_all().unwrap();
    }
    deleted(&site, &volumes[0], "1", "1");
    take(&site, &volumes[1], "2", &keeping("1"));
    assert!(kept(&site).is_empty());
    assert_eq!(trash(&site).len(), 1);
    site.pools().tend(0);
    assert!(trash(&site).is_empty());
}

#[test]
fn one_that_is_read_can_be_freed() {
    let (site, volume) = full_site();
    let snapshot = take(&site, &volume, "snap", &keeping("1"));
    site.pools().delete_snapshot(&snapshot.id).unwrap();
    let image = site.pools().open_base(&snapshot).unwrap();
    site.pools().delete_volume(&volume.id).unwrap();
    let mut content = vec![0; 3 << 20];
    image.read_exact_at(&mut content, 0).unwrap();
    assert!(content.iter().all(|byte| *byte == 1));
}
