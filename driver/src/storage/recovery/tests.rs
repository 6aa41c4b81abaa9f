use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::kernel::{self, BindFlags, FileId, FsType, LoopDevice, LoopDevices, Mounts};
use crate::storage::encoding;
use crate::storage::{Capability, DiskFile, Format, FreezeIntent, NewVolume, Stage};
use crate::testkit::{MI, Site, attach, make_fs, mount_fs, mounted, new, raw, stage_at};

mod groups;

const DONE: Format = Format::Done(FsType::Ext4);
const INTENT: FreezeIntent = FreezeIntent { since_ns: 1 };

fn stage(at: &Path, capability: Capability, minor: Option<u32>) -> Option<Box<Stage>> {
    Some(stage_at(at, capability, minor))
}

/// Attaches, formats, stages and mounts a volume in the same way as the node service.
fn staged(site: &Site) -> (Arc<VolumeRecord>, PathBuf) {
    let volume = site.make("one");
    let (device, at) = site.mounted(&volume, "stage");
    let record = stage(&at, mounted(), Some(device.minor));
    (site.update(volume.id, |r| r.stage = record), at)
}

/// Attaches a volume and binds the node of its device to a target.
fn bound(site: &Site, volume: &VolumeRecord) -> LoopDevice {
    let device = site.attach(volume);
    let target = site.root().join("target");
    std::fs::write(&target, "").unwrap();
    let bound = site
        .kernel
        .bind(&device.path(), &target, BindFlags::default());
    bound.unwrap();
    device
}

fn stage_raw(site: &Site, volume: &VolumeRecord, minor: u32) {
    let stage = stage(Path::new("/stage"), raw(), Some(minor));
    site.update(volume.id, |r| r.stage = stage);
}

/// The minors of the attached loop devices.
fn minors(site: &Site) -> Vec<u32> {
    let loops = site.kernel.loops().unwrap();
    loops.iter().map(|l| l.minor).collect()
}

/// Opens the pools again, and returns the subjects of their noted problems.
fn reopened(site: &mut Site) -> Vec<About> {
    subjects(site.open())
}

fn subjects(pools: &Pools) -> Vec<About> {
    pools
        .noted_problems()
        .into_iter()
        .map(|f| f.about)
        .collect()
}

/// Maintains the pools, as the driver does every few seconds, and counts the remaining noted
/// problems.
fn found_later(site: &Site) -> usize {
    site.tend();
    site.pools().noted_problems().len()
}

#[test]
fn unfinished_and_deleted_entries_are_removed() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    site.close();
    for entry in ["incoming/vol-1", "trash/vol-2", "trash/snap-3"] {
        let entry = site.path(entry);
        std::fs::create_dir(&entry).unwrap();
        std::fs::write(entry.join("image"), "bytes").unwrap();
        std::fs::write(entry.join(".volume.json.new"), "{").unwrap();
    }
    assert_eq!(reopened(&mut site), []);
    assert_eq!(site.entries(), [format!("volumes/{}", made.id)]);
}

#[test]
fn a_staged_volume_in_use_is_left_alone() {
    let mut site = Site::fake(&["a"]);
    let (before, _) = staged(&site);
    let effects = site.kernel.effects();
    assert_eq!(reopened(&mut site), []);
    assert_eq!(site.volume(before.id), before);
    assert_eq!(site.kernel.effects().len(), effects.len());
}

#[test]
fn a_staged_volume_without_its_mount_is_unstaged_and_detached() {
    for reboot in [false, true] {
        let mut site = Site::fake(&["a"]);
        let (before, at) = staged(&site);
        site.close();
        if reboot {
            site.kernel.reboot();
        } else {
            site.kernel.unmount(&at).unwrap();
        }
        assert_eq!(reopened(&mut site), [], "reboot: {reboot}");
        assert_eq!(site.volume(before.id).stage, None, "reboot: {reboot}");
        assert!(minors(&site).is_empty(), "reboot: {reboot}");
    }
}

#[test]
fn a_volume_that_is_unstaged_has_no_fault_disk_any_more() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let image = site.image_of(&made);
    // No file has this device number.
    let file = FileId {
        dev: u64::MAX,
        ino: 572,
    };
    site.update(made.id, |r| {
        let mut staged = stage_at("/stage", mounted(), None);
        staged.disk = Some(DiskFile { file, image });
        r.stage = Some(staged);
    });
    site.open();
    assert_eq!(site.volume(made.id).stage, None);
    assert_eq!(kernel::image_of(file), file);
}

