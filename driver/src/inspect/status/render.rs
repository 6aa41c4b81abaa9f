//! Formats a report as tables for a terminal.

use super::color::{BAD, paint};
use super::humanize::{age, bytes, count};
use super::page::{Page, or_dash, size};
use super::report::{Report, VolumeReport};
use super::table::{long, numbers, words};

/// Formats the report as lines. `width` is the terminal's, if there is one. Ages are relative to
/// `now_ns`.
pub fn text(report: &Report, width: Option<usize>, now_ns: u64) -> Vec<String> {
    let mut page = Page::new(width);
    pools(report, &mut page);
    volumes(report, &mut page, now_ns);
    snapshots(report, &mut page, now_ns);
    groups(report, &mut page, now_ns);
    loops(report, &mut page);
    mounts(report, &mut page);
    orphans(report, &mut page);
    page.lines
}

fn pools(report: &Report, page: &mut Page) {
    let columns = [
        words("NAME"),
        words("KIND"),
        words("STATE"),
        words("FS"),
        words("REFLINKS"),
        numbers("SIZE"),
        numbers("FREE"),
        numbers("PROMISED"),
        numbers("VOLUMES"),
        numbers("SNAPSHOTS"),
        long("PATH", 12),
    ];
    let rows = report.pools.iter().map(|p| {
        let state = match p.pid {
            Some(pid) => format!("{} (pid {pid})", p.state),
            None => p.state.to_string(),
        };
        let reflinks = p.reflinks.map(|r| if r { "yes" } else { "no" }.to_owned());
        vec![
            p.name.clone(),
            p.kind.to_string(),
            state,
            or_dash(p.fs.clone()),
            or_dash(reflinks),
            size(p.size_bytes),
            size(p.free_bytes),
            size(p.promised_bytes),
            p.volumes.to_string(),
            p.snapshots.to_string(),
            p.path.display().to_string(),
        ]
    });
    page.table("Pools", &columns, &rows.collect::<Vec<_>>());
    for p in &report.pools {
        if let Some(why) = &p.why {
            let line = format!("  {} is missing: {why}", p.name);
            page.lines.push(paint(BAD, &line));
        }
    }
}

fn volumes(report: &Report, page: &mut Page, now_ns: u64) {
    let columns = [
        long("ID", 14),
        long("NAME", 14),
        words("POOL"),
        numbers("SIZE"),
        numbers("ON DISK"),
        words("FORMAT"),
        words("NODES"),
        words("USE"),
        words("LOOP"),
        words("I/O"),
        numbers("AGE"),
    ];
    let rows = report.volumes.iter().map(|v| {
        let loops = v.loops.iter().map(|l| l.display().to_string());
        let loops = loops.map(|l| l.trim_start_matches("/dev/").to_owned());
        vec![
            v.id.clone(),
            v.name.clone(),
            v.pool.clone(),
            bytes(v.size_bytes),
            size(v.allocated_bytes),
            v.format.clone(),
            or_dash(Some(v.published_nodes.join(","))),
            usage(v),
            or_dash(Some(loops.collect::<Vec<_>>().join(","))),
            or_dash(v.direct_io.map(|d| if d { "direct" } else { "buffered" }.to_owned())),
            age(v.created_ns, now_ns),
        ]
    });
    page.table("Volumes", &columns, &rows.collect::<Vec<_>>());
}

/// Describes the use of a volume in a word or two.
fn usage(v: &VolumeReport) -> String {
    let staged = match (v.staged_as.as_deref(), &v.inline) {
        (None, _) => return "-".to_owned(),
        (Some(_), Some(_)) => "inline",
        (Some("block"), None) => "block",
        (Some(_), None) => "mount",
    };
    // The first mount of a filesystem is the staging mount.
    let pods = match v.staged_at.as_ref() {
        Some(at) => v.mounts.iter().filter(|m| *m != at).count(),
        None => v.mounts.len(),
    };
    let frozen = if v.frozen_since_ns.is_some() { ", frozen" } else { "" };
    match pods {
        0 => format!("{staged}{frozen}"),
        n => format!("{staged} ×{n}{frozen}"),
    }
}

