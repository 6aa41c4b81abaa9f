use rstest::rstest;

use super::*;
use crate::storage::PoolId;

/// A step of a table of cases; snapshots are numbers.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A snapshot is taken: all that it promises, and beside the newest one.
    Take(usize, u64, u64),
    /// As after a start: it is not known what it shares.
    Load(usize, u64),
    /// It was found to promise this beside that one.
    Measure(usize, usize, u64),
    /// A snapshot begins to be taken.
    Begin(usize),
    /// It is there.
    Done(usize, u64, u64),
    Delete(usize),
}

use Step::*;

#[rstest]
#[case::one(&[Take(0, 200, 0)], 200)]
#[case::many_of_an_unchanged_volume(&[Take(0, 200, 0), Take(1, 200, 0), Take(2, 200, 0)], 200)]
#[case::changed_between(&[Take(0, 200, 0), Take(1, 210, 30), Take(2, 220, 20)], 250)]
#[case::no_reflinks(&[Take(0, 200, 200), Take(1, 200, 200)], 400)]
#[case::the_first_deleted(&[Take(0, 200, 0), Take(1, 200, 0), Delete(0)], 200)]
#[case::the_first_of_different_ones(&[Take(0, 200, 0), Take(1, 50, 30), Delete(0)], 50)]
#[case::one_between(&[Take(0, 200, 0), Take(1, 200, 30), Take(2, 200, 20), Delete(1)], 250)]
#[case::the_last(&[Take(0, 200, 0), Take(1, 200, 30), Delete(1)], 200)]
#[case::all(&[Take(0, 200, 0), Take(1, 200, 30), Delete(0), Delete(1)], 0)]
#[case::in_any_order(&[Take(0, 200, 0), Take(1, 200, 0), Take(2, 200, 0), Delete(1), Delete(0)], 200)]
#[case::loaded(&[Load(0, 200), Load(1, 200)], 400)]
#[case::loaded_and_measured(&[Load(0, 200), Load(1, 200), Measure(1, 0, 10)], 210)]
#[case::measured_too_late(&[Load(0, 200), Load(1, 200), Delete(0), Measure(1, 0, 10)], 200)]
#[case::no_circle(&[Load(1, 200), Take(0, 200, 0), Measure(1, 0, 0)], 200)]
#[case::its_base_deleted_meanwhile(&[Take(0, 200, 0), Begin(1), Delete(0), Done(1, 200, 0)], 200)]
#[case::promised_meanwhile(&[Take(0, 200, 0), Begin(1), Delete(0)], 200)]
#[case::given_up(&[Take(0, 200, 0), Begin(1), Delete(1)], 200)]
#[case::given_up_after(&[Take(0, 200, 0), Begin(1), Delete(0), Delete(1)], 0)]
fn what_snapshots_promise(#[case] steps: &[Step], #[case] expected: u64) {
    let pool = PoolId::generate();
    let volume = VolumeId::generate(pool);
    let mut ids: Vec<SnapshotId> = (0..3).map(|_| SnapshotId::generate(pool)).collect();
    ids.sort();
    let mut lineage = Lineage::default();
    let mut sizes = BTreeMap::new();
    for step in steps {
        match *step {
            Take(n, all, own) => {
                if let Some(base) = lineage.newest(volume) {
                    lineage.begin(volume, ids[n], base);
                }
                lineage.put(volume, ids[n], all, own);
                sizes.insert(n, all);
            }
            Load(n, all) => {
                lineage.put(volume, ids[n], all, all);
                sizes.insert(n, all);
            }
            Measure(n, base, own) => lineage.count_on(volume, ids[n], ids[base], own),
            Begin(n) => lineage.begin(volume, ids[n], lineage.newest(volume).unwrap()),
            Done(n, all, own) => {
                lineage.put(volume, ids[n], all, own);
                sizes.insert(n, all);
            }
            Delete(n) => {
                lineage.take(volume, ids[n]);
                sizes.remove(&n);
            }
        }
    }
    assert_eq!(lineage.promised(sizes.values().sum()), expected);
    assert_eq!(lineage.volumes.is_empty(), expected == 0);
}

/// Snapshots of blocks that are taken and deleted at random never hold more than they promise, and
/// once all are deleted, they promise nothing.
#[test]
fn snapshots_never_hold_more_than_they_promise() {
    use std::collections::BTreeSet;
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let pool = PoolId::generate();
    let volume = VolumeId::generate(pool);
    let (mut lineage, mut taken) = (Lineage::default(), BTreeMap::new());
    let mut content: BTreeSet<u64> = (0..50).collect();
    let mut fresh = 50;
    for _ in 0..5000 {
        // The volume writes: some of its blocks are new ones.
        for _ in 0..random(10) {
            let old = content
                .iter()
                .nth(random(content.len() as u64) as usize)
                .copied();
            old.map(|old| content.remove(&old));
            content.insert(fresh);
            fresh += 1;
        }
        if random(2) == 0 || taken.is_empty() {
            let id = SnapshotId::generate(pool);
            let all = content.len() as u64;
            let own = lineage.newest(volume).map_or(all, |base| {
                lineage.begin(volume, id, base);
                content.difference(&taken[&base]).count() as u64
            });
            lineage.put(volume, id, all, own);
            taken.insert(id, content.clone());
        } else {
            let id = *taken
                .keys()
                .nth(random(taken.len() as u64) as usize)
                .unwrap();
            taken.remove(&id);
            lineage.take(volume, id);
        }
        let held: BTreeSet<u64> = taken.values().flatten().copied().collect();
        let all = taken.values().map(|blocks| blocks.len() as u64).sum();
        assert!(held.len() as u64 <= lineage.promised(all));
    }
    for id in taken.keys() {
        lineage.take(volume, *id);
    }
    assert_eq!((lineage.shared, lineage.inherited), (0, 0));
}