/// A process died before its mkfs, in the middle of it, or beside an mkfs that goes on.
#[test]
fn the_start_of_an_mkfs_that_wrote_nothing_is_taken_back() {
    let begun = Format::Formatting(FsType::Ext4);
    for (what, data, in_use, expected) in [
        ("blank", false, false, Format::None),
        ("with data", true, false, begun),
        ("attached", false, true, begun),
        ("on a fault disk", false, false, begun),
    ] {
        let mut site = Site::fake(&["a"]);
        let volume = site.make("one");
        if what == "on a fault disk" {
            site.update(volume.id, |r| r.fault_disk = Some(Box::default()));
        }
        let image = site.pools().open_image(&volume, true).unwrap();
        image.set_len(0).unwrap();
        image.set_len(volume.capacity_bytes).unwrap();
        if data {
            image.write_all_at(b"mkfs", 4096).unwrap();
        }
        site.update(volume.id, |r| r.format = begun);
        let device = in_use.then(|| bound(&site, &volume));
        site.open();
        assert_eq!(site.volume(volume.id).format, expected, "{what}");
        drop(device);
        let on_disk: VolumeRecord = load::read_one(&site.pool().layout, volume.id).unwrap();
        assert_eq!(on_disk.format, expected, "{what}");
    }
}

/// A power cut ends the boot, and leaves anything of a file that was never synced.
#[test]
fn the_state_before_a_power_cut_means_nothing() {
    let cases: [fn(String) -> Option<String>; 4] = [
        Some,
        |state| Some(state[..state.len() / 2].to_owned()),
        |_| Some(String::new()),
        |_| None,
    ];
    for (case, left) in cases.into_iter().enumerate() {
        let mut site = Site::fake(&["a"]);
        let (made, _) = staged(&site);
        let made = site.update(made.id, |r| r.freeze = Some(INTENT));
        site.close();
        site.kernel.reboot();
        let file = site.path(format!("volumes/{}/state.json", made.id));
        match left(std::fs::read_to_string(&file).unwrap()) {
            Some(left) => std::fs::write(&file, left).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let effects = site.kernel.effects().len();
        assert_eq!(reopened(&mut site), [], "case {case}");
        assert_eq!(*site.volume(made.id), made.durable(), "case {case}");
        assert_eq!(site.kernel.effects().len(), effects, "case {case}");
    }
}

/// Version 0.1.0 knew no `state.json`: it left the file of a later version as it was.
#[test]
fn the_state_in_an_old_record_moves_to_its_own_file() {
    for state in [None, Some("/stage"), Some("/elsewhere")] {
        let mut site = Site::fake(&["a"]);
        let (before, at) = staged(&site);
        site.close();
        let entry = site.path(format!("volumes/{}", before.id));
        let whole = encoding::encode(&*before, "volume.json").unwrap();
        std::fs::write(entry.join("volume.json"), whole).unwrap();
        let file = entry.join("state.json");
        let text = std::fs::read_to_string(&file).unwrap();
        match state {
            Some(path) => {
                let text = text.replace(at.to_str().unwrap(), path);
                std::fs::write(&file, text).unwrap();
            }
            None => std::fs::remove_file(&file).unwrap(),
        }
        for _ in 0..2 {
            assert_eq!(reopened(&mut site), [], "{state:?}");
            assert_eq!(site.volume(before.id), before, "{state:?}");
            let stored: Result<VolumeRecord> = load::read_one(&site.pool().layout, before.id);
            assert_eq!(stored.unwrap(), before.durable(), "{state:?}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "{state:?}");
        }
    }
}

#[test]
fn an_idle_device_is_detached_unless_it_holds_a_foreign_file() {
    let mut site = Site::fake(&["a"]);
    drop(site.attach(&site.make("one")));
    let foreign = tempfile::tempfile().unwrap();
    foreign.set_len(MI).unwrap();
    let device = site.attach_file(&foreign);
    assert_eq!(reopened(&mut site), []);
    assert_eq!(minors(&site), [device.minor]);
}

#[test]
fn a_raw_volume_that_lost_its_device_is_attached_again() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let minor = bound(&site, &made).minor;
    stage_raw(&site, &made, minor);
    let image = site.image_of(&made);
    site.close();
    // A bind mount of its device node does not keep the device attached.
    site.kernel.loop_detach(minor, image).unwrap();
    assert_eq!(reopened(&mut site), []);
    let back = site.kernel.loop_info(minor).unwrap().unwrap();
    assert_eq!(back.backing, Some(image));
    assert!(site.volume(made.id).stage.is_some());
}

#[test]
fn a_raw_volume_whose_minor_is_taken_is_reported() {
    let mut site = Site::fake(&["a"]);
    let (made, other) = (site.make("one"), site.make("two"));
    let device = bound(&site, &other);
    stage_raw(&site, &made, device.minor);
    // One volume lost its device, and the other is in use without being staged.
    let expected = [About::Volume(made.id), About::Volume(other.id)];
    assert_eq!(reopened(&mut site), expected);
}

#[test]
fn a_failed_thaw_is_noted_until_the_intent_is_cleared() {
    for reopens in [false, true] {
        let mut site = Site::fake(&["a"]);
        let (made, _) = staged(&site);
        site.update(made.id, |r| r.freeze = Some(INTENT));
        site.kernel.fail("thaw", 1, libc::EIO);
        assert_eq!(reopened(&mut site).len(), 1);
        assert_eq!(found_later(&site), 1);
        assert_eq!(site.volume(made.id).freeze, Some(INTENT));
        if reopens {
            site.open();
        } else {
            site.update(made.id, |r| r.freeze = None);
        }
        assert_eq!(found_later(&site), 0, "reopens: {reopens}");
        assert_eq!(site.volume(made.id).freeze, None);
    }
}

/// Mounts a volume where earlier versions did to thaw the volume `named`. Returns the path.
fn left_by_thaw(site: &Site, named: &VolumeRecord, volume: &VolumeRecord) -> PathBuf {
    let at = site
        .options
        .state_dir
        .join("thaw")
        .join(named.id.to_string());
    std::fs::create_dir_all(&at).unwrap();
    let at = at.canonicalize().unwrap();
    let image = site.pools().open_image(volume, true).unwrap();
    let device = attach(&*site.kernel, &image, true);
    make_fs(&*site.kernel, &device, FsType::Ext4);
    mount_fs(&*site.kernel, &device, &at, FsType::Ext4);
    at
}

#[test]
fn a_mount_that_an_interrupted_thaw_left_is_taken_away() {
    for foreign in [false, true] {
        let mut site = Site::fake(&["a"]);
        let (made, other) = (site.make("one"), site.make("two"));
        let mounted = if foreign { &other } else { &made };
        let at = left_by_thaw(&site, &made, mounted);
        reopened(&mut site);
        assert_eq!(at.exists(), foreign);
        assert_eq!(site.kernel.mounts().unwrap().at(&at).is_some(), foreign);
        assert_eq!(site.pools().delete_volume(&mounted.id).is_ok(), !foreign);
    }
}

#[test]
fn a_busy_mount_of_a_thaw_is_noted_until_a_later_call_takes_it_away() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let at = left_by_thaw(&site, &made, &made);
    site.kernel.set_busy(&at, true);
    assert!(reopened(&mut site).contains(&About::Volume(made.id)));
    site.pools().delete_volume(&made.id).unwrap_err();
    site.kernel.set_busy(&at, false);
    site.pools().delete_volume(&made.id).unwrap();
    assert_eq!(found_later(&site), 0);
    assert!(!at.exists());
}

