//! Formats a report as tables for a terminal.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anstyle::Style;
use hostloop_terminal::color::{BAD, QUIET, WARNING, paint};
use hostloop_terminal::columns::{self, io, or_dash, size};
use hostloop_terminal::humanize::{age, count};
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::{long, numbers, prose, words};

use super::report::{ClusterReport, PoolRow, SnapshotRow, VolumeRow};
use crate::output::{names, one_line};
use crate::verdict::{Stuck, VolumePhase};

/// How the tables look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TableStyle {
    /// The terminal's width, if there is one.
    pub(crate) width: Option<usize>,
    /// True for more columns.
    pub(crate) wide: bool,
    /// True for the rows of the tables alone.
    pub(crate) no_headers: bool,
    /// True if the objects are of several namespaces.
    pub(crate) namespaces: bool,
    /// True to leave out the pools.
    pub(crate) only_objects: bool,
    /// Now. Ages are relative to it.
    pub(crate) now_ns: u64,
}

/// Formats the report as lines.
pub(crate) fn text(report: &ClusterReport, look: TableStyle) -> Vec<String> {
    let mut page = Page::new(look.width, look.now_ns);
    page.no_headers = look.no_headers;
    if !look.no_headers {
        stuck(report, look, &mut page);
    }
    if !look.only_objects {
        pools(report, look, &mut page);
    }
    volumes(report, look, &mut page);
    snapshots(report, look, &mut page);
    if look.no_headers {
        return page.lines;
    }
    not_known(unknown(report), &mut page);
    orphans(report, &mut page);
    if page.lines.is_empty() {
        page.lines.push("No volumes and no snapshots.".to_owned());
    }
    page.lines
}

/// What is stuck, with the reason in full.
fn stuck(report: &ClusterReport, look: TableStyle, page: &mut Page) {
    let volumes = report.volumes.iter().filter_map(|row| {
        let what = match (&row.claim, &row.volume) {
            (Some(_), _) | (None, None) => claim_cell(row),
            (None, Some(volume)) => format!("volume {volume}"),
        };
        Some((
            place(look, &row.namespace, &what, &row.node),
            row.stuck.as_ref()?,
        ))
    });
    let snapshots = report.snapshots.iter().filter_map(|row| {
        let name = row
            .name
            .as_ref()
            .or(row.content.as_ref())
            .or(row.handle.as_ref());
        let what = format!("snapshot {}", or_dash(name.cloned()));
        Some((
            place(look, &row.namespace, &what, &row.node),
            row.stuck.as_ref()?,
        ))
    });
    let mut all: Vec<(String, &Stuck)> = volumes.chain(snapshots).collect();
    let lost: Vec<(String, String)> = if look.only_objects {
        Vec::new()
    } else {
        lost_pools(report)
    };
    if all.is_empty() && lost.is_empty() {
        return;
    }
    all.sort_by_key(|(_, stuck)| Reverse(stuck.since_ns));
    page.heading(&format!("Stuck ({})", all.len() + lost.len()));
    for (what, why) in &lost {
        page.lines
            .push(format!("  {}: {}", paint(BAD, what), one_line(why)));
    }
    for (what, stuck) in all {
        page.lines.push(format!(
            "  {}: {}",
            paint(BAD, &what),
            reason(stuck, look.now_ns)
        ));
    }
}

/// Why something is stuck, and for how long.
pub(crate) fn reason(stuck: &Stuck, now_ns: u64) -> String {
    let since = stuck
        .since_ns
        .map(|since| format!(" ({} ago)", age(since, now_ns)));
    format!("{}{}", one_line(&stuck.why), since.unwrap_or_default())
}

fn lost_pools(report: &ClusterReport) -> Vec<(String, String)> {
    let lost = report.pools.iter().filter_map(|pool| {
        let why = pool.pool.why.clone()?;
        Some((
            format!("pool {} on node {}", pool.pool.name, pool.node),
            why,
        ))
    });
    lost.collect()
}

/// An object with its namespace and node.
fn place(
    look: TableStyle,
    namespace: &Option<String>,
    what: &str,
    node: &Option<String>,
) -> String {
    let namespace = namespace.as_ref().filter(|_| look.namespaces);
    let namespace = namespace
        .map(|namespace| format!("{namespace}/"))
        .unwrap_or_default();
    let node = node
        .as_ref()
        .map(|node| format!(" on node {node}"))
        .unwrap_or_default();
    format!("{namespace}{what}{node}")
}

fn pools(report: &ClusterReport, look: TableStyle, page: &mut Page) {
    let mut cells: Vec<Cell<PoolRow>> = vec![(words("NODE"), |row, _| row.node.clone())];
    cells.extend(columns::pool());
    if !look.wide {
        // The path is the last one.
        cells.pop();
    }
    page.painted_table("Pools", &cells, &report.pools, |row: &PoolRow| {
        row.pool.why.as_ref().map(|_| BAD)
    });
}

