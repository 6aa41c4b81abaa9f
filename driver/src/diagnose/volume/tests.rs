//! Tests of health and `fsck` with records, images and kernel states of every kind.

use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::diagnose::Problem;
use crate::health::{Condition, VolumeFacts, volume_conditions};
use crate::inspect::fsck::Subject;
use crate::inspect::fsck::scene::{pool, volume};
use crate::kernel::{BLOCK_SIZE, FsType, LOOP_MAJOR, MountTable};
use crate::reach::pins;
use crate::reach::testing::{marker, pin_device};
use crate::record::FaultRecord;
use crate::storage::{Format, FreezeIntent, PoolId, Provisioning};
use crate::testkit::{mounted, stage_at};

const IMAGE: FileId = FileId { dev: 1, ino: 2 };

/// A volume, its image, and the kernel's state.
struct Scene {
    record: VolumeRecord,
    image: ImageState,
    loops: Vec<LoopInfo>,
    /// Lines of the mount table: device, path, and options of the filesystem.
    mounts: Vec<((u32, u32), String, &'static str)>,
}

fn device(minor: u32) -> LoopInfo {
    LoopInfo {
        minor,
        backing: Some(IMAGE),
        backing_path: "/p/image".to_owned(),
        size_bytes: 1 << 30,
        block_size: BLOCK_SIZE,
        direct_io: true,
        ..LoopInfo::default()
    }
}

fn read_only_over(minor: u32, below: u32) -> LoopInfo {
    LoopInfo {
        backing: Some(FileId { dev: 5, ino: 9 }),
        backing_rdev: rustix::fs::makedev(LOOP_MAJOR, below),
        read_only: true,
        ..device(minor)
    }
}

/// A thin ext4 volume on loop 3, staged and mounted at /stage, with nothing wrong.
fn scene() -> Scene {
    let stage = stage_at("/stage", mounted(), Some(3));
    let record = volume(PoolId::generate(), "v", Some(stage));
    Scene {
        image: ImageState::Present {
            bytes: record.capacity_bytes,
            allocated: 4096,
        },
        record,
        loops: vec![device(3)],
        mounts: vec![((LOOP_MAJOR, 3), "/stage".to_owned(), "rw")],
    }
}

impl Scene {
    fn with(mut self, change: impl FnOnce(&mut Scene)) -> Scene {
        change(&mut self);
        self
    }

    fn stage(&mut self) -> &mut Stage {
        self.record.stage.as_mut().unwrap()
    }

    /// Stages the volume as a raw block volume, published read-only at /ro from loop 4.
    fn raw(self) -> Scene {
        self.with(|s| {
            s.stage().capability.access = Access::Block;
            s.stage().read_only_loops.insert("/ro".into(), 4);
            s.record.format = Format::Raw;
            s.loops.push(read_only_over(4, 3));
            s.mounts.clear();
        })
    }

    /// Has another node pin the volume's device, from this byte on.
    fn pinned(self, offset: u64) -> Scene {
        let pin = LoopInfo {
            offset,
            ..pin_device(9, 3, &marker("n2", 'a'))
        };
        self.with(|s| s.loops.push(pin))
    }

    fn detached(self) -> Scene {
        self.with(|s| {
            s.loops.clear();
            s.mounts.clear();
        })
    }

    fn unstaged(self) -> Scene {
        self.detached().with(|s| s.record.stage = None)
    }

    fn bytes(self, bytes: u64) -> Scene {
        let allocated = 4096;
        self.with(|s| s.image = ImageState::Present { bytes, allocated })
    }

    fn no_image(self) -> Scene {
        self.with(|s| s.image = ImageState::Missing)
    }

    fn format(self, format: Format) -> Scene {
        self.with(|s| s.record.format = format)
    }

    fn options(self, options: &'static str) -> Scene {
        self.with(|s| s.mounts[0].2 = options)
    }

    /// Gives the volume this fault in its record.
    fn fault(self, fault: &str, over: bool, limit: Option<u64>) -> Scene {
        let fault = FaultRecord {
            over,
            limit,
            ..FaultRecord::of(fault)
        };
        self.with(|s| s.record.fault = Some(Box::new(fault)))
    }

