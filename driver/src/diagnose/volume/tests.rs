//! Tests of health and `fsck` with records, images and kernel states of every kind.

use std::time::Duration;

use hostloop_proto::csi::VolumeHealthErrorType::{self, DataLoss, Degraded, Inaccessible};

use super::*;
use crate::diagnose::health::{VolumeFacts, of_volume};
use crate::inspect::fsck::scene::{capability, mount_access, volume};
use crate::inspect::fsck::{Kind, problem_of_volume};
use crate::inspect::inventory::PoolSurvey;
use crate::kernel::{BLOCK_SIZE, FsType, LOOP_MAJOR, MountTable};
use crate::storage::{FreezeIntent, PoolId, PoolKind, Provisioning};

const IMAGE: FileId = FileId { dev: 1, ino: 2 };

/// A volume, its image, and the kernel's state.
struct Scene {
    record: VolumeRecord,
    image: Image,
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
fn mounted() -> Scene {
    let stage = Stage {
        path: "/stage".into(),
        capability: capability(mount_access()),
        minor: Some(3),
        read_only_loops: Default::default(),
    };
    let record = volume(PoolId::generate(), "v", Some(stage));
    Scene {
        image: Image::Present {
            bytes: record.capacity_bytes,
            allocated: 4096,
        },
        record,
        loops: vec![device(3)],
        mounts: vec![((LOOP_MAJOR, 3), "/stage".to_owned(), "rw")],
    }
}

impl Scene {
    fn stage(&mut self) -> &mut Stage {
        self.record.stage.as_mut().unwrap()
    }

    /// Stages the volume as a raw block volume, published read-only at /ro from loop 4.
    fn raw(&mut self) {
        self.stage().capability.access = Access::Block;
        self.stage().read_only_loops.insert("/ro".into(), 4);
        self.record.format = crate::storage::Format::Raw;
        self.loops.push(read_only_over(4, 3));
        self.mounts.clear();
    }

    fn unstaged(&mut self) {
        self.record.stage = None;
        self.detached();
    }

    fn detached(&mut self) {
        self.loops.clear();
        self.mounts.clear();
    }

    fn options(&mut self, options: &'static str) {
        self.mounts[0].2 = options;
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
            loops: self.loops.clone(),
            mounts: MountTable::parse(table.as_bytes()).unwrap(),
        }
    }

    fn issues(&self) -> Vec<Issue> {
        let there = matches!(self.image, Image::Present { .. });
        let identity = VolumeIdentity::of(&self.record, there.then_some(IMAGE));
        judge(
            &self.record,
            &self.image,
            &VolumeState::of(&self.kernel(), identity),
        )
    }
}

