use super::*;
use crate::pool::testing::{Fixture, MI, new};
use crate::pool::{NewVolume, SnapshotId, VolumeHandle};

fn group(fixture: &Fixture, volumes: &[VolumeId]) -> Result<Arc<GroupRecord>> {
    fixture
        .pools()
        .create_group("group", volumes, &BTreeMap::new())
}

#[test]
fn a_group_comes_and_goes_with_its_snapshots() {
    let mut fixture = Fixture::new(&["a", "b"]);
    let second = fixture
        .pools()
        .create_volume(&fixture.pool("b"), new("two"))
        .unwrap();
    let volumes = [fixture.make("one").id, second.id];
    let made = group(&fixture, &volumes).unwrap();
    assert_eq!((made.snapshots.len(), &made.sources[..]), (2, &volumes[..]));
    assert_eq!(made.id.pool(), volumes[0].pool());

    let pools = fixture.open();
    assert_eq!(pools.groups(), std::slice::from_ref(&made));
    assert_eq!(pools.group_named("group").unwrap(), made);
    for (id, volume) in made.snapshots.iter().zip(volumes) {
        let member = pools.snapshot(id).unwrap();
        assert_eq!((member.group, member.source), (Some(made.id), volume));
        assert_eq!(member.created_ns, made.created_ns);
        assert_eq!(pools.snapshot_named(&member.name), None);
        let alone = pools.delete_snapshot(id);
        assert!(matches!(alone, Err(Error::InGroup(s, g)) if s == *id && g == made.id));
    }
    pools.delete_group(&made.id).unwrap();
    assert!(matches!(
        pools.delete_group(&made.id),
        Err(Error::NoGroup(_))
    ));
    assert!(pools.snapshots().is_empty());
    assert_eq!(fixture.entries(), [format!("volumes/{}", volumes[0])]);
}

#[test]
fn all_or_none() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.specs[0].capacity_bytes = Some(12 * MI);
    fixture.open();
    let full = NewVolume {
        settings: crate::pool::Settings {
            provisioning: crate::pool::Provisioning::Thick,
            ..new("x").settings
        },
        ..new("full")
    };
    let full = fixture
        .pools()
        .create_volume(&fixture.pool("a"), full)
        .unwrap();
    let volumes = [fixture.make("one").id, full.id, full.id];
    let failed = group(&fixture, &volumes);
    assert!(matches!(failed, Err(Error::NoRoom { .. })), "{failed:?}");
    assert_eq!(fixture.entries().len(), 2);
    assert!(fixture.pools().snapshots().is_empty());

    let gone = fixture.make("gone").id;
    fixture.pools().delete_volume(&gone).unwrap();
    let failed = group(&fixture, &[volumes[0], gone]);
    assert!(matches!(failed, Err(Error::NoVolume(VolumeHandle::Id(id))) if id == gone));
    assert!(matches!(group(&fixture, &[]), Err(Error::Refused(_))));
    assert_eq!(fixture.entries().len(), 2);
}

#[test]
fn a_group_that_can_not_be_recorded_leaves_nothing() {
    let fixture = Fixture::new(&["a"]);
    let volumes = [fixture.make("one").id, fixture.make("two").id];
    std::fs::remove_dir(fixture.path("groups")).unwrap();
    std::fs::create_dir(fixture.path("groups")).unwrap();
    assert!(group(&fixture, &volumes).is_err());
    assert_eq!(fixture.entries().len(), 2);
    assert!(fixture.pools().snapshots().is_empty());
}

#[test]
fn a_name_is_taken_once() {
    let fixture = Fixture::new(&["a"]);
    let volumes = [fixture.make("one").id];
    group(&fixture, &volumes).unwrap();
    assert!(matches!(group(&fixture, &volumes), Err(Error::Refused(_))));
}

#[test]
fn a_member_whose_group_is_gone_can_be_deleted() {
    let fixture = Fixture::new(&["a"]);
    let made = group(&fixture, &[fixture.make("one").id]).unwrap();
    let member: SnapshotId = made.snapshots[0];
    write(&fixture.pool("a").index).groups.take(made.id);
    fixture.pools().delete_snapshot(&member).unwrap();
}
