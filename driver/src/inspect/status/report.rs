//! Makes the report of `hostloop status` from a survey.

use hostloop_report::status::{
    CutMark, CutUsage, GroupReport, LoopReport, MountReport, PoolFault, PoolReport, Report,
    SnapshotReport, VolumeFault, VolumeReport,
};

use super::shared_kernel::SharedUse;
use crate::diagnose::volume::has_stopped;
use crate::diagnose::{NotedFault, VolumeIdentity, VolumeState};
use crate::inspect::fsck::check;
use crate::inspect::inventory::{
    Contents, ImageStat, LoopUse, PoolSurvey, Survey, loop_uses, mounts, readable,
};
use crate::kernel::{MountEntry, loop_path};
use crate::storage::{
    Access, Format, FreezeIntent, GroupRecord, PoolKind, SnapshotRecord, Source, VolumeRecord,
};

/// The report of a survey, without the kernel that the node shares.
pub fn report_of(survey: &Survey) -> Report {
    let loops = loop_uses(survey);
    let shared = SharedUse::of(survey);
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
        kernel: None,
        foreign: shared.foreign(survey),
    };
    report.orphans.retain(|p| p.kind.is_orphan());
    for (pool, contents) in survey.contents() {
        let name = &pool.name;
        let volumes = readable(&contents.volumes);
        let volumes = volumes.map(|(v, item)| volume(pool, v, item.image, survey, &shared));
        report.volumes.extend(volumes);
        let snapshots = readable(&contents.snapshots);
        let snapshots = snapshots.map(|(s, item)| snapshot(name, s, item.image, survey));
        report.snapshots.extend(snapshots);
        let groups = readable(&contents.groups);
        report.groups.extend(groups.map(|(g, _)| group(name, g)));
    }
    report
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
        fault: pool.fault.as_ref().map(pool_fault),
        pid: pool.driver.and_then(|holder| holder.pid),
        id: contents.map(|c| c.id.to_string()),
        root: contents.map(|c| c.root.clone()),
        fs: contents.map(|_| pool.fs_type.clone()),
        reflinks: contents.and_then(|c| c.reflinks),
        size_bytes: contents.map(|c| c.usage.total_bytes),
        free_bytes: contents.map(|c| c.usage.free_bytes),
        available_bytes: contents.map(|c| c.usage.available_bytes),
        promised_bytes: contents.map(Contents::promised_bytes),
        held_bytes: contents.map(Contents::held_bytes),
        volumes: contents.map_or(0, |c| c.volumes.len()),
        snapshots: contents.map_or(0, |c| c.snapshots.len()),
        cuts: contents.and_then(cuts),
        deleted_bases: contents.map(|c| c.bases.len()),
        deleted_base_bytes: contents.map(|c| c.bases.iter().map(|s| s.allocated_bytes).sum()),
    }
}

/// The cuts in a pool; `None` without any.
fn cuts(contents: &Contents) -> Option<CutUsage> {
    let snapshots = readable(&contents.snapshots).map(|(snapshot, _)| snapshot);
    let cuts: Vec<&SnapshotRecord> = snapshots.filter(|s| s.cut.is_some()).collect();
    let promised = cuts
        .iter()
        .map(|cut| cut.allocated_bytes.min(cut.size_bytes));
    (!cuts.is_empty()).then(|| CutUsage {
        count: cuts.len(),
        promised_bytes: promised.fold(0, u64::saturating_add),
    })
}

