//! What a survey and a report show of open, closed and missing pools.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use hostloop_driver::inspect::inventory::Survey;
use hostloop_driver::inspect::status::{image_maps, report_of};

use hostloop_driver::kernel::reflink_support::shares_extents;
use hostloop_driver::kernel::{FsType, LoopDevices};
use hostloop_driver::storage::VolumeId;
use hostloop_report::image_map::ReportedRun;

use super::{Site, attach, site};
use crate::testkit::{MI, mount_fs};
use crate::tools::{mkfs, sparse};

/// The size and the modification time of everything beneath a directory, but not the time of a pool's
/// image: its filesystem is beneath the directory, too, and the kernel writes that back at any time.
fn state(dir: &Path, into: &mut BTreeMap<String, (u64, i64, i64)>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let m = entry.metadata().unwrap();
        let path = entry.path();
        let (seconds, nanoseconds) = if path.extension().is_some_and(|ending| ending == "pool") {
            (0, 0)
        } else {
            (m.mtime(), m.mtime_nsec())
        };
        into.insert(path.display().to_string(), (m.len(), seconds, nanoseconds));
        if m.is_dir() {
            state(&path, into);
        }
    }
}

#[test]
fn an_open_image_pool_is_read_without_a_lock_and_without_a_change() {
    let mut site = site("fast=DIR/fast,image=400Mi");
    let gone = format!("gone={}/gone,image=400Mi", site.root().display());
    let specs = [site.specs[0].clone(), gone.parse().unwrap()];
    let take = |site: &Site| {
        let survey = Survey::take(&specs, &site.options.state_dir, &*site.kernel);
        report_of(&survey.unwrap())
    };
    let record = site.make("data");
    let snapshot = site.snapshot(&record, "monday");
    let device = site.attach(&record);

    let mut before = BTreeMap::new();
    state(site.root(), &mut before);
    let report = take(&site);
    let mut after = BTreeMap::new();
    state(site.root(), &mut after);
    assert_eq!(before, after);

    let [fast, gone] = &report.pools[..] else {
        panic!("{:?}", report.pools);
    };
    assert_eq!((&*fast.state, &*fast.kind), ("open", "image"));
    assert_eq!(fast.pid, Some(std::process::id()));
    let found = (fast.fs.as_deref(), fast.reflinks);
    assert_eq!(found, (Some("xfs"), Some(true)));
    let promised = 4 * MI + snapshot.allocated_bytes;
    assert_eq!(fast.promised_bytes, Some(promised));
    assert_eq!((&*gone.state, gone.volumes), ("missing", 0));
    assert!(gone.why.as_ref().unwrap().contains("image"), "{gone:?}");

    let [shown] = &report.volumes[..] else {
        panic!("{:?}", report.volumes);
    };
    assert_eq!(shown.id, record.id.to_string());
    assert_eq!((shown.size_bytes, shown.format.as_str()), (4 * MI, "ext4"));
    assert_eq!(shown.loops, [device.path()]);
    assert_eq!(shown.direct_io, Some(device.direct_io));
    assert_eq!(report.snapshots[0].id, snapshot.id.to_string());
    assert!(report.snapshots[0].source_exists);
    let over: Vec<_> = report.loops.iter().map(|l| &*l.over).collect();
    let both = over.contains(&"pool") && over.contains(&"volume");
    assert!(both, "{over:?}");
    let mounted = site.options.state_dir.join("pools/fast");
    assert!(report.mounts.iter().any(|m| m.path == mounted));
    // The volume is not staged, so the loop device is an orphan.
    assert_eq!(report.orphans.len(), 1, "{:?}", report.orphans);

    let image = site.image_of(&record);
    let minor = device.minor;
    drop(device);
    site.kernel.loop_detach(minor, image).unwrap();
    site.close();
    assert_eq!(take(&site).pools[0].state, "closed");
}

#[test]
fn maps_of_images_show_what_a_snapshot_shares_and_what_a_write_splits() {
    const WRITTEN: u64 = 64 << 10;
    let site = site("fast=DIR/fast,image=400Mi");
    let record = site.make("data");
    let pool = site.options.state_dir.join("pools/fast");
    let image = pool
        .join("volumes")
        .join(record.id.to_string())
        .join("image");
    let image = File::options().write(true).open(image).unwrap();
    let write = |bytes: u64| {
        image
            .write_all_at(&vec![7; usize::try_from(bytes).unwrap()], 0)
            .unwrap();
    };
    write(MI);
    let snapshot = site.snapshot(&record, "monday");
    let gone = VolumeId::generate(record.id.pool()).to_string();
    let ids = [record.id.to_string(), snapshot.id.to_string(), gone];
    let read = || {
        let maps = image_maps(&site.specs, &site.options.state_dir, &ids);
        let found: Vec<_> = maps.iter().map(|map| map.id.clone()).collect();
        assert_eq!(
            (&found[..], maps.iter().find_map(|map| map.problem.clone())),
            (&ids[..], None)
        );
        maps.into_iter().map(|map| map.extents)
    };
    let bytes = |runs: &[ReportedRun], shared: bool| -> u64 {
        runs.iter()
            .filter(|run| run.shared == shared)
            .map(|run| run.len)
            .sum()
    };
    let [data, monday, gone] = read().collect::<Vec<_>>().try_into().unwrap();
    let (data, monday) = (data.unwrap(), monday.unwrap());
    assert_eq!((&data, gone), (&monday, None));
    assert!(
        bytes(&data, true) >= MI && bytes(&data, false) == 0,
        "{data:?}"
    );
    write(WRITTEN);
    let [data, after, _] = read().collect::<Vec<_>>().try_into().unwrap();
    let (data, after) = (data.unwrap(), after.unwrap());
    assert_eq!(
        (bytes(&data, false), bytes(&after, false)),
        (WRITTEN, WRITTEN),
        "{data:?} {after:?}"
    );
    assert_ne!(data[0].physical, after[0].physical);
    assert_eq!(bytes(&data, true), bytes(&after, true));
}

#[test]
fn reflinks_are_known_without_an_attempt() {
    for (options, reflinks) in [("reflink=1", Some(true)), ("reflink=0", Some(false))] {
        let site = site("p=DIR/p");
        let image = site.root().join("disk");
        sparse(&image, 320 * MI);
        let device = attach(&site, &image);
        mkfs("xfs", &device.path(), &["-m", options]);
        let at = site.root().join("at");
        std::fs::create_dir(&at).unwrap();
        mount_fs(&*site.kernel, &device, &at, FsType::Xfs);
        let dir = std::fs::File::open(&at).unwrap();
        assert_eq!(shares_extents(dir.as_fd()).unwrap(), reflinks);
    }
}
