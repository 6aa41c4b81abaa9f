//! One event, and its JSON.

use std::fmt::{self, Write};
use std::sync::Arc;

pub use hostloop_report::clock::now_us as now;
use schemars::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The longest text in an event, in characters; the rest is cut off. Error messages name several
/// objects and paths.
pub const MAX_TEXT: usize = 512;
/// The longest list in an event; the rest is cut off.
const MAX_LIST: usize = 16;

/// What the ring and the allocator add to each event, in bytes.
const OVERHEAD: usize = 48;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A CSI RPC. One under way has no duration; its end is a second event with the same ID.
    Call,
    /// A step inside a call.
    Phase,
    /// A controller works on an object.
    Work,
    /// An object waits in a controller's queue.
    Queue,
    /// A lease was acquired or lost.
    Lease,
}

/// The state of an object in a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waited for a free worker.
    Queued,
    /// A worker has it.
    Working,
    /// It comes back at a set time.
    Waiting,
    /// It comes back after a failure.
    BackingOff,
    /// The work succeeded.
    Done,
    /// The work failed.
    Failed,
}

impl Kind {
    /// The name in JSON and in spans.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Call => "call",
            Kind::Phase => "phase",
            Kind::Work => "work",
            Kind::Queue => "queue",
            Kind::Lease => "lease",
        }
    }
}

impl State {
    /// The name in JSON and in spans.
    pub fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Working => "working",
            State::Waiting => "waiting",
            State::BackingOff => "backing off",
            State::Done => "done",
            State::Failed => "failed",
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// An event. Absent fields are unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Event {
    /// The start, in microseconds since the epoch.
    pub t: u64,
    /// The duration in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us: Option<u64>,
    /// `call`, `phase`, `work`, `queue` or `lease`.
    #[schemars(with = "String")]
    pub kind: Kind,
    /// The RPC, the step, the controller, or what happened to the lease.
    pub name: &'static str,
    /// The UID of the claim or snapshot if it is known, else another ID of the object.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub trace: Arc<str>,
    /// The ID of the call or work. Its beginning and its end have the same one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The ID of the call that a step is part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<u64>,
    /// The subject.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub about: Arc<str>,
    /// The state of an object in a controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub state: Option<State>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The message of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<str>>,
    /// Microseconds until the next try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    #[serde(skip_serializing_if = "Fields::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub request: Fields,
    #[serde(skip_serializing_if = "Fields::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub answer: Fields,
}

impl Event {
    /// An event that starts now, without the optional fields.
    pub fn new(kind: Kind, name: &'static str, trace: Arc<str>, about: Arc<str>) -> Event {
        Event {
            t: now(),
            us: None,
            kind,
            name,
            trace,
            id: None,
            parent: None,
            about,
            state: None,
            code: None,
            error: None,
            next: None,
            request: Fields::default(),
            answer: Fields::default(),
        }
    }

    /// About the memory that the event takes, in bytes. Text that events share counts for each.
    pub(crate) fn size(&self) -> usize {
        OVERHEAD
            + size_of::<Event>()
            + self.trace.len()
            + self.about.len()
            + self.error.as_deref().map_or(0, str::len)
            + self.request.size()
            + self.answer.size()
    }
}

/// Displays a text of another program, cut to this many characters. Characters that a line can't
/// show are escaped, such as line feeds. Quotes and backslashes stay.
#[derive(Clone, Copy, Debug)]
pub struct Shortened<'a>(pub &'a str, pub usize);

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.chars();
        for c in left.by_ref().take(self.1) {
            match c {
                '"' | '\'' | '\\' => f.write_char(c)?,
                c => write!(f, "{}", c.escape_debug())?,
            }
        }
        match left.next() {
            Some(_) => f.write_char('…'),
            None => Ok(()),
        }
    }
}

/// The text as an event has it.
pub(crate) fn shorten(text: &str) -> Box<str> {
    if text.len() <= MAX_TEXT && text.bytes().all(is_plain) {
        text.into()
    } else {
        Shortened(text, MAX_TEXT).to_string().into()
    }
}

