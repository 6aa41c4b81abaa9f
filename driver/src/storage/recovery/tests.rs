use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::kernel::{BindFlags, FsType};
use crate::storage::{
    Capability, Format, FreezeIntent, GroupRecord, NewVolume, Stage, VolumeHandle,
};
use crate::testkit::{MI, Site, make_fs, mount_fs, mounted, new, raw};

fn stage(at: &Path, capability: Capability, minor: Option<u32>) -> Stage {
    Stage {
        path: at.to_path_buf(),
        capability,
        minor,
        read_only_loops: BTreeMap::new(),
    }
}

/// Attaches, formats, stages and mounts a volume in the same way as the node service.
fn staged(site: &Site) -> (Arc<VolumeRecord>, PathBuf) {
    let volume = site.make("one");
    let at = site.dir.path().join("stage");
    std::fs::create_dir(&at).unwrap();
    let device = site.attach(&volume);
    let kernel = &site.kernel;
    make_fs(&**kernel, &device, FsType::Ext4);
    mount_fs(&**kernel, &device, &at, FsType::Ext4);
    let record = stage(&at, mounted(), Some(device.minor));
    let volume = site
        .pools()
        .update_volume(&volume.id, |r| r.stage = Some(record))
        .unwrap();
    (volume, at)
}

fn volume(site: &Site, id: VolumeId) -> Arc<VolumeRecord> {
    site.pools().volume(&VolumeHandle::Id(id)).unwrap()
}

#[test]
fn what_was_not_finished_goes() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    site.close();
    for (place, id) in [
        ("incoming", "vol-1"),
        ("trash", "vol-2"),
        ("trash", "snap-3"),
    ] {
        let entry = site.path(place).join(id);
        std::fs::create_dir(&entry).unwrap();
        std::fs::write(entry.join("image"), "bytes").unwrap();
        std::fs::write(entry.join(".volume.json.new"), "{").unwrap();
    }
    assert!(site.open().findings().is_empty());
    assert_eq!(site.entries(), [format!("volumes/{}", made.id)]);
}

#[test]
fn a_staged_volume_in_use_is_left_alone() {
    let mut site = Site::fake(&["a"]);
    let (before, _) = staged(&site);
    let effects = site.kernel.effects().len();
    assert!(site.open().findings().is_empty());
    assert_eq!(*volume(&site, before.id), *before);
    assert_eq!(
        site.kernel.effects().len(),
        effects,
        "{:?}",
        site.kernel.effects()
    );
}

#[test]
fn after_a_reboot_nothing_is_staged() {
    let mut site = Site::fake(&["a"]);
    let (before, _) = staged(&site);
    site.close();
    site.kernel.reboot();
    assert!(site.open().findings().is_empty());
    assert_eq!(volume(&site, before.id).stage, None);
}

#[test]
fn what_lost_its_mount_is_unstaged_and_detached() {
    let mut site = Site::fake(&["a"]);
    let (before, at) = staged(&site);
    site.close();
    site.kernel.unmount(&at).unwrap();
    assert!(site.open().findings().is_empty());
    assert_eq!(volume(&site, before.id).stage, None);
    assert!(site.kernel.loops().unwrap().is_empty());
}

#[test]
fn a_device_nobody_asked_for_goes_and_a_strangers_stays() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    drop(site.attach(&made));
    let stranger = tempfile::tempfile().unwrap();
    stranger.set_len(MI).unwrap();
    let device = site
        .kernel
        .loop_attach(&kernel::LoopSpec {
            backing: &stranger,
            label: "stranger",
            read_only: false,
            direct_io: false,
            autoclear: false,
            minor: None,
        })
        .unwrap();
    assert!(site.open().findings().is_empty());
    let left: Vec<u32> = site
        .kernel
        .loops()
        .unwrap()
        .iter()
        .map(|l| l.minor)
        .collect();
    assert_eq!(left, [device.minor]);
}

