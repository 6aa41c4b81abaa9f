//! Surveys of healthy pools, and of pools with one problem each.

use std::collections::BTreeMap;

use super::Severity::{Error, Note, Warning};
use super::*;
use crate::diagnose::{KernelState, Problem};
use crate::inspect::inventory::{
    Area, Contents, ImageStat, Item, Leftover, UnusableRecord, lock_holder::Holder,
};
use crate::kernel::{FileId, FsType, FsUsage, LOOP_MAJOR, LoopInfo, MountTable};
use crate::reach::pins;
use crate::record::FaultRecord;
use crate::storage::{
    Consistency, CutMark, ExplorationId, Format, FreezeIntent, GroupId, GroupRecord, PoolId,
    PoolKind, Provisioning, SnapshotId, SnapshotRecord, Stage, VolumeId, VolumeRecord,
};
use crate::testkit::{edit_loops, mounted, raw, record_of, stage_at};

const SIZE: u64 = 1 << 30;
const DEVICE: u64 = 77;
const STAGING: &str = "/k/staging/globalmount";

/// A pool with one staged, mounted volume (`v`, on loop 3), one raw block volume (`b`, staged, on
/// loop 4), and a group of one snapshot of `v`.
pub(crate) struct Scene {
    survey: Survey,
}

pub(crate) fn volume(pool: PoolId, name: &str, stage: Option<Box<Stage>>) -> VolumeRecord {
    let format = Format::Done(FsType::Ext4);
    VolumeRecord {
        capacity_bytes: SIZE,
        format,
        stage,
        ..record_of(pool, name)
    }
}

pub(crate) fn pool(state: Result<Contents, String>) -> PoolSurvey {
    PoolSurvey {
        name: "p".to_owned(),
        kind: PoolKind::Directory,
        path: "/p".into(),
        image: None,
        driver: None,
        fault: None,
        fs_type: "xfs".to_owned(),
        sparse: Vec::new(),
        lost: None,
        shut_down: Default::default(),
        state,
    }
}

fn image(ino: u64) -> Option<ImageStat> {
    let file = FileId { dev: DEVICE, ino };
    Some(ImageStat {
        file,
        bytes: SIZE,
        allocated: 4096,
        written_ns: 1,
    })
}

fn on_loop(minor: u32, ino: u64) -> LoopInfo {
    LoopInfo {
        minor,
        backing: Some(FileId { dev: DEVICE, ino }),
        backing_path: "/p/image".to_owned(),
        size_bytes: SIZE,
        direct_io: true,
        ..LoopInfo::default()
    }
}

