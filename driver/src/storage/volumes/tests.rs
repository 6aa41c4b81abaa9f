use std::os::unix::fs::{FileExt, MetadataExt};

use rstest::rstest;

use super::*;
use crate::kernel::FsType;
use crate::storage::{Capability, Source};
use crate::testkit::{MI, Site, mounted, new, raw, stage_at};

const FS: FsType = FsType::Ext4;

fn handle(volume: &VolumeRecord) -> VolumeHandle {
    VolumeHandle::Id(volume.id)
}

#[test]
fn a_volume_comes_and_goes() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let image = site.path(format!("volumes/{}/image", made.id));
    let on_disk = image.metadata().unwrap();
    assert_eq!((on_disk.len(), on_disk.mode() & 0o777), (4 * MI, 0o600));
    assert_eq!(made.format, Format::Done(FS));
    assert_eq!(site.pools().volume_named("one").unwrap(), made);

    let pools = site.open();
    assert_eq!(*pools.volume(&handle(&made)).unwrap(), *made);
    assert_eq!(pools.volumes(), std::slice::from_ref(&made));
    assert!(pools.noted_problems().is_empty());

    pools.delete_volume(&made.id).unwrap();
    refused!(pools.volume(&handle(&made)), Error::NoVolume(_));
    refused!(pools.delete_volume(&made.id), Error::NoVolume(_));
    assert_eq!(pools.volume_named("one"), None);
    assert!(site.entries().is_empty());
}

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
fn volumes_are_listed_in_order_of_creation_across_pools() {
    let site = Site::fake(&["a", "b"]);
    for (i, pool) in ["b", "a", "a", "b"].iter().enumerate() {
        site.create_in(pool, new(&i.to_string()));
    }
    let names = site.pools().volumes();
    let names: Vec<&str> = names.iter().map(|v| &*v.name).collect();
    assert_eq!(names, ["0", "1", "2", "3"]);
}

#[test]
fn kubelets_handle_leads_to_the_volume() {
    let mut site = Site::fake(&["a"]);
    let inline = format!("csi-{}", "0a".repeat(32));
    let new = NewVolume {
        inline: Some(inline.clone()),
        ..new("inline")
    };
    let made = site.create(new);
    let by = VolumeHandle::Inline(inline);
    assert_eq!(site.pools().volume(&by).unwrap().id, made.id);
    // Formatted, so it counts as published; recovery deletes inline volumes that never were.
    site.update(made.id, |r| r.format = Format::Done(FS));
    assert_eq!(site.open().volume(&by).unwrap().id, made.id);
    site.pools().delete_volume(&made.id).unwrap();
    refused!(site.pools().volume(&by), Error::NoVolume(_));
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
        "no room for {} bytes: it can promise {} more",
        4 * MI,
        2 * MI
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
fn no_volume_is_larger_than_allowed() {
    let mut site = Site::fake(&["a"]);
    site.options.max_volume_bytes = Some(5 * MI);
    site.open();
    let capacity = site.named("a").capacity(Provisioning::Thin).unwrap();
    assert_eq!(capacity.largest, 5 * MI);
    let made = site.make("one");
    let grown = site.pools().expand_volume(&made.id, 6 * MI);
    assert!(matches!(grown, Err(Error::NoRoom { available, .. }) if available == 5 * MI));
}

#[test]
fn expansion_grows_and_never_shrinks() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    for bytes in [8 * MI, 6 * MI] {
        site.pools().expand_volume(&made.id, bytes).unwrap();
    }
    for _ in 0..2 {
        let volume = site.volume(made.id);
        let image = site.pools().open_image(&volume, false).unwrap();
        let sizes = (volume.capacity_bytes, file::length(&image).unwrap());
        assert_eq!(sizes, (8 * MI, 8 * MI));
        site.open();
    }
}

#[test]
fn a_record_is_changed_on_disk_first() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let changed = site.update(made.id, |r| r.format = Format::Raw);
    assert_eq!(changed.format, Format::Raw);
    site.open();
    assert_eq!(site.volume(made.id), changed);

    // The index does not adopt a change that can't be written.
    std::fs::remove_dir_all(site.path(format!("volumes/{}", made.id))).unwrap();
    let pools = site.pools();
    let lost = pools.update_volume(&made.id, |r| r.format = Format::None);
    assert!(lost.is_err());
    assert_eq!(site.volume(made.id).format, Format::Raw);
}

