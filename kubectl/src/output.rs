//! What the commands print: tables, JSON, YAML, names or a template, to a terminal or a pipe.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::process::ExitCode;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use hostloop_terminal::terminal::{self, escaped, escaped_json};
use serde::Serialize;

mod jsonpath;

use jsonpath::JsonPath;

/// The flags of all commands that print what they found. `HAS_NAMES` is false for those that find
/// no objects.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct OutputArgs<const HAS_NAMES: bool = true> {
    /// The form of the output; jsonpath=TEMPLATE takes parts of the JSON [default: text]
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        value_parser = Forms { has_names: HAS_NAMES }
    )]
    pub(super) output: Option<Format>,

    /// Print rows alone: no headings and no titles of columns
    #[arg(long)]
    pub(super) no_headers: bool,

    /// The same as --output json
    #[arg(long, conflicts_with = "output")]
    pub(super) json: bool,
}

/// The form of the output.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Format {
    /// Tables with more columns.
    Wide,
    /// One JSON object.
    Json,
    /// One YAML document.
    Yaml,
    /// The names of the objects, each as `kind/name` on a line.
    Name,
    /// What a template takes of the JSON object.
    JsonPath(JsonPath),
}

/// Reads the value of `--output`, and tells shells what it may be.
#[derive(Clone, Copy, Debug)]
struct Forms {
    /// The command finds objects.
    has_names: bool,
}

impl Forms {
    fn read(self, command: &str, word: &str) -> Result<Format, String> {
        match (word, word.split_once('=')) {
            ("wide", _) => Ok(Format::Wide),
            ("json", _) => Ok(Format::Json),
            ("yaml", _) => Ok(Format::Yaml),
            ("name", _) if self.has_names => Ok(Format::Name),
            (_, Some(("jsonpath", template))) => {
                let template = JsonPath::parse(template).map_err(|error| error.to_string())?;
                Ok(Format::JsonPath(template))
            }
            _ => {
                let name = if self.has_names { ", name" } else { "" };
                Err(format!(
                    "{command} prints wide, json, yaml{name} or jsonpath=TEMPLATE"
                ))
            }
        }
    }
}

impl TypedValueParser for Forms {
    type Value = Format;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Format, clap::Error> {
        let (forms, name) = (*self, command.get_name().to_owned());
        StringValueParser::new()
            .try_map(move |word: String| forms.read(&name, &word))
            .parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let all = ["wide", "json", "yaml", "name", "jsonpath="].into_iter();
        let known = all.filter(|word| self.has_names || *word != "name");
        Some(Box::new(known.map(PossibleValue::new)))
    }
}

/// How the lines for people look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TextForm {
    /// The terminal's width, if there is one.
    pub(super) width: Option<usize>,
    /// True for more columns.
    pub(super) is_wide: bool,
    /// True for rows alone.
    pub(super) no_headers: bool,
}

impl<const HAS_NAMES: bool> OutputArgs<HAS_NAMES> {
    /// A document in the form that the person wants; `None` for text. `names` has the objects, each
    /// as `kind/name`.
    pub(super) fn document(
        &self,
        value: &impl Serialize,
        names: impl FnOnce() -> Vec<String>,
    ) -> io::Result<Option<Vec<String>>> {
        Ok(Some(match self.format() {
            Some(Format::Json) => vec![terminal::document(&json(value)?)],
            Some(Format::Yaml) => vec![terminal::document(&yaml(value)?)],
            Some(Format::Name) => names(),
            Some(Format::JsonPath(template)) => {
                let text = template.evaluate(&serde_json::to_value(value)?);
                // The end of a line is printed in any case.
                vec![terminal::document(text.strip_suffix('\n').unwrap_or(&text))]
            }
            Some(Format::Wide) | None => return Ok(None),
        }))
    }

    /// The form, if it is not text.
    pub(super) fn format(&self) -> Option<&Format> {
        if self.json {
            Some(&Format::Json)
        } else {
            self.output.as_ref()
        }
    }

    /// How text looks.
    pub(super) fn text_form(&self) -> TextForm {
        let is_wide = self.output == Some(Format::Wide);
        TextForm {
            width: terminal::width().filter(|_| !is_wide),
            is_wide,
            no_headers: self.no_headers,
        }
    }

    /// True if people read the output, as tables.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.format(), None | Some(Format::Wide))
    }
}

fn json(value: &impl Serialize) -> io::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(escaped_json(&text).into_owned())
}

/// True for a line that is printed as it is.
fn is_plain(line: &str) -> bool {
    matches!(escaped(line), Cow::Borrowed(_))
}

pub(super) fn yaml(value: &impl Serialize) -> io::Result<String> {
    let text = serde_saphyr::to_string(value).map_err(io::Error::other)?;
    if text.split('\n').all(is_plain) {
        Ok(text.trim_end().to_owned())
    } else {
        // JSON is YAML too, and has escapes for everything.
        json(value)
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

/// The first of many things, a line each, and the number of the others.
pub(super) fn first_lines(all: &[String]) -> String {
    const SHOWN: usize = 10;
    let shown = all.iter().take(SHOWN).map(|one| format!("\n  {one}"));
    let shown: String = shown.collect();
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}\n  and {more} more"),
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
    use rstest::rstest;

    use super::*;
    use crate::test_objects::plain;

    /// Those of a command that finds objects.
    const FORMS: Forms = Forms { has_names: true };

    #[derive(Serialize)]
    struct Found {
        a: &'static str,
        b: Vec<Option<u8>>,
    }

    #[rstest]
    #[case::text(None, None)]
    #[case::wide(Some("wide"), None)]
    #[case::json(
        Some("json"),
        Some("{\n  \"a\": \"x: y\",\n  \"b\": [\n    1,\n    null\n  ]\n}")
    )]
    #[case::name(Some("name"), Some("pod/web"))]
    #[case::jsonpath(Some("jsonpath={.a}{\"\\n\"}{.b[0]}{\"\\n\"}"), Some("x: y\n1"))]
    fn forms(#[case] word: Option<&str>, #[case] text: Option<&str>) {
        let args = OutputArgs::<true> {
            output: word.map(|word| FORMS.read("status", word).unwrap()),
            ..OutputArgs::default()
        };
        let lines = args.document(&found(), || vec!["pod/web".to_owned()]);
        let lines = lines.unwrap();
        let printed = lines.map(|lines| plain(&lines).join("\n"));
        assert_eq!(printed.as_deref(), text);
    }

    fn found() -> Found {
        Found {
            a: "x: y",
            b: vec![Some(1), None],
        }
    }

    #[test]
    fn yaml_has_the_same_values() {
        let read: serde_json::Value = serde_saphyr::from_str(&yaml(&found()).unwrap()).unwrap();
        assert_eq!(read, serde_json::json!({"a": "x: y", "b": [1, null]}));
    }

    #[rstest]
    #[case::other(
        true,
        "xml",
        "status prints wide, json, yaml, name or jsonpath=TEMPLATE"
    )]
    #[case::no_template(
        true,
        "jsonpath",
        "status prints wide, json, yaml, name or jsonpath=TEMPLATE"
    )]
    #[case::template(true, "jsonpath={.a", "a brace is not closed")]
    #[case::no_names(false, "name", "status prints wide, json, yaml or jsonpath=TEMPLATE")]
    fn refused_forms(#[case] has_names: bool, #[case] word: &str, #[case] why: &str) {
        let refused = Forms { has_names }.read("status", word).unwrap_err();
        assert_eq!(refused, why);
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
