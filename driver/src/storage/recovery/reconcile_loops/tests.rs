use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::kernel::{FsType, LoopInfo, MountTable};
use crate::storage::{AccessMode, Capability};

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
        loops: loops.iter().map(device).collect(),
        mounts: MountTable::parse(table.as_bytes()).unwrap(),
    }
}

/// The steps for a volume with these devices over its image, in short form.
fn decided(stage: Option<&Stage>, devices: &[u32], mut kernel: KernelState) -> Vec<String> {
    let image = FileId { dev: 9, ino: 1000 };
    let own = kernel.loops.iter_mut();
    for device in own.filter(|l| devices.contains(&l.minor)) {
        device.backing = Some(image);
    }
    let identity = VolumeIdentity::over(image);
    short(decide(stage, &VolumeState::of(&kernel, identity)))
}

fn stage(access: Access, minor: Option<u32>, read_only: &[u32]) -> Stage {
    Stage {
        path: "/stage".into(),
        capability: Capability {
            access,
            mode: AccessMode::SingleNodeWriter,
        },
        minor,
        read_only_loops: read_only
            .iter()
            .map(|ro| (PathBuf::from(format!("/pod/{ro}")), *ro))
            .collect::<BTreeMap<_, _>>(),
    }
}

fn mount() -> Stage {
    let access = Access::Mount {
        fs: FsType::Ext4,
        flags: Vec::new(),
        group: None,
    };
    stage(access, Some(3), &[])
}

fn raw(minor: Option<u32>, read_only: &[u32]) -> Stage {
    stage(Access::Block, minor, read_only)
}

/// Shortens reports to one phrase.
fn short(steps: Vec<LoopStep>) -> Vec<String> {
    let word = |step| match step {
        LoopStep::Report(what) => {
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
        step => format!("{step:?}"),
    };
    steps.into_iter().map(word).collect()
}

#[test]
fn not_staged() {
    let one = [(3, None)];
    let table: [(&str, &[u32], KernelState, &[&str]); 6] = [
        ("nothing", &[], view(&[], &[]), &[]),
        ("idle", &[3], view(&one, &[]), &["Detach(3)"]),
        (
            "mounted",
            &[3],
            view(&one, &["3:/stage"]),
            &["report not staged"],
        ),
        (
            "bound",
            &[3],
            view(&one, &["3=/pod"]),
            &["report not staged"],
        ),
        (
            "below another",
            &[3],
            view(&[(3, None), (4, Some(3))], &[]),
            &["report not staged"],
        ),
        (
            "twice",
            &[3, 5],
            view(&[(3, None), (5, None)], &["5:/x"]),
            &["report several", "Detach(3)", "report not staged"],
        ),
    ];
    for (name, devices, view, want) in table {
        assert_eq!(decided(None, devices, view), want, "{name}");
    }
}

#[test]
fn staged_as_a_mount() {
    let one = [(3, None)];
    let table: [(&str, &[u32], KernelState, &[&str]); 6] = [
        ("in order", &[3], view(&one, &["3:/stage", "3:/pod"]), &[]),
        ("after a reboot", &[], view(&[], &[]), &["ClearStage"]),
        (
            "a stranger has its minor",
            &[],
            view(&one, &["3:/x"]),
            &["ClearStage"],
        ),
        (
            "attached, not mounted",
            &[3],
            view(&one, &[]),
            &["Detach(3)", "ClearStage"],
        ),
        (
            "its staging mount is gone",
            &[3],
            view(&one, &["3:/pod"]),
            &["report not at"],
        ),
        (
            "a second device",
            &[3, 5],
            view(&[(3, None), (5, None)], &["3:/stage"]),
            &["report several", "Detach(5)"],
        ),
    ];
    for (name, devices, view, want) in table {
        assert_eq!(decided(Some(&mount()), devices, view), want, "{name}");
    }
}

/// A name, a staging, the devices over its image, the kernel state, and the expected steps.
type Case = (
    &'static str,
    Stage,
    &'static [u32],
    KernelState,
    &'static [&'static str],
);

#[test]
fn staged_raw() {
    let one = [(3, None)];
    let both = [(3, None), (4, Some(3))];
    let table: [Case; 14] = [
        (
            "in order",
            raw(Some(3), &[]),
            &[3],
            view(&one, &["3=/pod"]),
            &[],
        ),
        (
            "staged, not published",
            raw(Some(3), &[]),
            &[3],
            view(&one, &[]),
            &[],
        ),
        (
            "after a reboot",
            raw(Some(3), &[]),
            &[],
            view(&[], &[]),
            &["ClearStage"],
        ),
        (
            "device lost",
            raw(Some(3), &[]),
            &[],
            view(&[], &["3=/pod"]),
            &["Attach(3)"],
        ),
        (
            "device lost, its minor taken",
            raw(Some(3), &[]),
            &[],
            view(&one, &["3=/pod"]),
            &["report another file"],
        ),
        (
            "device lost, an idle one elsewhere",
            raw(Some(3), &[]),
            &[5],
            view(&[(5, None)], &["3=/pod"]),
            &["Detach(5)", "Attach(3)"],
        ),
        (
            "device lost, a used one elsewhere",
            raw(Some(3), &[]),
            &[5],
            view(&[(5, None)], &["3=/pod", "5=/pod2"]),
            &["report while targets"],
        ),
        (
            "nothing bound, a used one elsewhere",
            raw(Some(3), &[]),
            &[5],
            view(&[(5, None)], &["5=/pod2"]),
            &["report not the device"],
        ),
        (
            "cut short",
            raw(None, &[]),
            &[3],
            view(&one, &[]),
            &["Detach(3)", "ClearStage"],
        ),
        (
            "cut short sooner",
            raw(None, &[]),
            &[],
            view(&[], &[]),
            &["ClearStage"],
        ),
        (
            "never recorded",
            raw(None, &[]),
            &[3],
            view(&one, &["3=/x"]),
            &["report never finished"],
        ),
        (
            "read-only in order",
            raw(Some(3), &[4]),
            &[3],
            view(&both, &["4=/pod/4"]),
            &[],
        ),
        (
            "both devices lost",
            raw(Some(3), &[4]),
            &[],
            view(&[], &["4=/pod/4"]),
            &["Attach(3)", "AttachReadOnly { minor: 4, over: 3 }"],
        ),
        (
            "the read-only one lost and taken",
            raw(Some(3), &[4]),
            &[3],
            view(&[(3, None), (4, None)], &["4=/pod/4", "3=/pod"]),
            &["report another file"],
        ),
    ];
    for (name, stage, devices, view, want) in table {
        assert_eq!(decided(Some(&stage), devices, view), want, "{name}");
    }
}
