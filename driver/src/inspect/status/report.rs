//! The data of `hostloop status`, in the form that `--json` prints. Names and meanings are stable;
//! fields may be added. All sizes are in bytes, all times in nanoseconds since the epoch.

use std::borrow::Cow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::inspect::fsck::{ReportedProblem, check};
use crate::inspect::inventory::{
    Contents, Image, LoopUse, PoolSurvey, Survey, loop_uses, mounts, readable,
};
use crate::kernel::{MountEntry, loop_path};
use crate::storage::{
    Access, Format, FreezeIntent, GroupRecord, PoolKind, Provisioning, SnapshotRecord, Source,
    VolumeRecord,
};

/// A word of a fixed list. A report of a newer program may have words that this one does not know.
pub type Word = Cow<'static, str>;

/// The whole output of `hostloop status`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The configured pools, in order.
    pub pools: Vec<PoolReport>,
    /// The volumes with a readable record, oldest first in each pool.
    pub volumes: Vec<VolumeReport>,
    /// The snapshots with a readable record, oldest first in each pool.
    pub snapshots: Vec<SnapshotReport>,
    /// The group snapshots with a readable record, oldest first in each pool.
    pub groups: Vec<GroupReport>,
    /// The driver's loop devices, by minor.
    pub loops: Vec<LoopReport>,
    /// The driver's mounts, in the order they were made.
    pub mounts: Vec<MountReport>,
    /// What has no owner or can't be read: the problems of `hostloop fsck` about such things.
    pub orphans: Vec<ReportedProblem>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// The pool's name in the configuration.
    pub name: String,
    /// `directory`, `device` or `image`.
    pub kind: Word,
    /// The configured path.
    pub path: PathBuf,
    /// `open` (a driver has it open), `closed` (no driver has), or `missing`.
    pub state: Word,
    /// The reason if the pool is missing.
    pub why: Option<String>,
    /// The driver's process ID, if it is visible from this PID namespace.
    pub pid: Option<u32>,
    /// The pool's ID, part of every ID in it.
    pub id: Option<String>,
    /// The pool's root directory.
    pub root: Option<PathBuf>,
    /// The filesystem type, by the kernel's name.
    pub fs: Option<String>,
    /// Whether snapshots share blocks; null if unknown.
    pub reflinks: Option<bool>,
    /// Size of the pool's filesystem.
    pub size_bytes: Option<u64>,
    /// Free space of the pool's filesystem, including what it reserves for root.
    pub free_bytes: Option<u64>,
    /// The part of the free space that volumes may use.
    pub available_bytes: Option<u64>,
    /// Bytes promised to volumes and snapshots.
    pub promised_bytes: Option<u64>,
    /// Number of volumes in the pool.
    pub volumes: usize,
    /// Number of snapshots in the pool.
    pub snapshots: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeReport {
    /// The volume's ID.
    pub id: String,
    /// The name in the CreateVolume request.
    pub name: String,
    /// Kubelet's handle for an inline volume.
    pub inline: Option<String>,
    /// The name of the volume's pool.
    pub pool: String,
    /// The volume's size.
    pub size_bytes: u64,
    /// Bytes allocated on disk, including blocks shared with others; null without an image.
    pub allocated_bytes: Option<u64>,
    /// When the image was last written; null without an image.
    pub written_ns: Option<u64>,
    /// `thin` or `thick`.
    pub provisioning: Provisioning,
    /// `none`, `ext4`, `xfs`, `btrfs` or `raw`; a `?` at the end means that mkfs did not finish.
    pub format: String,
    /// The snapshot or volume that is the content source.
    pub source: Option<String>,
    /// Nodes to which the volume is published.
    pub published_nodes: Vec<String>,
    /// The staging path.
    pub staged_at: Option<PathBuf>,
    /// `block` or `mount`, if the volume is staged.
    pub staged_as: Option<Word>,
    /// The volume's loop devices, including those over them.
    pub loops: Vec<PathBuf>,
    /// True if direct I/O is active; null without a loop device.
    pub direct_io: Option<bool>,
    /// When a freeze that has not ended began.
    pub frozen_since_ns: Option<u64>,
    /// Where the volume's filesystem is mounted or its device is bound.
    pub mounts: Vec<PathBuf>,
    /// When the volume was created.
    pub created_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotReport {
    /// The snapshot's ID.
    pub id: String,
    /// The name in the request that created the snapshot.
    pub name: String,
    /// The name of the snapshot's pool.
    pub pool: String,
    /// The ID of the source volume.
    pub source: String,
    /// True if the source volume still exists.
    pub source_exists: bool,
    /// The source volume's size when the snapshot was taken.
    pub size_bytes: u64,
    /// Bytes allocated on disk, including blocks shared with others; null without an image.
    pub allocated_bytes: Option<u64>,
    /// When the image was last written; null without an image.
    pub written_ns: Option<u64>,
    /// The group snapshot of which this is a member.
    pub group: Option<String>,
    /// The point in time that the snapshot shows.
    pub created_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupReport {
    /// The group snapshot's ID.
    pub id: String,
    /// The name in the request that created the group snapshot.
    pub name: String,
    /// The name of the pool.
    pub pool: String,
    /// The IDs of the member snapshots.
    pub snapshots: Vec<String>,
    /// The point in time that the snapshots show.
    pub created_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoopReport {
    /// The device node.
    pub device: PathBuf,
    /// The kind of object that the device is over: `pool`, `volume`, `snapshot`, `leftover`,
    /// `deleted` or `loop`.
    pub over: Word,
    /// That object: a pool's name, an ID, a path, or a device.
    pub object: String,
    /// The device's size.
    pub size_bytes: u64,
    /// The logical block size.
    pub block_size: u32,
    /// True if direct I/O is active.
    pub direct_io: bool,
    /// True if the device is read-only.
    pub read_only: bool,
    /// True if the kernel detaches the device at its last close.
    pub autoclear: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountReport {
    /// The mount point.
    pub path: PathBuf,
    /// `filesystem` or `device` (the node of a raw block volume).
    pub kind: Word,
    /// The filesystem type; for a device, that of `/dev`.
    pub fs: String,
    /// The loop device that is mounted or bound.
    pub device: PathBuf,
    /// The object under the loop device: a pool's name, an ID, a path, or a device.
    pub object: String,
    /// True if the mount is read-only.
    pub read_only: bool,
    /// All options of the mount and its filesystem.
    pub options: Vec<String>,
}

impl Report {
    /// Builds the report from a survey.
    pub fn of(survey: &Survey) -> Report {
        let loops = loop_uses(survey);
        let mut report = Report {
            pools: survey.pools.iter().map(pool).collect(),
            volumes: Vec::new(),
            snapshots: Vec::new(),
            groups: Vec::new(),
            loops: loops.values().map(loop_device).collect(),
            mounts: mounts(&loops)
                .into_iter()
                .map(|(l, m)| mount(l, m))
                .collect(),
            orphans: check(survey),
        };
        report.orphans.retain(|p| p.kind.is_orphan());
        for (pool, contents) in survey.contents() {
            let name = &pool.name;
            let volumes = readable(&contents.volumes);
            let volumes = volumes.map(|(v, item)| volume(name, v, item.image, survey));
            report.volumes.extend(volumes);
            let snapshots = readable(&contents.snapshots);
            let snapshots = snapshots.map(|(s, item)| snapshot(name, s, item.image, survey));
            report.snapshots.extend(snapshots);
            let groups = readable(&contents.groups);
            report.groups.extend(groups.map(|(g, _)| group(name, g)));
        }
        report
    }
}

fn pool(pool: &PoolSurvey) -> PoolReport {
    let contents: Option<&Contents> = pool.state.as_ref().ok();
    PoolReport {
        name: pool.name.clone(),
        kind: kind(pool.kind).into(),
        path: pool.path.clone(),
        state: match (&pool.state, &pool.driver) {
            (Err(_), _) => "missing",
            (Ok(_), Some(_)) => "open",
            (Ok(_), None) => "closed",
        }
        .into(),
        why: pool.state.as_ref().err().cloned(),
        pid: pool.driver.and_then(|holder| holder.pid),
        id: contents.map(|c| c.id.to_string()),
        root: contents.map(|c| c.root.clone()),
        fs: contents.map(|_| pool.fs_type.clone()),
        reflinks: contents.and_then(|c| c.reflinks),
        size_bytes: contents.map(|c| c.usage.total_bytes),
        free_bytes: contents.map(|c| c.usage.free_bytes),
        available_bytes: contents.map(|c| c.usage.available_bytes),
        promised_bytes: contents.map(Contents::promised_bytes),
        volumes: contents.map_or(0, |c| c.volumes.len()),
        snapshots: contents.map_or(0, |c| c.snapshots.len()),
    }
}

/// The name of a pool's kind in the output.
pub fn kind(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::Directory => "directory",
        PoolKind::Device => "device",
        PoolKind::Image => "image",
    }
}

fn volume(pool: &str, v: &VolumeRecord, image: Option<Image>, survey: &Survey) -> VolumeReport {
    let identity = VolumeIdentity::of(v, image.map(|image| image.file));
    let state = VolumeState::of(&survey.kernel, identity);
    let devices: Vec<u32> = state.own().chain(state.over()).map(|l| l.minor).collect();
    VolumeReport {
        id: v.id.to_string(),
        name: v.name.to_string(),
        inline: v.inline.as_deref().map(str::to_owned),
        pool: pool.to_owned(),
        size_bytes: v.capacity_bytes,
        allocated_bytes: image.map(|i| i.allocated),
        written_ns: image.map(|i| i.written_ns),
        provisioning: v.settings.provisioning,
        format: format(v.format),
        source: v.source.as_deref().map(|source| match source {
            Source::Snapshot(id) => id.to_string(),
            Source::Volume(id) => id.to_string(),
        }),
        published_nodes: v.publications.keys().cloned().collect(),
        staged_at: v.stage.as_ref().map(|s| s.path.clone()),
        staged_as: v.stage.as_ref().map(|s| match s.capability.access {
            Access::Block => "block".into(),
            Access::Mount { .. } => "mount".into(),
        }),
        loops: devices.iter().map(|minor| loop_path(*minor)).collect(),
        direct_io: state.own().next().map(|l| l.direct_io),
        frozen_since_ns: v.freeze.map(|FreezeIntent { since_ns }| since_ns),
        mounts: devices
            .iter()
            .flat_map(|minor| state.kernel().mounts_of(*minor))
            .map(|m| m.mount_point.to_path_buf())
            .collect(),
        created_ns: v.created_ns,
    }
}

fn format(format: Format) -> String {
    match format {
        Format::None => "none".to_owned(),
        Format::Formatting(fs) => format!("{fs}?"),
        Format::Done(fs) => fs.to_string(),
        Format::Raw => "raw".to_owned(),
    }
}

fn snapshot(
    pool: &str,
    s: &SnapshotRecord,
    image: Option<Image>,
    survey: &Survey,
) -> SnapshotReport {
    let source = s.source.to_string();
    let mut volumes = survey.contents().flat_map(|(_, c)| &c.volumes);
    SnapshotReport {
        id: s.id.to_string(),
        name: s.name.clone(),
        pool: pool.to_owned(),
        source_exists: volumes.any(|v| v.name == source),
        source,
        size_bytes: s.size_bytes,
        allocated_bytes: image.map(|i| i.allocated),
        written_ns: image.map(|i| i.written_ns),
        group: s.group.map(|g| g.to_string()),
        created_ns: s.created_ns,
    }
}

fn group(pool: &str, g: &GroupRecord) -> GroupReport {
    GroupReport {
        id: g.id.to_string(),
        name: g.name.clone(),
        pool: pool.to_owned(),
        snapshots: g.snapshots.iter().map(ToString::to_string).collect(),
        created_ns: g.created_ns,
    }
}

fn loop_device(l: &LoopUse) -> LoopReport {
    let (over, object) = l.owner.parts();
    LoopReport {
        device: loop_path(l.device.minor),
        over: over.into(),
        object,
        size_bytes: l.device.size_bytes,
        block_size: l.device.block_size,
        direct_io: l.device.direct_io,
        read_only: l.device.read_only,
        autoclear: l.device.autoclear,
    }
}

fn mount(l: &LoopUse, m: &MountEntry) -> MountReport {
    let device = m.loop_node.is_some();
    let others = m
        .super_options
        .iter()
        .filter(|option| !m.options.has(option));
    let options = m.options.iter().chain(others).map(str::to_owned).collect();
    MountReport {
        path: m.mount_point.to_path_buf(),
        kind: if device { "device" } else { "filesystem" }.into(),
        fs: m.fs_type.to_string(),
        device: loop_path(l.device.minor),
        object: l.owner.parts().1,
        read_only: m.read_only(),
        options,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::fsck::{ProblemKind, Repair, Severity, scene};

    #[test]
    fn the_json_reads_back() {
        let scene = scene::Scene::new();
        let mut report = Report::of(scene.survey());
        report.orphans.push(ReportedProblem {
            severity: Severity::Warning,
            kind: ProblemKind::LoopUnused,
            object: "/dev/loop9".to_owned(),
            pool: None,
            what: "is not in use".to_owned(),
            repair: Repair::Recovery,
        });
        let text = serde_json::to_string(&report).unwrap();
        let read: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
    }

    #[test]
    fn a_newer_program_may_have_other_words() {
        let scene = scene::Scene::new();
        let mut report = Report::of(scene.survey());
        report.pools[0].state = "sealed".into();
        let mut json = serde_json::to_value(&report).unwrap();
        json["volumes"][0]["tier"] = "cold".into();
        let read: Report = serde_json::from_value(json).unwrap();
        assert_eq!(read.pools[0].state, "sealed");
    }
}
