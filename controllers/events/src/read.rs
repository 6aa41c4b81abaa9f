//! Reads the events of a process from its socket.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::FORMAT;
use crate::serve::{Header, Request};

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

/// A stream of events from a socket.
#[derive(Debug)]
pub struct Stream {
    pub header: Header,
    lines: Lines<BufReader<OwnedReadHalf>>,
    /// The process ends the stream when this is closed.
    _writer: OwnedWriteHalf,
}

impl Stream {
    /// Connects, and sends a request.
    pub async fn open(path: &Path, request: &Request) -> Result<Stream, Error> {
        let stream = UnixStream::connect(path).await;
        let stream = stream.map_err(|source| Error::Connect {
            path: path.to_owned(),
            source,
        })?;
        let (reader, mut writer) = stream.into_split();
        let mut request = serde_json::to_vec(request)?;
        request.push(b'\n');
        writer.write_all(&request).await?;
        let mut lines = BufReader::new(reader).lines();
        let first = lines.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof);
        let header = header(&first.map_err(io::Error::from)?)?;
        Ok(Stream {
            header,
            lines,
            _writer: writer,
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