    /// Stages the volume only for reading.
    fn for_reading(self, flags: &str) -> Scene {
        let access = Access::Mount {
            fs: FsType::Ext4,
            flags: vec![flags.to_owned()],
            group: None,
        };
        self.with(|s| s.stage().capability.access = access)
    }

    /// A device with the volume's ID in its path.
    fn by_path(&self, minor: u32, end: &str) -> LoopInfo {
        LoopInfo {
            backing: None,
            backing_path: format!("/x/volumes/{}/image{end}", self.record.id),
            ..device(minor)
        }
    }

    fn kernel(&self) -> KernelState {
        let line = |((major, minor), path, options): &((u32, u32), String, &str)| {
            format!("{minor} 1 {major}:{minor} / {path} rw - ext4 x {options}\n")
        };
        let table: String = self.mounts.iter().map(line).collect();
        KernelState {
            loops: self.loops.clone().into(),
            mounts: MountTable::parse(table.as_bytes()).unwrap(),
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let there = matches!(self.image, ImageState::Present { .. });
        let identity = VolumeIdentity::of(&self.record, there.then_some(IMAGE));
        volume_problems(
            &self.record,
            &self.image,
            &VolumeState::of(&self.kernel(), identity),
        )
    }
}

/// The conditions that health reports, as text.
fn health(problems: Vec<Problem>) -> String {
    let facts = VolumeFacts {
        problems,
        max_freeze: Duration::from_secs(10),
        ..VolumeFacts::default()
    };
    let conditions = volume_conditions(&facts);
    assert!(conditions.iter().all(|c| !c.message.is_empty()));
    let words = |c: &Condition| format!("{:?} {}", c.status, c.reason);
    conditions.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// The severities and kinds of problems that `fsck` reports, as text.
fn fsck(problems: Vec<Problem>) -> String {
    let pool = pool(Err("not looked at".to_owned()));
    let volume = Subject::entry(&pool, "v");
    let reported = problems.iter().filter_map(|p| volume.report(p));
    let kinds = reported.map(|p| format!("{:?} {:?}", p.severity, p.kind));
    kinds.collect::<Vec<_>>().join(", ")
}

const GI: u64 = 1 << 30;

/// What health and `fsck` report of a scene. `fsck` finds problems of a device when it checks all
/// devices.
#[rstest]
#[case::sound(scene(), "", "")]
#[case::raw_and_sound(scene().raw(), "", "")]
#[case::not_in_use(scene().unstaged(), "", "")]
#[case::image_missing(scene().unstaged().no_image(), "DataLoss ImageMissing", "Error ImageMissing")]
// Recovery can't clear the staging.
#[case::image_missing_staged(scene().detached().no_image(), "DataLoss ImageMissing", "Error ImageMissing")]
#[case::image_deleted_under_a_device(
    scene().no_image().with(|s| s.loops[0].backing_path = s.by_path(3, " (deleted)").backing_path),
    "DataLoss ImageDeleted",
    "Error ImageMissing"
)]
#[case::image_cut_off(scene().bytes(4096), "DataLoss ImageTruncated", "Error ImageShort")]
#[case::image_grown(scene().bytes(GI + 4096), "", "Warning ImageLong, Note LoopSize")]
#[case::image_grown_by_less_than_a_block(scene().bytes(GI + 4095), "", "")]
#[case::image_unreadable(
    scene().detached().with(|s| s.image = ImageState::Unreadable("EIO".into())),
    "Inaccessible ImageUnreadable",
    "Error ImageMissing"
)]
#[case::thick_without_all_blocks(
    scene().with(|s| s.record.settings.provisioning = Provisioning::Thick), "", "Warning NotThick"
)]
#[case::device_lost(scene().detached(), "Inaccessible LoopDeviceLost", "Warning StageWithoutLoop")]
#[case::not_attached_yet(scene().detached().with(|s| s.stage().minor = None), "", "Warning StageWithoutLoop")]
#[case::device_is_silent(
    scene().with(|s| s.loops[0] = s.by_path(3, "")), "Inaccessible DeviceSilent", ""
)]
// A pod can put any file behind a read-only device.
#[case::read_only_device_with_its_path(
    scene().with(|s| s.loops.push(LoopInfo { read_only: true, ..s.by_path(8, "") })), "", ""
)]
#[case::mkfs_is_running(
    scene().format(Format::Formatting(FsType::Ext4)).with(|s| s.mounts.clear()),
    "",
    "Warning StageWithoutMount, Note FormatLeft"
)]
#[case::unmounted(
    scene().with(|s| s.mounts.clear()), "Inaccessible NotMounted", "Warning StageWithoutMount"
)]
#[case::hidden_by_another_mount(
    scene().with(|s| s.mounts.push(((8, 1), "/stage".to_owned(), "rw"))),
    "Inaccessible NotMounted",
    "Warning StageWithoutMount"
)]
#[case::mounted_elsewhere(
    scene().format(Format::None).with(|s| s.mounts[0].1 = "/other".to_owned()),
    "Inaccessible NotMounted",
    "Warning StageWithoutMount"
)]
// A mounted volume may come back on another device, a raw one may not.
#[case::mounted_from_another_device(
    scene().with(|s| { s.loops[0].minor = 4; s.mounts[0].0 = (LOOP_MAJOR, 4); }), "", ""
)]
#[case::raw_on_another_device(
    scene().raw().with(|s| {
        s.stage().read_only_loops.clear();
        s.loops = vec![device(8)];
    }),
    "Inaccessible LoopDeviceLost",
    "Error StageOtherLoop"
)]
#[case::read_only_device_lost(
    scene().raw().with(|s| s.loops.truncate(1)), "Inaccessible LoopDeviceLost", "Error StageOtherLoop"
)]
#[case::read_only_device_is_writable(
    scene().raw().with(|s| s.loops[1].read_only = false),
    "Inaccessible LoopDeviceLost",
    "Error StageOtherLoop"
)]
#[case::attached_twice(scene().with(|s| s.loops.push(device(9))), "Degraded AttachedTwice", "")]
#[case::attached_twice_for_reading(
    scene().unstaged().with(|s| {
        s.loops = [3, 9].map(|minor| LoopInfo { read_only: true, ..device(minor) }).into();
    }),
    "",
    ""
)]
#[case::part_of_the_image(
    scene().with(|s| s.loops[0].offset = 4096), "Inaccessible DeviceChanged", ""
)]
#[case::other_block_size(
    scene().with(|s| s.loops[0].block_size = 512), "Inaccessible DeviceChanged", ""
)]
#[case::part_of_the_volume_read_only(
    scene().raw().with(|s| s.loops[1].offset = 4096), "Inaccessible DeviceChanged", ""
)]
// A pin begins beyond the end of the device, one of an earlier version at its start.
#[case::pinned(scene().pinned(pins::OFFSET), "", "")]
#[case::pinned_as_by_an_earlier_version(scene().pinned(0), "", "")]
#[case::pin_was_changed(scene().pinned(4096), "Inaccessible DeviceChanged", "")]
#[case::begins_where_a_pin_does(
    scene().with(|s| s.loops[0].offset = pins::OFFSET), "Inaccessible DeviceChanged", ""
)]
#[case::read_only_from_where_a_pin_begins(
    scene().raw().with(|s| s.loops[1].offset = pins::OFFSET), "Inaccessible DeviceChanged", ""
)]
#[case::direct_io_lost(
    scene().with(|s| s.loops[0].direct_io = false), "Degraded DirectIOLost", "Warning DirectIoOff"
)]
#[case::direct_io_not_requested(
    scene().with(|s| { s.loops[0].direct_io = false; s.record.settings.direct_io = false; }), "", ""
)]
#[case::device_is_smaller(scene().with(|s| s.loops[0].size_bytes = 4096), "", "Note LoopSize")]
#[case::read_only(
    scene().options("ro"), "Inaccessible FilesystemReadOnly", "Error FilesystemReadOnly"
)]
// On newer kernels, after an error.
#[case::emergency_ro(
    scene().options("rw,emergency_ro"),
    "Inaccessible FilesystemReadOnly",
    "Error FilesystemReadOnly"
)]
#[case::read_only_as_requested(scene().options("ro").for_reading("ro"), "", "")]
#[case::read_only_in_one_word(scene().options("ro").for_reading("noatime,ro"), "", "")]
#[case::writable_after_all(
    scene().options("ro").for_reading("ro,rw"),
    "Inaccessible FilesystemReadOnly",
    "Error FilesystemReadOnly"
)]
#[case::shut_down(
    scene().options("rw,shutdown"), "Inaccessible FilesystemShutDown", "Error FilesystemShutDown"
)]
#[case::faulty(
    scene().fault("gone,for=600s", false, Some(4096)).with(|s| s.loops[0].size_limit = 4096),
    "Inaccessible FaultInjected",
    "Note Fault"
)]
#[case::faulty_from_an_offset(
    scene().fault("eio-from=8192,for=600s", false, Some(8192)).with(|s| {
        (s.loops[0].size_limit, s.loops[0].size_bytes) = (8192, 8192);
    }),
    "Degraded FaultInjected",
    "Note Fault"
)]
// Not yet limited, or attached again.
#[case::faulty_without_its_limit(
    scene().fault("gone,for=600s", false, Some(4096)), "Inaccessible FaultInjected", "Note Fault"
)]
#[case::limited_by_a_user(
    scene().fault("gone,for=600s", false, Some(4096)).with(|s| s.loops[0].size_limit = 8192),
    "Inaccessible DeviceChanged, Inaccessible FaultInjected",
    "Note Fault"
)]
#[case::frozen_by_a_fault(
    scene().fault("frozen,for=30s", false, None).with(|s| {
        s.record.freeze = Some(FreezeIntent { since_ns: 1 });
    }),
    "Inaccessible FaultInjected",
    "Note Fault"
)]
// A copy has frozen it.
#[case::frozen_beside_a_fault(
    scene().fault("full,for=600s", false, None).with(|s| {
        s.record.freeze = Some(FreezeIntent { since_ns: 1 });
    }),
    "Inaccessible Frozen, Degraded FaultInjected",
    "Error FreezeLeft, Note Fault"
)]
#[case::frozen_after_a_fault(
    scene().fault("frozen,for=30s", true, None).with(|s| {
        s.record.freeze = Some(FreezeIntent { since_ns: 1 });
    }),
    "Inaccessible Frozen",
    "Error FreezeLeft"
)]
#[case::stopped_by_a_fault(
    scene().fault("powercut", true, None).options("rw,shutdown"),
    "Inaccessible FaultInjected",
    "Note Fault"
)]
#[case::stopped_by_a_fault_of_no_claim(
    scene().fault("gone,for=600s", true, None).options("rw,shutdown").with(|s| {
        s.record.fault.as_mut().unwrap().is_withdrawn = true;
    }),
    "Inaccessible FaultInjected",
    "Note Fault"
)]
#[case::stopped_after_the_next_staging(
    scene().fault("powercut", true, None).options("rw,shutdown").with(|s| {
        s.record.fault.as_mut().unwrap().is_past = true;
    }),
    "Inaccessible FilesystemShutDown",
    "Error FilesystemShutDown"
)]
#[case::staged_again_after_a_fault(scene().fault("powercut", true, None), "", "")]
#[case::mounted_unstaged(scene().with(|s| s.record.stage = None), "", "Warning UseWithoutStage")]
#[case::frozen_for_too_long(
    scene().with(|s| s.record.freeze = Some(FreezeIntent { since_ns: 1 })),
    "Inaccessible Frozen",
    "Error FreezeLeft"
)]
fn health_and_fsck_agree_on_a_volume(
    #[case] scene: Scene,
    #[case] conditions: &str,
    #[case] problems: &str,
) {
    assert_eq!(health(scene.problems()), conditions);
    assert_eq!(fsck(scene.problems()), problems);
}

/// Unstage and unpublish use the same rule. A pod that puts its own file behind its read-only
/// device must not keep another pod's volume staged.
#[test]
fn a_path_identifies_only_writable_devices() {
    let scene = scene();
    for image in [None, Some(IMAGE)] {
        for (read_only, owned) in [(false, true), (true, false)] {
            let device = LoopInfo {
                read_only,
                ..scene.by_path(8, "")
            };
            let identity = VolumeIdentity::of(&scene.record, image);
            assert_eq!(identity.owns(&device), owned, "{image:?} {read_only}");
        }
    }
}
