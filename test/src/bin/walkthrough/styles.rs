//! How lines look on a terminal.

use std::fmt::Arguments;
use std::io::Write;

use anstyle::{AnsiColor, Style};

pub(crate) const TITLE: Style = Style::new().bold();
pub(crate) const QUIET: Style = Style::new().dimmed();
pub(crate) const CALL: Style = AnsiColor::Cyan.on_default();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Prints text at once, with its styles if the terminal shows any.
#[expect(clippy::disallowed_methods, reason = "the walkthrough's own words")]
pub(crate) fn write(text: Arguments<'_>) {
    let mut output = anstream::stdout().lock();
    output
        .write_fmt(text)
        .and_then(|()| output.flush())
        .expect("the terminal takes output");
}
