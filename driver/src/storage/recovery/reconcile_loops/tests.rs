use std::path::PathBuf;

use rstest::rstest;

use super::*;
use crate::kernel::{FsType, LoopInfo, MountTable};
use crate::storage::{AccessMode, Capability};
use crate::testkit::edit_loops;

/// Builds a kernel state. `loops` lists minors, with the minor below each. `mounts` has "M:path"
/// for a filesystem mount of loop M, and "M=path" for a bind mount of its device node.
fn view(loops: &[(u32, Option<u32>)], mounts: &[&str]) -> KernelState {
    let device = |&(minor, below): &(u32, Option<u32>)| LoopInfo {
        minor,
        backing: Some(FileId {
            dev: 9,
            ino: u64::from(minor),
        }),
        backing_rdev: below.map_or(0, |below| rustix::fs::makedev(7, below)),
        backing_path: "/elsewhere".into(),
        read_only: below.is_some(),
        ..LoopInfo::default()
    };
    let line = |(i, mount): (usize, &&str)| match (mount.split_once(':'), mount.split_once('=')) {
        (Some((minor, path)), _) => {
            format!("{i} 1 7:{minor} / {path} rw - ext4 /dev/loop{minor} rw\n")
        }
        (_, Some((minor, path))) => format!("{i} 1 0:5 /loop{minor} {path} rw - devtmpfs dev rw\n"),
        _ => unreachable!(),
    };
    let dev = "99 1 0:5 / /dev rw - devtmpfs dev rw\n".to_owned();
    let table = dev + &mounts.iter().enumerate().map(line).collect::<String>();
    KernelState {
        loops: loops.iter().map(device).collect::<Vec<_>>().into(),
        mounts: MountTable::parse(table.as_bytes()).unwrap(),
    }
}

fn stage(access: Access, minor: Option<u32>, read_only: &[u32]) -> Option<Stage> {
    let target = |ro: &u32| (PathBuf::from(format!("/pod/{ro}")), *ro);
    Some(Stage {
        path: "/stage".into(),
        capability: Capability {
            access,
            mode: AccessMode::SingleNodeWriter,
        },
        minor,
        read_only_loops: read_only.iter().map(target).collect(),
        disk: None,
    })
}

fn mounted() -> Option<Stage> {
    let access = Access::Mount {
        fs: FsType::Ext4,
        flags: Vec::new(),
        group: None,
    };
    stage(access, Some(3), &[])
}

fn raw(minor: u32, read_only: &[u32]) -> Option<Stage> {
    stage(Access::Block, Some(minor), read_only)
}

/// The staging of a raw block volume before its device was recorded.
fn unfinished() -> Option<Stage> {
    stage(Access::Block, None, &[])
}

/// Shortens a report to one phrase.
fn short(step: LoopStep) -> String {
    let LoopStep::Report(problem) = step else {
        return format!("{step:?}");
    };
    let what = problem.to_string();
    let words = [
        "several",
        "not staged",
        "not at",
        "never finished",
        "another file",
        "while targets",
        "not the device",
    ];
    let found = words.iter().find(|w| what.contains(**w));
    format!("report {}", found.unwrap_or_else(|| panic!("{what}")))
}

const NONE: &[(u32, Option<u32>)] = &[];
const THREE: &[(u32, Option<u32>)] = &[(3, None)];
const FIVE: &[(u32, Option<u32>)] = &[(5, None)];
const BOTH: &[(u32, Option<u32>)] = &[(3, None), (5, None)];
const READ_ONLY: &[(u32, Option<u32>)] = &[(3, None), (4, Some(3))];

