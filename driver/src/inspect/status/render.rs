//! Formats a report as tables for a terminal.

use hostloop_report::status::{
    GroupReport, Report, SnapshotReport, VolumeFault, VolumeReport, VolumeUser,
};
use hostloop_terminal::color::{BAD, paint, severity};
use hostloop_terminal::columns::{self, LOOP, MOUNT, io, or_dash, size};
use hostloop_terminal::humanize::{age, bytes, count};
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::{long, numbers, words};

use crate::storage::Reach;

/// Formats the report as lines. `width` is the terminal's, if there is one. Ages are relative to
/// `now_ns`.
pub fn text(report: &Report, width: Option<usize>, now_ns: u64) -> Vec<String> {
    let mut page = Page::new(width, now_ns);
    page.table("Pools", &columns::pool(), &report.pools);
    for pool in &report.pools {
        if let Some(why) = &pool.why {
            let line = format!("  {} is missing: {why}", pool.name);
            page.lines.push(paint(BAD, &line));
        }
    }
    page.table("Volumes", &VOLUME, &report.volumes);
    page.table("Snapshots", &SNAPSHOT, &report.snapshots);
    page.table("Group snapshots", &GROUP, &report.groups);
    page.table("Loop devices", &LOOP, &report.loops);
    page.table("Mounts", &MOUNT, &report.mounts);
    orphans(report, &mut page);
    page.lines
}

const VOLUME: [Cell<VolumeReport>; 11] = [
    (long("ID", 14), |v, _| v.id.clone()),
    (long("NAME", 14), |v, _| v.name.clone()),
    (words("POOL"), |v, _| v.pool.clone()),
    (numbers("SIZE"), |v, _| bytes(v.size_bytes)),
    (numbers("ON DISK"), |v, _| size(v.allocated_bytes)),
    (words("FS"), |v, _| v.format.clone()),
    (words("NODES"), |v, _| or_dash(Some(nodes(v)))),
    (words("USE"), |v, _| usage(v)),
    (words("LOOP"), |v, _| columns::loops(&v.loops)),
    (words("I/O"), |v, _| or_dash(v.direct_io.map(io))),
    (numbers("AGE"), |v, now_ns| age(v.created_ns, now_ns)),
];

const SNAPSHOT: [Cell<SnapshotReport>; 9] = [
    (long("ID", 14), |s, _| s.id.clone()),
    (long("NAME", 14), |s, _| s.name.clone()),
    (words("POOL"), |s, _| s.pool.clone()),
    (long("SOURCE", 14), |s, _| {
        format!(
            "{}{}",
            s.source,
            if s.source_exists { "" } else { " (gone)" }
        )
    }),
    (numbers("SIZE"), |s, _| bytes(s.size_bytes)),
    (numbers("ON DISK"), |s, _| size(s.allocated_bytes)),
    (words("TAKEN"), |s, _| taken(s)),
    (long("GROUP", 8), |s, _| or_dash(s.group.clone())),
    (numbers("AGE"), |s, now_ns| age(s.created_ns, now_ns)),
];

const GROUP: [Cell<GroupReport>; 5] = [
    (long("ID", 14), |g, _| g.id.clone()),
    (long("NAME", 14), |g, _| g.name.clone()),
    (words("POOL"), |g, _| g.pool.clone()),
    (numbers("SNAPSHOTS"), |g, _| g.snapshots.len().to_string()),
    (numbers("AGE"), |g, now_ns| age(g.created_ns, now_ns)),
];

/// How a snapshot was taken. A cut has its number in the exploration.
fn taken(s: &SnapshotReport) -> String {
    match &s.cut {
        Some(cut) => format!("cut {}", cut.number),
        None => or_dash(s.consistency.as_deref().map(str::to_owned)),
    }
}

/// The nodes to which a volume is published. Of one that several can use, those that use it.
fn nodes(v: &VolumeReport) -> String {
    if v.reach.as_deref() != Some(Reach::Kernel.as_str()) {
        return v.published_nodes.join(",");
    }
    let users = v.users.iter().map(VolumeUser::words);
    users.collect::<Vec<_>>().join(",")
}

/// Describes the use of a volume in a word or two.
fn usage(v: &VolumeReport) -> String {
    let fault = v.fault.as_ref().and_then(VolumeFault::mark);
    let staged = match (v.staged_as.as_deref(), &v.inline) {
        (None, _) => return or_dash(fault),
        (Some(_), Some(_)) => "inline",
        (Some("block"), None) => "block",
        (Some(_), None) => "mount",
    };
    // The first mount of a filesystem is the staging mount.
    let pods = match v.staged_at.as_ref() {
        Some(at) => v.mounts.iter().filter(|m| *m != at).count(),
        None => v.mounts.len(),
    };
    // A fault explains a freeze.
    let trouble = match (fault, v.frozen_since_ns) {
        (Some(fault), _) => format!(", {fault}"),
        (None, Some(_)) => ", frozen".to_owned(),
        (None, None) => String::new(),
    };
    match pods {
        0 => format!("{staged}{trouble}"),
        n => format!("{staged} ×{n}{trouble}"),
    }
}

