//! The format of events: what a process sends of what it did, and `hostloop events --json` prints.
//!
//! A reader writes one line, a [`Request`]. It gets a [`Header`] and then events, one JSON object a
//! line. An empty line shows a reader without new events that the stream lives.

use std::fmt;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, Lines};

/// The name and version of the format, in the first line of each stream.
pub const FORMAT: &str = "hostloop.events/v1";

/// The process that emits the events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// `node`, `controller` or `proxy`.
    pub process: String,
    /// The node's ID, on a node.
    pub node: Option<String>,
    pub version: String,
}

/// What a reader asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The number of the first event.
    pub from: u64,
    /// The ring that `from` counts in; empty for any. Events of another ring come from the first.
    pub boot: String,
    pub follow: bool,
}

/// The first line of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub events: String,
    /// The ring. It differs after each start of the process.
    pub boot: String,
    #[serde(flatten)]
    pub process: Process,
    /// The number of the first event, if there is one. It is higher than requested if events
    /// between them are lost.
    pub from: u64,
}

/// Why events can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("events socket {path}: {source}; does the driver run, with this --events-socket?")]
    Connect { path: PathBuf, source: io::Error },
    #[error("reading events: {0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("the events have the format {0:?}, not {FORMAT}; use the program of that version")]
    Format(String),
    #[error("a line is not an event: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// A line of a stream after its header.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Event {
        seq: u64,
        json: Value,
    },
    /// There was no event for a while.
    Nothing,
}

/// Reads the first line of a stream.
pub fn header(line: &str) -> Result<Header, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct First {
        events: String,
        error: String,
    }
    let first: First = serde_json::from_str(line)?;
    match first {
        First { error, .. } if !error.is_empty() => Err(Error::Refused(error)),
        First { events, .. } if events != FORMAT => Err(Error::Format(events)),
        _ => Ok(serde_json::from_str(line)?),
    }
}

/// Reads another line.
pub fn said(line: &str) -> Result<Said, Error> {
    if line.trim().is_empty() {
        return Ok(Said::Nothing);
    }
    let json: Value = serde_json::from_str(line)?;
    let seq = json["seq"].as_u64().unwrap_or_default();
    Ok(Said::Event { seq, json })
}

/// A stream of events over a connection.
pub struct Stream {
    /// The first line.
    pub header: Header,
    lines: Lines<BufReader<Box<dyn AsyncRead + Send + Unpin>>>,
    /// The process ends the stream when this is closed.
    _writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// Sends a request over a connection, and reads the first line.
    pub async fn begin(
        reader: impl AsyncRead + Send + Unpin + 'static,
        mut writer: impl AsyncWrite + Send + Unpin + 'static,
        request: &Request,
    ) -> Result<Stream, Error> {
        let mut request = serde_json::to_vec(request)?;
        request.push(b'\n');
        writer.write_all(&request).await?;
        let reader: Box<dyn AsyncRead + Send + Unpin> = Box::new(reader);
        let mut lines = BufReader::new(reader).lines();
        let first = lines.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof);
        let header = header(&first.map_err(io::Error::from)?)?;
        Ok(Stream {
            header,
            lines,
            _writer: Box::new(writer),
        })
    }

    /// The next line; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Said>, Error> {
        self.lines
            .next_line()
            .await?
            .map(|line| said(&line))
            .transpose()
    }

    /// The next line as it is; `None` at the end of the stream.
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        self.lines.next_line().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines() {
        let good = format!(
            "{{\"events\":\"{FORMAT}\",\"boot\":\"b\",\"process\":\"controller\",\"node\":null,\
             \"version\":\"1\",\"from\":7}}"
        );
        let header = header(&good).unwrap();
        assert_eq!((header.from, &*header.process.process), (7, "controller"));
        for (line, contains) in [
            ("{\"error\":\"too many\"}", "too many"),
            (
                "{\"events\":\"hostloop.events/v9\"}",
                "the format \"hostloop.events/v9\"",
            ),
            ("{}", "the format \"\""),
            ("hello", "is not an event"),
            ("", "is not an event"),
        ] {
            let error = super::header(line).unwrap_err().to_string();
            assert!(error.contains(contains), "{line}: {error}");
        }
    }

    #[test]
    fn further_lines() {
        assert_eq!(said("").unwrap(), Said::Nothing);
        let Said::Event { seq, json } = said("{\"seq\":3,\"new\":1}").unwrap() else {
            panic!("an event");
        };
        assert_eq!((seq, json["new"].as_u64()), (3, Some(1)));
        assert!(said("{").is_err());
    }
}
