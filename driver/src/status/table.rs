//! A table of text in columns, fit to a width.

/// How a cell sits in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// What happens to a column when the table is too wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It stays as it is.
    Whole,
    /// Its middle may be left out ("vol-3f2a…89ab"), down to this many characters.
    Middle(usize),
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub title: &'static str,
    /// How its cells sit.
    pub align: Align,
    /// Whether it may be shortened.
    pub fit: Fit,
}

/// A column of words that stay whole.
pub const fn words(title: &'static str) -> Column {
    Column {
        title,
        align: Align::Left,
        fit: Fit::Whole,
    }
}

/// A column of numbers.
pub const fn numbers(title: &'static str) -> Column {
    Column {
        title,
        align: Align::Right,
        fit: Fit::Whole,
    }
}

/// A column whose middle may be left out.
pub const fn long(title: &'static str, at_least: usize) -> Column {
    Column {
        title,
        align: Align::Left,
        fit: Fit::Middle(at_least),
    }
}

const GAP: usize = 2;

/// The lines of a table: the heading, then one for each row. Every row has a cell for every
/// column. `width` is what fits; `None` (no terminal) leaves everything whole.
pub fn lines(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
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
    let heading: Vec<String> = columns.iter().map(|c| c.title.to_owned()).collect();
    std::iter::once(&heading)
        .chain(rows)
        .map(|row| line(columns, &widths, row))
        .collect()
}

/// Takes the excess from the widest column that may still give, one character at a time.
fn shrink(columns: &[Column], widths: &mut [usize], width: usize) {
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * (widths.len() - 1);
    while total(widths) > width {
        let widest = (0..columns.len())
            .filter(|&i| match columns[i].fit {
                Fit::Whole => false,
                Fit::Middle(least) => widths[i] > least.max(length(columns[i].title)),
            })
            .max_by_key(|&i| widths[i]);
        match widest {
            Some(i) => widths[i] -= 1,
            None => return,
        }
    }
}

fn line(columns: &[Column], widths: &[usize], row: &[String]) -> String {
    let mut out = String::new();
    for (i, cell) in row.iter().enumerate() {
        if i > 0 {
            out.push_str(&" ".repeat(GAP));
        }
        let cell = without_middle(cell, widths[i]);
        let pad = " ".repeat(widths[i] - length(&cell));
        match columns[i].align {
            Align::Left => out.extend([cell, pad]),
            Align::Right => out.extend([pad, cell]),
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// The text in at most `width` characters, with "…" where some are left out.
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
                "NAME       SIZE  STATE",
                "data      1 GiB  staged",
                "größer  512 MiB"
            ]
        );
    }

    #[test]
    fn the_widest_gives_until_it_fits_or_can_give_no_more() {
        let rows = rows(&[&["pvc-0123456789abcdef", "1 GiB", "staged"]]);
        for (width, name) in [
            (100, "pvc-0123456789abcdef"),
            (28, "pvc-01…abcdef"),
            (21, "pvc…ef"),
            (3, "pvc…ef"),
        ] {
            let got = lines(&COLUMNS, &rows, Some(width));
            assert!(
                got[1].starts_with(&without_middle("pvc-0123456789abcdef", length(name))),
                "{width}: {got:?}"
            );
            assert!(width < 21 || length(&got[1]) <= width, "{width}: {got:?}");
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