#[test]
fn a_raw_volume_that_lost_its_device_gets_it_back() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let device = site.attach(&made);
    let target = site.dir.path().join("target");
    std::fs::write(&target, "").unwrap();
    site.kernel
        .bind(&device.path(), &target, BindFlags::default())
        .unwrap();
    let record = stage(Path::new("/stage"), raw(), Some(device.minor));
    site.pools()
        .update_volume(&made.id, |r| r.stage = Some(record))
        .unwrap();
    let image = site.image_of(&made);
    site.close();
    let minor = device.minor;
    drop(device);
    // A bind mount of its device node does not keep the device attached.
    site.kernel.loop_detach(minor, image).unwrap();
    assert!(site.open().findings().is_empty());
    let back = site.kernel.loop_info(minor).unwrap().unwrap();
    assert_eq!(back.backing, Some(image));
    assert!(volume(&site, made.id).stage.is_some());
}

#[test]
fn a_raw_volume_whose_minor_is_taken_is_reported() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let other = site.make("two");
    let device = site.attach(&other);
    let target = site.dir.path().join("target");
    std::fs::write(&target, "").unwrap();
    site.kernel
        .bind(&device.path(), &target, BindFlags::default())
        .unwrap();
    let record = stage(Path::new("/stage"), raw(), Some(device.minor));
    site.pools()
        .update_volume(&made.id, |r| r.stage = Some(record))
        .unwrap();
    let findings = site.open().findings();
    let about: Vec<&About> = findings.iter().map(|f| &f.about).collect();
    // One volume lost its device, and the other is in use without being staged.
    assert_eq!(
        about,
        [&About::Volume(made.id), &About::Volume(other.id)],
        "{findings:?}"
    );
}

#[test]
fn a_freeze_that_was_cut_short_is_thawed() {
    let mut site = Site::fake(&["a"]);
    let (made, at) = staged(&site);
    let intent = FreezeIntent { since_ns: 1 };
    site.pools()
        .update_volume(&made.id, |r| r.freeze = Some(intent))
        .unwrap();
    let minor = made.stage.as_ref().unwrap().minor.unwrap();
    site.kernel
        .freeze(&std::fs::File::open(&at).unwrap())
        .unwrap();
    assert!(site.kernel.is_frozen(minor));
    site.open();
    assert!(!site.kernel.is_frozen(minor));
    assert_eq!(volume(&site, made.id).freeze, None);
}

#[test]
fn a_thaw_that_fails_is_reported_and_not_forgotten() {
    let mut site = Site::fake(&["a"]);
    let (made, _) = staged(&site);
    let intent = FreezeIntent { since_ns: 1 };
    site.pools()
        .update_volume(&made.id, |r| r.freeze = Some(intent))
        .unwrap();
    site.kernel.fail("thaw", 1, libc::EIO);
    assert_eq!(site.open().findings().len(), 1);
    assert_eq!(volume(&site, made.id).freeze, Some(intent));
    assert!(site.open().findings().is_empty());
    assert_eq!(volume(&site, made.id).freeze, None);
}

#[test]
fn records_follow_images_that_grew_and_never_the_other_way() {
    let mut site = Site::fake(&["a"]);
    let (longer, shorter, gone) = (site.make("longer"), site.make("shorter"), site.make("gone"));
    let image = |v: &VolumeRecord| site.path(format!("volumes/{}/image", v.id));
    let set = |v: &VolumeRecord, len| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(image(v))
            .unwrap();
        file.set_len(len).unwrap();
    };
    set(&longer, 6 * MI + 5);
    set(&shorter, MI);
    std::fs::remove_file(image(&gone)).unwrap();
    let findings = site.open().findings();
    assert_eq!(volume(&site, longer.id).capacity_bytes, 6 * MI);
    assert_eq!(volume(&site, shorter.id).capacity_bytes, 4 * MI);
    let about: Vec<&About> = findings.iter().map(|f| &f.about).collect();
    assert_eq!(
        about,
        [&About::Volume(shorter.id), &About::Volume(gone.id)],
        "{findings:?}"
    );
    // Deleting the volume ends its finding.
    site.pools().delete_volume(&gone.id).unwrap();
    assert_eq!(site.pools().findings().len(), 1);
}

