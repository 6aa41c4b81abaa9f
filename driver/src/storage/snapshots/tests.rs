use std::collections::BTreeMap;

use super::*;
use crate::kernel::FsType;
use crate::storage::Format;
use crate::testkit::{MI, Site};

#[test]
fn a_snapshot_outlives_its_volume() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let parameters = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let snapshot = site.pools().create_snapshot(&made.id, "snap", &parameters);
    let snapshot = snapshot.unwrap();
    assert_eq!((snapshot.size_bytes, snapshot.source), (4 * MI, made.id));
    assert_eq!(snapshot.format, Format::Done(FsType::Ext4));
    assert_eq!(snapshot.parameters, parameters);
    assert!(snapshot.created_ns >= made.created_ns);
    site.pools().delete_volume(&made.id).unwrap();
    let pools = site.open();
    assert_eq!(pools.snapshots(), std::slice::from_ref(&snapshot));
    assert_eq!(pools.snapshot_named("snap").unwrap(), snapshot);
    pools.open_snapshot(&snapshot).unwrap();
    pools.delete_snapshot(&snapshot.id).unwrap();
    refused!(pools.delete_snapshot(&snapshot.id), Error::NoSnapshot(_));
    assert!(site.entries().is_empty());
}

fn take(site: &Site, volume: &VolumeRecord, name: &str) -> Result<Arc<SnapshotRecord>> {
    site.pools()
        .create_snapshot(&volume.id, name, &BTreeMap::new())
}

#[test]
fn a_name_is_taken_once() {
    let site = Site::fake(&["a"]);
    let made = site.make("one");
    site.snapshot(&made, "snap");
    refused!(take(&site, &made, "snap"), Error::Refused(_));
    assert_eq!(site.entries().len(), 2);
}

#[test]
fn a_missing_volume_has_no_snapshot() {
    let site = Site::fake(&["a"]);
    let made = site.make("one");
    site.pools().delete_volume(&made.id).unwrap();
    let handle = VolumeHandle::Id(made.id);
    let taken = take(&site, &made, "snap");
    assert!(matches!(taken, Err(Error::NoVolume(h)) if h == handle));
}

#[test]
fn the_space_of_a_snapshot_is_promised() {
    let mut site = Site::fake(&["a"]);
    site.specs[0].capacity_bytes = Some(8 * MI);
    site.open();
    let made = site.make("one");
    let image = site.pools().open_image(&made, true).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &vec![1; 3 << 20], 0).unwrap();
    image.sync_all().unwrap();
    let before = site.available(Provisioning::Thin);
    let snapshot = site.snapshot(&made, "snap");
    assert!(snapshot.allocated_bytes >= 3 * MI);
    let left = site.available(Provisioning::Thin);
    assert_eq!(left, before - snapshot.allocated_bytes);
    refused!(take(&site, &made, "second"), Error::NoRoom { .. });
    assert_eq!(site.entries().len(), 2);
}
