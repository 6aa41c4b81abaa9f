//! Prints sections: as text with marks, or as JSON.

use hostloop_terminal::color::{BAD, GOOD, QUIET, TITLE, WARNING, paint};
use hostloop_terminal::humanize::count;
use serde::Serialize;

use super::line::{Line, Mark, Section, passed};

/// The whole result, as `-o json` prints it. Names and meanings are stable; fields may be added.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    /// False if an expectation failed.
    pub(super) passed: bool,
    pub(super) sections: &'a [Section],
}

impl<'a> Report<'a> {
    pub(super) fn of(sections: &'a [Section]) -> Self {
        Report {
            passed: passed(sections),
            sections,
        }
    }
}

/// The heading of a section.
pub(super) fn heading(title: &str) -> String {
    paint(TITLE, title)
}

/// The lines of one expectation.
pub(super) fn line(line: &Line) -> Vec<String> {
    let (mark, style) = match line.mark {
        Mark::Passed => ("✓", GOOD),
        Mark::Warning => ("!", WARNING),
        Mark::Failed => ("×", BAD),
        Mark::Skipped => ("-", QUIET),
    };
    let text = match line.mark {
        Mark::Skipped => paint(QUIET, &line.text),
        _ => line.text.clone(),
    };
    let mut lines = vec![format!("  {} {text}", paint(style, mark))];
    lines.extend(
        line.advice
            .as_ref()
            .map(|advice| format!("    {}", paint(QUIET, advice))),
    );
    lines
}

/// The lines of a section, without its heading.
pub(super) fn lines(section: &Section) -> Vec<String> {
    section.lines.iter().flat_map(line).collect()
}

/// The last line: how many expectations there were, and how they ended.
pub(super) fn summary(sections: &[Section]) -> String {
    let mut parts = vec![format!("{} passed", number(sections, Mark::Passed))];
    for (mark, what) in [(Mark::Skipped, "skipped"), (Mark::Failed, "failed")] {
        match number(sections, mark) {
            0 => {}
            n => parts.push(format!("{n} {what}")),
        }
    }
    let warnings = number(sections, Mark::Warning);
    if warnings > 0 {
        parts.insert(1, count(warnings, "warning"));
    }
    let style = if passed(sections) { GOOD } else { BAD };
    paint(style, &parts.join(", "))
}

/// How many lines have a mark.
fn number(sections: &[Section], mark: Mark) -> usize {
    let lines = sections.iter().flat_map(|section| &section.lines);
    lines.filter(|line| line.mark == mark).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_objects::plain;

    fn sections() -> Vec<Section> {
        let lines = vec![
            Line::ok("a"),
            Line::warning("b", "look"),
            Line::failed("c", "repair"),
            Line::skipped("d"),
        ];
        vec![Section { title: "T", lines }]
    }

    #[test]
    fn text() {
        let lines = lines(&sections()[0]);
        let expected = "  ✓ a\n  ! b\n    look\n  × c\n    repair\n  - d";
        assert_eq!(plain(&lines).join("\n"), expected);
        let end = plain(&[summary(&sections())]).concat();
        assert_eq!(end, "1 passed, 1 warning, 1 skipped, 1 failed");
        let good = [Section {
            title: "T",
            lines: vec![Line::ok("a")],
        }];
        assert_eq!(plain(&[summary(&good)]), ["1 passed"]);
    }

    #[test]
    fn json() {
        let sections = sections();
        let json = serde_json::to_value(Report::of(&sections)).unwrap();
        assert_eq!(json["passed"], false);
        assert_eq!(json["sections"][0]["title"], "T");
        let line = &json["sections"][0]["lines"][2];
        assert_eq!(
            *line,
            serde_json::json!({"mark": "failed", "text": "c", "advice": "repair"})
        );
        assert!(json["sections"][0]["lines"][0].get("advice").is_none());
    }
}
