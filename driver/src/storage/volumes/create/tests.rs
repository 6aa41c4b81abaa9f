use std::os::unix::fs::FileExt;

use hostloop_terminal::humanize::exact_bytes;

use super::*;
use crate::kernel::FsType;
use crate::storage::{Error, Provisioning, Source};
use crate::testkit::{MI, Site, new};

const FS: FsType = FsType::Ext4;

/// Creates a volume in the first pool.
fn create(site: &Site, new: NewVolume) -> Result<Arc<VolumeRecord>> {
    site.pools().create_volume(&site.pool(), new)
}

#[test]
fn a_name_is_taken_once() {
    let site = Site::fake(&["a"]);
    site.make("one");
    refused!(create(&site, new("one")), Error::Refused(_));
    assert_eq!(site.entries().len(), 1);
}

#[test]
fn thick_is_taken_at_once() {
    let site = Site::fake(&["a"]);
    let mut new = new("thick");
    new.settings.provisioning = Provisioning::Thick;
    let made = site.create(new);
    let image = site.pools().open_image(&made, false).unwrap();
    assert!(file::allocated_bytes(&image).unwrap() >= 4 * MI);
}

#[test]
fn a_pool_promises_no_more_than_its_cap() {
    let mut site = Site::fake(&["a"]);
    site.specs[0].capacity_bytes = Some(10 * MI);
    site.open();
    let available = || site.available(Provisioning::Thin);
    assert_eq!(available(), 10 * MI);
    let first = site.make("first");
    site.make("second");
    assert_eq!(available(), 2 * MI);
    let third = create(&site, new("third")).unwrap_err();
    let why = format!(
        "no room for {}: it can promise {} more",
        exact_bytes(4 * MI),
        exact_bytes(2 * MI)
    );
    assert!(third.to_string().contains(&why), "{third}");
    assert_eq!(site.entries().len(), 2);

    let grown = site.pools().expand_volume(&first.id, 6 * MI).unwrap();
    assert_eq!((grown.capacity_bytes, available()), (6 * MI, 0));
    refused!(
        site.pools().expand_volume(&first.id, 6 * MI + 4096),
        Error::NoRoom { .. }
    );
    site.pools().delete_volume(&first.id).unwrap();
    assert_eq!(available(), 6 * MI);
}

#[test]
fn a_copy_has_its_sources_bytes_and_its_own_size() {
    let mut site = Site::fake(&["a", "b"]);
    let made = site.make("source");
    let image = site.pools().open_image(&made, true).unwrap();
    image.write_all_at(b"hello", MI).unwrap();
    site.update(made.id, |r| r.format = Format::Done(FS));
    let snapshot = site.snapshot(&made, "snap");
    image.write_all_at(b"later", MI).unwrap();
    let (old, now) = (Source::Snapshot(snapshot.id), Source::Volume(made.id));
    let cases = [
        ("a", old, b"hello"),
        ("b", old, b"hello"),
        ("a", now, b"later"),
        ("b", now, b"later"),
    ];
    for (pool, source, want) in cases {
        let new = NewVolume {
            capacity_bytes: 8 * MI,
            source: Some(source),
            ..new(&format!("{pool} {source:?}"))
        };
        let copy = site.create_in(pool, new);
        assert_eq!(copy.format, Format::Done(FS));
        let bytes = site.pools().open_image(&copy, false).unwrap();
        let mut read = [0; 5];
        bytes.read_exact_at(&mut read, MI).unwrap();
        let found = (&read, file::length(&bytes).unwrap());
        assert_eq!(found, (want, 8 * MI), "{pool} {source:?}");
    }
    assert_eq!(site.open().volumes().len(), 5);
}

#[test]
fn a_copy_is_never_smaller_than_its_source() {
    let site = Site::fake(&["a"]);
    let made = site.make("source");
    let new = NewVolume {
        capacity_bytes: 2 * MI,
        source: Some(Source::Volume(made.id)),
        ..new("copy")
    };
    refused!(create(&site, new), Error::Refused(_));
    assert_eq!(site.entries().len(), 1);
}

#[test]
fn without_its_filesystem_no_volume_is_created() {
    let site = Site::fake(&["a"]);
    site.kernel.fail("mkfs", 1, libc::EIO);
    let failed = create(&site, new("one"));
    assert!(failed.is_err(), "{failed:?}");
    assert!(site.entries().is_empty());
    assert_eq!(create(&site, new("one")).unwrap().format, Format::Done(FS));
}

#[test]
fn a_failed_creation_leaves_nothing() {
    let site = Site::fake(&["a"]);
    // The open directory of the volumes is removed, so the rename into place fails.
    std::fs::rename(site.path("volumes"), site.path("elsewhere")).unwrap();
    std::fs::create_dir(site.path("volumes")).unwrap();
    std::fs::remove_dir(site.path("elsewhere")).unwrap();
    let failed = create(&site, new("one"));
    assert!(failed.is_err(), "{failed:?}");
    assert!(site.entries().is_empty());
    assert_eq!(site.pools().volume_named("one"), None);
    assert_eq!(*site.named("a").under_way.lock(), SpaceRequest::default());
}

#[test]
fn many_at_once_get_what_there_is_and_no_more() {
    let mut site = Site::fake(&["a"]);
    site.specs[0].capacity_bytes = Some(40 * MI);
    site.open();
    let made = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for i in 0..24 {
            let (site, made) = (&site, &made);
            scope.spawn(move || match create(site, new(&i.to_string())) {
                Ok(_) => drop(made.fetch_add(1, std::sync::atomic::Ordering::SeqCst)),
                Err(e) => assert!(matches!(e, Error::NoRoom { .. }), "{e}"),
            });
        }
    });
    assert_eq!(made.into_inner(), 10);
    assert_eq!(site.pools().volumes().len(), 10);
    assert_eq!(site.entries().len(), 10);
    assert_eq!(site.available(Provisioning::Thin), 0);
}