fn item<R>(name: impl ToString, record: R, ino: Option<u64>) -> Item<R> {
    Item {
        name: name.to_string(),
        record: Ok(record),
        image: ino.and_then(image),
    }
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let id = PoolId::generate();
        let v = volume(id, "v", Some(stage_at(STAGING, mounted(), Some(3))));
        let b = volume(id, "b", Some(stage_at(STAGING, raw(), Some(4))));
        let group = GroupId::generate(id);
        let snapshot = SnapshotRecord {
            schema: 1,
            id: SnapshotId::generate(id),
            name: "s".to_owned(),
            source: v.id,
            size_bytes: SIZE,
            requested_bytes: None,
            ancestor: None,
            created_ns: 1,
            parameters: BTreeMap::new(),
            group: Some(group),
            format: Format::Done(FsType::Ext4),
            provisioning: Provisioning::Thin,
            allocated_bytes: 4096,
            consistency: Consistency::Frozen,
            cut: None,
        };
        let group = GroupRecord {
            schema: 1,
            id: group,
            name: "g".to_owned(),
            snapshots: vec![snapshot.id],
            sources: vec![v.id],
            parameters: BTreeMap::new(),
            created_ns: 1,
        };
        let contents = Contents {
            root: "/p".into(),
            id,
            device: DEVICE,
            reflinks: Some(true),
            usage: FsUsage::default(),
            volumes: vec![item(v.id, v, Some(10)), item(b.id, b, Some(11))],
            snapshots: vec![item(snapshot.id, snapshot, Some(12))],
            groups: vec![item(group.id, group, None)],
            bases: Vec::new(),
            leftovers: Vec::new(),
            unknown_files: Vec::new(),
        };
        let mounts = format!(
            "50 1 {LOOP_MAJOR}:3 / {STAGING} rw - ext4 /dev/loop3 rw\n\
             51 1 0:5 /loop4 /k/publish/b rw - devtmpfs devtmpfs rw\n\
             52 1 0:5 / /dev rw - devtmpfs devtmpfs rw\n"
        );
        Scene {
            survey: Survey {
                pools: vec![pool(Ok(contents))],
                kernel: KernelState {
                    loops: vec![on_loop(3, 10), on_loop(4, 11), on_loop(9, 99)].into(),
                    mounts: MountTable::parse(mounts.as_bytes()).unwrap(),
                },
                leftover: Vec::new(),
            },
        }
    }

    fn contents(&mut self) -> &mut Contents {
        self.survey.pools[0].state.as_mut().unwrap()
    }

    fn volume(&mut self, i: usize) -> &mut VolumeRecord {
        self.contents().volumes[i].record.as_mut().unwrap()
    }

    fn stage(&mut self, i: usize) -> &mut Stage {
        self.volume(i).stage.as_mut().unwrap()
    }

    fn image(&mut self, i: usize) -> &mut ImageStat {
        self.contents().volumes[i].image.as_mut().unwrap()
    }

    fn snapshot(&mut self) -> &mut SnapshotRecord {
        self.contents().snapshots[0].record.as_mut().unwrap()
    }

    fn group(&mut self) -> &mut Item<GroupRecord> {
        &mut self.contents().groups[0]
    }

    /// Adds a volume that is not staged, with this ID and name in its record.
    fn add_volume(&mut self, directory: VolumeId, id: VolumeId, name: &str) {
        let record = VolumeRecord {
            id,
            ..volume(id.pool(), name, None)
        };
        let added = item(directory, record, Some(21));
        self.contents().volumes.push(added);
    }

    fn add_loop(&mut self, device: LoopInfo) {
        edit_loops(&mut self.survey.kernel.loops, |l| l.push(device));
    }

    fn add_leftover(&mut self, area: Area, name: impl ToString) {
        self.contents().leftovers.push(Leftover {
            area,
            name: name.to_string(),
            image: image(30),
        });
    }

    fn add_unknown_file(&mut self) {
        self.contents().unknown_files.push("volumes/README".into());
    }

    fn leave_frozen(&mut self) {
        self.volume(0).freeze = Some(FreezeIntent { since_ns: 1 });
    }

    /// Makes a cut of the snapshot, which has expired.
    pub(crate) fn set_cut(&mut self) {
        self.contents().groups.clear();
        let snapshot = self.snapshot();
        snapshot.group = None;
        snapshot.consistency = Consistency::Powercut;
        snapshot.cut = Some(CutMark {
            exploration: ExplorationId::generate(),
            number: 7,
            expires_ns: 1,
        });
    }

    /// Gives the first volume this fault in its record.
    pub(crate) fn set_fault(&mut self, fault: &str, over: bool) {
        self.volume(0).fault = Some(Box::new(FaultRecord {
            over,
            ..FaultRecord::of(fault)
        }));
    }

    /// No claim asks for the fault of the first volume any more.
    pub(crate) fn withdraw_fault(&mut self) {
        self.volume(0).fault.as_mut().unwrap().is_withdrawn = true;
    }

    /// Forgets that the first volume is staged.
    pub(crate) fn unstage(&mut self) {
        self.volume(0).stage = None;
    }

    /// Shuts the filesystem of the first volume down.
    pub(crate) fn shut_down(&mut self) {
        let id = self.volume(0).id;
        self.survey.pools[0].shut_down.insert(id);
    }

    fn check(&self) -> Vec<ReportedProblem> {
        check(&self.survey)
    }

    pub(crate) fn survey(&self) -> &Survey {
        &self.survey
    }
}

/// Spoils a new scene, and asserts that it then has exactly this problem.
#[track_caller]
fn finds(severity: Severity, kind: ProblemKind, spoil: impl FnOnce(&mut Scene)) {
    let mut scene = Scene::new();
    spoil(&mut scene);
    let problems = scene.check();
    let found: Vec<_> = problems.iter().map(|p| (p.kind, p.severity)).collect();
    assert_eq!(found, [(kind, severity)], "{problems:#?}");
}

