//! What pools promise, on filesystems of known size.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use hostloop_driver::storage::{Error, Provisioning, VolumeRecord};
use rstest::rstest;

use super::support::*;

fn available(world: &World, pool: &str, provisioning: Provisioning) -> u64 {
    let pool = world.pools().named(Some(pool)).unwrap();
    pool.capacity(provisioning).unwrap().available
}

/// Writes the first MiBs of a volume's image.
fn fill(world: &World, volume: &VolumeRecord, mib: u64) {
    let image = world.pools().open_image(volume, true).unwrap();
    for mib in 0..mib {
        image.write_all_at(&[7; MI as usize], mib * MI).unwrap();
    }
    image.sync_all().unwrap();
}

fn free(at: &std::path::Path) -> u64 {
    let usage = rustix::fs::statvfs(at).unwrap();
    usage.f_bavail * usage.f_frsize
}

#[test]
fn an_image_promises_no_more_than_its_host_has() {
    let ground = Ground::new("ext4", 1024 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=8Gi", arg(&ground.at))]);
    world.open();
    let there = free(&ground.at);
    let promised = available(&world, "p", Provisioning::Thin);
    let expected = there / 4 * 3..=there;
    assert!(expected.contains(&promised), "{promised}, not {expected:?}");
    let more = world
        .pools()
        .create_volume(&world.pool(), thin("more", promised + MI));
    refused!(more, Error::NoRoom { .. });
    // A thick volume needs the whole image there.
    assert_eq!(available(&world, "p", Provisioning::Thick), 0);
    let thick = world
        .pools()
        .create_volume(&world.pool(), new("t", MI, Provisioning::Thick));
    refused!(thick, Error::NoRoomBelow { .. });
    world.create(thin("half", there / 2 / MI * MI));
    let left = available(&world, "p", Provisioning::Thin);
    assert!(left <= there / 2 + MI, "{left} of {there}");
}

#[test]
fn a_preallocated_image_needs_no_further_space_of_its_host() {
    let ground = Ground::new("ext4", 1024 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=600Mi,preallocate", arg(&ground.at))]);
    world.open();
    assert!(free(&ground.at) < 400 * MI);
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let promised = available(&world, "p", provisioning);
        assert!((450 * MI..=600 * MI).contains(&promised), "{promised}");
    }
}

/// Nothing gives the blocks of a deleted volume back to the host: the image holds them, unused.
/// They are room for new volumes, once.
#[test]
fn the_blocks_of_a_deleted_volume_are_promised_once() {
    let ground = Ground::new("ext4", 1024 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=2Gi", arg(&ground.at))]);
    world.open();
    let fresh = available(&world, "p", Provisioning::Thin);
    let create = |name: &str, mib: u64, written: u64| {
        let volume = world.create(thin(name, mib * MI));
        fill(&world, &volume, written);
        volume
    };
    let promised = |about: &str, mib: u64| {
        let most = fresh - mib * MI;
        // XFS frees a deleted file's blocks somewhat later.
        until(about, || {
            // A measurement stays valid for two seconds.
            std::thread::sleep(std::time::Duration::from_millis(2100));
            let now = available(&world, "p", Provisioning::Thin);
            assert!(now <= most, "{about}: {now}, more than {most}");
            now >= most - 40 * MI
        });
    };
    let first = create("first", 400, 400);
    promised("written", 400);
    world.pools().delete_volume(&first.id).unwrap();
    promised("deleted", 0);
    create("second", 400, 0);
    promised("promised again", 400);
    create("third", 100, 50);
    promised("and partly written", 500);
}

#[test]
fn an_image_and_a_directory_on_one_filesystem_promise_it_once() {
    let ground = Ground::new("ext4", 1024 * MI, &[]);
    for name in ["image", "directory"] {
        std::fs::create_dir(ground.at.join(name)).unwrap();
    }
    let at = arg(&ground.at);
    let mut world = World::new(&[
        &format!("i={at}/image,image=600Mi"),
        &format!("d={at}/directory"),
    ]);
    world.open();
    let before = available(&world, "d", Provisioning::Thin);
    let inside = world.create_in("i", thin("inside", 400 * MI));
    let after = available(&world, "d", Provisioning::Thin);
    assert!(after <= before - 350 * MI, "{after} of {before}");
    world.pools().delete_volume(&inside.id).unwrap();
    world.create_in("d", thin("beside", before / MI * MI - 100 * MI));
    let left = available(&world, "i", Provisioning::Thin);
    assert!(left <= 150 * MI, "{left}");
}

/// The image of a deleted snapshot has the blocks from before a change. They are room for volumes:
/// it goes for one that needs them, and not for one that would not fit either way.
#[test]
fn the_image_of_a_deleted_snapshot_makes_room() {
    let ground = Ground::new("xfs", 1024 * MI, &[]);
    let mut world = World::at("p", &ground.at);
    world.open();
    let volume = world.create(thin("v", 200 * MI));
    fill(&world, &volume, 200);
    let parameters = BTreeMap::from([("keepDeletedBases".to_owned(), "1".to_owned())]);
    let taken = world.pools().create_snapshot(&volume.id, "s", &parameters);
    let snapshot = taken.unwrap();
    fill(&world, &volume, 200);
    let with_snapshot = available(&world, "p", Provisioning::Thin);
    world.pools().delete_snapshot(&snapshot.id).unwrap();
    let with_image = available(&world, "p", Provisioning::Thin);
    let more = with_snapshot + 180 * MI..=with_snapshot + 220 * MI;
    assert!(more.contains(&with_image), "{with_image}, not {more:?}");

    let huge = thin("huge", with_image + 60 * MI);
    let huge = world.pools().create_volume(&world.pool(), huge);
    refused!(huge, Error::NoRoom { .. });
    assert_eq!(world.pools().kept_bases(), std::slice::from_ref(&snapshot));
    world.create(thin("large", (with_image - 60 * MI) / MI * MI));
    assert!(world.pools().kept_bases().is_empty());
    refused!(world.pools().base(&snapshot.id), Error::NoSnapshot(_));
}

/// The first thick volume of an image, which gets all its blocks first.
#[test]
fn the_image_of_a_deleted_snapshot_makes_room_for_a_thick_volume() {
    let ground = Ground::new("ext4", 2048 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=1Gi", arg(&ground.at))]);
    world.open();
    let volume = world.create(thin("v", 200 * MI));
    fill(&world, &volume, 200);
    let parameters = BTreeMap::from([("keepDeletedBases".to_owned(), "1".to_owned())]);
    let taken = world.pools().create_snapshot(&volume.id, "s", &parameters);
    fill(&world, &volume, 200);
    world.pools().delete_snapshot(&taken.unwrap().id).unwrap();
    let bytes = available(&world, "p", Provisioning::Thick) - 60 * MI;
    world.create(new("t", bytes / MI * MI, Provisioning::Thick));
    assert!(world.pools().kept_bases().is_empty());
}

/// A snapshot that counts on the image of a deleted one promises its blocks, too, once that has
/// gone. So none goes if both together are beyond the limit of their namespace.
#[test]
fn the_limit_of_a_namespace_counts_what_a_snapshot_would_inherit() {
    let ground = Ground::new("xfs", 1024 * MI, &[]);
    let mut world = World::at("p", &ground.at);
    world.options.max_snapshot_bytes_per_namespace = Some(180 * MI);
    world.open();
    let [volume, other] = ["v", "w"].map(|name| world.create(thin(name, 200 * MI)));
    fill(&world, &volume, 100);
    fill(&world, &other, 50);
    let parameters = BTreeMap::from([("keepDeletedBases".to_owned(), "1".to_owned())]);
    let take = |volume: &VolumeRecord, name: &str| {
        let pools = world.pools();
        pools.create_snapshot(&volume.id, name, &parameters)
    };
    let base = take(&volume, "base").unwrap();
    world.pools().delete_snapshot(&base.id).unwrap();
    let theirs = take(&other, "other").unwrap();
    let image = world.pools().open_image(&volume, true).unwrap();
    for mib in 100..140 {
        image.write_all_at(&[7; MI as usize], mib * MI).unwrap();
    }
    image.sync_all().unwrap();
    refused!(take(&volume, "target"), Error::SnapshotQuota { .. });
    assert_eq!(world.pools().kept_bases(), std::slice::from_ref(&base));

    world.pools().delete_volume(&other.id).unwrap();
    world.pools().delete_snapshot(&theirs.id).unwrap();
    take(&volume, "target").unwrap();
    assert_eq!(world.pools().kept_bases(), [base]);
}

/// A snapshot shares blocks until one side is written. On a separate filesystem, a pool can
/// measure what its snapshots hold.
#[test]
fn a_directory_that_is_a_filesystem_of_its_own_counts_what_is_used() {
    let ground = Ground::new("xfs", 1024 * MI, &[]);
    let mut world = World::at("p", &ground.at);
    world.open();
    let volume = world.create(new("v", 200 * MI, Provisioning::Thick));
    fill(&world, &volume, 200);
    // After the snapshot, the thick volume gets unshared blocks again.
    world.snapshot(&volume, "s");
    // Reopening measures again.
    world.open();
    // XFS may take or free some blocks meanwhile.
    until("it promises what is there", || {
        let there = free(&ground.at);
        assert!(there < 600 * MI, "{there}");
        let promised = available(&world, "p", Provisioning::Thin);
        (there - 50 * MI..=there).contains(&promised)
    });
}

/// Snapshots of a volume share blocks until it is written to. Each promises what no earlier one
/// has, also after a restart, and what a deleted one had and it still has.
#[rstest]
#[case::xfs("xfs", true)]
#[case::btrfs("btrfs", true)]
#[case::ext4("ext4", false)]
fn snapshots_promise_what_they_do_not_share(#[case] fs: &str, #[case] shares: bool) {
    const DATA: u64 = 20;
    const MORE: u64 = 8;
    let ground = Ground::new(fs, 2048 * MI, &[]);
    let mut world = World::at("p", &ground.at);
    world.specs[0].capacity_bytes = Some(1024 * MI);
    world.open();
    let volume = world.create(thin("v", 64 * MI));
    fill(&world, &volume, DATA);
    let before = available(&world, "p", Provisioning::Thin);
    let promise = |world: &World, least: u64, what: &str| {
        let promised = before - available(world, "p", Provisioning::Thin);
        // Filesystems keep some blocks for a file's own map.
        let expected = least * MI..=(least + 4) * MI;
        assert!(
            expected.contains(&promised),
            "{what}: {promised}, not {expected:?}"
        );
    };
    let first = world.snapshot(&volume, "0");
    promise(&world, DATA, "the first");
    let others: Vec<_> = (1..=10)
        .map(|n| world.snapshot(&volume, &n.to_string()))
        .collect();
    let all = if shares { DATA } else { 11 * DATA };
    promise(&world, all, "the others");

    fill(&world, &volume, MORE);
    let last = world.snapshot(&volume, "last");
    let all = all + if shares { MORE } else { DATA };
    promise(&world, all, "one after a write");
    world.open();
    promise(&world, all, "after a restart");

    world.pools().delete_snapshot(&first.id).unwrap();
    let all = if shares { all } else { all - DATA };
    promise(&world, all, "without the first");
    for other in others {
        world.pools().delete_snapshot(&other.id).unwrap();
    }
    promise(&world, DATA, "without those before the write");
    world.pools().delete_snapshot(&last.id).unwrap();
    promise(&world, 0, "without any");
}
