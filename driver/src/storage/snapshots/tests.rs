use super::*;
use crate::storage::{Format, VolumeHandle};
use crate::testkit::{MI, Site};

#[test]
fn a_snapshot_outlives_its_volume() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let parameters = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let snapshot = site
        .pools()
        .create_snapshot(&made.id, "snap", &parameters)
        .unwrap();
    assert_eq!((snapshot.size_bytes, snapshot.source), (4 * MI, made.id));
    assert_eq!(
        (snapshot.format, &snapshot.parameters),
        (Format::None, &parameters)
    );
    assert!(snapshot.created_ns >= made.created_ns);
    site.pools().delete_volume(&made.id).unwrap();
    let pools = site.open();
    assert_eq!(pools.snapshots(), std::slice::from_ref(&snapshot));
    assert_eq!(pools.snapshot_named("snap").unwrap(), snapshot);
    pools.open_snapshot(&snapshot).unwrap();
    pools.delete_snapshot(&snapshot.id).unwrap();
    assert!(matches!(
        pools.delete_snapshot(&snapshot.id),
        Err(Error::NoSnapshot(_))
    ));
    assert!(site.entries().is_empty());
}

#[test]
fn a_name_is_taken_once() {
    let site = Site::fake(&["a"]);
    let made = site.make("one");
    let take = || {
        site.pools()
            .create_snapshot(&made.id, "snap", &BTreeMap::new())
    };
    take().unwrap();
    assert!(matches!(take(), Err(Error::Refused(_))));
    assert_eq!(site.entries().len(), 2);
}

#[test]
fn of_what_is_not_there() {
    let site = Site::fake(&["a"]);
    let made = site.make("one");
    site.pools().delete_volume(&made.id).unwrap();
    let taken = site
        .pools()
        .create_snapshot(&made.id, "snap", &BTreeMap::new());
    let handle = VolumeHandle::Id(made.id);
    assert!(matches!(taken, Err(Error::NoVolume(h)) if h == handle));
}

#[test]
fn what_it_holds_is_promised() {
    let mut site = Site::fake(&["a"]);
    site.specs[0].capacity_bytes = Some(8 * MI);
    site.open();
    let made = site.make("one");
    let image = site.pools().open_image(&made, true).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &vec![1; 3 << 20], 0).unwrap();
    image.sync_all().unwrap();
    let available = || {
        site.named("a")
            .capacity(Provisioning::Thin)
            .unwrap()
            .available
    };
    let before = available();
    let snapshot = site
        .pools()
        .create_snapshot(&made.id, "snap", &BTreeMap::new())
        .unwrap();
    assert!(snapshot.allocated_bytes >= 3 * MI);
    assert_eq!(available(), before - snapshot.allocated_bytes);
    refused!(
        site.pools()
            .create_snapshot(&made.id, "second", &BTreeMap::new()),
        Error::NoRoom { .. }
    );
    assert_eq!(site.entries().len(), 2);
}