type Health = (VolumeHealthErrorType, &'static str);

fn health(issues: Vec<Issue>) -> Vec<Health> {
    let facts = VolumeFacts {
        issues,
        max_freeze: Duration::from_secs(10),
        ..VolumeFacts::default()
    };
    let conditions = of_volume(&facts);
    assert!(conditions.iter().all(|c| !c.message.is_empty()));
    conditions.iter().map(|c| (c.status, c.reason)).collect()
}

fn kinds(issues: Vec<Issue>) -> Vec<Kind> {
    let pool = PoolSurvey {
        name: "p".to_owned(),
        kind: PoolKind::Directory,
        path: "/p".into(),
        image: None,
        driver: None,
        fs_type: "xfs".to_owned(),
        state: Err("not looked at".to_owned()),
    };
    let issues = issues.into_iter();
    let problems = issues.filter_map(|issue| problem_of_volume(&pool, "v", issue));
    problems.map(|p| p.kind).collect()
}

/// A change to a healthy volume, its conditions, and its problems. `fsck` finds problems of a
/// device when it checks all devices.
type Case = (
    &'static str,
    fn(&mut Scene),
    &'static [Health],
    &'static [Kind],
);

const CASES: &[Case] = &[
    ("sound", |_| {}, &[], &[]),
    ("raw, and sound", Scene::raw, &[], &[]),
    ("not in use", Scene::unstaged, &[], &[]),
    (
        "image missing",
        |s| {
            s.unstaged();
            s.image = Image::Missing;
        },
        &[(DataLoss, "ImageMissing")],
        &[Kind::ImageMissing],
    ),
    (
        "image missing, of a staged volume: recovery can't clear the staging",
        |s| {
            s.detached();
            s.image = Image::Missing;
        },
        &[(DataLoss, "ImageMissing")],
        &[Kind::ImageMissing],
    ),
    (
        "image deleted under a device",
        |s| {
            s.image = Image::Missing;
            let path = s.by_path(3, " (deleted)").backing_path;
            s.loops[0].backing_path = path;
        },
        &[(DataLoss, "ImageDeleted")],
        &[Kind::ImageMissing],
    ),
    (
        "image cut off",
        |s| {
            s.image = Image::Present {
                bytes: 4096,
                allocated: 4096,
            }
        },
        &[(DataLoss, "ImageTruncated")],
        &[Kind::ImageShort],
    ),
    (
        "image grown",
        |s| {
            s.image = Image::Present {
                bytes: (1 << 30) + 4096,
                allocated: 4096,
            }
        },
        &[],
        &[Kind::ImageLong, Kind::LoopSize],
    ),
    (
        "image grown by less than a block",
        |s| {
            s.image = Image::Present {
                bytes: (1 << 30) + 4095,
                allocated: 4096,
            }
        },
        &[],
        &[],
    ),
    (
        "image unreadable",
        |s| {
            s.image = Image::Unreadable("EIO".into());
            s.detached();
        },
        &[(Inaccessible, "ImageUnreadable")],
        &[Kind::ImageMissing],
    ),
    (
        "thick, and blocks are missing",
        |s| s.record.settings.provisioning = Provisioning::Thick,
        &[],
        &[Kind::NotThick],
    ),
    (
        "loop device lost",
        Scene::detached,
        &[(Inaccessible, "LoopDeviceLost")],
        &[Kind::StageWithoutLoop],
    ),
    (
        "staging has not come to the device",
        |s| {
            s.detached();
            s.stage().minor = None;
        },
        &[],
        &[Kind::StageWithoutLoop],
    ),
    (
        "the device does not report its backing file",
        |s| s.loops[0] = s.by_path(3, ""),
        &[(Inaccessible, "DeviceSilent")],
        &[],
    ),
    (
        "a read-only device with this path may be anybody's",
        |s| {
            let pods = LoopInfo {
                read_only: true,
                ..s.by_path(8, "")
            };
            s.loops.push(pods);
        },
        &[],
        &[],
    ),
    (
        "a filesystem is being made",
        |s| {
            s.mounts.clear();
            s.record.format = crate::storage::Format::Formatting(FsType::Ext4);
        },
        &[],
        &[Kind::StageWithoutMount, Kind::FormatLeft],
    ),
    (
        "not mounted any more",
        |s| s.mounts.clear(),
        &[(Inaccessible, "NotMounted")],
        &[Kind::StageWithoutMount],
    ),
    (
        "hidden by another mount",
        |s| s.mounts.push(((8, 1), "/stage".to_owned(), "rw")),
        &[(Inaccessible, "NotMounted")],
        &[Kind::StageWithoutMount],
    ),
    (
        "mounted, but elsewhere",
        |s| {
            s.mounts[0].1 = "/other".to_owned();
            s.record.format = crate::storage::Format::None;
        },
        &[(Inaccessible, "NotMounted")],
        &[Kind::StageWithoutMount],
    ),
    (
        "a mounted volume may come back at another device",
        |s| {
            s.loops[0].minor = 4;
            s.mounts[0].0 = (LOOP_MAJOR, 4);
        },
        &[],
        &[],
    ),
    (
        "a raw one may not",
        |s| {
            s.raw();
            s.stage().read_only_loops.clear();
            s.loops.truncate(1);
            s.loops[0].minor = 8;
        },
        &[(Inaccessible, "LoopDeviceLost")],
        &[Kind::StageOtherLoop],
    ),
    (
        "a read-only device of a raw one lost",
        |s| {
            s.raw();
            s.loops.truncate(1);
        },
        &[(Inaccessible, "LoopDeviceLost")],
        &[Kind::StageOtherLoop],
    ),
    (
        "a read-only device that can be written",
        |s| {
            s.raw();
            s.loops[1].read_only = false;
        },
        &[(Inaccessible, "LoopDeviceLost")],
        &[Kind::StageOtherLoop],
    ),
    (
        "attached twice",
        |s| s.loops.push(device(9)),
        &[(Degraded, "AttachedTwice")],
        &[],
    ),
    (
        "attached twice, but only for reading",
        |s| {
            s.unstaged();
            s.loops = vec![device(3), device(9)];
            s.loops.iter_mut().for_each(|l| l.read_only = true);
        },
        &[],
        &[],
    ),
    (
        "shows a part of its image",
        |s| s.loops[0].offset = 4096,
        &[(Inaccessible, "DeviceChanged")],
        &[],
    ),
    (
        "has other blocks than it was attached with",
        |s| s.loops[0].block_size = 512,
        &[(Inaccessible, "DeviceChanged")],
        &[],
    ),
    (
        "the read-only device shows a part of the volume",
        |s| {
            s.raw();
            s.loops[1].offset = 4096;
        },
        &[(Inaccessible, "DeviceChanged")],
        &[],
    ),
    (
        "direct I/O lost",
        |s| s.loops[0].direct_io = false,
        &[(Degraded, "DirectIOLost")],
        &[Kind::DirectIoOff],
    ),
    (
        "direct I/O not requested",
        |s| {
            s.loops[0].direct_io = false;
            s.record.settings.direct_io = false;
        },
        &[],
        &[],
    ),
    (
        "the device is smaller than the image",
        |s| s.loops[0].size_bytes = 4096,
        &[],
        &[Kind::LoopSize],
    ),
    (
        "read-only",
        |s| s.options("ro"),
        &[(Inaccessible, "FilesystemReadOnly")],
        &[],
    ),
    (
        "read-only after an error, on newer kernels",
        |s| s.options("rw,emergency_ro"),
        &[(Inaccessible, "FilesystemReadOnly")],
        &[],
    ),
    (
        "read-only as requested",
        |s| {
            s.options("ro");
            s.stage().capability.access = Access::Mount {
                fs: FsType::Ext4,
                flags: vec!["ro".to_owned()],
                group: None,
            };
        },
        &[],
        &[],
    ),
    (
        "shut down",
        |s| s.options("rw,shutdown"),
        &[(Inaccessible, "FilesystemShutDown")],
        &[],
    ),
    (
        "mounted without a staging on record",
        |s| s.record.stage = None,
        &[],
        &[Kind::UseWithoutStage],
    ),
    (
        "frozen, and not thawed in time",
        |s| s.record.freeze = Some(FreezeIntent { since_ns: 1 }),
        &[(Inaccessible, "Frozen")],
        &[Kind::FreezeLeft],
    ),
];

#[test]
fn health_and_fsck_agree_on_a_volume() {
    for (name, harm, conditions, problems) in CASES {
        let mut scene = mounted();
        harm(&mut scene);
        assert_eq!(health(scene.issues()), *conditions, "{name}");
        assert_eq!(kinds(scene.issues()), *problems, "{name}");
    }
}

/// Unstage and unpublish use the same rule. A pod that puts its own file behind its read-only
/// device must not keep another pod's volume staged.
#[test]
fn a_path_identifies_only_writable_devices() {
    let scene = mounted();
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
