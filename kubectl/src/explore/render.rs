//! The report of an exploration for people.

use std::io;

use anstyle::Style;
use hostloop_terminal::color::{BAD, WARNING};
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::{numbers, prose, words};

use super::report::{CutRow, ExplorationReport, FAILED};
use crate::output::{self, TextForm};

/// The number of logs that are shown.
const LOGS: usize = 5;

pub(super) fn text(report: &ExplorationReport, form: TextForm) -> io::Result<Vec<String>> {
    // A reason is what the person waits for, so it is never cut.
    let mut page = Page::new(None, 0);
    page.no_headers = form.no_headers;
    if !form.no_headers {
        page.heading(&format!(
            "Exploration of claim {}/{}",
            report.namespace, report.claim
        ));
        page.lines.extend(summary(report));
    }
    let cells: [Cell<CutRow>; 5] = [
        (numbers("CUT"), |row, _| row.number.to_string()),
        (numbers("AFTER-FIRST"), |row, _| seconds(row.after_first_ns)),
        (words("RESULT"), |row, _| row.result.to_owned()),
        (words("SNAPSHOT"), |row, _| row.snapshot.clone()),
        (prose("WHY", None), |row, _| output::one_line(&row.why)),
    ];
    page.painted_table("Not passed", &cells, &report.cuts, style);
    if form.no_headers {
        return Ok(page.lines);
    }
    for row in report
        .cuts
        .iter()
        .filter(|row| !row.log.is_empty())
        .take(LOGS)
    {
        page.heading(&format!("Log of cut {}", row.number));
        page.lines
            .extend(row.log.iter().map(|line| format!("  {line}")));
    }
    if let Some(row) = report.cuts.first() {
        page.heading(&format!("A claim of cut {} again", row.number));
        let yaml = output::yaml(&row.again)?;
        page.lines
            .extend(yaml.lines().map(|line| format!("  {line}")));
    }
    if !report.problems.is_empty() {
        page.heading("Problems");
        let problems = report.problems.iter();
        page.lines
            .extend(problems.map(|problem| format!("  {problem}")));
    }
    Ok(page.lines)
}

fn summary(report: &ExplorationReport) -> Vec<String> {
    let mut cuts = format!("{} in {}", report.taken, seconds(report.burst_ns));
    if let Some(why) = &report.burst_ended {
        cuts = format!(
            "{cuts}, of {} ({})",
            report.requested,
            output::one_line(why)
        );
    }
    let checked = match (report.failed, report.unknown) {
        (0, 0) => format!("{}, all passed", report.checked()),
        (failed, 0) => format!("{}, {failed} failed", report.checked()),
        (failed, unknown) => format!("{}, {failed} failed, {unknown} unknown", report.checked()),
    };
    [
        ("exploration", report.exploration.clone()),
        ("node", report.node.clone()),
        ("cuts", cuts),
        ("checked", checked),
        ("seed", report.seed.to_string()),
    ]
    .map(|(name, value)| format!("  {name:<12} {value}"))
    .to_vec()
}

/// A time in nanoseconds, as `1.602s`.
fn seconds(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03}s", ms / 1000, ms % 1000)
}

fn style(row: &CutRow) -> Option<Style> {
    Some(if row.result == FAILED { BAD } else { WARNING })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::testing::report;
    use crate::test_objects::plain;

    fn lines(report: &ExplorationReport, form: TextForm) -> Vec<String> {
        plain(&text(report, form).unwrap())
    }

    #[test]
    fn cuts_that_have_not_passed() {
        let lines = lines(&report(), TextForm::default());
        let (before, yaml) = lines.split_at(16);
        assert_eq!(
            before,
            [
                "Exploration of claim demo/data",
                "  exploration  exploration-0123456789abcdef0123456789abcdef",
                "  node         n1",
                "  cuts         100 in 9.900s",
                "  checked      100, 1 failed, 1 unknown",
                "  seed         42",
                "",
                "Not passed",
                "  CUT  AFTER-FIRST  RESULT   SNAPSHOT                    WHY",
                "   17       1.600s  failed   explore-data-01234567-0017  BackoffLimitExceeded: Job has \
                 reached the specified backoff limit",
                "   42       4.100s  unknown  explore-data-01234567-0042  the check has not begun within \
                 300 s; FailedMount: no loop",
                "",
                "Log of cut 17",
                "  120 records were acknowledged, and 87 are there",
                "",
                "A claim of cut 17 again",
            ]
        );
        for line in [
            "  apiVersion: v1",
            "  kind: PersistentVolumeClaim",
            "    storageClassName: hostloop-ext4",
            "      name: explore-data-01234567-0017",
        ] {
            assert!(yaml.contains(&line.to_owned()), "{line}: {yaml:#?}");
        }
    }

    #[test]
    fn rows_alone() {
        let form = TextForm {
            no_headers: true,
            ..TextForm::default()
        };
        let lines = lines(&report(), form);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(
            lines[0].starts_with("   17       1.600s  failed"),
            "{lines:#?}"
        );
    }

    #[test]
    fn nothing_was_lost() {
        let mut report = report();
        report.cuts.clear();
        (report.passed, report.failed, report.unknown) = (57, 0, 0);
        report.taken = 57;
        report.burst_ended = Some("no-room: the pool is full".to_owned());
        report.problems = vec!["the clean-up failed".to_owned()];
        let lines = lines(&report, TextForm::default());
        assert_eq!(
            lines[3..],
            [
                "  cuts         57 in 9.900s, of 100 (no-room: the pool is full)",
                "  checked      57, all passed",
                "  seed         42",
                "",
                "Problems",
                "  the clean-up failed",
            ]
        );
    }

    /// Logs and reasons may have any author.
    #[test]
    fn hostile_text_controls_no_terminal() {
        let mut report = report();
        report.cuts[0].why = "two\n\u{1b}[2Jlines".to_owned();
        report.cuts[0].log = vec!["\u{1b}[31m\rred".to_owned(), "\u{202e}gnp".to_owned()];
        report.problems = vec!["\u{9b}2J".to_owned()];
        let text = lines(&report, TextForm::default()).join("\n");
        assert!(
            !text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\r']),
            "{text}"
        );
        assert!(text.contains("two \\u{1b}[2Jlines"), "{text}");
    }
}