#[test]
fn bad_pools_and_records_are_one_problem_each() {
    finds(Error, ProblemKind::PoolMissing, |s| {
        s.survey.pools[0].state = Err("gone".into());
        edit_loops(&mut s.survey.kernel.loops, Vec::clear);
    });
    finds(Error, ProblemKind::RecordNewer, |s| {
        s.group().record = Err(UnusableRecord::Newer(7))
    });
    finds(Error, ProblemKind::RecordUnreadable, |s| {
        s.group().record = Err(UnusableRecord::Damaged("x".into()));
    });
    finds(Error, ProblemKind::RecordMissing, |s| {
        let id = VolumeId::generate(s.contents().id);
        s.add_volume(id, id, "w");
        s.contents().volumes[2].record = Err(UnusableRecord::Missing);
    });
    // The record of another volume, then of another pool's volume.
    finds(Error, ProblemKind::RecordMisplaced, |s| {
        let id = VolumeId::generate(s.contents().id);
        s.add_volume(id, id, "w");
        s.contents().volumes[2].record = Err(UnusableRecord::Misplaced("x".into()));
    });
    finds(Error, ProblemKind::RecordMisplaced, |s| {
        let id = VolumeId::generate(PoolId::generate());
        s.add_volume(id, id, "w");
        s.contents().volumes[2].record = Err(UnusableRecord::OtherPool(id.pool()));
    });
    finds(Error, ProblemKind::DuplicateName, |s| {
        let id = VolumeId::generate(s.contents().id);
        s.add_volume(id, id, "v");
    });
    finds(Warning, ProblemKind::GroupMissing, |s| {
        s.contents().groups.clear()
    });
    finds(Error, ProblemKind::GroupIncomplete, |s| {
        s.contents().snapshots.clear()
    });
    finds(Warning, ProblemKind::Stranger, Scene::add_unknown_file);
    finds(Warning, ProblemKind::Leftover, |s| {
        s.add_leftover(Area::Incoming, "x")
    });
}

/// `diagnose/volume` has the other problems of a volume.
#[test]
fn bad_images_devices_and_mounts_are_one_problem_each() {
    finds(Error, ProblemKind::ImageMissing, |s| {
        s.contents().snapshots[0].image = None
    });
    finds(Error, ProblemKind::ImageShort, |s| {
        s.image(1).bytes = SIZE - 4096
    });
    finds(Error, ProblemKind::LoopTwice, |s| {
        s.add_loop(on_loop(5, 10))
    });
    finds(Warning, ProblemKind::LoopOverDeleted, |s| {
        let id = VolumeId::generate(s.contents().id);
        s.add_loop(LoopInfo {
            backing_path: format!("/elsewhere/trash/{id}/image (deleted)"),
            ..on_loop(5, 40)
        });
    });
    finds(Warning, ProblemKind::LoopUnused, |s| {
        s.add_loop(on_loop(5, 12))
    });
    finds(Error, ProblemKind::LoopChanged, |s| {
        edit_loops(&mut s.survey.kernel.loops, |l| l[0].block_size = 512)
    });
    finds(Error, ProblemKind::LoopChanged, |s| {
        edit_loops(&mut s.survey.kernel.loops, |l| l[0].offset = pins::OFFSET);
    });
    finds(Warning, ProblemKind::StageWithoutMount, |s| {
        s.survey.kernel.mounts = MountTable::default();
    });
}

/// An XFS says only when it is asked that it has shut down.
#[test]
fn a_fault_explains_a_filesystem_that_has_shut_down() {
    finds(Error, ProblemKind::FilesystemShutDown, Scene::shut_down);
    for (fault, over) in [("powercut", true), ("eio-from=4096,for=600s", false)] {
        finds(Note, ProblemKind::Fault, |s| {
            s.set_fault(fault, over);
            s.shut_down();
        });
    }
}