#[test]
fn a_missing_or_short_image_is_an_error() {
    let site = Site::fake(&["a"]);
    let made = site.make("one");
    let path = site.path(format!("volumes/{}/image", made.id));
    let image = std::fs::File::options().write(true).open(&path).unwrap();
    image.set_len(MI).unwrap();
    refused!(site.pools().open_image(&made, false), Error::Corrupt { .. });
    std::fs::remove_file(&path).unwrap();
    let missing = site.pools().open_image(&made, false);
    assert!(matches!(missing, Err(Error::ImageMissing { path: p }) if p == path));
    site.pools().delete_volume(&made.id).unwrap();
}

#[test]
fn an_attached_volume_is_not_deleted() {
    let site = Site::fake(&["a"]);
    let made = site.make("one");
    let device = site.attach(&made);
    let staged = stage_at("/stage", mounted(), Some(device.minor));
    site.update(made.id, |r| r.stage = Some(staged));
    drop(device);
    refused!(site.pools().delete_volume(&made.id), Error::Attached { .. });

    // An unstaged device without users is a leftover of a crash.
    site.update(made.id, |r| r.stage = None);
    site.pools().delete_volume(&made.id).unwrap();
    assert!(site.pools().kernel().loops().unwrap().is_empty());
    assert!(site.entries().is_empty());
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

#[rstest]
#[case::new_filesystem(&[mounted()], None, Format::Done(FS))]
#[case::new_block(&[raw()], None, Format::Raw)]
#[case::never_staged(&[mounted()], Some(Format::None), Format::None)]
#[case::half_formatted(&[mounted()], Some(Format::Formatting(FS)), Format::Formatting(FS))]
#[case::formatted(&[mounted()], Some(Format::Done(FS)), Format::Done(FS))]
#[case::of_raw_bytes(&[mounted()], Some(Format::Raw), Format::Raw)]
#[case::filesystem_as_block(&[raw()], Some(Format::Done(FS)), Format::Raw)]
#[case::blank_as_block(&[raw()], Some(Format::None), Format::Raw)]
fn formats(
    #[case] capabilities: &[Capability],
    #[case] source: Option<Format>,
    #[case] want: Format,
) {
    let new = NewVolume {
        capabilities: capabilities.to_vec(),
        ..new("x")
    };
    assert_eq!(format_of(&new, source), want);
}

#[test]
fn an_inline_volume_gets_its_filesystem_when_it_is_published() {
    let inline = NewVolume {
        inline: Some("csi-1".to_owned()),
        ..new("x")
    };
    assert_eq!(format_of(&inline, None), Format::None);
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

#[test]
fn other_calls_do_not_wait_for_a_copy() {
    let site = Site::fake(&["a"]);
    let (slow, other) = (site.make("slow"), site.make("other"));
    let (entered, wait) = std::sync::mpsc::channel();
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    // An attached device without a mount is flushed before the copy.
    let device = site.attach(&slow);
    site.kernel.hook("loop.flush", move |_| {
        entered.send(()).unwrap();
        gate.recv().unwrap();
        Ok(())
    });
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| {
            let pools = site.pools();
            pools.create_snapshot(&slow.id, "slow", &Default::default())
        });
        wait.recv().unwrap();
        let made = site.make("meanwhile");
        site.update(other.id, |r| r.format = Format::Raw);
        site.pools().expand_volume(&other.id, 8 * MI).unwrap();
        site.pools().delete_volume(&made.id).unwrap();
        site.named("a").capacity(Provisioning::Thick).unwrap();
        assert_eq!(site.pools().volumes().len(), 2);
        assert!(!copy.is_finished());
        go_on.send(()).unwrap();
        // Without reflinks, the copy of a device that may be in use is refused in the end.
        let copied = copy.join().unwrap();
        assert!(
            matches!(copied, Ok(_) | Err(Error::CannotFreeze(_))),
            "{copied:?}"
        );
    });
    drop(device);
}
