use std::os::unix::fs::{FileExt, MetadataExt};

use rstest::rstest;

use super::super::locks::lock;
use super::super::testing::{Fixture, MI, mounted, new, raw};
use super::super::{Capability, Source, Stage};
use super::*;
use crate::sys::FsType;

fn handle(volume: &VolumeRecord) -> VolumeHandle {
    VolumeHandle::Id(volume.id)
}

#[test]
fn a_volume_comes_and_goes() {
    let mut fixture = Fixture::new(&["a"]);
    let made = fixture.make("one");
    let image = fixture.path(format!("volumes/{}/image", made.id));
    let on_disk = image.metadata().unwrap();
    assert_eq!((on_disk.len(), on_disk.mode() & 0o777), (4 * MI, 0o600));
    assert_eq!(made.format, Format::None);
    assert_eq!(fixture.pools().volume_named("one").unwrap(), made);

    let pools = fixture.open();
    assert_eq!(*pools.volume(&handle(&made)).unwrap(), *made);
    assert_eq!(pools.volumes(), std::slice::from_ref(&made));
    assert!(pools.findings().is_empty());

    pools.delete_volume(&made.id).unwrap();
    assert!(matches!(
        pools.volume(&handle(&made)),
        Err(Error::NoVolume(_))
    ));
    assert!(matches!(
        pools.delete_volume(&made.id),
        Err(Error::NoVolume(_))
    ));
    assert_eq!(pools.volume_named("one"), None);
    assert!(fixture.entries().is_empty());
}

#[test]
fn a_name_is_taken_once() {
    let fixture = Fixture::new(&["a"]);
    fixture.make("one");
    let again = fixture
        .pools()
        .create_volume(&fixture.pool("a"), new("one"));
    assert!(matches!(again, Err(Error::Refused(_))), "{again:?}");
    assert_eq!(fixture.entries().len(), 1);
}

#[test]
fn volumes_are_listed_in_order_of_creation_across_pools() {
    let fixture = Fixture::new(&["a", "b"]);
    for (i, pool) in ["b", "a", "a", "b"].iter().enumerate() {
        let new = new(&i.to_string());
        fixture
            .pools()
            .create_volume(&fixture.pool(pool), new)
            .unwrap();
    }
    let names = fixture.pools().volumes();
    let names: Vec<&str> = names.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["0", "1", "2", "3"]);
}

#[test]
fn kubelets_handle_leads_to_the_volume() {
    let mut fixture = Fixture::new(&["a"]);
    let inline = format!("csi-{}", "0a".repeat(32));
    let new = NewVolume {
        inline: Some(inline.clone()),
        ..new("inline")
    };
    let made = fixture
        .pools()
        .create_volume(&fixture.pool("a"), new)
        .unwrap();
    let by = VolumeHandle::Inline(inline);
    assert_eq!(fixture.pools().volume(&by).unwrap().id, made.id);
    // Published once: what never was does not survive a restart.
    let done = Format::Done(FsType::Ext4);
    let published = fixture.pools().update_volume(&made.id, |r| r.format = done);
    published.unwrap();
    assert_eq!(fixture.open().volume(&by).unwrap().id, made.id);
    fixture.pools().delete_volume(&made.id).unwrap();
    assert!(matches!(
        fixture.pools().volume(&by),
        Err(Error::NoVolume(_))
    ));
}

#[test]
fn thick_is_taken_at_once() {
    let fixture = Fixture::new(&["a"]);
    let mut new = new("thick");
    new.settings.provisioning = Provisioning::Thick;
    let made = fixture
        .pools()
        .create_volume(&fixture.pool("a"), new)
        .unwrap();
    let image = fixture.pools().open_image(&made, false).unwrap();
    assert!(file::allocated_bytes(&image).unwrap() >= 4 * MI);
}

#[test]
fn a_pool_promises_no_more_than_its_cap() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.specs[0].capacity_bytes = Some(10 * MI);
    fixture.open();
    let pool = fixture.pool("a");
    let available = || pool.capacity(Provisioning::Thin).unwrap().available;
    assert_eq!(available(), 10 * MI);
    let first = fixture.make("first");
    fixture.make("second");
    assert_eq!(available(), 2 * MI);
    let third = fixture.pools().create_volume(&pool, new("third"));
    let Err(Error::NoRoom {
        available: left,
        wanted,
        ..
    }) = third
    else {
        panic!("{third:?}");
    };
    assert_eq!((wanted, left), (4 * MI, 2 * MI));
    assert_eq!(fixture.entries().len(), 2);

    let grown = fixture.pools().expand_volume(&first.id, 6 * MI).unwrap();
    assert_eq!((grown.capacity_bytes, available()), (6 * MI, 0));
    let more = fixture.pools().expand_volume(&first.id, 6 * MI + 4096);
    assert!(matches!(more, Err(Error::NoRoom { .. })), "{more:?}");
    fixture.pools().delete_volume(&first.id).unwrap();
    assert_eq!(available(), 6 * MI);
}

