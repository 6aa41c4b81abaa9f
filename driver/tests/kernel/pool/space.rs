//! What pools promise, on filesystems of known size.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use hostloop_driver::storage::{Error, Provisioning};

use super::support::*;

fn available(world: &World, pool: &str, provisioning: Provisioning) -> u64 {
    let pool = world.pools().named(Some(pool)).unwrap();
    pool.capacity(provisioning).unwrap().available
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
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let promised = available(&world, "p", provisioning);
        assert!(
            (there / 4 * 3..=there).contains(&promised),
            "{promised} of {there} {provisioning:?}"
        );
        let pool = world.pool();
        let more = new("more", promised + MI, provisioning);
        refused!(
            world.pools().create_volume(&pool, more),
            Error::NoRoom { .. }
        );
    }
    let pool = world.pool();
    let half = new("half", there / 2 / MI * MI, Provisioning::Thin);
    world.pools().create_volume(&pool, half).unwrap();
    let left = available(&world, "p", Provisioning::Thin);
    assert!(left <= there / 2 + MI, "{left} of {there}");
    drop(pool);
    world.pools().close().unwrap();
    world.close();
}

#[test]
fn what_an_image_has_taken_already_is_not_asked_of_its_host() {
    let ground = Ground::new("ext4", 1024 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=600Mi,preallocate", arg(&ground.at))]);
    world.open();
    assert!(free(&ground.at) < 400 * MI);
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let promised = available(&world, "p", provisioning);
        assert!((450 * MI..=600 * MI).contains(&promised), "{promised}");
    }
    world.pools().close().unwrap();
    world.close();
}

/// Nothing gives the blocks of a deleted volume back to the host: the image holds them, unused. They
/// are room for new volumes, once.
#[test]
fn what_an_image_holds_of_a_deleted_volume_is_room_once() {
    let ground = Ground::new("ext4", 1024 * MI, &[]);
    let mut world = World::new(&[&format!("p={},image=2Gi", arg(&ground.at))]);
    world.open();
    let fresh = available(&world, "p", Provisioning::Thin);
    let pool = world.pool();
    let create = |name: &str, mib: u64, written: u64| {
        let volume = new(name, mib * MI, Provisioning::Thin);
        let volume = world.pools().create_volume(&pool, volume).unwrap();
        let image = pool.root().join(format!("volumes/{}/image", volume.id));
        let image = OpenOptions::new().write(true).open(image).unwrap();
        for mib in 0..written {
            image.write_all_at(&[7; MI as usize], mib * MI).unwrap();
        }
        image.sync_all().unwrap();
        volume
    };
    let promised = |about: &str, mib: u64| {
        // Counts are relied on for two seconds.
        std::thread::sleep(std::time::Duration::from_millis(2100));
        for provisioning in [Provisioning::Thin, Provisioning::Thick] {
            let (now, at_most) = (available(&world, "p", provisioning), fresh - mib * MI);
            let at_least = at_most - 40 * MI;
            assert!(
                (at_least..=at_most).contains(&now),
                "{about}, {provisioning:?}: {} MiB of {}",
                now / MI,
                fresh / MI
            );
        }
    };
    let first = create("first", 400, 400);
    promised("written", 400);
    world.pools().delete_volume(&first.id).unwrap();
    promised("deleted", 0);
    create("second", 400, 0);
    promised("promised again", 400);
    create("third", 100, 50);
    promised("and partly written", 500);
    drop(pool);
    world.pools().close().unwrap();
    world.close();
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
    let pool = world.pools().named(Some("i")).unwrap();
    let inside = new("inside", 400 * MI, Provisioning::Thin);
    let inside = world.pools().create_volume(&pool, inside).unwrap();
    let after = available(&world, "d", Provisioning::Thin);
    assert!(after <= before - 350 * MI, "{after} of {before}");
    world.pools().delete_volume(&inside.id).unwrap();
    drop(pool);
    let pool = world.pools().named(Some("d")).unwrap();
    let beside = new("beside", before / MI * MI - 100 * MI, Provisioning::Thin);
    world.pools().create_volume(&pool, beside).unwrap();
    let left = available(&world, "i", Provisioning::Thin);
    assert!(left <= 150 * MI, "{left}");
    drop(pool);
    world.pools().close().unwrap();
    world.close();
}

/// A snapshot shares blocks until one side is written. On a filesystem of its own, a pool can
/// measure what its snapshots hold.
#[test]
fn a_directory_that_is_a_filesystem_of_its_own_counts_what_is_used() {
    let ground = Ground::new("xfs", 1024 * MI, &[]);
    let mut world = World::at("p", &ground.at);
    world.open();
    let pool = world.pool();
    let volume = new("v", 200 * MI, Provisioning::Thick);
    let volume = world.pools().create_volume(&pool, volume).unwrap();
    let image = ground.at.join(format!("volumes/{}/image", volume.id));
    let image = OpenOptions::new().write(true).open(image).unwrap();
    for mib in 0..200 {
        image.write_all_at(&[7; MI as usize], mib * MI).unwrap();
    }
    image.sync_all().unwrap();
    // After the snapshot, the thick volume gets blocks of its own again.
    let pools = world.pools();
    pools
        .create_snapshot(&volume.id, "s", &Default::default())
        .unwrap();
    drop(pool);
    // Reopening measures again.
    world.open();
    let there = free(&ground.at);
    assert!(there < 600 * MI, "{there}");
    let promised = available(&world, "p", Provisioning::Thin);
    assert!(
        (there - 50 * MI..=there).contains(&promised),
        "{promised} of {there}"
    );
    world.close();
}
