//! Recordings: the messages of a while, as JSON or in a page that shows them without a server. The report of
//! an exploration is read as a recording that has nothing else.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::message::{Message, PageSubject};

const FORMAT: &str = "hostloop.recording/v1";
/// The element of the page with a recording.
const BEGIN: &str = "<script type=\"application/json\" id=\"recording\">";
const END: &str = "</script>";
/// Where the page can have a recording.
const PLACE: &str = "<!--recording-->";

/// Why a recording can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("reading {0}: {1}")]
    Read(PathBuf, #[source] std::io::Error),
    /// The file can't be written.
    #[error("writing {0}: {1}")]
    Write(PathBuf, #[source] std::io::Error),
    /// The file has no recording.
    #[error("{0} has no recording: it is neither JSON nor a page that `--record` wrote")]
    None(PathBuf),
    /// The file has no readable recording.
    #[error("{0}: the recording is unreadable: {1}")]
    Unreadable(PathBuf, #[source] serde_json::Error),
    /// The recording has another format.
    #[error(
        "{0}: the recording has the format {1:?}, not {FORMAT}; use the program of version {2}"
    )]
    Format(PathBuf, String, String),
}

#[derive(Deserialize)]
struct Recording {
    #[serde(default)]
    recording: String,
    #[serde(default)]
    version: String,
    /// The ID of an exploration, in the report of one.
    #[serde(default)]
    exploration: String,
}

/// Reads a recording from JSON or from a page, and returns its JSON. It uses nothing else of
/// another page.
pub fn read(path: &Path) -> Result<String, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::Read(path.into(), error))?;
    Ok(parse(path, &text)?.into_owned())
}

/// Finds the JSON of a recording, or makes it of a report.
fn parse<'t>(path: &Path, text: &'t str) -> Result<Cow<'t, str>, Error> {
    let json = if text.trim_start().starts_with('{') {
        text
    } else {
        element(text).ok_or_else(|| Error::None(path.into()))?
    };
    let read: Recording = from_json(path, json)?;
    if read.recording == FORMAT {
        Ok(Cow::Borrowed(json))
    } else if read.recording.is_empty() && !read.exploration.is_empty() {
        Ok(Cow::Owned(of_exploration(&from_json(path, json)?)))
    } else {
        Err(Error::Format(path.into(), read.recording, read.version))
    }
}

fn from_json<T: DeserializeOwned>(path: &Path, json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|error| Error::Unreadable(path.into(), error))
}

/// The recording that shows the report of an exploration.
fn of_exploration(report: &Value) -> String {
    let subject = PageSubject::default();
    json(&[subject.hello(), Message::exploration(report).text])
}

/// The content of the element with the recording.
fn element(page: &str) -> Option<&str> {
    let start = page.find(BEGIN)? + BEGIN.len();
    let length = page[start..].find(END)?;
    Some(&page[start..start + length])
}

/// Writes a page with these messages.
pub(super) fn write(path: &Path, page: &str, messages: &[Arc<str>]) -> Result<(), Error> {
    let written = std::fs::write(path, page_with(page, &json(messages)));
    written.map_err(|error| Error::Write(path.into(), error))
}

/// The recording as JSON.
pub(super) fn json(messages: &[Arc<str>]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let messages = messages
        .iter()
        .map(|text| &**text)
        .collect::<Vec<_>>()
        .join(",\n");
    format!(
        "{{\"recording\":\"{FORMAT}\",\"version\":\"{version}\",\"messages\":[\n{messages}\n]}}"
    )
}

/// The page with a recording in its place. No text of the recording can end the element.
fn page_with(page: &str, json: &str) -> String {
    let json = json.replace('<', "\\u003c");
    page.replacen(PLACE, &format!("{BEGIN}{json}{END}"), 1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_has_its_recording_whatever_the_messages_are() {
        let messages: Vec<Arc<str>> = [
            r#"{"type":"hello"}"#,
            r#"{"text":"</script><script>alert(1)</script>"}"#,
            r#"{"text":"<!--recording--> größe"}"#,
        ]
        .map(Arc::from)
        .to_vec();
        let page = page_with(
            "<html><!--recording--><script>1</script></html>",
            &json(&messages),
        );
        assert_eq!(page.matches("<script").count(), 2, "{page}");
        assert_eq!(page.matches("</script").count(), 2, "{page}");
        assert!(page.find(BEGIN) < page.find("<script>1"));
        let messages_of = |text: &str| -> Vec<Value> {
            let json = parse(Path::new("f"), text).unwrap();
            let read: Value = serde_json::from_str(&json).unwrap();
            read["messages"].as_array().unwrap().clone()
        };
        let sent: Vec<Value> = messages
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect();
        assert_eq!(messages_of(&page), sent);
        assert_eq!(messages_of(&json(&messages)), sent);
        let again = page_with("<!--recording-->", &parse(Path::new("f"), &page).unwrap());
        assert_eq!(messages_of(&again), sent);
    }

    #[test]
    fn the_report_of_an_exploration_is_a_recording() {
        let report = json!({"exploration": "exploration-1", "timeline": []});
        let text = report.to_string();
        let read = parse(Path::new("f"), &text).unwrap();
        let read: Value = serde_json::from_str(&read).unwrap();
        assert_eq!(read["recording"], FORMAT);
        assert_eq!(read["messages"][0]["type"], "hello");
        assert_eq!(read["messages"][1]["type"], "exploration");
        assert_eq!(read["messages"][1]["report"], report);
        // Its page can be saved, and opened again.
        let saved = page_with("<!--recording-->", &read.to_string());
        assert!(parse(Path::new("f"), &saved).is_ok());
    }

    #[test]
    fn what_is_no_recording_is_refused_in_a_sentence() {
        for (text, contains) in [
            ("", "f has no recording"),
            ("<html></html>", "f has no recording"),
            ("{", "f: the recording is unreadable"),
            ("{}", "the format \"\""),
            (
                r#"{"recording":"hostloop.recording/v2","version":"9.1"}"#,
                "not hostloop.recording/v1; use the program of version 9.1",
            ),
        ] {
            let error = parse(Path::new("f"), text).unwrap_err().to_string();
            assert!(error.contains(contains), "{text}: {error}");
        }
    }
}
