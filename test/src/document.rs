//! Tables in documents that tests check, and write with `HOSTLOOP_WRITE_DOCS=1`.

use crate::machine::root;

/// Fails if a document has another table between these two lines. With `HOSTLOOP_WRITE_DOCS`, writes
/// the table instead. `source` is the file that the table is made from.
pub fn check_table(document: &str, [begin, end]: [&str; 2], table: &str, source: &str) {
    let path = root().join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{document}: {e}"));
    let (before, rest) = text.split_once(begin).expect("it has a table");
    let (found, after) = rest.split_once(end).expect("its table has an end");
    if std::env::var_os("HOSTLOOP_WRITE_DOCS").is_some() {
        let text = format!("{before}{begin}{table}{end}{after}");
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{document}: {e}"));
        return;
    }
    assert!(
        found == table,
        "{document} has another table than {source}: run this test with HOSTLOOP_WRITE_DOCS=1"
    );
}
