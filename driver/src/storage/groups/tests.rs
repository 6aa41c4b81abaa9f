use super::*;
use crate::storage::{Provisioning, VolumeHandle};
use crate::testkit::{MI, Site, new};

fn group(site: &Site, volumes: &[VolumeId]) -> Result<Arc<GroupRecord>> {
    site.pools()
        .create_group("group", volumes, &BTreeMap::new())
}

#[test]
fn a_group_comes_and_goes_with_its_snapshots() {
    let mut site = Site::fake(&["a", "b"]);
    let volumes = [site.make("one").id, site.create_in("b", new("two")).id];
    let made = group(&site, &volumes).unwrap();
    assert_eq!((made.snapshots.len(), &made.sources[..]), (2, &volumes[..]));
    assert_eq!(made.id.pool(), volumes[0].pool());

    let pools = site.open();
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
    refused!(pools.delete_group(&made.id), Error::NoGroup(_));
    assert!(pools.snapshots().is_empty());
    assert_eq!(site.entries(), [format!("volumes/{}", volumes[0])]);
}

#[test]
fn a_failed_group_leaves_no_snapshot() {
    let mut site = Site::fake(&["a"]);
    site.specs[0].capacity_bytes = Some(12 * MI);
    site.open();
    let mut full = new("full");
    full.settings.provisioning = Provisioning::Thick;
    let full = site.create(full);
    let volumes = [site.make("one").id, full.id, full.id];
    refused!(group(&site, &volumes), Error::NoRoom { .. });
    assert_eq!(site.entries().len(), 2);
    assert!(site.pools().snapshots().is_empty());

    let gone = site.make("gone").id;
    site.pools().delete_volume(&gone).unwrap();
    let failed = group(&site, &[volumes[0], gone]);
    assert!(matches!(failed, Err(Error::NoVolume(VolumeHandle::Id(id))) if id == gone));
    refused!(group(&site, &[]), Error::Refused(_));
    assert_eq!(site.entries().len(), 2);
}

#[test]
fn a_group_that_can_not_be_recorded_leaves_nothing() {
    let site = Site::fake(&["a"]);
    let volumes = [site.make("one").id, site.make("two").id];
    std::fs::remove_dir(site.path("groups")).unwrap();
    std::fs::create_dir(site.path("groups")).unwrap();
    assert!(group(&site, &volumes).is_err());
    assert_eq!(site.entries().len(), 2);
    assert!(site.pools().snapshots().is_empty());
}

#[test]
fn a_name_is_taken_once() {
    let site = Site::fake(&["a"]);
    let volumes = [site.make("one").id];
    group(&site, &volumes).unwrap();
    refused!(group(&site, &volumes), Error::Refused(_));
}

#[test]
fn a_member_whose_group_is_gone_can_be_deleted() {
    let site = Site::fake(&["a"]);
    let made = group(&site, &[site.make("one").id]).unwrap();
    site.pool().index.write().groups.take(made.id);
    site.pools().delete_snapshot(&made.snapshots[0]).unwrap();
}
