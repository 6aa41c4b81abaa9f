//! How commands print: styles, tables, and values for people.

use std::io;

pub mod color;
pub mod humanize;
pub(crate) mod page;
pub mod table;
pub mod terminal;

/// Number of columns if standard output is a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}