/// The staging on record, the minors over the volume's image, the loop devices and mounts of the
/// machine, and the steps that follow.
#[rstest]
#[case::unstaged(None, &[], view(NONE, &[]), &[])]
#[case::unstaged_idle(None, &[3], view(THREE, &[]), &["Detach(3)"])]
#[case::unstaged_mounted(None, &[3], view(THREE, &["3:/stage"]), &["report not staged"])]
#[case::unstaged_bound(None, &[3], view(THREE, &["3=/pod"]), &["report not staged"])]
#[case::unstaged_below_another(None, &[3], view(READ_ONLY, &[]), &["report not staged"])]
#[case::unstaged_twice(
    None, &[3, 5], view(BOTH, &["5:/x"]), &["report several", "Detach(3)", "report not staged"]
)]
#[case::mounted(mounted(), &[3], view(THREE, &["3:/stage", "3:/pod"]), &[])]
#[case::mounted_before_a_reboot(mounted(), &[], view(NONE, &[]), &["ClearStage"])]
#[case::its_minor_has_another_file(mounted(), &[], view(THREE, &["3:/x"]), &["ClearStage"])]
#[case::attached_only(mounted(), &[3], view(THREE, &[]), &["Detach(3)", "ClearStage"])]
#[case::staging_mount_gone(mounted(), &[3], view(THREE, &["3:/pod"]), &["report not at"])]
#[case::mounted_and_a_second_device(
    mounted(), &[3, 5], view(BOTH, &["3:/stage"]), &["report several", "Detach(5)"]
)]
#[case::raw_published(raw(3, &[]), &[3], view(THREE, &["3=/pod"]), &[])]
#[case::raw_not_published(raw(3, &[]), &[3], view(THREE, &[]), &[])]
#[case::raw_before_a_reboot(raw(3, &[]), &[], view(NONE, &[]), &["ClearStage"])]
#[case::raw_lost(raw(3, &[]), &[], view(NONE, &["3=/pod"]), &["Attach(3)"])]
#[case::raw_lost_and_taken(
    raw(3, &[]), &[], view(THREE, &["3=/pod"]), &["report another file"]
)]
#[case::raw_lost_and_idle_elsewhere(
    raw(3, &[]), &[5], view(FIVE, &["3=/pod"]), &["Detach(5)", "Attach(3)"]
)]
#[case::raw_lost_and_used_elsewhere(
    raw(3, &[]), &[5], view(FIVE, &["3=/pod", "5=/pod2"]), &["report while targets"]
)]
#[case::raw_unbound_and_used_elsewhere(
    raw(3, &[]), &[5], view(FIVE, &["5=/pod2"]), &["report not the device"]
)]
#[case::raw_unfinished(unfinished(), &[3], view(THREE, &[]), &["Detach(3)", "ClearStage"])]
#[case::raw_unattached(unfinished(), &[], view(NONE, &[]), &["ClearStage"])]
#[case::raw_unrecorded(unfinished(), &[3], view(THREE, &["3=/x"]), &["report never finished"])]
#[case::read_only(raw(3, &[4]), &[3], view(READ_ONLY, &["4=/pod/4"]), &[])]
#[case::read_only_lost(
    raw(3, &[4]),
    &[],
    view(NONE, &["4=/pod/4"]),
    &["Attach(3)", "AttachReadOnly { minor: 4, over: 3 }"]
)]
#[case::read_only_lost_and_taken(
    raw(3, &[4]),
    &[3],
    view(&[(3, None), (4, None)], &["4=/pod/4", "3=/pod"]),
    &["report another file"]
)]
fn steps(
    #[case] stage: Option<Stage>,
    #[case] devices: &[u32],
    #[case] mut kernel: KernelState,
    #[case] expected: &[&str],
) {
    let image = FileId { dev: 9, ino: 1000 };
    edit_loops(&mut kernel.loops, |loops| {
        for device in loops.iter_mut().filter(|l| devices.contains(&l.minor)) {
            device.backing = Some(image);
        }
    });
    let state = VolumeState::of(&kernel, VolumeIdentity::over(image));
    let steps = decide(stage.as_ref(), Reach::Node, &state)
        .into_iter()
        .map(short);
    assert_eq!(steps.collect::<Vec<_>>(), expected);
}

/// Nodes that share the kernel may use device 3, and 4 may be a pin of one of them. A shared volume
/// keeps a device that is only pinned.
#[rstest]
#[case::pinned(mounted(), true, &[], &[])]
#[case::pinned_without_a_staging(None, true, &[], &[])]
#[case::raw_and_pinned(raw(3, &[]), true, &[], &[])]
#[case::pinned_and_anchored(mounted(), true, &["3:/stage"], &[])]
#[case::pinned_and_mounted_elsewhere(mounted(), true, &["3:/pod"], &["report not at"])]
#[case::not_pinned(mounted(), false, &[], &["report not at"])]
fn a_device_that_is_only_pinned_stays(
    #[case] stage: Option<Stage>,
    #[case] is_pinned: bool,
    #[case] mounts: &[&str],
    #[case] expected: &[&str],
) {
    let image = FileId { dev: 9, ino: 1000 };
    let mut kernel = view(READ_ONLY, mounts);
    edit_loops(&mut kernel.loops, |loops| {
        loops[0].backing = Some(image);
        if is_pinned {
            loops[1].label = pins::label(&"a".repeat(32));
        }
    });
    let state = VolumeState::of(&kernel, VolumeIdentity::over(image));
    let steps = decide(stage.as_ref(), Reach::Kernel, &state).into_iter();
    assert_eq!(steps.map(short).collect::<Vec<_>>(), expected);
    if is_pinned && mounts.is_empty() && stage.is_some() && !stage.as_ref().is_some_and(is_raw) {
        let steps = decide(stage.as_ref(), Reach::Node, &state).into_iter();
        assert_eq!(steps.map(short).collect::<Vec<_>>(), ["report not at"]);
    }
}
