//! Tables in documents, and types of the page, that tests check and write with
//! `HOSTLOOP_WRITE_DOCS=1`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub mod flags;
pub mod metrics;
pub mod typescript;

/// Fails if a document has another table under this name. With `HOSTLOOP_WRITE_DOCS`, writes the
/// table instead. `source` is the file that the table is made from.
pub fn check_named_table(document: &str, name: &str, table: &str, source: &str) {
    let begin = format!(
        "<!-- {name}: a test checks this part against {source}, and writes it with \
         HOSTLOOP_WRITE_DOCS=1. -->\n"
    );
    let end = format!("<!-- End: {name}. -->\n");
    check_table(document, [&begin, &end], &format!("\n{table}\n"), source);
}

/// Fails if a document has another table between these two lines. With `HOSTLOOP_WRITE_DOCS`, writes
/// the table instead. `source` is the file that the table is made from.
pub fn check_table(document: &str, [begin, end]: [&str; 2], table: &str, source: &str) {
    let path = root().join(document);
    // Tests of other tables may write the same document.
    let file = File::open(&path).unwrap_or_else(|e| panic!("{document}: {e}"));
    file.lock().unwrap_or_else(|e| panic!("{document}: {e}"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{document}: {e}"));
    let (before, rest) = text
        .split_once(begin)
        .unwrap_or_else(|| panic!("{document} has no line {begin}"));
    let (found, after) = rest
        .split_once(end)
        .unwrap_or_else(|| panic!("{document} has no line {end}"));
    if std::env::var_os("HOSTLOOP_WRITE_DOCS").is_some() {
        let text = format!("{before}{begin}{table}{end}{after}");
        fs::write(&path, text).unwrap_or_else(|e| panic!("{document}: {e}"));
        return;
    }
    assert!(
        found == table,
        "{document} has another table than {source}: run this test with HOSTLOOP_WRITE_DOCS=1"
    );
}

/// Fails if a file has another text. With `HOSTLOOP_WRITE_DOCS`, writes the text instead. `source`
/// is the file that the text is made from.
pub fn check_file(document: &str, text: &str, source: &str) {
    let path = root().join(document);
    if std::env::var_os("HOSTLOOP_WRITE_DOCS").is_some() {
        fs::write(&path, text).unwrap_or_else(|e| panic!("{document}: {e}"));
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{document}: {e}"));
    assert!(
        found == text,
        "{document} differs from {source}: run this test with HOSTLOOP_WRITE_DOCS=1"
    );
}

/// A table with these columns.
pub fn table<const COLUMNS: usize>(head: [&str; COLUMNS], rows: &[[String; COLUMNS]]) -> String {
    let mut text = line(&head);
    text.push_str(&format!("|{}\n", "---|".repeat(COLUMNS)));
    for row in rows {
        text.push_str(&line(row));
    }
    text
}

fn line<T: AsRef<str>>(cells: &[T]) -> String {
    let mut text = String::from("|");
    for cell in cells {
        match cell.as_ref() {
            "" => text.push_str(" |"),
            // In a cell, also in code, a bar would begin the next cell.
            cell => text.push_str(&format!(" {} |", cell.replace('|', "\\|"))),
        }
    }
    text.push('\n');
    text
}

/// The project's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_stays_in_its_cell() {
        let rows = [["a|b".to_owned(), String::new()]];
        assert_eq!(
            table(["One", "Two"], &rows),
            "| One | Two |\n|---|---|\n| a\\|b | |\n"
        );
    }
}
