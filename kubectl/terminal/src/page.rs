//! A page of tables under headings.

use anstyle::Style;

use crate::color::{QUIET, TITLE, paint};
use crate::table::{Column, lines};

/// A column, and the text that a row has in it. The number is the time now.
pub type Cell<Row> = (Column, fn(&Row, u64) -> String);

/// The lines of a page so far.
pub struct Page {
    /// The lines, with styles.
    pub lines: Vec<String>,
    /// True for rows alone: no headings, and no titles of columns. An empty line stays between
    /// tables.
    pub no_headers: bool,
    width: Option<usize>,
    now_ns: u64,
}

impl Page {
    /// An empty page. `width` is the terminal's, if there is one. Ages are relative to `now_ns`.
    pub fn new(width: Option<usize>, now_ns: u64) -> Page {
        Page {
            lines: Vec::new(),
            no_headers: false,
            width,
            now_ns,
        }
    }

    /// Adds a table under its heading, or nothing if there are no rows.
    pub fn table<'r, Row: 'r>(
        &mut self,
        heading: &str,
        cells: &[Cell<Row>],
        rows: impl IntoIterator<Item = &'r Row>,
    ) {
        self.painted_table(heading, cells, rows, |_| None);
    }

    /// Adds a table, with a style for each row.
    pub fn painted_table<'r, Row: 'r>(
        &mut self,
        heading: &str,
        cells: &[Cell<Row>],
        rows: impl IntoIterator<Item = &'r Row>,
        style: impl Fn(&Row) -> Option<Style>,
    ) {
        let columns: Vec<Column> = cells.iter().map(|(column, _)| *column).collect();
        let (styles, rows): (Vec<Option<Style>>, Vec<Vec<String>>) = rows
            .into_iter()
            .map(|row| {
                let texts = cells.iter().map(|(_, text)| text(row, self.now_ns));
                (style(row), texts.collect::<Vec<String>>())
            })
            .unzip();
        if rows.is_empty() {
            return;
        }
        self.heading(heading);
        let width = self.width.map(|w| w.saturating_sub(2));
        let styles = std::iter::once(Some(QUIET)).chain(styles);
        let lines = lines(&columns, &rows, width).into_iter().zip(styles);
        for (line, style) in lines.skip(usize::from(self.no_headers)) {
            let line = style.map_or(line.clone(), |style| paint(style, &line));
            self.lines.push(format!("  {line}"));
        }
    }

    /// Adds a heading, with an empty line before it.
    pub fn heading(&mut self, heading: &str) {
        if !self.lines.is_empty() {
            self.lines.push(String::new());
        }
        if !self.no_headers {
            self.lines.push(paint(TITLE, heading));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::words;
    use crate::terminal::plain;

    #[test]
    fn rows_with_and_without_headers() {
        let cells: [Cell<String>; 1] = [(words("NAME"), |row, _| row.clone())];
        let rows = ["a b".to_owned()];
        for (no_headers, expected) in [
            (
                false,
                vec!["T", "  NAME", "  a-b", "", "U", "  NAME", "  a-b"],
            ),
            (true, vec!["  a-b", "", "  a-b"]),
        ] {
            let mut page = Page::new(None, 0);
            page.no_headers = no_headers;
            page.table("T", &cells, &rows);
            page.table("U", &cells, &rows);
            let lines: Vec<String> = page.lines.iter().map(|line| plain(line)).collect();
            assert_eq!(lines, expected);
        }
    }
}
