//! What a check found: lines under headings.

use serde::Serialize;

pub(super) use crate::output::names;

/// The result of one expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mark {
    /// The expectation is met.
    Passed,
    /// It is met, but a person should look at it.
    Warning,
    /// It is not met.
    Failed,
    /// It was not checked: a right is missing, or the server lacks an optional API.
    Skipped,
}

/// One expectation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Line {
    pub(super) mark: Mark,
    pub(super) text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

/// Expectations about one subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    pub(super) title: &'static str,
    pub(super) lines: Vec<Line>,
}

impl Line {
    pub(super) fn ok(text: impl Into<String>) -> Line {
        Line {
            mark: Mark::Passed,
            text: text.into(),
            advice: None,
        }
    }

    pub(super) fn warning(text: impl Into<String>, advice: impl Into<String>) -> Line {
        Line {
            mark: Mark::Warning,
            text: text.into(),
            advice: Some(advice.into()),
        }
    }

    pub(super) fn failed(text: impl Into<String>, advice: impl Into<String>) -> Line {
        Line {
            mark: Mark::Failed,
            text: text.into(),
            advice: Some(advice.into()),
        }
    }

    pub(super) fn skipped(text: impl Into<String>) -> Line {
        Line {
            mark: Mark::Skipped,
            text: text.into(),
            advice: None,
        }
    }
}

/// True if no expectation failed.
pub(super) fn passed(sections: &[Section]) -> bool {
    sections
        .iter()
        .flat_map(|section| &section.lines)
        .all(|line| line.mark != Mark::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_line_fails_the_check() {
        let section = |line| {
            [Section {
                title: "a",
                lines: vec![Line::ok("b"), line],
            }]
        };
        assert!(passed(&section(Line::warning("c", "d"))));
        assert!(passed(&section(Line::skipped("c"))));
        assert!(!passed(&section(Line::failed("c", "d"))));
    }
}