/// Health says the same of a volume with these devices.
#[test]
fn problems_of_devices_have_the_words_of_the_driver() {
    let mut twice = Scene::new();
    twice.add_loop(on_loop(5, 10));
    let mut changed = Scene::new();
    edit_loops(&mut changed.survey.kernel.loops, |l| l[0].block_size = 512);
    let mut silent = Scene::new();
    let file = format!(
        "/x/volumes/{}/image",
        VolumeId::generate(PoolId::generate())
    );
    silent.add_loop(LoopInfo {
        backing: None,
        backing_path: file.clone(),
        ..on_loop(8, 40)
    });
    let why = "its blocks are of 512 bytes, not 4096".to_owned();
    for (scene, expected) in [
        (twice, Problem::AttachedTwice { minors: vec![3, 5] }),
        (changed, Problem::DeviceChanged { minor: 3, why }),
        (silent, Problem::DeviceSilent { minor: 8, file }),
    ] {
        let found = scene.check();
        let found: Vec<_> = found.iter().map(|p| (p.what.clone(), &p.repair)).collect();
        let advice = person(expected.advice().unwrap());
        assert_eq!(found, [(expected.to_string(), &advice)]);
    }
}

/// A user of a snapshot's device, or kubelet with its device over a volume's, may change it.
#[test]
fn only_a_device_that_the_driver_attached_counts_as_changed() {
    let mut scene = Scene::new();
    let kubelets = LoopInfo {
        backing_rdev: rustix::fs::makedev(LOOP_MAJOR, 4),
        ..on_loop(6, 50)
    };
    for device in [on_loop(5, 12), kubelets] {
        scene.add_loop(LoopInfo {
            block_size: 512,
            ..device
        });
    }
    let kinds: Vec<ProblemKind> = scene.check().iter().map(|p| p.kind).collect();
    assert_eq!(kinds, [ProblemKind::LoopUnused]);
}

/// The driver deletes one that has expired, soon after its next start.
#[test]
fn a_cut_is_an_ordinary_snapshot() {
    let mut scene = Scene::new();
    scene.set_cut();
    assert_eq!(scene.check(), []);
}

/// A node that shares the kernel pins the device of each volume that it uses.
#[test]
fn only_the_pin_of_a_node_that_is_gone_is_left_over() {
    let nonce = "a".repeat(32);
    let pin = LoopInfo {
        backing_rdev: rustix::fs::makedev(LOOP_MAJOR, 3),
        backing_path: "/dev/loop3".to_owned(),
        label: pins::label(&nonce),
        offset: pins::OFFSET,
        read_only: true,
        ..on_loop(5, 77)
    };
    let marker = LoopInfo {
        backing_path: format!("/state/kernel/marker,kernel,n2,{nonce}"),
        read_only: true,
        autoclear: true,
        ..on_loop(6, 78)
    };
    finds(Severity::Note, ProblemKind::LoopUnused, |s| {
        s.add_loop(pin.clone())
    });
    // Those of an earlier version begin at the start of the device. With another offset, a person or a
    // program has changed it.
    for (offset, problem) in [
        (pins::OFFSET, None),
        (0, None),
        (4096, Some(ProblemKind::LoopChanged)),
    ] {
        let mut scene = Scene::new();
        scene.add_loop(LoopInfo {
            offset,
            ..pin.clone()
        });
        scene.add_loop(marker.clone());
        let kinds: Vec<ProblemKind> = scene.check().iter().map(|p| p.kind).collect();
        assert_eq!(kinds, Vec::from_iter(problem), "{offset}");
    }
}

#[test]
fn a_healthy_pool_has_no_problem() {
    let mut scene = Scene::new();
    assert_eq!(scene.check(), []);
    // A second, recorded read-only loop, and kubelet's loop over a block device.
    for (minor, read_only) in [(6, true), (7, false)] {
        scene.add_loop(LoopInfo {
            backing_rdev: rustix::fs::makedev(LOOP_MAJOR, 4),
            read_only,
            ..on_loop(minor, 500)
        });
    }
    scene.stage(1).read_only_loops.insert("/k/ro".into(), 6);
    assert_eq!(scene.check(), []);
    // A snapshot outlives its volume.
    let volume = scene.contents().volumes.remove(1);
    scene.snapshot().source = volume.record.unwrap().id;
    edit_loops(&mut scene.survey.kernel.loops, |l| {
        l.retain(|l| l.minor == 3)
    });
    assert_eq!(scene.check(), []);
    // Objects in an unreadable pool do not count as missing.
    scene.snapshot().group = Some(GroupId::generate(PoolId::generate()));
    scene.contents().groups.clear();
    assert_eq!(scene.check(), []);
}

