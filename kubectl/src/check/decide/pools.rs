//! The pools: open, reflinks, direct I/O, room. The node pods report them.

use hostloop_report::status::PoolReport;
use hostloop_terminal::humanize::bytes;

use super::machines::unreported;
use crate::check::facts::{Facts, Machine};
use crate::check::line::{Line, names};

mod promise;

/// Percentage of free space below which a pool gets a warning.
const LOW_PERCENT: u64 = 10;
/// Percentage of free space below which writes to thin volumes are about to fail.
const FULL_PERCENT: u64 = 1;

/// A pool of a node, and what the machine says about its root.
struct CheckedPool<'a> {
    node: &'a str,
    report: &'a PoolReport,
    /// Why direct I/O does not work in it; `None` if it works or is unknown.
    no_direct_io: Option<&'a str>,
    /// Bytes that it can still promise to volumes, if that is known.
    promisable: Option<u64>,
}

impl CheckedPool<'_> {
    /// As in `default on n1`.
    fn name(&self) -> String {
        format!("{} on {}", self.report.name, self.node)
    }
}

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let mut lines = unreported(&facts.machines, "Pools", |machine| {
        machine.pools.as_ref().err()
    });
    let is_by_defaults = promise::is_by_defaults(facts);
    let pools: Vec<CheckedPool<'_>> = facts
        .machines
        .iter()
        .flat_map(|(n, m)| of_node(n, m, is_by_defaults))
        .collect();
    let (open, missing): (Vec<_>, Vec<_>) =
        pools.iter().partition(|pool| pool.report.state == "open");
    lines.extend(missing.into_iter().map(not_open));
    if open.is_empty() {
        return lines;
    }
    lines.push(Line::ok(format!("Pools are open: {}", list(&open))));
    lines.extend(reflinks(&open));
    lines.extend(direct_io(&open));
    lines.extend(room(&open));
    lines
}

fn of_node<'a>(node: &'a str, machine: &'a Machine, is_by_defaults: bool) -> Vec<CheckedPool<'a>> {
    let tested = machine.report.iter().flat_map(|report| &report.direct_io);
    let tested: Vec<_> = tested.collect();
    let pools = machine.pools.iter().flatten().map(|report| CheckedPool {
        node,
        report,
        no_direct_io: tested
            .iter()
            .find(|test| report.root.as_ref() == Some(&test.root))
            .and_then(|test| test.missing.as_deref()),
        promisable: promise::promisable(report).filter(|_| is_by_defaults),
    });
    pools.collect()
}