#[test]
fn a_record_adopts_the_length_of_a_longer_image_only() {
    let mut site = Site::fake(&["a"]);
    let (longer, shorter, gone) = (site.make("longer"), site.make("shorter"), site.make("gone"));
    let image = |v: &VolumeRecord| site.path(format!("volumes/{}/image", v.id));
    for (volume, len) in [(&longer, 6 * MI + 5), (&shorter, MI)] {
        let mut options = std::fs::File::options();
        let file = options.write(true).open(image(volume)).unwrap();
        file.set_len(len).unwrap();
    }
    // A missing image is one problem, even after an interrupted freeze.
    std::fs::remove_file(image(&gone)).unwrap();
    site.update(gone.id, |r| r.freeze = Some(INTENT));
    let expected = [About::Volume(shorter.id), About::Volume(gone.id)];
    assert_eq!(reopened(&mut site), expected);
    assert_eq!(site.volume(longer.id).capacity_bytes, 6 * MI);
    assert_eq!(site.volume(shorter.id).capacity_bytes, 4 * MI);
    let missing = site.pools().noted_problems()[1].problem.to_string();
    assert!(missing.contains("is missing"), "{missing}");
    // Deleting the volume ends its problem.
    site.pools().delete_volume(&gone.id).unwrap();
    assert_eq!(site.pools().noted_problems().len(), 1);
    assert!(
        !site
            .entries()
            .iter()
            .any(|entry| entry.contains(&gone.id.to_string()))
    );
}

#[test]
fn a_noted_problem_ends_with_its_cause() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let image = site.path(format!("volumes/{}/image", made.id));
    let away = site.root().join("away");
    let stray = site.path("volumes/notes.txt");
    site.close();
    std::fs::rename(&image, &away).unwrap();
    std::fs::write(&stray, "").unwrap();
    // A directory in an entry can't be removed, so the entry can't be freed.
    let stuck = site.path("trash/vol-2/inner");
    std::fs::create_dir_all(&stuck).unwrap();
    assert_eq!(reopened(&mut site).len(), 3);
    assert_eq!(found_later(&site), 3);

    std::fs::rename(&away, &image).unwrap();
    assert_eq!(found_later(&site), 2);
    std::fs::remove_file(&stray).unwrap();
    assert_eq!(found_later(&site), 1);
    std::fs::remove_dir(&stuck).unwrap();
    // The problem ends because the entry was freed and removed from the disk.
    assert_eq!(found_later(&site), 0);
    assert!(!site.path("trash/vol-2").exists());
}