/// Moves the record of a group of the first pool.
fn move_group(site: &Site, group: GroupId, from: &str, to: &str) {
    let at = |dir: &str| site.path(format!("{dir}/{group}"));
    std::fs::rename(at(from), at(to)).unwrap();
}

/// Creates a group of two volumes, in the first and the last pool.
fn grouped(site: &Site) -> Arc<GroupRecord> {
    let last = site.specs.last().unwrap().name.clone();
    let two = site.pools().create_volume(&site.named(&last), new("two"));
    let volumes = [site.make("one").id, two.unwrap().id];
    let made = site
        .pools()
        .create_group("group", &volumes, &BTreeMap::new());
    made.unwrap()
}

#[test]
fn the_members_of_a_group_that_was_never_finished_are_freed() {
    let mut site = Site::fake(&["a"]);
    let group = grouped(&site);
    site.close();
    move_group(&site, group.id, "groups", "incoming");
    assert!(site.open().findings().is_empty());
    assert!(site.pools().snapshots().is_empty());
    assert_eq!(site.entries().len(), 2, "the volumes");
}

/// The group's record was moved away or lost, so nothing proves that the group was deleted.
#[test]
fn a_member_whose_group_can_not_be_found_is_kept() {
    let mut site = Site::fake(&["a"]);
    let group = grouped(&site);
    site.close();
    let (there, away) = (
        site.path(format!("groups/{}", group.id)),
        site.dir.path().join("away"),
    );
    std::fs::rename(&there, &away).unwrap();
    for _ in 0..2 {
        let findings = site.open().findings();
        let about: Vec<&About> = findings.iter().map(|f| &f.about).collect();
        let [one, two] = group.snapshots[..] else {
            panic!("{group:?}");
        };
        let kept = [&About::Snapshot(one), &About::Snapshot(two)];
        assert_eq!(about, kept, "{findings:?}");
        assert!(findings[0].what.contains("kept"), "{findings:?}");
        assert_eq!(site.pools().snapshots().len(), 2);
    }
    site.close();
    std::fs::rename(&away, &there).unwrap();
    assert!(site.open().findings().is_empty());
    // The group is lost for good: an operator deletes the members one by one.
    std::fs::remove_dir_all(&there).unwrap();
    let pools = site.open();
    for member in &group.snapshots {
        pools.delete_snapshot(member).unwrap();
    }
    assert!(pools.findings().is_empty(), "{:?}", pools.findings());
}

/// One damaged byte in a snapshot's record makes it name a group that never existed.
#[test]
fn a_member_whose_record_names_another_group_is_kept() {
    let mut site = Site::fake(&["a"]);
    let group = grouped(&site);
    site.close();
    let member = group.snapshots[0];
    let record = site.path(format!("snapshots/{member}/snapshot.json"));
    let sound = std::fs::read_to_string(&record).unwrap();
    let other = GroupId::generate(group.id.pool());
    let damaged = sound.replace(&group.id.to_string(), &other.to_string());
    std::fs::write(&record, damaged).unwrap();
    let pools = site.open();
    assert_eq!(pools.snapshots().len(), 2);
    assert_eq!(pools.findings().len(), 1, "{:?}", pools.findings());
    // The group that lists the snapshot counts.
    let refused = pools.delete_snapshot(&member);
    assert!(
        matches!(refused, Err(Error::InGroup(_, g)) if g == group.id),
        "{refused:?}"
    );
    // Deleting the group frees its other members, but not the damaged one.
    site.close();
    move_group(&site, group.id, "groups", "trash");
    let left: Vec<_> = site.open().snapshots().iter().map(|s| s.id).collect();
    assert_eq!(left, [member]);
}

/// A deleted group stays on record until the pools of all its members are open.
#[test]
fn a_deleted_group_waits_for_the_pool_of_a_member() {
    let mut site = Site::fake(&["a", "b"]);
    let group = grouped(&site);
    site.close();
    move_group(&site, group.id, "groups", "trash");
    let real = site.specs[1].path.clone();
    let away = site.dir.path().join("away");
    std::fs::rename(&real, &away).unwrap();
    let witness = site.path(format!("trash/{}", group.id));
    for _ in 0..2 {
        assert!(site.open().snapshots().is_empty());
        assert!(witness.exists());
    }
    std::fs::rename(&away, &real).unwrap();
    site.pools().retry_missing();
    assert!(site.pools().snapshots().is_empty());
    assert!(site.pools().findings().is_empty());
    assert!(!witness.exists());
}