#[test]
fn no_volume_is_larger_than_allowed() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.options.max_volume_bytes = Some(5 * MI);
    fixture.open();
    let capacity = fixture.pool("a").capacity(Provisioning::Thin).unwrap();
    assert_eq!(capacity.largest, 5 * MI);
    let made = fixture.make("one");
    let grown = fixture.pools().expand_volume(&made.id, 6 * MI);
    assert!(matches!(grown, Err(Error::NoRoom { available, .. }) if available == 5 * MI));
}

#[test]
fn expansion_grows_and_never_shrinks() {
    let mut fixture = Fixture::new(&["a"]);
    let made = fixture.make("one");
    let size = |pools: &Pools| {
        let volume = pools.volume(&handle(&made)).unwrap();
        let image = pools.open_image(&volume, false).unwrap();
        (volume.capacity_bytes, length(&image).unwrap())
    };
    fixture.pools().expand_volume(&made.id, 8 * MI).unwrap();
    fixture.pools().expand_volume(&made.id, 6 * MI).unwrap();
    assert_eq!(size(fixture.pools()), (8 * MI, 8 * MI));
    assert_eq!(size(fixture.open()), (8 * MI, 8 * MI));
}

#[test]
fn a_record_is_changed_on_disk_first() {
    let mut fixture = Fixture::new(&["a"]);
    let made = fixture.make("one");
    let changed = fixture
        .pools()
        .update_volume(&made.id, |r| r.format = Format::Raw)
        .unwrap();
    assert_eq!(changed.format, Format::Raw);
    let again = fixture.open().volume(&handle(&made)).unwrap();
    assert_eq!(*again, *changed);

    // What can't be written is not believed either.
    std::fs::remove_dir_all(fixture.path(format!("volumes/{}", made.id))).unwrap();
    let lost = fixture
        .pools()
        .update_volume(&made.id, |r| r.format = Format::None);
    assert!(lost.is_err());
    assert_eq!(
        fixture.pools().volume(&handle(&made)).unwrap().format,
        Format::Raw
    );
}

#[test]
fn images_that_are_missing_or_short_are_said_to_be() {
    let fixture = Fixture::new(&["a"]);
    let made = fixture.make("one");
    let path = fixture.path(format!("volumes/{}/image", made.id));
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(MI)
        .unwrap();
    let short = fixture.pools().open_image(&made, false);
    assert!(matches!(short, Err(Error::Corrupt { .. })), "{short:?}");
    std::fs::remove_file(&path).unwrap();
    let missing = fixture.pools().open_image(&made, false);
    assert!(matches!(missing, Err(Error::ImageMissing { path: p }) if p == path));
    fixture.pools().delete_volume(&made.id).unwrap();
}

#[test]
fn an_attached_volume_is_not_deleted() {
    let fixture = Fixture::new(&["a"]);
    let made = fixture.make("one");
    let device = fixture.attach(&made);
    let staged = Stage {
        path: "/stage".into(),
        capability: mounted(),
        minor: Some(device.minor),
        read_only_loops: Default::default(),
    };
    fixture
        .pools()
        .update_volume(&made.id, |r| r.stage = Some(staged))
        .unwrap();
    drop(device);
    let refused = fixture.pools().delete_volume(&made.id);
    assert!(
        matches!(refused, Err(Error::Attached { .. })),
        "{refused:?}"
    );

    // One that nothing uses and nobody staged is what a crash left.
    fixture
        .pools()
        .update_volume(&made.id, |r| r.stage = None)
        .unwrap();
    fixture.pools().delete_volume(&made.id).unwrap();
    assert!(fixture.pools().kernel().loops().unwrap().is_empty());
    assert!(fixture.entries().is_empty());
}

