//! Reports that the documentation shows: data, and a page with a table and charts drawn from them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::measure::{Figure, Verdict};

/// A measurement that a page of the documentation shows.
pub(crate) trait Report: DeserializeOwned + Serialize {
    /// The name of the part and of its data file.
    const NAME: &'static str;
    const PAGE: &'static str = Self::NAME;

    /// A table in Markdown.
    fn table(&self) -> String;
    /// Charts in Mermaid.
    fn charts(&self) -> String;
    /// The figures with aims.
    fn figures(&self) -> Vec<Figure>;
}

/// The directory of the documentation to write, if any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Docs {
    pub(crate) dir: Option<PathBuf>,
    /// True to draw the data in the directory without a measurement.
    pub(crate) again: bool,
}

impl Docs {
    /// Measures or reads a report, prints its table, and writes data and page.
    pub(crate) fn figures<R: Report>(&self, measure: impl FnOnce() -> R) -> Vec<Figure> {
        let report = match &self.dir {
            Some(dir) if self.again => read(dir),
            _ => measure(),
        };
        println!("{}", report.table());
        if let Some(dir) = &self.dir {
            if !self.again {
                keep(&report, dir);
            }
            draw(&report, dir);
        }
        report.figures()
    }
}

/// The data that an earlier run has written.
fn read<R: Report>(docs: &Path) -> R {
    let file = data_file::<R>(docs);
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn keep<R: Report>(report: &R, docs: &Path) {
    let data = serde_json::to_string_pretty(report).expect("figures are plain data");
    let folder = docs.join("figures");
    std::fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    write(&data_file::<R>(docs), &(data + "\n"));
}

/// Writes the table and charts into the page. Creates a missing page.
fn draw<R: Report>(report: &R, docs: &Path) {
    let page = docs.join(R::PAGE).with_extension("md");
    let text = match std::fs::read_to_string(&page) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => marks::<R>().concat(),
        Err(e) => panic!("{}: {e}", page.display()),
    };
    let text = drawn(report, &text);
    let text = text.unwrap_or_else(|| {
        let [begin, end] = marks::<R>();
        panic!("{} has no {begin:?} and {end:?}", page.display())
    });
    write(&page, &text);
}

/// The page with the report between its marks.
fn drawn<R: Report>(report: &R, page: &str) -> Option<String> {
    let [begin, end] = marks::<R>();
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    let (table, charts) = (report.table(), report.charts());
    let verdicts = verdicts(&report.figures());
    Some(format!(
        "{before}{begin}\n{table}{verdicts}{charts}\n{end}{after}"
    ))
}

/// A paragraph for each verdict. It counts the aims that are met, and names the others.
fn verdicts(figures: &[Figure]) -> String {
    let of = |is: fn(Verdict) -> bool| figures.iter().filter(move |f| is(f.verdict()));
    let named = |verdict, is| {
        let names: Vec<_> = of(is).map(|figure| figure.what.as_str()).collect();
        if names.is_empty() {
            String::new()
        } else {
            format!("\n{verdict}: {}.\n", names.join("; "))
        }
    };
    let met = match of(|v| v == Verdict::Met).count() {
        0 => String::new(),
        met => format!("\nAims met: {met}.\n"),
    };
    met + &named("Undecided", Verdict::undecided) + &named("Missed", |v| v == Verdict::Missed)
}

/// The lines around the report.
fn marks<R: Report>() -> [String; 2] {
    let begin = format!("<!-- scripts/bench {} writes from here -->\n", R::NAME);
    [begin, "<!-- to here -->\n".to_owned()]
}

fn data_file<R: Report>(docs: &Path) -> PathBuf {
    docs.join("figures").join(R::NAME).with_extension("json")
}

