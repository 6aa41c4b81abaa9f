//! A mutant, as `cargo mutants --list --json` has it.

use proc_macro2::LineColumn;
use serde::Deserialize;

/// One small change of the code.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Mutant {
    /// Its number in the list, from 1. The variable that switches it on has this.
    #[serde(skip)]
    pub(crate) number: u32,
    name: String,
    pub(crate) file: String,
    span: Span,
    /// The text in place of the span's.
    pub(crate) replacement: String,
    pub(crate) genre: Genre,
}

/// What kind of change it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) enum Genre {
    /// A function does nothing but return a value.
    FnValue,
    BinaryOperator,
    /// An operator before an expression is not there.
    UnaryOperator,
    /// An arm of a match is not there, so that the catch-all does its work.
    MatchArm,
    /// The guard of an arm always holds, or never does.
    MatchArmGuard,
    /// A field has the value of the base that the literal names.
    StructField,
}

#[derive(Clone, Debug, Deserialize)]
struct Span {
    start: Position,
}

/// A line and a column, both from 1.
#[derive(Clone, Debug, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

impl Mutant {
    /// Reads a list, and numbers its mutants.
    pub(crate) fn list(text: &str) -> serde_json::Result<Vec<Mutant>> {
        let mut mutants: Vec<Mutant> = serde_json::from_str(text)?;
        for (mutant, number) in mutants.iter_mut().zip(1..) {
            mutant.number = number;
        }
        Ok(mutants)
    }

    /// Where it begins, as syn says it: with columns from 0.
    pub(crate) fn start(&self) -> LineColumn {
        LineColumn {
            line: self.span.start.line,
            column: self.span.start.column - 1,
        }
    }

    /// Its file, line and column.
    pub(crate) fn place(&self) -> String {
        let Position { line, column } = self.span.start;
        format!("{}:{line}:{column}", self.file)
    }

    /// What it changes, on one line and without the place.
    pub(crate) fn title(&self) -> String {
        let place = format!("{}: ", self.place());
        let title = self.name.strip_prefix(&place).unwrap_or(&self.name);
        title.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[cfg(test)]
    pub(crate) fn of(number: u32, genre: Genre, replacement: &str, start: LineColumn) -> Mutant {
        Mutant {
            number,
            name: String::new(),
            file: "src/lib.rs".to_owned(),
            span: Span {
                start: Position {
                    line: start.line,
                    column: start.column + 1,
                },
            },
            replacement: replacement.to_owned(),
            genre,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_numbered_and_titles_have_no_place() {
        let text = r#"[{
            "name": "a/b.rs:3:7: replace < with\n   > in f",
            "package": "a",
            "file": "a/b.rs",
            "function": null,
            "span": {"start": {"line": 3, "column": 7}, "end": {"line": 3, "column": 8}},
            "replacement": ">",
            "genre": "BinaryOperator"
        }]"#;
        let mutants = Mutant::list(text).unwrap();
        assert_eq!(mutants[0].number, 1);
        assert_eq!(mutants[0].place(), "a/b.rs:3:7");
        assert_eq!(
            mutants[0].title(),
            "replace < with\n   > in f".replace("\n   ", " ")
        );
        let LineColumn { line, column } = mutants[0].start();
        assert_eq!((line, column), (3, 6));
    }
}
