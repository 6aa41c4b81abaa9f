//! Parses templates.

use serde_json::Value;

use super::{Comparison, Filter, Path, PathStep, Piece};

/// Why a template is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("a brace is not closed")]
    OpenBrace,
    #[error("a brace is closed that was not opened; quote it: {{\"}}\"}}")]
    ClosedBrace,
    #[error("a quote is not closed")]
    OpenQuote,
    #[error("{{range}} has no {{end}}")]
    NoEnd,
    #[error("{{end}} has no {{range}}")]
    NoRange,
    #[error(
        "{0:?} is not understood; paths such as {{.volumes[*].claim}}, {{range …}}…{{end}}, quoted \
         text and filters such as [?(@.state==\"stuck\")] are"
    )]
    Unknown(String),
}

/// The signs of comparisons: the longer before its beginning.
const COMPARISONS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// The part of a template that is not parsed yet.
pub(super) struct Parser<'t> {
    rest: &'t str,
}

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str) -> Parser<'t> {
        Parser { rest: text }
    }

    /// The whole template.
    pub(super) fn template(mut self) -> Result<Vec<Piece>, Error> {
        let (pieces, has_end) = self.pieces()?;
        if has_end {
            return Err(Error::NoRange);
        }
        Ok(pieces)
    }

    /// The pieces up to the end of the template or, as the answer says, to an `{end}`.
    fn pieces(&mut self) -> Result<(Vec<Piece>, bool), Error> {
        let mut pieces = Vec::new();
        while !self.rest.is_empty() {
            let at = self.rest.find(['{', '}']).unwrap_or(self.rest.len());
            if at > 0 {
                pieces.push(Piece::Text(self.rest[..at].to_owned()));
                self.rest = &self.rest[at..];
            } else if self.takes("{") {
                if self.action(&mut pieces)? {
                    return Ok((pieces, true));
                }
            } else {
                return Err(Error::ClosedBrace);
            }
        }
        Ok((pieces, false))
    }

    /// What stands in braces, to the closing one. True if it is `end`.
    fn action(&mut self, pieces: &mut Vec<Piece>) -> Result<bool, Error> {
        loop {
            self.skip_blanks();
            if self.rest.is_empty() {
                return Err(Error::OpenBrace);
            }
            if self.takes("}") {
                return Ok(false);
            }
            if self.takes("end}") {
                return Ok(true);
            }
            if self.takes("range ") {
                self.skip_blanks();
                let path = self.path()?;
                self.skip_blanks();
                self.expects("}")?;
                let (inner, has_end) = self.pieces()?;
                if !has_end {
                    return Err(Error::NoEnd);
                }
                pieces.push(Piece::Range(path, inner));
                return Ok(false);
            }
            pieces.push(match self.rest.chars().next() {
                Some('"' | '\'') => Piece::Text(self.quoted()?),
                _ => Piece::Path(self.path()?),
            });
        }
    }

    /// A path. It has a beginning or at least a step.
    fn path(&mut self) -> Result<Path, Error> {
        let is_absolute = self.takes("$");
        // `.` alone is the current value, too.
        let has_root = is_absolute || self.takes("@") || self.is_dot();
        let mut steps = Vec::new();
        loop {
            if self.takes("[") {
                steps.push(self.bracket()?);
            } else if self.rest.starts_with("..") {
                return Err(self.unknown());
            } else if self.takes(".") {
                steps.extend(self.field()?);
            } else if steps.is_empty() && !has_root {
                return Err(self.unknown());
            } else {
                return Ok(Path { is_absolute, steps });
            }
        }
    }

    /// True for a dot without a name behind it.
    fn is_dot(&self) -> bool {
        let after = self.rest.strip_prefix('.');
        after.is_some_and(|rest| rest.is_empty() || rest.starts_with(['}', ' ', '[', ')']))
    }

    /// What stands behind a dot: a name, a star, or nothing at the end of `{.}`.
    fn field(&mut self) -> Result<Option<PathStep>, Error> {
        if self.takes("*") {
            return Ok(Some(PathStep::All));
        }
        let mut name = String::new();
        loop {
            let mut chars = self.rest.chars();
            match chars.next() {
                // As in `app\.kubernetes\.io/name`.
                Some('\\') => name.extend(chars.next()),
                Some(c) if c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | ':') => {
                    name.push(c)
                }
                _ => break,
            }
            self.rest = chars.as_str();
        }
        match self.rest.chars().next() {
            _ if !name.is_empty() => Ok(Some(PathStep::Field(name))),
            None | Some('}' | ' ' | '[' | ')') => Ok(None),
            Some(_) => Err(self.unknown()),
        }
    }

    /// What stands in brackets, to the closing one.
    fn bracket(&mut self) -> Result<PathStep, Error> {
        self.skip_blanks();
        let step = if self.takes("*") {
            PathStep::All
        } else if self.takes("?(") {
            PathStep::Filter(self.filter()?)
        } else if self.rest.starts_with(['"', '\'']) {
            PathStep::Field(self.quoted()?)
        } else {
            let from = self.number()?;
            match (self.takes(":"), from) {
                (true, from) => PathStep::Elements(from, self.number()?),
                (false, Some(at)) => PathStep::Element(at),
                (false, None) => return Err(self.unknown()),
            }
        };
        self.skip_blanks();
        self.expects("]")?;
        Ok(step)
    }

    /// A filter, to its closing parenthesis.
    fn filter(&mut self) -> Result<Filter, Error> {
        self.skip_blanks();
        let left = self.path()?;
        self.skip_blanks();
        let comparison = COMPARISONS.into_iter().find(|(sign, _)| self.takes(sign));
        let comparison = match comparison {
            Some((_, comparison)) => {
                self.skip_blanks();
                Some((comparison, self.value()?))
            }
            None => None,
        };
        self.skip_blanks();
        self.expects(")")?;
        Ok(Filter { left, comparison })
    }

    /// The right side of a comparison.
    fn value(&mut self) -> Result<Value, Error> {
        if self.rest.starts_with(['"', '\'']) {
            return self.quoted().map(Value::String);
        }
        let end = self
            .rest
            .find(|c: char| !c.is_alphanumeric() && !matches!(c, '-' | '.' | '+'));
        let word = &self.rest[..end.unwrap_or(self.rest.len())];
        // `true`, `null` and numbers are as in JSON.
        let value = serde_json::from_str::<Value>(word).map_err(|_| self.unknown())?;
        self.rest = &self.rest[word.len()..];
        Ok(value)
    }

    fn number(&mut self) -> Result<Option<i64>, Error> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit() && c != '-');
        let word = &self.rest[..end.unwrap_or(self.rest.len())];
        if word.is_empty() {
            return Ok(None);
        }
        let number = word.parse::<i64>().map_err(|_| self.unknown())?;
        self.rest = &self.rest[word.len()..];
        Ok(Some(number))
    }

    /// A text in quotes, with escapes.
    fn quoted(&mut self) -> Result<String, Error> {
        let mut chars = self.rest.chars();
        let quote = chars.next();
        let mut text = String::new();
        loop {
            match chars.next() {
                None => return Err(Error::OpenQuote),
                Some('\\') => text.push(match chars.next().ok_or(Error::OpenQuote)? {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                }),
                end if end == quote => break,
                Some(c) => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Ok(text)
    }

    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// True if the rest begins with this, which is then behind.
    fn takes(&mut self, start: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(start) else {
            return false;
        };
        self.rest = rest;
        true
    }

    fn expects(&mut self, start: &str) -> Result<(), Error> {
        if self.takes(start) {
            Ok(())
        } else if self.rest.is_empty() {
            Err(Error::OpenBrace)
        } else {
            Err(self.unknown())
        }
    }

    fn unknown(&self) -> Error {
        Error::Unknown(self.rest.to_owned())
    }
}
