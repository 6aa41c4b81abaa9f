//! Snapshots that are power cuts: an error, or the death of the process, at each of their effects.

use hostloop_driver::storage::{Consistency, CutMark, ExplorationId, SnapshotId};

use super::*;

/// A world with a pool that clones files, on any machine.
fn cloning_world() -> World {
    let site = site("p=DIR/pool");
    site.kernel.set_reflinks(true);
    World::with(site)
}

fn cut(world: &World) -> Result<()> {
    let taken = world
        .pools()
        .create_powercut(&world.mounted, "new", &BTreeMap::new())?;
    assert_eq!(taken.consistency, Consistency::Powercut);
    Ok(())
}

fn effects_of_a_cut() -> usize {
    let world = cloning_world();
    let effects = effects_of(|| cut(&world));
    assert!(effects > 0);
    effects
}

/// Unlike other snapshots, it does not even change the record of its volume.
#[test]
fn an_error_at_every_effect_of_a_power_cut() {
    let _scenario = fail::FailScenario::setup();
    let effects = effects_of_a_cut();
    for n in 0..effects {
        let mut world = cloning_world();
        let before = (world.reported(), world.site.entries());
        fail::cfg("effect", &format!("{n}*off->1*return(ENOSPC)->off")).unwrap();
        let done = cut(&world);
        fail::remove("effect");
        let context = format!("effect {n} of {effects}: {done:?}");
        if done.is_err() {
            judge(&mut world, After::AsBefore, before, &context);
            cut(&world).unwrap();
        }
    }
}

/// The next process has the snapshot as it is, or nothing of it.
#[test]
fn a_death_at_every_effect_of_a_power_cut() {
    let _scenario = fail::FailScenario::setup();
    let effects = effects_of_a_cut();
    for n in 0..effects {
        let mut world = cloning_world();
        let before = world.reported();
        fail::cfg("effect", &format!("{n}*off->return(EIO)")).unwrap();
        let died = cut(&world);
        let context = format!("effect {n} of {effects}: {died:?}");
        assert!(died.is_err(), "{context}");
        world.restart(&context);
        world.site.tend();
        let (volumes, snapshots, groups) = world.reported();
        assert_eq!((&volumes, &groups), (&before.0, &before.2), "{context}");
        let new: Vec<_> = snapshots
            .iter()
            .filter(|snapshot| !before.1.contains(snapshot))
            .collect();
        assert_eq!(snapshots.len(), before.1.len() + new.len(), "{context}");
        for snapshot in new {
            assert_eq!(snapshot.name, "new", "{context}");
            assert_eq!(snapshot.consistency, Consistency::Powercut, "{context}");
        }
        let entries = world.site.entries();
        let all = volumes.len() + snapshots.len() + groups.len();
        assert_eq!(entries.len(), all, "{context}: {entries:?}");
    }
}

/// A world with a cut.
fn world_with_a_cut() -> (World, SnapshotId) {
    let world = cloning_world();
    let mark = CutMark {
        exploration: ExplorationId::generate(),
        number: 1,
        expires_ns: 1,
    };
    let cut = world.pools().take_cut(&world.mounted, mark).unwrap();
    (world, cut.record.id)
}

fn keep(world: &World, cut: &SnapshotId) -> Result<()> {
    world.pools().keep_cut(cut).map(drop)
}

/// The cut has its mark or not, and is never anything else.
#[test]
fn an_error_or_a_death_at_every_effect_of_keeping_a_cut() {
    let _scenario = fail::FailScenario::setup();
    let (world, cut) = world_with_a_cut();
    let effects = effects_of(|| keep(&world, &cut));
    assert!(effects > 0);
    drop(world);
    for n in 0..effects {
        for failing in ["1*return(ENOSPC)->off", "return(EIO)"] {
            let (mut world, cut) = world_with_a_cut();
            let before = world.pools().snapshot(&cut).unwrap();
            fail::cfg("effect", &format!("{n}*off->{failing}")).unwrap();
            let done = keep(&world, &cut);
            fail::remove("effect");
            let context = format!("effect {n} of {effects}, {failing}: {done:?}");
            assert!(done.is_err(), "{context}");
            assert_eq!(world.pools().snapshot(&cut).unwrap(), before, "{context}");
            world.restart(&context);
            let next = world.pools().snapshot(&cut).unwrap();
            let mut marked = (*next).clone();
            marked.cut = before.cut;
            assert_eq!(marked, *before, "{context}");
            keep(&world, &cut).unwrap();
            world.restart(&context);
            assert_eq!(world.pools().snapshot(&cut).unwrap().cut, None, "{context}");
        }
    }
}
