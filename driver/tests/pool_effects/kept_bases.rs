//! Deletions of snapshots that keep their images: an error, or the death of the process, at each of
//! their effects.

use hostloop_driver::storage::SnapshotId;

use super::*;

/// A world with a deleted snapshot that keeps its image, and with a newer one that takes its place
/// once it is deleted.
fn world() -> (World, [SnapshotId; 2]) {
    let world = World::new();
    let parameters = BTreeMap::from([("keepDeletedBases".to_owned(), "1".to_owned())]);
    let ids = ["older", "newer"].map(|name| {
        let taken = world
            .pools()
            .create_snapshot(&world.idle, name, &parameters);
        taken.unwrap().id
    });
    world.pools().delete_snapshot(&ids[0]).unwrap();
    assert_eq!(kept(&world), [ids[0]]);
    (world, ids)
}

fn kept(world: &World) -> Vec<SnapshotId> {
    let bases = world.pools().kept_bases();
    bases.iter().map(|base| base.id).collect()
}

fn delete(world: &World, id: SnapshotId) -> Result<()> {
    world.pools().delete_snapshot(&id)
}

fn effects_of_a_deletion() -> usize {
    let (world, [_, newer]) = world();
    let effects = effects_of(|| delete(&world, newer));
    assert!(effects > 0);
    effects
}

/// Fails unless this snapshot alone keeps its image, and nothing else is under `trash/`.
fn only_is_kept(world: &World, id: SnapshotId, context: &str) {
    assert_eq!(kept(world), [id], "{context}");
    let entries = world.site.entries();
    let trash: Vec<&String> = entries.iter().filter(|e| e.starts_with("trash/")).collect();
    assert_eq!(trash, [&format!("trash/kept-{id}")], "{context}");
}

#[test]
fn an_error_at_every_effect_of_a_deletion_that_keeps_its_image() {
    let _scenario = fail::FailScenario::setup();
    let effects = effects_of_a_deletion();
    for n in 0..effects {
        let (mut world, [_, newer]) = world();
        fail::cfg("effect", &format!("{n}*off->1*return(ENOSPC)->off")).unwrap();
        let done = delete(&world, newer);
        fail::remove("effect");
        let context = format!("effect {n} of {effects}: {done:?}");
        if done.is_err() {
            delete(&world, newer).unwrap();
        }
        world.site.tend();
        only_is_kept(&world, newer, &context);
        world.restart(&context);
        only_is_kept(&world, newer, &context);
    }
}

/// The next process has the snapshot, or its image.
#[test]
fn a_death_at_every_effect_of_a_deletion_that_keeps_its_image() {
    let _scenario = fail::FailScenario::setup();
    let effects = effects_of_a_deletion();
    for n in 0..effects {
        let (mut world, [older, newer]) = world();
        fail::cfg("effect", &format!("{n}*off->return(EIO)")).unwrap();
        let died = delete(&world, newer);
        let context = format!("effect {n} of {effects}: {died:?}");
        world.restart(&context);
        world.site.tend();
        let is_there = world.pools().snapshot(&newer).is_ok();
        only_is_kept(&world, if is_there { older } else { newer }, &context);
        if is_there {
            delete(&world, newer).unwrap();
        }
        only_is_kept(&world, newer, &context);
    }
}