fn list(pools: &[&CheckedPool<'_>]) -> String {
    names(pools.iter().map(|pool| pool.name()))
}

fn not_open(pool: &CheckedPool<'_>) -> Line {
    let why = pool
        .report
        .why
        .as_deref()
        .unwrap_or("no driver has it open");
    Line::failed(
        format!("Pool {} is {}: {why}", pool.name(), pool.report.state),
        format!(
            "Its volumes can't be used, and their data is untouched. Repair {}; the driver opens \
             the pool by itself.",
            pool.report.path.display()
        ),
    )
}

fn reflinks(pools: &[&CheckedPool<'_>]) -> Vec<Line> {
    let without: Vec<_> = pools
        .iter()
        .filter(|pool| pool.report.reflinks == Some(false))
        .copied()
        .collect();
    vec![match without.first() {
        None => Line::ok("Snapshots and clones share blocks in all pools"),
        Some(first) => Line::warning(
            format!(
                "Snapshots and clones copy all data, because {} has no reflinks: {}",
                first.report.fs.clone().unwrap_or_default(),
                list(&without)
            ),
            "Snapshots that cost nothing need a pool on XFS or btrfs, or in an image: \
             --pool NAME=DIR,image=SIZE (a new pool).",
        ),
    }]
}

fn direct_io(pools: &[&CheckedPool<'_>]) -> Vec<Line> {
    let without: Vec<_> = pools
        .iter()
        .filter(|p| p.no_direct_io.is_some())
        .copied()
        .collect();
    vec![match without.first() {
        None => Line::ok("Direct I/O works in all pools"),
        Some(first) => Line::warning(
            format!(
                "Direct I/O does not work in {}: {}",
                list(&without),
                first.no_direct_io.unwrap_or_default()
            ),
            "Volumes work, but their data is cached twice and takes more memory.",
        ),
    }]
}

fn room(pools: &[&CheckedPool<'_>]) -> Vec<Line> {
    let mut lines: Vec<Line> = pools
        .iter()
        .filter_map(|pool| low(pool).or_else(|| scarce(pool)))
        .collect();
    let free = pools.iter().filter_map(|pool| pool.report.free_bytes).min();
    if let (true, Some(least)) = (lines.is_empty(), free) {
        let promisable = pools.iter().filter_map(|pool| pool.promisable).min();
        let promisable = promisable
            .map(|left| {
                format!(
                    ", and at least about {} can still be promised to volumes",
                    bytes(left)
                )
            })
            .unwrap_or_default();
        lines.push(Line::ok(format!(
            "Pools have room: {} or more is free{promisable}",
            bytes(least)
        )));
    }
    lines
}

/// How much of a whole this is.
fn percent(part: u64, whole: u64) -> u128 {
    u128::from(part) * 100 / u128::from(whole.max(1))
}

fn low(pool: &CheckedPool<'_>) -> Option<Line> {
    let (free, size) = (pool.report.free_bytes?, pool.report.size_bytes?);
    let text = format!(
        "Pool {} has {} of {} free",
        pool.name(),
        bytes(free),
        bytes(size)
    );
    let advice = "Thin volumes get errors when it is full. Delete claims or snapshots, or make \
                  its filesystem larger.";
    match percent(free, size) {
        p if p < u128::from(FULL_PERCENT) => Some(Line::failed(text, advice)),
        p if p < u128::from(LOW_PERCENT) => Some(Line::warning(text, advice)),
        _ => None,
    }
}

/// A pool may have free space that is promised: a new volume then finds no room.
fn scarce(pool: &CheckedPool<'_>) -> Option<Line> {
    let (left, size) = (pool.promisable?, pool.report.size_bytes?);
    if percent(left, size) >= u128::from(LOW_PERCENT) {
        return None;
    }
    let free = pool.report.free_bytes.unwrap_or_default();
    Some(Line::warning(
        format!(
            "Pool {} has {} of {} free, but can promise only about {} more to volumes",
            pool.name(),
            bytes(free),
            bytes(size),
            bytes(left)
        ),
        "A volume is promised its whole size, however little it has written. Delete claims or \
         snapshots, make the pool larger, or set --overcommit.",
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::check::decide::testing::{good, machine, marks};
    use crate::check::facts::Unknown;
    use crate::check::line::Mark::{self, *};

    fn with(change: impl Fn(&mut PoolReport)) -> Vec<Line> {
        let mut facts = good();
        let mut machine = machine();
        change(&mut machine.pools.as_mut().unwrap()[0]);
        facts.machines.insert("n1".into(), machine);
        lines(&facts)
    }

    #[test]
    fn good_pools() {
        let lines = with(|_| {});
        assert_eq!(marks(&lines), [Passed; 4]);
        assert_eq!(
            lines[0].text,
            "Pools are open: default on n1, default on n2"
        );
    }

    #[test]
    fn a_missing_pool_has_its_own_line() {
        let lines = with(|pool| {
            pool.state = "missing".into();
            pool.why = Some("not mounted".into());
        });
        assert_eq!(marks(&lines), [Failed, Passed, Passed, Passed, Passed]);
        assert_eq!(lines[0].text, "Pool default on n1 is missing: not mounted");
    }

    #[test]
    fn a_pool_without_reflinks_or_direct_io_gets_a_warning() {
        let lines = with(|pool| pool.reflinks = Some(false));
        assert_eq!(marks(&lines), [Passed, Warning, Passed, Passed]);

        let mut facts = good();
        let mut machine = machine();
        machine.report.as_mut().unwrap().direct_io[0].missing = Some("EINVAL".into());
        facts.machines.insert("n1".into(), machine);
        let lines = super::lines(&facts);
        assert_eq!(marks(&lines), [Passed, Passed, Warning, Passed]);
        assert_eq!(
            lines[2].text,
            "Direct I/O does not work in default on n1: EINVAL"
        );
    }

    #[rstest]
    #[case(0, Failed)]
    #[case(9, Failed)]
    #[case(10, Warning)]
    #[case(99, Warning)]
    #[case(100, Passed)]
    fn free_space(#[case] free: u64, #[case] mark: Mark) {
        let lines = with(|pool| (pool.free_bytes, pool.size_bytes) = (Some(free), Some(1000)));
        assert_eq!(marks(&lines)[3], mark);
    }

    #[rstest]
    #[case::enough(
        100,
        Passed,
        "and at least about 750 B can still be promised to volumes"
    )]
    #[case::little(
        760,
        Warning,
        "has 900 B of 0.98 KiB free, but can promise only about 90 B more"
    )]
    #[case::none(2000, Warning, "can promise only about 0 B more to volumes")]
    fn room_for_promises(#[case] promised: u64, #[case] mark: Mark, #[case] text: &str) {
        let mut facts = good();
        let mut machine = machine();
        let pool = &mut machine.pools.as_mut().unwrap()[0];
        (pool.free_bytes, pool.size_bytes) = (Some(900), Some(1000));
        (pool.available_bytes, pool.promised_bytes) = (Some(900), Some(promised));
        facts.machines = [("n1".to_owned(), machine)].into();
        let line = &lines(&facts)[3];
        assert_eq!(line.mark, mark);
        assert!(line.text.contains(text), "{}", line.text);
    }

    #[test]
    fn without_reports_nothing_is_claimed() {
        let mut facts = good();
        let pools = Err(Unknown::Forbidden("create pods/exec".into()));
        facts.machines = [("n1".to_owned(), Machine { pools, ..machine() })].into();
        assert_eq!(marks(&lines(&facts)), [Skipped]);
    }
}