fn write(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// A chart in Mermaid, which draws no legend: the text below names its lines.
pub(crate) fn chart(
    title: &str,
    axis: &str,
    counts: &[usize],
    lines: &[(&str, Vec<f64>)],
) -> String {
    let list = |values: Vec<String>| values.join(", ");
    let counts = list(counts.iter().map(usize::to_string).collect());
    let line = |(_, values): &(&str, Vec<f64>)| {
        let values = list(values.iter().map(|value| format!("{value:.2}")).collect());
        format!("    line [{values}]\n")
    };
    let drawn: String = lines.iter().map(line).collect();
    let names = list(lines.iter().map(|(name, _)| (*name).to_owned()).collect());
    format!(
        "\n```mermaid\nxychart-beta\n    title \"{title}\"\n    x-axis \"{axis}\" [{counts}]\n\
         {drawn}```\n\nLines, in the order of their colours: {names}.\n"
    )
}

/// A row of a table. A cell without a value is empty.
pub(crate) fn row(what: &str, values: impl IntoIterator<Item = Option<f64>>) -> String {
    let cell = |value: Option<f64>| match value {
        Some(value) => format!(" {} |", number(value)),
        None => " |".to_owned(),
    };
    let cells: String = values.into_iter().map(cell).collect();
    format!("| {what} |{cells}\n")
}

/// The head of a table with one column per number.
pub(crate) fn head(what: &str, counts: &[usize]) -> String {
    let heads: String = counts.iter().map(|n| format!(" {n} |")).collect();
    format!("| {what} |{heads}\n|---|{}\n", "--:|".repeat(counts.len()))
}

fn number(value: f64) -> String {
    match value {
        v if v == v.round() && v < 1e9 => format!("{v:.0}"),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde::Deserialize;

    use super::*;

    /// The report in the documentation, and its page.
    pub(crate) fn documented<R: Report>() -> (R, String) {
        let docs = hostloop_test::machine::root().join("docs");
        let page = std::fs::read_to_string(docs.join(R::PAGE).with_extension("md"));
        (read(&docs), page.expect("the page is there"))
    }

    /// Requires that the page shows the data in the tree.
    pub(crate) fn require_drawn<R: Report>() {
        let (report, page) = documented::<R>();
        let drawn = drawn(&report, &page);
        assert!(
            drawn.as_ref() == Some(&page),
            "{}",
            drawn.unwrap_or_default()
        );
    }

    #[derive(Deserialize, Serialize)]
    struct Sample(String);

    impl Report for Sample {
        const NAME: &'static str = "sample";

        fn table(&self) -> String {
            format!("| {} |\n", self.0)
        }

        fn charts(&self) -> String {
            "\nchart\n".to_owned()
        }

        fn figures(&self) -> Vec<Figure> {
            Vec::new()
        }
    }

    #[test]
    fn data_are_kept_and_drawn_again_in_the_place_of_the_last() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let page = dir.path().join("sample.md");
        let begin = "<!-- scripts/bench sample writes from here -->";
        let shown = |text: &str| format!("{begin}\n\n| {text} |\n\nchart\n\n<!-- to here -->\n");
        let mut docs = Docs {
            dir: Some(dir.path().to_owned()),
            again: false,
        };
        docs.figures(|| Sample("first".to_owned()));
        assert_eq!(
            std::fs::read_to_string(&page).expect("it was made"),
            shown("first")
        );

        std::fs::write(&page, format!("a\n{}b\n", shown("old"))).expect("it can be changed");
        docs.again = true;
        docs.figures(|| -> Sample { panic!("nothing is measured") });
        let text = std::fs::read_to_string(&page).expect("it is there");
        assert_eq!(text, format!("a\n{}b\n", shown("first")));
        assert!(drawn(&Sample(String::new()), "no marks").is_none());
    }

    #[test]
    fn aims_that_are_not_met_are_named() {
        let figure = |what: &str, runs: &[f64]| {
            Figure::alone(
                what,
                runs.to_vec(),
                "ms",
                crate::measure::Aim::LessThan(2.0),
            )
        };
        let cases = [
            (vec![], ""),
            (vec![figure("a", &[1.0; 3])], "\nAims met: 1.\n"),
            (
                vec![
                    figure("a", &[1.0; 3]),
                    figure("b", &[3.0; 3]),
                    figure("c", &[1.0]),
                    figure("d", &[1.0, 1.0, 3.0]),
                    figure("e", &[1.0; 3]),
                ],
                "\nAims met: 2.\n\nUndecided: c; d.\n\nMissed: b.\n",
            ),
        ];
        for (figures, text) in cases {
            assert_eq!(verdicts(&figures), text);
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, shown) in [
            (3.0, "3"),
            (0.123, "0.12"),
            (12.34, "12.3"),
            (1234.5, "1234"),
        ] {
            assert_eq!(number(value), shown);
        }
        assert_eq!(row("a", [Some(1.0), None]), "| a | 1 | |\n");
    }
}