fn orphans(report: &Report, page: &mut Page) {
    if report.orphans.is_empty() {
        return;
    }
    let heading = count(report.orphans.len(), "orphan");
    page.heading(&format!("{heading} (hostloop fsck explains them)"));
    for orphan in &report.orphans {
        let object = paint(severity(orphan.severity), &orphan.object);
        page.lines.push(format!("  {object} {}", orphan.what));
    }
}

#[cfg(test)]
mod tests {
    use hostloop_report::reported_problem::{ProblemKind, Repair, ReportedProblem, Severity};
    use hostloop_terminal::terminal::plain;
    use serde_json::Value;

    use super::*;
    use crate::inspect::fsck::scene;
    use crate::inspect::status::report_of;

    #[test]
    fn every_table_is_there_and_fits() {
        let scene = scene::Scene::new();
        let report = report_of(scene.survey());
        let whole = text(&report, None, 1).join("\n");
        for heading in [
            "Pools",
            "Volumes",
            "Snapshots",
            "Group snapshots",
            "Loop devices",
            "Mounts",
        ] {
            assert!(whole.contains(heading), "{whole}");
        }
        assert!(!whole.contains("orphan"), "{whole}");
        for volume in &report.volumes {
            assert!(whole.contains(&volume.id), "{whole}");
        }
        let narrow = text(&report, Some(100), 1);
        for line in &narrow {
            let plain = hostloop_terminal::terminal::plain(line);
            assert!(plain.chars().count() <= 100, "{plain}");
        }
    }

    #[test]
    fn uses_in_words() {
        let scene = scene::Scene::new();
        let mut report = report_of(scene.survey());
        let volume = &mut report.volumes[0];
        assert_eq!(usage(volume), "mount");
        volume.mounts.push("/k/pod".into());
        assert_eq!(usage(volume), "mount ×1");
        volume.frozen_since_ns = Some(1);
        assert_eq!(usage(volume), "mount ×1, frozen");
        volume.fault = Some(VolumeFault {
            name: "gone".to_owned(),
            fault: "gone,for=600s".to_owned(),
            since_ns: 1,
            state: "active".into(),
        });
        assert_eq!(usage(volume), "mount ×1, fault gone");
        volume.staged_as = None;
        assert_eq!(usage(volume), "fault gone");
        volume.fault = None;
        assert_eq!(usage(volume), "-");
    }

    #[test]
    fn all_nodes_that_use_a_volume_are_shown() {
        let scene = scene::Scene::new();
        let mut report = report_of(scene.survey());
        let volume = &mut report.volumes[0];
        let users = [("n1", true, true), ("n2", true, false), ("n3", false, true)];
        let users = users.map(|(node, published, pins)| VolumeUser {
            node: node.to_owned(),
            published,
            pins,
        });
        volume.users = users.into();
        volume.reach = Some("kernel".into());
        assert_eq!(nodes(volume), "n1,n2(attached),n3(held)");
        volume.users.clear();
        assert_eq!(nodes(volume), "");
        volume.reach = Some("node".into());
        volume.published_nodes = vec!["n1".to_owned()];
        assert_eq!(nodes(volume), "n1");
    }

    #[test]
    fn a_cut_shows_its_number() {
        let mut scene = scene::Scene::new();
        let of = |scene: &scene::Scene| taken(&report_of(scene.survey()).snapshots[0]);
        assert_eq!(of(&scene), "frozen");
        scene.set_cut();
        assert_eq!(of(&scene), "cut 7");
    }

    /// Adds a text to each text in a value.
    fn add(text: &str, value: &mut Value) {
        match value {
            Value::String(own) => own.push_str(text),
            Value::Array(all) => all.iter_mut().for_each(|one| add(text, one)),
            Value::Object(all) => all.values_mut().for_each(|one| add(text, one)),
            _ => {}
        }
    }

    fn is_harmful(c: char) -> bool {
        c.is_control() || matches!(c, '\u{202e}' | '\u{200b}')
    }

    #[test]
    fn whatever_a_report_says_it_controls_no_terminal() {
        const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\rover\nline\u{202e}txet\u{200b}";
        let scene = scene::Scene::new();
        let mut value = serde_json::to_value(report_of(scene.survey())).unwrap();
        add(HOSTILE, &mut value);
        let mut report: Report = serde_json::from_value(value).unwrap();
        report.orphans.push(ReportedProblem {
            severity: Severity::Error,
            kind: ProblemKind::Stranger,
            object: HOSTILE.to_owned(),
            pool: None,
            what: HOSTILE.to_owned(),
            repair: Repair::Recovery,
        });
        for width in [None, Some(80)] {
            let lines = text(&report, width, 0);
            let lines: Vec<String> = lines.iter().map(|line| plain(line)).collect();
            for line in &lines {
                assert!(!line.contains(is_harmful), "{line:?}");
            }
            let shown = lines.iter().filter(|line| line.contains("\\u{202e}"));
            assert!(shown.count() > 4, "{lines:#?}");
        }
    }
}