/// A stray file in a pool must not cause a query of all loop devices every few seconds.
#[test]
fn a_problem_of_a_file_is_checked_without_the_kernel() {
    let mut site = Site::fake(&["a"]);
    site.close();
    std::fs::write(site.path("volumes/notes.txt"), "").unwrap();
    site.open();
    site.kernel
        .hook("loops", |_| panic!("the loop devices were queried"));
    assert_eq!(found_later(&site), 1);
}

#[test]
fn a_problem_of_a_device_ends_when_the_device_is_as_recorded() {
    let mut site = Site::fake(&["a"]);
    let (before, at) = staged(&site);
    // Mounted but no longer staged: an operator unstaged it only partly.
    site.update(before.id, |r| r.stage = None);
    site.open();
    assert_eq!(found_later(&site), 1);
    site.kernel.unmount(&at).unwrap();
    let image = site.image_of(&before);
    site.kernel.loop_detach(minors(&site)[0], image).unwrap();
    assert_eq!(found_later(&site), 0);
}

/// Creates a volume with the handle of the inline volume of this number.
fn numbered(site: &Site, number: usize, inline: bool) -> VolumeId {
    let handle = format!("csi-{number:064}");
    let new = NewVolume {
        inline: inline.then(|| handle.clone()),
        ..new(&handle)
    };
    site.create(new).id
}

fn ids(site: &Site) -> Vec<VolumeId> {
    site.pools().volumes().iter().map(|v| v.id).collect()
}

/// The pod ends while its pool takes no writes, and kubelet does not call again.
#[test]
fn an_inline_volume_without_its_pod_is_deleted() {
    let mut site = Site::fake(&["a"]);
    let pods = site.root().join("pods");
    std::fs::create_dir(&pods).unwrap();
    let make = |(i, (inline, is_published)): (usize, (bool, bool))| {
        let id = numbered(&site, i, inline);
        let path = pods.join(i.to_string()).join("volumes/plugin/name/mount");
        if is_published {
            std::fs::create_dir_all(&path).unwrap();
        }
        site.update(id, |r| {
            r.stage = stage(&path, mounted(), None);
            r.format = DONE;
        });
        id
    };
    let cases = [(true, false), (true, true), (false, false)];
    let made: Vec<VolumeId> = cases.into_iter().enumerate().map(make).collect();
    for id in &made {
        // The node was restarted: only the synced records count.
        let state = site.path(format!("volumes/{id}/state.json"));
        assert_eq!(std::fs::remove_file(state).is_ok(), *id == made[2], "{id}");
    }
    site.open();
    assert_eq!(ids(&site), made[1..]);
    std::fs::rename(&pods, site.root().join("hidden")).unwrap();
    site.open();
    assert_eq!(ids(&site).len(), 2, "the pods are not visible");
}

/// The first publication of the volume failed, and so did its deletion. Kubelet does not call
/// again, so the volume would count against the limits of inline volumes permanently.
#[test]
fn an_inline_volume_that_was_never_published_is_deleted() {
    let mut site = Site::fake(&["a"]);
    let mut kept = Vec::new();
    let cases = [
        (true, Format::None, false),
        (true, Format::Formatting(FsType::Ext4), false),
        // A published volume holds data of a pod, which may come back.
        (true, DONE, true),
        (false, Format::None, true),
    ];
    for (i, (inline, format, stays)) in cases.into_iter().enumerate() {
        let id = numbered(&site, i, inline);
        site.update(id, |r| r.format = format);
        kept.extend(stays.then_some(id));
    }
    site.open();
    assert_eq!(ids(&site), kept);
}

/// The loop device does not report its backing file. A second device would destroy the image.
#[test]
fn a_volume_whose_device_may_be_attached_is_left_as_it_is() {
    let mut site = Site::fake(&["a"]);
    let (before, at) = staged(&site);
    site.kernel.unmount(&at).unwrap();
    site.kernel.set_silent(minors(&site)[0], true);
    assert_eq!(reopened(&mut site), [About::Volume(before.id)]);
    let noted = site.pools().noted_problems();
    assert!(
        noted[0].problem.to_string().contains("does not say"),
        "{noted:?}"
    );
    assert!(site.volume(before.id).stage.is_some());
}
