use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::*;
use crate::kernel::FsType;
use crate::storage::{Format, NewVolume};
use crate::testkit::{MI, Site, new};

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

/// The upkeep may run at any moment, and writes what the index has.
#[test]
fn a_record_that_could_not_be_cleared_is_queued_once_the_index_has_it() {
    let site = Site::fake(&["a"]);
    let made = site.make("one");
    let pool = site.pool();
    // The temporary file of the record can't be created.
    let in_the_way = site.path(format!("volumes/{}/.volume.json.new", made.id));
    std::fs::create_dir(&in_the_way).unwrap();
    std::thread::scope(|scope| {
        let index = pool.index.read();
        let clearing = scope.spawn(|| {
            let pools = site.pools();
            pools.clear_in_volume(&made.id, |record| record.format = Format::Raw)
        });
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            assert!(pool.to_sync.lock().is_empty());
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(index);
        clearing.join().unwrap().unwrap();
    });
    assert_eq!(site.volume(made.id).format, Format::Raw);
    assert!(pool.to_sync.lock().contains(&made.id));

    std::fs::remove_dir(&in_the_way).unwrap();
    site.tend();
    assert!(pool.to_sync.lock().is_empty());
    let on_disk: VolumeRecord = load::read_one(&pool.layout, made.id).unwrap();
    assert_eq!(on_disk.format, Format::Raw);
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