fn pool_fault(noted: &NotedFault) -> PoolFault {
    let name = noted.fault.split(',').next().unwrap_or_default();
    PoolFault {
        name: name.to_owned(),
        fault: noted.fault.clone(),
        since_ns: noted.since_ns,
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

fn volume(
    pool: &PoolSurvey,
    v: &VolumeRecord,
    image: Option<ImageStat>,
    survey: &Survey,
    shared: &SharedUse,
) -> VolumeReport {
    let identity = VolumeIdentity::of(v, image.map(|image| image.file));
    let state = VolumeState::of(&survey.kernel, identity);
    let devices: Vec<u32> = state.own().chain(state.over()).map(|l| l.minor).collect();
    VolumeReport {
        id: v.id.to_string(),
        name: v.name.to_string(),
        inline: v.inline.as_deref().map(str::to_owned),
        pool: pool.name.clone(),
        size_bytes: v.capacity_bytes,
        allocated_bytes: image.map(|i| i.allocated),
        written_ns: image.map(|i| i.written_ns),
        provisioning: v.settings.provisioning.as_str().into(),
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
        fault: fault(v, &state, pool.shut_down.contains(&v.id)),
        mounts: devices
            .iter()
            .flat_map(|minor| state.kernel().mounts_of(*minor))
            .map(|m| m.mount_point.to_path_buf())
            .collect(),
        created_ns: v.created_ns,
        reach: Some(v.reach.as_str().into()),
        users: shared.users(v, &devices),
    }
}

/// The fault of a volume. `has_shut_down`: its filesystem says so when it is asked.
fn fault(v: &VolumeRecord, state: &VolumeState, has_shut_down: bool) -> Option<VolumeFault> {
    let fault = v.fault.as_deref()?;
    let is_stopped = !fault.is_past && (has_shut_down || has_stopped(v, state));
    if fault.is_withdrawn && !is_stopped {
        return None;
    }
    let word = match (fault.over, &v.stage) {
        (false, Some(_)) => "active",
        (false, None) => "waiting",
        (true, _) if is_stopped => "stopped",
        (true, _) => "over",
    };
    Some(VolumeFault {
        name: fault.name().to_owned(),
        fault: fault.fault.clone(),
        since_ns: fault.since_ns,
        state: word.into(),
    })
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
    image: Option<ImageStat>,
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
        consistency: Some(s.consistency.as_str().into()),
        cut: s.cut.map(|cut| CutMark {
            exploration: cut.exploration.to_string(),
            number: cut.number,
            expires_ns: cut.expires_ns,
        }),
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
    use hostloop_report::reported_problem::{ProblemKind, Repair, ReportedProblem, Severity};

    use super::*;
    use crate::inspect::fsck::scene;

    #[test]
    fn the_json_reads_back() {
        let scene = scene::Scene::new();
        let mut report = report_of(scene.survey());
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
    fn a_fault_is_reported_until_nothing_asks_for_it() {
        for (over, is_staged, has_shut_down, state) in [
            (false, true, false, "active"),
            (false, true, true, "active"),
            (false, false, false, "waiting"),
            (true, true, true, "stopped"),
            (true, true, false, "over"),
            (true, false, false, "over"),
        ] {
            let mut scene = scene::Scene::new();
            assert_eq!(report_of(scene.survey()).volumes[0].fault, None);
            scene.set_fault("gone,for=600s", over);
            if !is_staged {
                scene.unstage();
            }
            if has_shut_down {
                scene.shut_down();
            }
            let expected = VolumeFault {
                name: "gone".to_owned(),
                fault: "gone,for=600s".to_owned(),
                since_ns: 1,
                state: state.into(),
            };
            let report = report_of(scene.survey());
            assert_eq!(report.volumes[0].fault.as_ref(), Some(&expected));
            assert_eq!(report.volumes[1].fault, None);
        }
    }

    /// The driver forgets it at its next look.
    #[test]
    fn a_fault_that_no_claim_asks_for_is_reported_while_it_stops_the_filesystem() {
        let mut scene = scene::Scene::new();
        scene.set_fault("gone,for=600s", true);
        scene.withdraw_fault();
        assert_eq!(report_of(scene.survey()).volumes[0].fault, None);
        scene.shut_down();
        let fault = report_of(scene.survey()).volumes[0].fault.clone();
        assert_eq!(fault.unwrap().state, "stopped");
    }

    /// Two volumes, and a snapshot of one of them.
    #[test]
    fn what_images_hold_counts_by_family() {
        let scene = scene::Scene::new();
        let report = report_of(scene.survey());
        let each = report.volumes[0].allocated_bytes.unwrap();
        assert_eq!(report.snapshots[0].allocated_bytes, Some(each));
        assert_eq!(report.pools[0].held_bytes, Some(2 * each));
    }

    #[test]
    fn cuts_are_counted_until_they_are_kept() {
        let mut scene = scene::Scene::new();
        let report = report_of(scene.survey());
        assert_eq!(
            (&report.pools[0].cuts, &report.snapshots[0].cut),
            (&None, &None)
        );
        scene.set_cut();
        let report = report_of(scene.survey());
        let usage = CutUsage {
            count: 1,
            promised_bytes: 4096,
        };
        assert_eq!(report.pools[0].cuts, Some(usage));
        let mark = report.snapshots[0].cut.as_ref().unwrap();
        assert_eq!((mark.number, mark.expires_ns), (7, 1));
    }

    #[test]
    fn a_newer_program_may_have_other_words() {
        let scene = scene::Scene::new();
        let mut report = report_of(scene.survey());
        report.pools[0].state = "sealed".into();
        let mut json = serde_json::to_value(&report).unwrap();
        json["volumes"][0]["tier"] = "cold".into();
        let read: Report = serde_json::from_value(json).unwrap();
        assert_eq!(read.pools[0].state, "sealed");
    }
}
