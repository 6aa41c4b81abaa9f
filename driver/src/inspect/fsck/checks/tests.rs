//! Surveys of healthy pools, and of pools with one problem each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rstest::rstest;

use super::*;
use crate::diagnose::KernelState;
use crate::inspect::inventory::{Area, Image, Item, Leftover, Unreadable, lock_holder::Holder};
use crate::kernel::{FileId, FsType, FsUsage, LOOP_MAJOR, LoopInfo, MountTable};
use crate::storage::{
    Access, AccessMode, Capability, Format, FreezeIntent, GroupId, GroupRecord, PoolId, PoolKind,
    Provisioning, Settings, SnapshotId, SnapshotRecord, Stage, VolumeId, VolumeRecord,
};

const SIZE: u64 = 1 << 30;
const DEVICE: u64 = 77;
const STAGING: &str = "/k/staging/globalmount";

/// A pool with one staged, mounted volume (`v`, on loop 3), one raw block volume (`b`, staged, on
/// loop 4), and a group of one snapshot of `v`.
pub(crate) struct Scene {
    survey: Survey,
}

pub(crate) fn capability(access: Access) -> Capability {
    Capability {
        access,
        mode: AccessMode::SingleNodeWriter,
    }
}

pub(crate) fn mount_access() -> Access {
    Access::Mount {
        fs: FsType::Ext4,
        flags: Vec::new(),
        group: None,
    }
}

pub(crate) fn volume(pool: PoolId, name: &str, stage: Option<Stage>) -> VolumeRecord {
    VolumeRecord {
        schema: 1,
        id: VolumeId::generate(pool),
        name: name.to_owned(),
        capacity_bytes: SIZE,
        capabilities: vec![capability(mount_access())],
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        settings: Settings {
            provisioning: Provisioning::Thin,
            discard: false,
            direct_io: true,
            read_ahead_kib: None,
        },
        mkfs_options: Vec::new(),
        source: None,
        created_ns: 1,
        format: Format::Done(FsType::Ext4),
        fresh: false,
        publications: BTreeMap::new(),
        stage,
        freeze: None,
        inline: None,
    }
}

fn staged(access: Access, minor: u32) -> Option<Stage> {
    Some(Stage {
        path: PathBuf::from(STAGING),
        capability: capability(access),
        minor: Some(minor),
        read_only_loops: BTreeMap::new(),
    })
}

