//! Groups with a record or a member in another place.

use std::collections::BTreeMap;

use super::*;
use crate::storage::GroupRecord;

/// Closes the pools and moves the record of a group of the first pool.
fn move_group(site: &mut Site, group: GroupId, to: &str) {
    site.close();
    let at = |dir: &str| site.path(format!("{dir}/{group}"));
    std::fs::rename(at("groups"), at(to)).unwrap();
}

/// Creates a group of two volumes, in the first and the last pool.
fn grouped(site: &Site) -> Arc<GroupRecord> {
    let last = &site.specs.last().unwrap().name;
    let volumes = [site.make("one").id, site.create_in(last, new("two")).id];
    let made = site
        .pools()
        .create_group("group", &volumes, &BTreeMap::new());
    made.unwrap()
}

#[test]
fn the_members_of_an_unfinished_group_are_freed() {
    let mut site = Site::fake(&["a"]);
    let group = grouped(&site);
    move_group(&mut site, group.id, "incoming");
    assert_eq!(reopened(&mut site), []);
    assert!(site.pools().snapshots().is_empty());
    assert_eq!(site.entries().len(), 2, "the volumes");
}

/// The group's record was moved away or lost, so nothing proves that the group was deleted.
#[test]
fn a_member_without_a_group_record_is_kept() {
    let mut site = Site::fake(&["a"]);
    let group = grouped(&site);
    site.close();
    let there = site.path(format!("groups/{}", group.id));
    let away = site.root().join("away");
    std::fs::rename(&there, &away).unwrap();
    for _ in 0..2 {
        let kept: Vec<About> = group
            .snapshots
            .iter()
            .copied()
            .map(About::Snapshot)
            .collect();
        assert_eq!(reopened(&mut site), kept);
        let noted = site.pools().noted_problems();
        assert!(noted[0].problem.to_string().contains("kept"), "{noted:?}");
        assert_eq!(site.pools().snapshots().len(), 2);
    }
    site.close();
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(reopened(&mut site), []);
    // The group is lost for good: an operator deletes the members one by one.
    std::fs::remove_dir_all(&there).unwrap();
    let pools = site.open();
    for member in &group.snapshots {
        pools.delete_snapshot(member).unwrap();
    }
    assert_eq!(subjects(pools), []);
}

/// One damaged byte in a snapshot's record makes it name a group that never existed.
#[test]
fn a_member_with_another_group_in_its_record_is_kept() {
    let mut site = Site::fake(&["a"]);
    let group = grouped(&site);
    site.close();
    let member = group.snapshots[0];
    let record = site.path(format!("snapshots/{member}/snapshot.json"));
    let sound = std::fs::read_to_string(&record).unwrap();
    let other = GroupId::generate(group.id.pool());
    let damaged = sound.replace(&group.id.to_string(), &other.to_string());
    std::fs::write(&record, damaged).unwrap();
    assert_eq!(reopened(&mut site), [About::Snapshot(member)]);
    assert_eq!(site.pools().snapshots().len(), 2);
    // The group that lists the snapshot counts.
    let refused = site.pools().delete_snapshot(&member);
    assert!(
        matches!(refused, Err(Error::InGroup(_, g)) if g == group.id),
        "{refused:?}"
    );
    // Deleting the group frees its other members, but not the damaged one.
    move_group(&mut site, group.id, "trash");
    let left: Vec<_> = site.open().snapshots().iter().map(|s| s.id).collect();
    assert_eq!(left, [member]);
}

/// A deleted group stays on record until the pools of all its members are open.
#[test]
fn a_deleted_group_waits_for_the_pools_of_its_members() {
    for missing in [0, 1] {
        let mut site = Site::fake(&["a", "b"]);
        let group = grouped(&site);
        assert_eq!(site.open().snapshots().len(), 2);
        let witness = site.path(format!("trash/{}", group.id));
        let (real, away) = (site.specs[missing].path.clone(), site.root().join("away"));
        if missing == 1 {
            move_group(&mut site, group.id, "trash");
        }
        site.close();
        std::fs::rename(&real, &away).unwrap();
        for _ in 0..2 {
            site.open();
            // Without the pool of the group, its other member stays.
            let left = site.pools().snapshots().len();
            assert_eq!(left, 1 - missing);
            assert_eq!(witness.exists(), missing == 1);
        }
        std::fs::rename(&away, &real).unwrap();
        if missing == 0 {
            let at = |dir: &str| site.path(format!("{dir}/{}", group.id));
            std::fs::rename(at("groups"), at("trash")).unwrap();
        }
        site.tend();
        assert!(site.pools().snapshots().is_empty());
        assert_eq!(subjects(site.pools()), []);
        assert!(!witness.exists());
        assert_eq!(site.entries(), [format!("volumes/{}", group.sources[0])]);
    }
}

#[test]
fn a_group_without_one_of_its_members_is_reported() {
    let mut site = Site::fake(&["a"]);
    let group = grouped(&site);
    let member = site.path(format!("snapshots/{}", group.snapshots[0]));
    std::fs::remove_dir_all(member).unwrap();
    assert_eq!(reopened(&mut site), [About::Group(group.id)]);
}
