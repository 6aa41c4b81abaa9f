//! What the commands print: tables, JSON or YAML, to a terminal or a pipe.

use std::borrow::Cow;
use std::io;
use std::process::ExitCode;

use clap::ValueEnum;
use hostloop_terminal::terminal::{escaped, escaped_json};
use serde::Serialize;

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Tables with more columns.
    Wide,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
}

/// A value as JSON or YAML. `None` for tables.
pub(super) fn document(
    format: Option<Format>,
    value: &impl Serialize,
) -> io::Result<Option<String>> {
    match format {
        Some(Format::Json) => {
            let text = serde_json::to_string_pretty(value)?;
            Ok(Some(escaped_json(&text).into_owned()))
        }
        Some(Format::Yaml) => {
            let text = serde_saphyr::to_string(value).map_err(io::Error::other)?;
            if text
                .split('\n')
                .all(|line| matches!(escaped(line), Cow::Borrowed(_)))
            {
                Ok(Some(text.trim_end().to_owned()))
            } else {
                // JSON is YAML too, and has escapes for everything.
                document(Some(Format::Json), value)
            }
        }
        Some(Format::Wide) | None => Ok(None),
    }
}

/// The end of a command that printed. A reader that closed the pipe, such as `head`, has all it
/// wants.
pub(super) fn end(printed: io::Result<()>) -> io::Result<ExitCode> {
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// At most five names, and how many more there are.
pub(super) fn names<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> String {
    const SHOWN: usize = 5;
    let mut names = names.into_iter();
    let shown: Vec<N> = names.by_ref().take(SHOWN).collect();
    let shown: Vec<&str> = shown.iter().map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match names.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The text on one line.
pub(super) fn one_line(text: &str) -> String {
    escaped(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents() {
        let value = json!({"a": "x: y", "b": [1, null]});
        for (format, text) in [
            (None, None),
            (Some(Format::Wide), None),
            (
                Some(Format::Json),
                Some("{\n  \"a\": \"x: y\",\n  \"b\": [\n    1,\n    null\n  ]\n}"),
            ),
        ] {
            assert_eq!(document(format, &value).unwrap().as_deref(), text);
        }
        let yaml = document(Some(Format::Yaml), &value).unwrap().unwrap();
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(read, value, "{yaml}");
    }

    #[test]
    fn a_text_on_one_line() {
        for (text, line) in [
            ("a\tb", "a b"),
            ("two\n  lines \r\n", "two lines"),
            ("red \u{1b}[31m", "red \\u{1b}[31m"),
            ("größe", "größe"),
        ] {
            assert_eq!(one_line(text), line);
        }
    }

    #[test]
    fn long_lists_are_cut() {
        for (all, text) in [
            ("", ""),
            ("a b", "a, b"),
            ("a b c d e", "a, b, c, d, e"),
            ("a b c d e f g", "a, b, c, d, e and 2 more"),
        ] {
            assert_eq!(names(all.split_whitespace()), text);
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(end(Err(broken)).is_ok());
        assert!(end(Ok(())).is_ok());
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(end(Err(full)).is_err());
    }
}
