//! Reads a line of the driver's log, in either of its formats.
//!
//! A text line is `TIME LEVEL TARGET: MESSAGE NAME=VALUE…`, with strings quoted. A JSON line is an
//! object with `timestamp`, `level`, `target`, `message` and the fields.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

/// The target of the lines about calls of the CSI services.
const CALL: &str = "hostloop::call";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogLine {
    /// When it was written.
    pub(super) time: Timestamp,
    /// `ERROR`, `WARN`, `INFO`, …
    pub(super) level: String,
    /// The part of the program that wrote it.
    pub(super) target: String,
    pub(super) message: String,
    /// The fields in order.
    pub(super) fields: Vec<(String, String)>,
}

/// A finished call of a CSI service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LoggedCall {
    /// When it ended.
    pub(super) time: Timestamp,
    /// The RPC, such as `NodeStageVolume`.
    pub(super) method: String,
    /// The name or ID that it was about.
    pub(super) about: String,
    /// The gRPC code, such as `OK`.
    pub(super) code: String,
    /// Its duration in milliseconds.
    pub(super) ms: String,
    /// The message of the error.
    pub(super) error: Option<String>,
}

impl LogLine {
    /// Reads a line. `None` if it continues an earlier one, or another program wrote it.
    pub(super) fn parse(text: &str) -> Option<LogLine> {
        if text.starts_with('{') {
            LogLine::from_json(text)
        } else {
            LogLine::from_text(text)
        }
    }

    fn from_json(text: &str) -> Option<LogLine> {
        let mut values: Map<String, Value> = serde_json::from_str(text).ok()?;
        let line = LogLine {
            time: take(&mut values, "timestamp")?.parse().ok()?,
            level: take(&mut values, "level")?,
            target: take(&mut values, "target").unwrap_or_default(),
            message: take(&mut values, "message").unwrap_or_default(),
            fields: Vec::new(),
        };
        let fields = values
            .iter()
            .map(|(name, value)| (name.clone(), word(value)));
        Some(LogLine {
            fields: fields.collect(),
            ..line
        })
    }

    fn from_text(text: &str) -> Option<LogLine> {
        let (time, rest) = text.split_once(' ')?;
        let time = time.parse().ok()?;
        let (level, rest) = rest.trim_start().split_once(' ')?;
        let (target, rest) = rest.split_once(": ")?;
        let (message, fields) = fields(rest);
        Some(LogLine {
            time,
            level: level.to_owned(),
            target: target.to_owned(),
            message,
            fields,
        })
    }

    /// The value of a field.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let field = self.fields.iter().find(|(field, _)| field == name);
        field.map(|(_, value)| value.as_str())
    }

    /// The value of a field, empty without the field.
    fn text(&self, name: &str) -> String {
        self.field(name).unwrap_or_default().to_owned()
    }

    /// The call that the line reports.
    pub(super) fn call(&self) -> Option<LoggedCall> {
        if self.target != CALL {
            return None;
        }
        Some(LoggedCall {
            time: self.time,
            method: self.field("method")?.to_owned(),
            about: self.text("about"),
            code: self.text("code"),
            ms: self.text("ms"),
            error: self.field("error").map(str::to_owned),
        })
    }
}

/// Removes a value from a line in JSON.
fn take(values: &mut Map<String, Value>, name: &str) -> Option<String> {
    values.remove(name).map(|value| word(&value))
}

/// A JSON value as the text format would have it.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The message and the fields after it. An unquoted value ends before the next ` NAME=`.
fn fields(text: &str) -> (String, Vec<(String, String)>) {
    let mut starts = Vec::new();
    let mut from = 0;
    while let Some(start) = field_start(text, from) {
        let value = start + text[start..].find('=').map_or(0, |at| at + 1);
        from = match text[value..].strip_prefix('"') {
            Some(quoted) => value + 1 + quoted_length(quoted),
            None => value,
        };
        starts.push((start, value));
    }
    let message_end = starts.first().map_or(text.len(), |(start, _)| *start);
    let ends = starts
        .iter()
        .skip(1)
        .map(|(start, _)| *start)
        .chain([text.len()]);
    let fields = starts.iter().zip(ends).map(|((start, value), end)| {
        let name = &text[*start..*value - 1];
        (name.to_owned(), unquoted(text[*value..end].trim_end()))
    });
    (text[..message_end].trim_end().to_owned(), fields.collect())
}

/// Where the next field's name begins, at or after `from`.
fn field_start(text: &str, from: usize) -> Option<usize> {
    let mut from = from;
    while let Some(at) = text[from..].find('=') {
        let end = from + at;
        let name = text[..end].rfind(' ').map_or(0, |space| space + 1);
        if name >= from.min(end) && name < end && is_field_name(&text[name..end]) {
            return Some(name);
        }
        from = end + 1;
    }
    None
}

fn is_field_name(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

/// The length of a quoted string and its closing quote.
fn quoted_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            '\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    text.len()
}

/// The text of a quoted value, with its escapes resolved; an unquoted value as it is.
fn unquoted(value: &str) -> String {
    let inner = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let Some(inner) = inner else {
        return value.to_owned();
    };
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            // Other escapes, such as \u{1b}, stay as they are.
            Some(c @ ('"' | '\\' | '\'')) => out.push(c),
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests;