#[test]
fn a_copy_has_its_sources_bytes_and_its_own_size() {
    let mut fixture = Fixture::new(&["a", "b"]);
    let made = fixture.make("source");
    let image = fixture.pools().open_image(&made, true).unwrap();
    image.write_all_at(b"hello", MI).unwrap();
    fixture
        .pools()
        .update_volume(&made.id, |r| r.format = Format::Done(FS))
        .unwrap();
    let snapshot = fixture
        .pools()
        .create_snapshot(&made.id, "snap", &Default::default())
        .unwrap();
    image.write_all_at(b"later", MI).unwrap();
    for (pool, source, want) in [
        ("a", Source::Snapshot(snapshot.id), b"hello"),
        ("b", Source::Snapshot(snapshot.id), b"hello"),
        ("a", Source::Volume(made.id), b"later"),
        ("b", Source::Volume(made.id), b"later"),
    ] {
        let new = NewVolume {
            capacity_bytes: 8 * MI,
            source: Some(source),
            ..new(&format!("{pool} {source:?}"))
        };
        let copy = fixture
            .pools()
            .create_volume(&fixture.pool(pool), new)
            .unwrap();
        assert_eq!(copy.format, Format::Done(FS));
        let bytes = fixture.pools().open_image(&copy, false).unwrap();
        let mut read = [0; 5];
        bytes.read_exact_at(&mut read, MI).unwrap();
        assert_eq!(
            (&read, length(&bytes).unwrap()),
            (want, 8 * MI),
            "{pool} {source:?}"
        );
    }
    assert_eq!(fixture.open().volumes().len(), 5);
}

const FS: crate::sys::FsType = crate::sys::FsType::Ext4;

#[test]
fn a_copy_is_never_smaller_than_its_source() {
    let fixture = Fixture::new(&["a"]);
    let made = fixture.make("source");
    let new = NewVolume {
        capacity_bytes: 2 * MI,
        source: Some(Source::Volume(made.id)),
        ..new("copy")
    };
    let refused = fixture.pools().create_volume(&fixture.pool("a"), new);
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
    assert_eq!(fixture.entries().len(), 1);
}

#[rstest]
#[case::new_filesystem(&[mounted()], None, Format::None)]
#[case::new_block(&[raw()], None, Format::Raw)]
#[case::for_both_uses(&[raw(), mounted()], None, Format::None)]
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
fn a_failed_creation_leaves_nothing() {
    let fixture = Fixture::new(&["a"]);
    // Where the entry is to go is gone.
    std::fs::rename(fixture.path("volumes"), fixture.path("elsewhere")).unwrap();
    std::fs::create_dir(fixture.path("volumes")).unwrap();
    std::fs::remove_dir(fixture.path("elsewhere")).unwrap();
    let failed = fixture
        .pools()
        .create_volume(&fixture.pool("a"), new("one"));
    assert!(failed.is_err(), "{failed:?}");
    assert!(fixture.entries().is_empty());
    assert_eq!(fixture.pools().volume_named("one"), None);
    assert_eq!(*lock(&fixture.pool("a").under_way), Need::default());
}

#[test]
fn many_at_once_get_what_there_is_and_no_more() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.specs[0].capacity_bytes = Some(40 * MI);
    fixture.open();
    let pool = fixture.pool("a");
    let made = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for i in 0..24 {
            let (fixture, pool, made) = (&fixture, &pool, &made);
            scope.spawn(move || {
                let one = fixture.pools().create_volume(pool, new(&i.to_string()));
                match one {
                    Ok(_) => {
                        made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    }
                    Err(e) => assert!(matches!(e, Error::NoRoom { .. }), "{e}"),
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 10);
    assert_eq!(fixture.entries().len(), 10);
    assert_eq!(pool.capacity(Provisioning::Thin).unwrap().available, 0);
}

#[test]
fn nobody_waits_for_anothers_copy() {
    let fixture = Fixture::new(&["a"]);
    let (slow, other) = (fixture.make("slow"), fixture.make("other"));
    let (entered, wait) = std::sync::mpsc::channel();
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    // A device that is attached and not mounted is flushed before the copy.
    let device = fixture.attach(&slow);
    fixture.kernel.hook("loop.flush", move |_| {
        entered.send(()).unwrap();
        gate.recv().unwrap();
        Ok(())
    });
    std::thread::scope(|scope| {
        let copy = scope.spawn(|| {
            let pools = fixture.pools();
            pools.create_snapshot(&slow.id, "slow", &Default::default())
        });
        wait.recv().unwrap();
        let made = fixture.make("meanwhile");
        fixture
            .pools()
            .update_volume(&other.id, |r| r.format = Format::Raw)
            .unwrap();
        fixture.pools().expand_volume(&other.id, 8 * MI).unwrap();
        fixture.pools().delete_volume(&made.id).unwrap();
        fixture.pool("a").capacity(Provisioning::Thick).unwrap();
        assert_eq!(fixture.pools().volumes().len(), 2);
        assert!(!copy.is_finished());
        go_on.send(()).unwrap();
        // Without reflinks a device that may be in use is refused in the end.
        let copied = copy.join().unwrap();
        assert!(
            matches!(copied, Ok(_) | Err(Error::CannotFreeze(_))),
            "{copied:?}"
        );
    });
    drop(device);
}
