//! A table of text in columns, fitted to a width.
//!
//! A cell is one word, so that programs such as awk find the columns: blanks in it become dashes.
//! Only sentences, which stand in the last column, keep theirs.

use crate::terminal::escaped;

#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    /// True if the cells are aligned to the right.
    numeric: bool,
    /// Minimum width in characters: in a narrow terminal, cells lose their middle
    /// ("vol-3f2a…89ab"). `None` keeps them whole.
    least: Option<usize>,
    /// True if the cells keep their blanks.
    is_prose: bool,
}

/// A column of words that are never shortened.
pub const fn words(title: &'static str) -> Column {
    Column {
        title,
        numeric: false,
        least: None,
        is_prose: false,
    }
}

pub const fn numbers(title: &'static str) -> Column {
    Column {
        numeric: true,
        ..words(title)
    }
}

/// A column of long words, which may be shortened to `least` characters.
pub const fn long(title: &'static str, least: usize) -> Column {
    Column {
        least: Some(least),
        ..words(title)
    }
}

/// A last column of sentences or paths, which keep their blanks. They may be shortened to `least`
/// characters, if that is given.
pub const fn prose(title: &'static str, least: Option<usize>) -> Column {
    Column {
        least,
        is_prose: true,
        ..words(title)
    }
}

const GAP: &str = "  ";

/// The lines of a table: the heading, then one for each row. Every row has a cell for every column.
/// `width` is the available width; `None` (no terminal) shortens nothing.
pub fn lines(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    // Escapes are as wide as they are printed.
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let cells = columns.iter().zip(row);
            cells.map(|(column, cell)| column.cell(cell)).collect()
        })
        .collect();
    let mut widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, column)| {
            let cells = rows.iter().map(|row| length(&row[i]));
            cells.chain([length(column.title)]).max().unwrap_or(0)
        })
        .collect();
    if let Some(width) = width {
        shrink(columns, &mut widths, width);
    }
    let titles = columns.iter().map(|column| column.title.replace(' ', "-"));
    let heading: Vec<String> = titles.collect();
    std::iter::once(&heading)
        .chain(&rows)
        .map(|row| line(columns, &widths, row))
        .collect()
}

impl Column {
    /// A cell as it is printed, but for its width.
    fn cell(&self, text: &str) -> String {
        let text = escaped(text);
        if self.is_prose {
            return text.into_owned();
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            [] => "-".to_owned(),
            // A number and its unit.
            words if self.numeric => words.concat(),
            words => words.join("-").replace(",-", ","),
        }
    }
}

/// Narrows the widest column that can still shrink, one character at a time, until the table fits.
fn shrink(columns: &[Column], widths: &mut [usize], width: usize) {
    let gaps = GAP.len() * (widths.len() - 1);
    while widths.iter().sum::<usize>() + gaps > width {
        let widest = (0..columns.len())
            .filter(|&i| {
                let least = columns[i].least;
                least.is_some_and(|least| widths[i] > least.max(length(columns[i].title)))
            })
            .max_by_key(|&i| widths[i]);
        match widest {
            Some(i) => widths[i] -= 1,
            None => return,
        }
    }
}

fn line(columns: &[Column], widths: &[usize], row: &[String]) -> String {
    let cells = row.iter().zip(columns).zip(widths);
    let cells = cells.map(|((cell, column), &width)| {
        let cell = without_middle(cell, width);
        if column.numeric {
            format!("{cell:>width$}")
        } else {
            format!("{cell:<width$}")
        }
    });
    let line = cells.collect::<Vec<_>>().join(GAP);
    line.trim_end().to_owned()
}

/// Shortens a text to at most `width` characters, with "…" in place of the missing ones.
pub fn without_middle(text: &str, width: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= width {
        return text.to_owned();
    }
    let keep = width.saturating_sub(1);
    let (head, tail) = (keep - keep / 2, keep / 2);
    let mut out: String = chars[..head].iter().collect();
    out.push('…');
    out.extend(&chars[chars.len() - tail..]);
    out
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter()
            .map(|row| row.iter().map(|cell| cell.to_string()).collect())
            .collect()
    }

    const COLUMNS: [Column; 3] = [long("NAME", 6), numbers("SIZE"), words("STATE")];

    #[test]
    fn columns_line_up() {
        let rows = rows(&[&["data", "1 GiB", "staged"], &["größer", "512 MiB", ""]]);
        assert_eq!(
            lines(&COLUMNS, &rows, None),
            [
                "NAME      SIZE  STATE",
                "data      1GiB  staged",
                "größer  512MiB  -"
            ]
        );
    }

    #[test]
    fn a_cell_is_one_word() {
        for (column, text, cell) in [
            (words("A"), "being taken", "being-taken"),
            (words("A"), "Bound, policy Delete", "Bound,policy-Delete"),
            (words("A"), " a  b ", "a-b"),
            (words("A"), "", "-"),
            (long("A", 3), "a b", "a-b"),
            (numbers("A"), "1.50 GiB", "1.50GiB"),
            (numbers("A"), "", "-"),
            (prose("A", None), "no room is left", "no room is left"),
            (prose("A", Some(3)), "", ""),
        ] {
            assert_eq!(column.cell(text), cell, "{text:?}");
        }
        let rows = rows(&[&["4 KiB", "a b"]]);
        let columns = [numbers("ON DISK"), prose("NOTE", None)];
        assert_eq!(
            lines(&columns, &rows, None),
            ["ON-DISK  NOTE", "   4KiB  a b"]
        );
    }

    #[test]
    fn the_widest_gives_until_it_fits_or_can_give_no_more() {
        let rows = rows(&[&["pvc-0123456789abcdef", "1 GiB", "staged"]]);
        for (width, name) in [
            (100, "pvc-0123456789abcdef"),
            (28, "pvc-012…abcdef"),
            (20, "pvc…ef"),
            (3, "pvc…ef"),
        ] {
            let got = lines(&COLUMNS, &rows, Some(width));
            let short = without_middle("pvc-0123456789abcdef", length(name));
            assert!(got[1].starts_with(&short), "{width}: {got:?}");
            assert!(width < 20 || length(&got[1]) <= width, "{width}: {got:?}");
        }
    }

    #[test]
    fn the_middle_goes_first() {
        assert_eq!(without_middle("abcdefghij", 10), "abcdefghij");
        assert_eq!(without_middle("abcdefghij", 5), "ab…ij");
        assert_eq!(without_middle("abcdefghij", 4), "ab…j");
        assert_eq!(without_middle("abc", 1), "…");
    }
}