fn volumes(report: &ClusterReport, look: TableStyle, page: &mut Page) {
    let mut cells: Vec<Cell<VolumeRow>> = Vec::new();
    if look.namespaces {
        cells.push((long("NAMESPACE", 9), |row, _| {
            or_dash(row.namespace.clone())
        }));
    }
    cells.extend::<[Cell<VolumeRow>; 9]>([
        (long("CLAIM", 14), |row, _| claim_cell(row)),
        (long("NODE", 8), |row, _| or_dash(row.node.clone())),
        (numbers("SIZE"), |row, _| size(row.size_bytes)),
        (numbers("ON DISK"), |row, _| size(row.used_bytes)),
        (words("FS"), |row, _| or_dash(row.filesystem.clone())),
        (words("LOOP"), |row, _| columns::loops(&row.loops)),
        (long("POD", 12), |row, _| or_dash(Some(row.pods.join(",")))),
        (words("STATE"), |row, _| row.state_words()),
        (numbers("AGE"), |row, now_ns| age(row.created_ns, now_ns)),
    ]);
    if look.wide {
        cells.extend::<[Cell<VolumeRow>; 6]>([
            (words("POOL"), |row, _| or_dash(row.pool.clone())),
            (words("CLASS"), |row, _| or_dash(row.class.clone())),
            (words("I/O"), |row, _| or_dash(row.direct_io.map(io))),
            (words("SOURCE"), |row, _| or_dash(row.source.clone())),
            (words("VOLUME"), |row, _| or_dash(row.volume.clone())),
            (words("ID"), |row, _| or_dash(row.handle.clone())),
        ]);
    }
    if report.volumes.iter().any(|row| !row.users.is_empty()) {
        cells.push((long("USED BY", 12), |row, _| {
            or_dash(Some(row.user_words()))
        }));
    }
    if report.volumes.iter().any(|row| row.note.is_some()) {
        cells.push((prose("NOTE", Some(18)), |row, _| {
            one_line(row.note.as_deref().unwrap_or("-"))
        }));
    }
    page.painted_table("Volumes", &cells, &report.volumes, volume_style);
}

fn volume_style(row: &VolumeRow) -> Option<Style> {
    match row {
        VolumeRow { stuck: Some(_), .. } => Some(BAD),
        VolumeRow {
            state: VolumePhase::Unclaimed,
            ..
        } => Some(QUIET),
        _ if row.fault_mark().is_some() => Some(WARNING),
        _ => None,
    }
}

fn snapshots(report: &ClusterReport, look: TableStyle, page: &mut Page) {
    let mut cells: Vec<Cell<SnapshotRow>> = Vec::new();
    if look.namespaces {
        cells.push((long("NAMESPACE", 9), |row, _| {
            or_dash(row.namespace.clone())
        }));
    }
    cells.extend::<[Cell<SnapshotRow>; 7]>([
        (long("SNAPSHOT", 14), |row, _| or_dash(row.name.clone())),
        (long("SOURCE", 14), |row, _| or_dash(row.source.clone())),
        (long("NODE", 8), |row, _| or_dash(row.node.clone())),
        (numbers("SIZE"), |row, _| size(row.size_bytes)),
        (numbers("ON DISK"), |row, _| size(row.used_bytes)),
        (words("STATE"), |row, _| row.state_words().to_owned()),
        (numbers("AGE"), |row, now_ns| age(row.created_ns, now_ns)),
    ]);
    if look.wide {
        cells.extend::<[Cell<SnapshotRow>; 4]>([
            (words("POOL"), |row, _| or_dash(row.pool.clone())),
            (words("GROUP"), |row, _| or_dash(row.group.clone())),
            (words("CONTENT"), |row, _| or_dash(row.content.clone())),
            (words("ID"), |row, _| or_dash(row.handle.clone())),
        ]);
    }
    page.painted_table(
        "Snapshots",
        &cells,
        &report.snapshots,
        |row: &SnapshotRow| row.stuck.as_ref().map(|_| BAD),
    );
}

/// The claim, or the inline volume.
fn claim_cell(row: &VolumeRow) -> String {
    or_dash(row.claim.clone().or_else(|| row.inline_name()))
}

/// Nodes that do not report, and what the person may not see.
pub(crate) fn unknown(report: &ClusterReport) -> impl Iterator<Item = String> {
    let mut silent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for node in &report.nodes {
        if let Some(problem) = &node.problem {
            silent
                .entry(problem)
                .or_default()
                .push(or_dash(Some(node.node.clone())));
        }
    }
    let silent = silent
        .into_iter()
        .map(|(problem, nodes)| format!("{}: {problem}", list(&nodes)));
    silent.chain(report.missing.iter().cloned())
}

/// Where `fsck` would help.
fn orphans(report: &ClusterReport, page: &mut Page) {
    let orphans: Vec<_> = report
        .nodes
        .iter()
        .filter(|node| node.orphans > 0)
        .collect();
    if !orphans.is_empty() {
        page.heading("Without an owner (hostloop fsck explains it)");
    }
    for node in orphans {
        let things = count(node.orphans, "thing");
        page.lines.push(format!(
            "  node {}: {things}; ask in pod {}",
            node.node, node.pod
        ));
    }
}

/// What could not be read, if there is anything.
pub(crate) fn not_known(notes: impl Iterator<Item = String>, page: &mut Page) {
    let mut notes = notes
        .map(|note| format!("  {}", paint(WARNING, &one_line(&note))))
        .peekable();
    if notes.peek().is_some() {
        page.heading("Not known");
        page.lines.extend(notes);
    }
}

/// The names of nodes in a sentence, the first few of many.
fn list(nodes: &[String]) -> String {
    format!(
        "node{} {}",
        if nodes.len() == 1 { "" } else { "s" },
        names(nodes)
    )
}

#[cfg(test)]
mod tests;