/// True for a byte that stands for itself in one line of text.
fn is_plain(byte: u8) -> bool {
    byte == b' ' || byte.is_ascii_graphic()
}

/// A value in a request or an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Field {
    Text(Box<str>),
    Number(u64),
    Flag(bool),
    List(Box<[Box<str>]>),
}

impl Field {
    fn size(&self) -> usize {
        match self {
            Field::Text(text) => text.len(),
            Field::Number(_) | Field::Flag(_) => 0,
            Field::List(list) => list
                .iter()
                .map(|text| size_of::<Box<str>>() + text.len())
                .sum(),
        }
    }

    /// True for a field that the sender did not set.
    fn is_default(&self) -> bool {
        match self {
            Field::Text(text) => text.is_empty(),
            Field::Number(number) => *number == 0,
            Field::Flag(flag) => !flag,
            Field::List(list) => list.is_empty(),
        }
    }
}

impl From<&str> for Field {
    fn from(text: &str) -> Field {
        Field::Text(shorten(text))
    }
}

impl From<&String> for Field {
    fn from(text: &String) -> Field {
        text.as_str().into()
    }
}

impl From<i64> for Field {
    fn from(number: i64) -> Field {
        Field::Number(u64::try_from(number).unwrap_or_default())
    }
}

impl From<bool> for Field {
    fn from(flag: bool) -> Field {
        Field::Flag(flag)
    }
}

impl From<&Vec<String>> for Field {
    fn from(list: &Vec<String>) -> Field {
        Field::List(
            list.iter()
                .take(MAX_LIST)
                .map(|text| shorten(text))
                .collect(),
        )
    }
}

/// Fields of a request or an answer, by name. Only fields that are never secret belong here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(Box<[(&'static str, Field)]>);

impl Fields {
    /// These fields, without unset ones.
    pub fn of(fields: impl IntoIterator<Item = (&'static str, Field)>) -> Fields {
        Fields(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_default())
                .collect(),
        )
    }

    /// True without fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields that are set.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(&'static str, Field)> {
        self.0.iter()
    }

    fn size(&self) -> usize {
        self.0
            .iter()
            .map(|field| size_of_val(field) + field.1.size())
            .sum()
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_json_has_no_unknown_fields() {
        let mut event = Event::new(Kind::Call, "CreateVolume", "uid".into(), "pvc-uid".into());
        event.t = 5;
        event.id = Some(1);
        assert_eq!(
            serde_json::to_value(&event).unwrap(),
            json!({"t": 5, "kind": "call", "name": "CreateVolume", "trace": "uid", "id": 1,
                "about": "pvc-uid"})
        );
        let ids = vec!["a".to_owned(), "b".to_owned()];
        event.us = Some(7);
        event.state = Some(State::BackingOff);
        event.error = Some("why".into());
        event.request = Fields::of([
            ("bytes", 4096.into()),
            ("readonly", true.into()),
            ("ids", (&ids).into()),
            ("unset", "".into()),
            ("zero", 0.into()),
        ]);
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!(json["state"], "backing off");
        assert_eq!(
            json["request"],
            json!({"bytes": 4096, "readonly": true, "ids": ["a", "b"]})
        );
    }

    #[test]
    fn text_is_escaped_and_bounded() {
        for (text, short) in [
            ("pvc-1", "pvc-1".to_owned()),
            ("a\n\u{1b}[31m", "a\\n\\u{1b}[31m".to_owned()),
            ("größe \"x\" in 'a\\b'", "größe \"x\" in 'a\\b'".to_owned()),
            ("a\u{202e}b", "a\\u{202e}b".to_owned()),
            ("", String::new()),
            (&"ä".repeat(MAX_TEXT), "ä".repeat(MAX_TEXT)),
            (&"ä".repeat(MAX_TEXT + 1), "ä".repeat(MAX_TEXT) + "…"),
        ] {
            assert_eq!(*shorten(text), *short);
        }
        let cut = Shortened("a\tbcd", 3);
        assert_eq!(cut.to_string(), "a\\tb…");
        let many = vec![String::new(); 1000];
        assert_eq!(
            Field::from(&many),
            Field::List(vec!["".into(); MAX_LIST].into())
        );
    }
}