#[test]
fn members_without_a_group_are_freed_unless_its_pool_is_missing() {
    let mut site = Site::fake(&["a", "b"]);
    let b = site.named("b");
    let volumes = [
        site.make("one").id,
        site.pools()
            .create_volume(&b, crate::testkit::new("two"))
            .unwrap()
            .id,
    ];
    drop(b);
    let group = site
        .pools()
        .create_group("group", &volumes, &BTreeMap::new())
        .unwrap();
    assert_eq!(site.open().snapshots().len(), 2);

    site.close();
    let (real, away) = (site.path(""), site.dir.path().join("away"));
    std::fs::rename(&real, &away).unwrap();
    site.open();
    site.pools().snapshot(&group.snapshots[1]).unwrap();

    // The pool comes back after an interrupted deletion of the group.
    std::fs::rename(&away, &real).unwrap();
    move_group(&site, group.id, "groups", "trash");
    site.pools().retry_missing();
    assert!(site.pools().snapshots().is_empty());
    assert_eq!(site.entries(), [format!("volumes/{}", volumes[0])]);
}

#[test]
fn a_group_that_misses_a_member_is_reported() {
    let mut site = Site::fake(&["a"]);
    let volumes = [site.make("one").id, site.make("two").id];
    let group = site
        .pools()
        .create_group("group", &volumes, &BTreeMap::new())
        .unwrap();
    std::fs::remove_dir_all(site.path(format!("snapshots/{}", group.snapshots[0]))).unwrap();
    let findings = site.open().findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].about, About::Group(group.id));
}

