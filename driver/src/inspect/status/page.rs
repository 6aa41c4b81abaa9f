//! A page of tables under headings.

use anstyle::Style;

use super::color::{QUIET, TITLE, paint};
use super::humanize::bytes;
use super::table::{Column, lines};

/// The lines of a page so far.
pub(crate) struct Page {
    /// The lines, with styles.
    pub(crate) lines: Vec<String>,
    width: Option<usize>,
}

impl Page {
    /// An empty page. `width` is the terminal's, if there is one.
    pub(crate) fn new(width: Option<usize>) -> Page {
        Page { lines: Vec::new(), width }
    }

    /// Adds a table under its heading, or nothing if there are no rows.
    pub(crate) fn table(&mut self, heading: &str, columns: &[Column], rows: &[Vec<String>]) {
        self.painted_table(heading, columns, rows, |_| None);
    }

    /// Adds a table, with a style for each row.
    pub(crate) fn painted_table(
        &mut self,
        heading: &str,
        columns: &[Column],
        rows: &[Vec<String>],
        style: impl Fn(usize) -> Option<Style>,
    ) {
        if rows.is_empty() {
            return;
        }
        self.heading(heading);
        let width = self.width.map(|w| w.saturating_sub(2));
        for (i, line) in lines(columns, rows, width).into_iter().enumerate() {
            let style = match i {
                0 => Some(QUIET),
                row => style(row - 1),
            };
            let line = style.map_or(line.clone(), |style| paint(style, &line));
            self.lines.push(format!("  {line}"));
        }
    }

    /// Adds a heading, with an empty line before it.
    pub(crate) fn heading(&mut self, heading: &str) {
        if !self.lines.is_empty() {
            self.lines.push(String::new());
        }
        self.lines.push(paint(TITLE, heading));
    }
}

/// The text, or a dash.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.filter(|t| !t.is_empty()).unwrap_or_else(|| "-".to_owned())
}

/// A size for people, or a dash.
pub(crate) fn size(n: Option<u64>) -> String {
    or_dash(n.map(bytes))
}