fn snapshots(report: &Report, page: &mut Page, now_ns: u64) {
    let columns = [
        long("ID", 14),
        long("NAME", 14),
        words("POOL"),
        long("SOURCE", 14),
        numbers("SIZE"),
        numbers("ON DISK"),
        long("GROUP", 8),
        numbers("AGE"),
    ];
    let rows = report.snapshots.iter().map(|s| {
        let gone = if s.source_exists { "" } else { " (gone)" };
        vec![
            s.id.clone(),
            s.name.clone(),
            s.pool.clone(),
            format!("{}{gone}", s.source),
            bytes(s.size_bytes),
            size(s.allocated_bytes),
            or_dash(s.group.clone()),
            age(s.created_ns, now_ns),
        ]
    });
    page.table("Snapshots", &columns, &rows.collect::<Vec<_>>());
}

fn groups(report: &Report, page: &mut Page, now_ns: u64) {
    let columns =
        [long("ID", 14), long("NAME", 14), words("POOL"), numbers("SNAPSHOTS"), numbers("AGE")];
    let rows = report.groups.iter().map(|g| {
        vec![
            g.id.clone(),
            g.name.clone(),
            g.pool.clone(),
            g.snapshots.len().to_string(),
            age(g.created_ns, now_ns),
        ]
    });
    page.table("Group snapshots", &columns, &rows.collect::<Vec<_>>());
}

fn loops(report: &Report, page: &mut Page) {
    let columns = [
        words("DEVICE"),
        numbers("SIZE"),
        numbers("BLOCK"),
        words("I/O"),
        words("MODE"),
        words("OVER"),
        long("OBJECT", 14),
    ];
    let rows = report.loops.iter().map(|l| {
        vec![
            l.device.display().to_string(),
            bytes(l.size_bytes),
            l.block_size.to_string(),
            if l.direct_io { "direct" } else { "buffered" }.to_owned(),
            if l.read_only { "ro" } else { "rw" }.to_owned(),
            l.over.to_string(),
            l.object.clone(),
        ]
    });
    page.table("Loop devices", &columns, &rows.collect::<Vec<_>>());
}

fn mounts(report: &Report, page: &mut Page) {
    let columns =
        [words("DEVICE"), words("FS"), words("MODE"), long("OBJECT", 14), long("PATH", 30)];
    let rows = report.mounts.iter().map(|m| {
        vec![
            m.device.display().to_string(),
            if m.kind == "device" { "(node)" } else { &m.fs }.to_owned(),
            if m.read_only { "ro" } else { "rw" }.to_owned(),
            m.object.clone(),
            m.path.display().to_string(),
        ]
    });
    page.table("Mounts", &columns, &rows.collect::<Vec<_>>());
}

fn orphans(report: &Report, page: &mut Page) {
    if report.orphans.is_empty() {
        return;
    }
    let heading = count(report.orphans.len(), "orphan");
    page.heading(&format!("{heading} (hostloop fsck explains them)"));
    for orphan in &report.orphans {
        let object = paint(orphan.severity.style(), &orphan.object);
        page.lines.push(format!("  {object} {}", orphan.what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::fsck::scene;

    #[test]
    fn every_table_is_there_and_fits() {
        let scene = scene::Scene::new();
        let report = Report::of(scene.survey());
        let whole = text(&report, None, 1).join("\n");
        for heading in
            ["Pools", "Volumes", "Snapshots", "Group snapshots", "Loop devices", "Mounts"]
        {
            assert!(whole.contains(heading), "{whole}");
        }
        assert!(!whole.contains("orphan"), "{whole}");
        for volume in &report.volumes {
            assert!(whole.contains(&volume.id), "{whole}");
        }
        let narrow = text(&report, Some(100), 1);
        for line in &narrow {
            let plain = anstream::adapter::strip_str(line).to_string();
            assert!(plain.chars().count() <= 100, "{plain}");
        }
    }

    #[test]
    fn uses_in_words() {
        let scene = scene::Scene::new();
        let mut report = Report::of(scene.survey());
        let volume = &mut report.volumes[0];
        assert_eq!(usage(volume), "mount");
        volume.mounts.push("/k/pod".into());
        assert_eq!(usage(volume), "mount ×1");
        volume.frozen_since_ns = Some(1);
        assert_eq!(usage(volume), "mount ×1, frozen");
        volume.staged_as = None;
        assert_eq!(usage(volume), "-");
    }
}