/// Rechecks the pools, as the driver does every few seconds, and returns the remaining findings.
fn found_later(site: &Site) -> Vec<String> {
    site.pools().retry_missing();
    let findings = site.pools().findings();
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_finding_ends_with_its_cause() {
    let mut site = Site::fake(&["a"]);
    let made = site.make("one");
    let image = site.path(format!("volumes/{}/image", made.id));
    let away = site.dir.path().join("away");
    let stranger = site.path("volumes/notes.txt");
    site.close();
    std::fs::rename(&image, &away).unwrap();
    std::fs::write(&stranger, "").unwrap();
    // A directory in an entry can't be removed, so the entry can't be freed.
    let stuck = site.path("trash/vol-2/inner");
    std::fs::create_dir_all(&stuck).unwrap();
    site.open();
    assert_eq!(site.pools().findings().len(), 3);
    assert_eq!(found_later(&site).len(), 3);

    std::fs::rename(&away, &image).unwrap();
    assert_eq!(found_later(&site).len(), 2);
    std::fs::remove_file(&stranger).unwrap();
    assert_eq!(found_later(&site).len(), 1);
    std::fs::remove_dir(&stuck).unwrap();
    // The finding ends because the entry was freed and removed from the disk.
    assert_eq!(found_later(&site), Vec::<String>::new());
    assert!(!site.path("trash/vol-2").exists());
}

/// A stray file in a pool must not cause a query of all loop devices every few seconds.
#[test]
fn a_finding_about_a_file_is_checked_without_the_kernel() {
    let mut site = Site::fake(&["a"]);
    site.close();
    std::fs::write(site.path("volumes/notes.txt"), "").unwrap();
    site.open();
    site.kernel.hook("loops", |_| panic!("it was asked"));
    assert_eq!(found_later(&site).len(), 1);
}

#[test]
fn a_finding_about_a_device_ends_when_the_device_is_as_recorded() {
    let mut site = Site::fake(&["a"]);
    let (before, at) = staged(&site);
    // Mounted but no longer staged: an operator unstaged it only partly.
    let pools = site.pools();
    pools.update_volume(&before.id, |r| r.stage = None).unwrap();
    site.open();
    assert_eq!(found_later(&site).len(), 1);
    site.kernel.unmount(&at).unwrap();
    let minor = site.kernel.loops().unwrap()[0].minor;
    let image = site.image_of(&before);
    site.kernel.loop_detach(minor, image).unwrap();
    assert_eq!(found_later(&site), Vec::<String>::new());
}

#[test]
fn a_finding_about_a_freeze_ends_with_the_thaw() {
    let mut site = Site::fake(&["a"]);
    let (before, _) = staged(&site);
    let pools = site.pools();
    let frozen = FreezeIntent { since_ns: 1 };
    pools
        .update_volume(&before.id, |r| r.freeze = Some(frozen))
        .unwrap();
    site.kernel.fail("thaw", 1, libc::EIO);
    site.open();
    assert_eq!(found_later(&site).len(), 1);
    let pools = site.pools();
    pools
        .update_volume(&before.id, |r| r.freeze = None)
        .unwrap();
    assert_eq!(found_later(&site), Vec::<String>::new());
}

/// Creates a volume with the handle of the inline volume of this number.
fn numbered(site: &Site, number: usize, inline: bool) -> (String, VolumeId) {
    let handle = format!("csi-{number:064}");
    let new = NewVolume {
        inline: inline.then(|| handle.clone()),
        ..new(&handle)
    };
    let made = site.pools().create_volume(&site.named("a"), new);
    (handle, made.unwrap().id)
}

/// The pod ends while its pool takes no writes, and kubelet does not call again.
#[test]
fn an_inline_volume_whose_pod_has_gone_is_deleted() {
    let mut site = Site::fake(&["a"]);
    let pods = site.dir.path().join("pods");
    let target = |uid: &str| pods.join(uid).join("volumes/plugin/name/mount");
    let mut ids = Vec::new();
    for (i, (inline, there)) in [(true, false), (true, true), (false, false)]
        .into_iter()
        .enumerate()
    {
        let (handle, id) = numbered(&site, i, inline);
        let path = target(&handle);
        std::fs::create_dir_all(match there {
            true => &path,
            false => &pods,
        })
        .unwrap();
        let stage = stage(&path, mounted(), None);
        let staged = site.pools().update_volume(&id, |r| {
            r.stage = Some(stage);
            r.format = Format::Done(FsType::Ext4);
        });
        staged.unwrap();
        ids.push(id);
    }
    site.open();
    let left: Vec<_> = site.pools().volumes().iter().map(|v| v.id).collect();
    assert_eq!(left, ids[1..]);
    std::fs::rename(&pods, site.dir.path().join("hidden")).unwrap();
    site.open();
    assert_eq!(site.pools().volumes().len(), 2, "not visible");
}

/// The first publication of the volume failed, and so did its deletion. Kubelet does not call
/// again, so the volume would count against the limits of inline volumes permanently.
#[test]
fn an_inline_volume_that_was_never_published_is_deleted() {
    let mut site = Site::fake(&["a"]);
    let (unfinished, done) = (Format::Formatting(FsType::Ext4), Format::Done(FsType::Ext4));
    let mut kept = Vec::new();
    for (i, (inline, format, stays)) in [
        (true, Format::None, false),
        (true, unfinished, false),
        // A published volume holds data of a pod, which may come back.
        (true, done, true),
        (false, Format::None, true),
    ]
    .into_iter()
    .enumerate()
    {
        let (_, id) = numbered(&site, i, inline);
        let pools = site.pools();
        pools.update_volume(&id, |r| r.format = format).unwrap();
        kept.extend(stays.then_some(id));
    }
    site.open();
    let left: Vec<_> = site.pools().volumes().iter().map(|v| v.id).collect();
    assert_eq!(left, kept);
}

/// The loop device does not report its backing file. A second device would destroy the image.
#[test]
fn a_volume_whose_device_may_be_attached_is_left_as_it_is() {
    let mut site = Site::fake(&["a"]);
    let (before, at) = staged(&site);
    site.kernel.unmount(&at).unwrap();
    let device = site.kernel.loops().unwrap().remove(0);
    site.kernel.set_silent(device.minor, true);
    site.close();
    let findings = site.open().findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].what.contains("does not say"), "{findings:?}");
    assert!(volume(&site, before.id).stage.is_some());
}
