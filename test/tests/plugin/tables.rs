//! Reads what the plugin prints for people.

use std::collections::BTreeMap;

/// The cells of a row by the titles of their columns, or values by their names.
pub(crate) type Row = BTreeMap<String, String>;

/// The cells of a line, which two or more spaces separate.
pub(crate) fn cells(line: &str) -> Vec<String> {
    let cells = line
        .split("  ")
        .map(str::trim)
        .filter(|cell| !cell.is_empty());
    cells.map(str::to_owned).collect()
}

/// The lines below a heading, to the next empty line.
fn below<'t>(said: &'t str, heading: &str) -> impl Iterator<Item = &'t str> {
    assert!(
        said.lines().any(|line| line == heading),
        "no heading {heading:?} in: {said}"
    );
    let rest = said
        .lines()
        .skip_while(move |line| *line != heading)
        .skip(1);
    rest.take_while(|line| !line.is_empty())
}

/// The rows of the table below a heading.
pub(crate) fn table(said: &str, heading: &str) -> Vec<Row> {
    let mut lines = below(said, heading);
    let columns = cells(lines.next().unwrap_or_default());
    lines
        .map(|line| columns.iter().cloned().zip(cells(line)).collect())
        .collect()
}

/// The names and values below a heading.
pub(crate) fn pairs(said: &str, heading: &str) -> Row {
    let pairs = below(said, heading).filter_map(|line| line.trim_start().split_once("  "));
    pairs
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect()
}

/// The row has these values. It may have more.
#[track_caller]
pub(crate) fn assert_row(row: &Row, expected: &[(&str, &str)]) {
    for (column, value) in expected {
        assert_eq!(
            row.get(*column).map(String::as_str),
            Some(*value),
            "{column} of {row:?}"
        );
    }
}

/// The bytes that a size such as `12.3 MiB` or `12.3MiB` stands for.
#[track_caller]
pub(crate) fn bytes(size: &str) -> f64 {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let read = || {
        let (number, unit) = size.split_at(size.find(char::is_alphabetic)?);
        let power = UNITS.iter().position(|known| *known == unit)?;
        Some(number.trim_end().parse::<f64>().ok()? * 1024_f64.powi(i32::try_from(power).ok()?))
    };
    read().unwrap_or_else(|| panic!("{size:?} is not a size"))
}

#[test]
fn tables_of_people() {
    let said = "T\n  A B    C\n  1 GiB  x\n\nP\n  size     1 GiB\n  on disk  4 KiB, b\n";
    let row: Vec<(String, String)> = table(said, "T").remove(0).into_iter().collect();
    assert_eq!(
        row,
        [("A B", "1 GiB"), ("C", "x")].map(|(a, b)| (a.to_owned(), b.to_owned()))
    );
    assert_row(
        &pairs(said, "P"),
        &[("size", "1 GiB"), ("on disk", "4 KiB, b")],
    );
    assert_eq!([bytes("1.5 KiB"), bytes("7B")], [1536.0, 7.0]);
}