fn image(ino: u64) -> Option<Image> {
    Some(Image {
        file: FileId { dev: DEVICE, ino },
        bytes: SIZE,
        allocated: 4096,
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
        let (v, b) = (
            volume(id, "v", staged(mount_access(), 3)),
            volume(id, "b", staged(Access::Block, 4)),
        );
        let group = GroupId::generate(id);
        let snapshot = SnapshotRecord {
            schema: 1,
            id: SnapshotId::generate(id),
            name: "s".to_owned(),
            source: v.id,
            size_bytes: SIZE,
            created_ns: 1,
            parameters: BTreeMap::new(),
            group: Some(group),
            format: Format::Done(FsType::Ext4),
            provisioning: Provisioning::Thin,
            allocated_bytes: 4096,
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
            leftovers: Vec::new(),
            strangers: Vec::new(),
        };
        let mounts = format!(
            "50 1 {LOOP_MAJOR}:3 / {STAGING} rw - ext4 /dev/loop3 rw\n\
             51 1 0:5 /loop4 /k/publish/b rw - devtmpfs devtmpfs rw\n\
             52 1 0:5 / /dev rw - devtmpfs devtmpfs rw\n"
        );
        Scene {
            survey: Survey {
                pools: vec![PoolSurvey {
                    name: "p".to_owned(),
                    kind: PoolKind::Directory,
                    path: "/p".into(),
                    image: None,
                    driver: None,
                    fs_type: "xfs".to_owned(),
                    state: Ok(contents),
                }],
                kernel: KernelState {
                    loops: vec![on_loop(3, 10), on_loop(4, 11), on_loop(9, 99)],
                    mounts: MountTable::parse(mounts.as_bytes()).unwrap(),
                },
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

    fn image(&mut self, i: usize) -> &mut Image {
        self.contents().volumes[i].image.as_mut().unwrap()
    }

    fn mount_nothing(&mut self) {
        self.survey.kernel.mounts = MountTable::default();
    }

    pub(crate) fn survey(&self) -> &Survey {
        &self.survey
    }
}

fn pool_missing(s: &mut Scene) {
    s.survey.pools[0].state = Err("gone".into());
    s.survey.kernel.loops.clear();
}

fn newer(s: &mut Scene) {
    s.contents().groups[0].record = Err(Unreadable::Newer(7));
}

fn broken(s: &mut Scene) {
    s.contents().groups[0].record = Err(Unreadable::Broken("x".into()));
}

fn recordless(s: &mut Scene) {
    let name = VolumeId::generate(s.contents().id).to_string();
    s.contents().volumes.push(Item {
        name,
        record: Err(Unreadable::Missing),
        image: image(20),
    });
}

fn swapped(s: &mut Scene) {
    let other = VolumeId::generate(s.contents().id);
    let mut v = s.volume(0).clone();
    v.id = other;
    v.name = "w".into();
    let name = VolumeId::generate(s.contents().id);
    v.stage = None;
    s.contents().volumes.push(item(name, v, Some(21)));
}

fn foreign(s: &mut Scene) {
    let mut v = s.volume(0).clone();
    v.id = VolumeId::generate(PoolId::generate());
    v.name = "w".into();
    v.stage = None;
    s.contents().volumes.push(item(v.id, v, Some(21)));
}

fn stranger(s: &mut Scene) {
    s.contents().strangers.push("volumes/README".into());
}

fn no_image(s: &mut Scene) {
    s.contents().snapshots[0].image = None;
}

fn short(s: &mut Scene) {
    s.image(1).bytes = SIZE - 4096;
}

fn long(s: &mut Scene) {
    s.image(1).bytes = SIZE + 4096;
    s.survey.kernel.loops[1].size_bytes = SIZE + 4096;
}

fn hollow(s: &mut Scene) {
    s.volume(1).settings.provisioning = Provisioning::Thick;
}

fn namesake(s: &mut Scene) {
    let mut v = s.volume(0).clone();
    v.id = VolumeId::generate(s.contents().id);
    v.stage = None;
    s.contents().volumes.push(item(v.id, v, Some(21)));
}

fn groupless(s: &mut Scene) {
    s.contents().groups.clear();
}

fn memberless(s: &mut Scene) {
    s.contents().snapshots.clear();
}

fn leftover(s: &mut Scene) {
    s.contents().leftovers.push(Leftover {
        area: Area::Incoming,
        name: "x".into(),
        image: image(30),
    });
}

fn twice(s: &mut Scene) {
    s.survey.kernel.loops.push(on_loop(5, 10));
}

fn over_deleted(s: &mut Scene) {
    let id = VolumeId::generate(s.contents().id);
    s.survey.kernel.loops.push(LoopInfo {
        backing_path: format!("/elsewhere/trash/{id}/image (deleted)"),
        ..on_loop(5, 40)
    });
}

fn unused(s: &mut Scene) {
    s.survey.kernel.loops.push(on_loop(5, 12));
}

fn detached(s: &mut Scene) {
    s.survey.kernel.loops.remove(1);
    s.survey.kernel.mounts.entries.remove(1);
}

fn unmounted(s: &mut Scene) {
    s.mount_nothing();
}

fn moved(s: &mut Scene) {
    s.stage(1).minor = Some(8);
}

fn second_gone(s: &mut Scene) {
    s.stage(1).read_only_loops.insert("/k/ro".into(), 6);
}

fn unrecorded(s: &mut Scene) {
    s.volume(0).stage = None;
}

fn frozen(s: &mut Scene) {
    s.volume(0).freeze = Some(FreezeIntent { since_ns: 1 });
}

fn formatting(s: &mut Scene) {
    s.volume(0).format = Format::Formatting(FsType::Xfs);
}

fn buffered(s: &mut Scene) {
    s.survey.kernel.loops[0].direct_io = false;
}

fn not_grown(s: &mut Scene) {
    s.image(0).bytes = 2 * SIZE;
    s.volume(0).capacity_bytes = 2 * SIZE;
}

#[test]
fn a_changed_device_is_told_where_the_driver_attached_it() {
    let mut scene = Scene::new();
    let small = |device: LoopInfo| LoopInfo {
        block_size: 512,
        ..device
    };
    // Kubelet's loop device over a volume's device.
    let kubelets = LoopInfo {
        backing_rdev: rustix::fs::makedev(LOOP_MAJOR, 4),
        ..on_loop(6, 50)
    };
    scene
        .survey
        .kernel
        .loops
        .extend([small(on_loop(5, 12)), small(kubelets)]);
    let kinds = |scene: Scene| {
        let found = check(scene.survey());
        found.iter().map(|p| p.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(scene), [Kind::LoopUnused]);
    let mut scene = Scene::new();
    scene.survey.kernel.loops[0].block_size = 512;
    assert_eq!(kinds(scene), [Kind::LoopChanged]);
}

#[test]
fn what_is_in_order_is_no_problem() {
    let mut scene = Scene::new();
    assert_eq!(check(scene.survey()), []);
    // A second, recorded read-only loop, and kubelet's loop over a block device.
    let second = |minor, read_only| LoopInfo {
        backing_rdev: rustix::fs::makedev(LOOP_MAJOR, 4),
        read_only,
        ..on_loop(minor, 500)
    };
    scene
        .survey
        .kernel
        .loops
        .extend([second(6, true), second(7, false)]);
    scene.stage(1).read_only_loops.insert("/k/ro".into(), 6);
    assert_eq!(check(scene.survey()), []);
    // A snapshot outlives its volume.
    let volume = scene.contents().volumes.remove(1);
    scene.contents().snapshots[0]
        .record
        .as_mut()
        .unwrap()
        .source = volume.record.unwrap().id;
    scene.survey.kernel.loops.retain(|l| l.minor == 3);
    assert_eq!(check(scene.survey()), []);
    // Objects in an unreadable pool do not count as missing.
    let elsewhere = GroupId::generate(PoolId::generate());
    scene.contents().snapshots[0].record.as_mut().unwrap().group = Some(elsewhere);
    scene.contents().groups.clear();
    assert_eq!(check(scene.survey()), []);
}

/// The record of a half-deleted group is among the leftovers. Without that record, nothing shows
/// that its members are not needed.
#[test]
fn only_a_group_on_its_way_in_or_out_has_its_members_freed() {
    let mut scene = Scene::new();
    groupless(&mut scene);
    let repair = |scene: &mut Scene| {
        let problems = check(scene.survey());
        let of = problems.into_iter().find(|p| p.kind == Kind::GroupMissing);
        of.unwrap().repair
    };
    assert!(matches!(repair(&mut scene), Repair::Person(_)));
    let group = scene.contents().snapshots[0].record.as_ref().unwrap().group;
    for area in [Area::Incoming, Area::Trash] {
        scene.contents().leftovers = vec![Leftover {
            area,
            name: group.unwrap().to_string(),
            image: None,
        }];
        assert_eq!(repair(&mut scene), Repair::Recovery);
    }
}

#[rstest]
#[case(pool_missing, Kind::PoolMissing, Severity::Error)]
#[case(newer, Kind::RecordNewer, Severity::Error)]
#[case(broken, Kind::RecordUnreadable, Severity::Error)]
#[case(recordless, Kind::RecordMissing, Severity::Error)]
#[case(swapped, Kind::RecordMisplaced, Severity::Error)]
#[case(foreign, Kind::RecordMisplaced, Severity::Error)]
#[case(stranger, Kind::Stranger, Severity::Warning)]
#[case(no_image, Kind::ImageMissing, Severity::Error)]
#[case(short, Kind::ImageShort, Severity::Error)]
#[case(long, Kind::ImageLong, Severity::Warning)]
#[case(hollow, Kind::NotThick, Severity::Warning)]
#[case(namesake, Kind::DuplicateName, Severity::Error)]
#[case(groupless, Kind::GroupMissing, Severity::Warning)]
#[case(memberless, Kind::GroupIncomplete, Severity::Error)]
#[case(leftover, Kind::Leftover, Severity::Warning)]
#[case(twice, Kind::LoopTwice, Severity::Error)]
#[case(over_deleted, Kind::LoopOverDeleted, Severity::Warning)]
#[case(unused, Kind::LoopUnused, Severity::Warning)]
#[case(detached, Kind::StageWithoutLoop, Severity::Warning)]
#[case(unmounted, Kind::StageWithoutMount, Severity::Warning)]
#[case(moved, Kind::StageOtherLoop, Severity::Error)]
#[case(second_gone, Kind::StageOtherLoop, Severity::Error)]
#[case(unrecorded, Kind::UseWithoutStage, Severity::Warning)]
#[case(frozen, Kind::FreezeLeft, Severity::Error)]
#[case(formatting, Kind::FormatLeft, Severity::Note)]
#[case(buffered, Kind::DirectIoOff, Severity::Warning)]
#[case(not_grown, Kind::LoopSize, Severity::Note)]
fn one_thing_wrong_is_one_problem(
    #[case] spoil: fn(&mut Scene),
    #[case] kind: Kind,
    #[case] severity: Severity,
) {
    let mut scene = Scene::new();
    spoil(&mut scene);
    let problems = check(scene.survey());
    let found: Vec<_> = problems.iter().map(|p| (p.kind, p.severity)).collect();
    assert_eq!(found, [(kind, severity)], "{problems:#?}");
}

#[test]
fn a_running_driver_may_be_at_work() {
    for spoil in [leftover as fn(&mut Scene), frozen] {
        let mut scene = Scene::new();
        spoil(&mut scene);
        scene.survey.pools[0].driver = Some(Holder { pid: Some(1) });
        let problems = check(scene.survey());
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].severity, Severity::Note);
    }
}

#[test]
fn only_what_lasts_is_reported() {
    let mut scene = Scene::new();
    leftover(&mut scene);
    let first = check(scene.survey());
    stranger(&mut scene);
    let second = check(scene.survey());
    assert_eq!(second.len(), 2);
    assert_eq!(lasting(&first, second), first);
}

#[test]
fn a_loop_over_somebody_elses_deleted_file_is_not_ours() {
    let mut scene = Scene::new();
    let foreign = VolumeId::generate(PoolId::generate());
    let ours = VolumeId::generate(scene.contents().id);
    let deleted = |path: String, dev| LoopInfo {
        backing: Some(FileId { dev, ino: 40 }),
        backing_path: path,
        ..on_loop(5, 40)
    };
    for (path, dev) in [
        (format!("/x/{foreign}/image (deleted)"), DEVICE),
        (format!("/x/{ours}/image (deleted)"), DEVICE + 1),
        (format!("/x/{ours}/image"), DEVICE),
        ("/x/image (deleted)".to_owned(), DEVICE),
    ] {
        scene.survey.kernel.loops.truncate(3);
        scene.survey.kernel.loops.push(deleted(path, dev));
        assert_eq!(check(scene.survey()), []);
    }
}

#[test]
fn a_device_that_does_not_say_what_it_holds_is_told() {
    let mut scene = Scene::new();
    let ours = VolumeId::generate(PoolId::generate());
    let silent = |path: String| LoopInfo {
        backing: None,
        backing_path: path,
        ..on_loop(9, 40)
    };
    scene
        .survey
        .kernel
        .loops
        .push(silent("/x/image".to_owned()));
    assert_eq!(check(scene.survey()), [], "somebody else's");
    scene.survey.kernel.loops.pop();
    let path = format!("/x/volumes/{ours}/image");
    scene.survey.kernel.loops.push(silent(path));
    let found = check(scene.survey());
    let kinds: Vec<_> = found.iter().map(|p| (p.kind, p.object.as_str())).collect();
    assert_eq!(kinds, [(Kind::LoopSilent, "/dev/loop9")]);
}

#[test]
fn recovery_records_the_length_of_an_image_that_has_grown() {
    let mut scene = Scene::new();
    scene.image(0).bytes = SIZE + 4095;
    assert_eq!(
        check(scene.survey()),
        [],
        "no loop device shows part of a block"
    );
    scene.image(0).bytes = SIZE + 4096;
    let found = check(scene.survey());
    let long = found.iter().find(|p| p.kind == Kind::ImageLong).unwrap();
    assert_eq!(long.repair, Repair::Recovery);
    // Recovery leaves a snapshot's image as it is.
    let mut scene = Scene::new();
    let image = scene.contents().snapshots[0].image.as_mut().unwrap();
    image.bytes += 4096;
    let found = check(scene.survey());
    assert_eq!(found[0].kind, Kind::ImageLong);
    assert!(matches!(found[0].repair, Repair::Person(_)));
}