/// The record of a half-deleted group is among the leftovers. Without that record, nothing shows
/// that its members are not needed.
#[test]
fn only_an_unfinished_or_half_deleted_group_has_its_members_freed() {
    let mut scene = Scene::new();
    scene.contents().groups.clear();
    let repair = |scene: &Scene| {
        let problems = scene.check();
        let of = problems
            .into_iter()
            .find(|p| p.kind == ProblemKind::GroupMissing);
        of.unwrap().repair
    };
    assert!(matches!(repair(&scene), Repair::Person(_)));
    let group = scene.snapshot().group.unwrap();
    for area in [Area::Incoming, Area::Trash] {
        scene.contents().leftovers.clear();
        scene.add_leftover(area, group);
        assert_eq!(repair(&scene), Repair::Recovery);
    }
}

#[test]
fn traces_of_a_running_driver_are_only_notes() {
    let leftover = |s: &mut Scene| s.add_leftover(Area::Incoming, "x");
    for spoil in [leftover as fn(&mut Scene), Scene::leave_frozen] {
        let mut scene = Scene::new();
        spoil(&mut scene);
        scene.survey.pools[0].driver = Some(Holder { pid: Some(1) });
        let severities: Vec<_> = scene.check().iter().map(|p| p.severity).collect();
        assert_eq!(severities, [Note]);
    }
}

#[test]
fn only_lasting_problems_are_reported() {
    let mut scene = Scene::new();
    scene.add_leftover(Area::Incoming, "x");
    let first = scene.check();
    scene.add_unknown_file();
    let second = scene.check();
    assert_eq!(second.len(), 2);
    assert_eq!(lasting(&first, second), first);
}

#[test]
fn a_loop_over_a_foreign_deleted_file_is_ignored() {
    let mut scene = Scene::new();
    let foreign = VolumeId::generate(PoolId::generate());
    let ours = VolumeId::generate(scene.contents().id);
    for (backing_path, dev) in [
        (format!("/x/{foreign}/image (deleted)"), DEVICE),
        (format!("/x/{ours}/image (deleted)"), DEVICE + 1),
        (format!("/x/{ours}/image"), DEVICE),
        ("/x/image (deleted)".to_owned(), DEVICE),
    ] {
        edit_loops(&mut scene.survey.kernel.loops, |l| l.truncate(3));
        scene.add_loop(LoopInfo {
            backing: Some(FileId { dev, ino: 40 }),
            backing_path,
            ..on_loop(5, 40)
        });
        assert_eq!(scene.check(), []);
    }
}

#[test]
fn a_device_without_a_reported_file_counts_if_its_path_is_the_drivers() {
    let id = VolumeId::generate(PoolId::generate());
    for (backing_path, problems) in [
        ("/x/image".to_owned(), &[][..]),
        (
            format!("/x/volumes/{id}/image"),
            &[(ProblemKind::LoopSilent, "/dev/loop9")],
        ),
    ] {
        let mut scene = Scene::new();
        scene.add_loop(LoopInfo {
            backing: None,
            backing_path,
            ..on_loop(9, 40)
        });
        let found = scene.check();
        let found: Vec<_> = found.iter().map(|p| (p.kind, p.object.as_str())).collect();
        assert_eq!(found, problems);
    }
}

#[test]
fn recovery_records_the_length_of_an_image_that_has_grown() {
    let mut scene = Scene::new();
    // No loop device shows part of a block.
    scene.image(0).bytes = SIZE + 4095;
    assert_eq!(scene.check(), []);
    scene.image(0).bytes = SIZE + 4096;
    let found = scene.check();
    let long = found
        .iter()
        .find(|p| p.kind == ProblemKind::ImageLong)
        .unwrap();
    assert_eq!(long.repair, Repair::Recovery);
    // Recovery leaves a snapshot's image as it is.
    let mut scene = Scene::new();
    scene.contents().snapshots[0].image.as_mut().unwrap().bytes += 4096;
    let found = scene.check();
    assert_eq!(found[0].kind, ProblemKind::ImageLong);
    assert!(matches!(found[0].repair, Repair::Person(_)));
}
