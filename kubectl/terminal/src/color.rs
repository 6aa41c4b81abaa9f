//! The styles of text on a terminal. They are not printed if the output is not a terminal or
//! `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};
use hostloop_report::reported_problem::Severity;

use crate::terminal::control;

/// A heading.
pub const TITLE: Style = Style::new().bold();
/// An explanation.
pub const QUIET: Style = Style::new().dimmed();
/// A correct or repaired object.
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// An error.
pub const BAD: Style = AnsiColor::Red.on_default().bold();

/// The style of a problem's severity.
pub fn severity(severity: Severity) -> Style {
    match severity {
        Severity::Note => QUIET,
        Severity::Warning => WARNING,
        Severity::Error => BAD,
    }
}

/// Puts a text in a style.
pub fn paint(style: Style, text: &str) -> String {
    let (begin, end) = (style.render().to_string(), style.render_reset().to_string());
    format!("{}{text}{}", control(&begin), control(&end))
}
