use super::*;
use crate::record::Consistency;
use crate::record::id::ExplorationId;
use crate::testkit::{Site, mounted, stage_at};

fn site(reflinks: bool) -> (Site, Arc<VolumeRecord>) {
    let mut site = Site::fake(&["a"]);
    site.kernel.set_reflinks(reflinks);
    site.open();
    let made = site.make("one");
    let staged = site.update(made.id, |record| {
        record.stage = Some(stage_at("/k/stage", mounted(), None));
    });
    (site, staged)
}

fn mark(number: u32) -> CutMark {
    CutMark {
        exploration: "exploration-01a208746f95736e8ad0684137aef26f"
            .parse()
            .unwrap(),
        number,
        expires_ns: 7,
    }
}

/// The record of a snapshot on disk.
fn stored(site: &Site, id: SnapshotId) -> serde_json::Value {
    let path = site.path(format!("snapshots/{id}/snapshot.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Earlier builds can't read the field, so only a cut has it.
#[test]
fn a_cut_is_a_snapshot_with_a_mark_until_it_is_kept() {
    let (mut site, volume) = site(true);
    let cut = site.pools().take_cut(&volume.id, mark(1)).unwrap();
    let id = cut.record.id;
    assert_eq!(cut.record.consistency, Consistency::Powercut);
    assert_eq!(stored(&site, id)["cut"]["number"], 1);
    assert!(cut.monotonic_ns > 0);
    let pools = site.open();
    assert_eq!(pools.cuts(), [(mark(1), cut.record.clone())]);

    let promised = pools.promised_to(&cut.record);
    let kept = pools.keep_cut(&id).unwrap();
    assert_eq!((kept.cut, &kept.name), (None, &cut.record.name));
    assert_eq!(pools.keep_cut(&id).unwrap(), kept);
    assert_eq!(pools.promised_to(&kept), promised);
    assert_eq!(stored(&site, id).get("cut"), None);
    let pools = site.open();
    assert!(pools.cuts().is_empty());
    assert_eq!(pools.snapshots(), [kept]);
}

#[test]
fn only_a_cut_of_the_condition_is_dropped() {
    let (site, volume) = site(true);
    let pools = site.pools();
    let plain = pools.create_powercut(&volume.id, "plain", &Default::default());
    let plain = plain.unwrap().id;
    let [first, second] = [1, 2].map(|n| pools.take_cut(&volume.id, mark(n)).unwrap().record.id);
    assert!(!pools.drop_cut(&plain, |_| true).unwrap());
    assert!(!pools.drop_cut(&first, |cut| cut.number == 2).unwrap());
    assert!(pools.drop_cut(&second, |cut| cut.number == 2).unwrap());
    assert!(!pools.drop_cut(&second, |_| true).unwrap());
    pools.keep_cut(&first).unwrap();
    assert!(!pools.drop_cut(&first, |_| true).unwrap());
    let left: Vec<_> = pools.snapshots().iter().map(|s| s.id).collect();
    assert_eq!(left, [plain, first]);
}

#[test]
fn what_a_cut_needs() {
    let (idle, volume) = site(true);
    idle.update(volume.id, |record| record.stage = None);
    let refused = idle.pools().take_cut(&volume.id, mark(1));
    assert!(matches!(refused, Err(CutError::NotInUse(_))), "{refused:?}");

    let (copying, volume) = site(false);
    let refused = copying.pools().take_cut(&volume.id, mark(1));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("reflinks"), "{refused}");
    assert!(copying.pools().snapshots().is_empty());
}

/// Another exploration can't have the same number, and a cut is taken only once.
#[test]
fn cuts_are_sorted_by_exploration_and_number() {
    let (site, volume) = site(true);
    let pools = site.pools();
    let later = CutMark {
        exploration: ExplorationId::generate(),
        ..mark(1)
    };
    for cut in [mark(2), later, mark(1)] {
        pools.take_cut(&volume.id, cut).unwrap();
    }
    let marks: Vec<_> = pools.cuts().into_iter().map(|(cut, _)| cut).collect();
    let mut sorted = vec![mark(1), mark(2), later];
    sorted.sort_by_key(|cut| (cut.exploration, cut.number));
    assert_eq!(marks, sorted);
    assert!(pools.take_cut(&volume.id, mark(1)).is_err());
}
